//! The control socket: rules for faults, while the device is served.
//!
//! A client connects, sends one line, gets one line, and is disconnected. The line is a rule, or `clear`. The answer begins with
//! `ok` or `error`.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use peerbar_dma::Requester;
use peerbar_fault::Rule;
use peerbar_socket_file::{BindError, SocketFile};
use peerbar_vfio_user::Stop;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::SocketType;
use thiserror::Error;

/// The longest line: the longest rule is shorter.
const LONGEST: usize = 512;
/// How long a client may take to send its line, and to take its answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// How many clients may wait.
const BACKLOG: i32 = 8;

/// Why there is no control socket.
#[derive(Debug, Error)]
pub(crate) enum ControlError {
    /// The socket cannot be made.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Its thread cannot be started.
    #[error("cannot start the thread of the control socket")]
    Thread(#[from] io::Error),
}

/// A control socket, gone when dropped.
pub(crate) struct Control {
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Makes the socket at `path`, and takes rules for the faults of `requester`'s function.
    pub(crate) fn start(path: &Path, requester: Arc<Requester>) -> Result<Self, ControlError> {
        let stop = Stop::new().map_err(io::Error::from)?;
        let (file, socket) = SocketFile::make(path, SocketType::STREAM, BACKLOG)?;
        let (socket, stopped) = (UnixListener::from(socket), stop.clone());
        let thread = thread::Builder::new().name("control".to_owned());
        let thread = thread.spawn(move || {
            if let Err(error) = serve(&file, &socket, &stopped, &requester) {
                log::error!("no rules for faults are taken any more: {error}");
            }
        })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.stop.trigger();
        if self
            .thread
            .take()
            .is_some_and(|thread| thread.join().is_err())
        {
            log::error!("the thread of the control socket has panicked");
        }
    }
}

fn serve(
    file: &SocketFile,
    socket: &UnixListener,
    stop: &Stop,
    requester: &Requester,
) -> io::Result<()> {
    loop {
        let mut polled =
            [stop.as_fd(), socket.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match poll(&mut polled, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [stopped, _] = polled.map(|fd| !fd.revents().is_empty());
        if stopped {
            return Ok(());
        }
        let client = match socket.accept() {
            Ok((client, _)) => client,
            // A client that has left meanwhile is none.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                ) =>
            {
                continue;
            }
            Err(error) => return Err(error),
        };
        if let Err(error) = file.check_peer(&client) {
            log::warn!("{error}");
        } else if let Err(error) = answer(client, requester) {
            log::debug!("a client of the control socket: {error}");
        }
    }
}

fn answer(mut client: UnixStream, requester: &Requester) -> io::Result<()> {
    client.set_nonblocking(false)?;
    client.set_write_timeout(Some(PATIENCE))?;
    let line = read_line(&mut client)?;
    let answer = match obey(&line, requester) {
        Ok(done) => format!("ok {done}\n"),
        Err(cause) => format!("error {cause}\n"),
    };
    client.write_all(answer.as_bytes())
}

/// A line without its end, all of which comes in time.
fn read_line(client: &mut UnixStream) -> io::Result<String> {
    let deadline = Instant::now() + PATIENCE;
    let mut line = Vec::new();
    let mut buffer = [0; LONGEST];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || line.len() >= LONGEST {
            return Err(ErrorKind::InvalidData.into());
        }
        client.set_read_timeout(Some(left))?;
        let count = client.read(&mut buffer)?;
        line.extend_from_slice(buffer.get(..count).unwrap_or_default());
        if let Some(end) = line.iter().position(|byte| *byte == b'\n') {
            line.truncate(end);
            return String::from_utf8(line).map_err(|_| ErrorKind::InvalidData.into());
        }
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
    }
}

/// What was done, or why not, in one line.
fn obey(line: &str, requester: &Requester) -> Result<String, String> {
    if line == "clear" {
        let count = requester.faults().clear();
        return Ok(format!("rules cleared: {count}"));
    }
    let wrong = |error: &dyn ToString| format!("`{}` {}", line.escape_debug(), error.to_string());
    let rule: Rule = line.parse().map_err(|error| wrong(&error))?;
    let text = rule.to_string();
    requester.add_fault(rule).map_err(|error| wrong(&error))?;
    Ok(format!("in force: {text}"))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use peerbar_fault::Kind;

    use super::*;

    fn ask(path: &Path, line: &[u8]) -> String {
        let mut client = UnixStream::connect(path).unwrap();
        client.write_all(line).unwrap();
        let mut answer = String::new();
        // A client that is disconnected without an answer may see a reset.
        let _ = BufReader::new(client).read_line(&mut answer);
        answer
    }

    #[test]
    fn rules_come_into_force_and_go() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let requester = Arc::new(Requester::new());
        let control = Control::start(&path, requester.clone()).unwrap();
        let ask = |line: &str| ask(&path, line.as_bytes());
        assert_eq!(
            ask("drop  interrupt nth=2\n"),
            "ok in force: drop interrupt nth=2\n"
        );
        assert!(requester.faults().is_armed(Kind::Interrupt));
        assert_eq!(ask("clear\n"), "ok rules cleared: 1\n");
        assert!(!requester.faults().is_armed(Kind::Interrupt));
        assert_eq!(
            ask("fail command\n"),
            "error `fail command` is for another device: this one has no command\n"
        );
        assert!(ask("explode\n").starts_with("error `explode` begins with no action"));
        drop(control);
        assert!(!path.exists());
    }

    #[test]
    fn hostile_client_is_disconnected_and_the_next_one_served() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let requester = Arc::new(Requester::new());
        let _control = Control::start(&path, requester).unwrap();
        let silent = UnixStream::connect(&path).unwrap();
        assert_eq!(ask(&path, &[b'x'; 4 * LONGEST]), "");
        assert_eq!(ask(&path, b"\xff\n"), "");
        assert_eq!(ask(&path, b"clear\n"), "ok rules cleared: 0\n");
        drop(silent);
    }
}
