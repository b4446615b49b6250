//! A socket that accepts commands of one line each while a server serves.
//!
//! A client connects, sends one line, gets one line, and is disconnected. The answer begins with
//! `ok` or `error`. A client that sends no line in time gets no answer.

use std::fmt::Display;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SocketType;
use thiserror::Error;

use crate::socket_file::exhaustion::{BACK_OFF, is_exhaustion};
use crate::socket_file::{BindError, SocketFile};

/// The longest line in bytes.
pub const LONGEST_LINE: usize = 512;
/// Time that a client has to send its line, and to take its answer.
const TIME_OUT: Duration = Duration::from_secs(1);
/// Clients that may wait.
const BACKLOG: i32 = 8;

/// The reason why the socket cannot be made.
#[derive(Debug, Error)]
pub enum LineServerError {
    /// The socket cannot be made.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Its thread cannot be started.
    #[error("cannot start the thread of the control socket")]
    Thread(#[from] io::Error),
}

/// A socket that accepts commands. It is removed when this is dropped.
#[derive(Debug)]
pub struct LineServer {
    stop: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl LineServer {
    /// Makes the socket at `path`. `obey` executes a line and returns the result, or the reason of
    /// a failure, in one line.
    ///
    /// # Errors
    /// [`LineServerError`].
    pub fn start(
        path: &Path,
        obey: impl Fn(&str) -> Result<String, String> + Send + 'static,
    ) -> Result<Self, LineServerError> {
        let (stop, stopped) = UnixStream::pair()?;
        let (file, socket) = SocketFile::make(path, SocketType::STREAM, BACKLOG)?;
        let socket = UnixListener::from(socket);
        let thread = thread::Builder::new().name("control".to_owned());
        let thread = thread.spawn(move || {
            if let Err(error) = serve(&file, &socket, &stopped, &obey) {
                log::error!("no more orders are accepted: {error}");
            }
        })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

/// Returns the answer to `rules` of a server that accepts rules: all rules in one line. No rule
/// contains a semicolon.
pub fn in_force(rules: impl IntoIterator<Item: Display>) -> String {
    let rules: Vec<String> = rules.into_iter().map(|rule| rule.to_string()).collect();
    match rules.as_slice() {
        [] => "in force: nothing".to_owned(),
        rules => format!("in force: {}", rules.join("; ")),
    }
}

impl Drop for LineServer {
    fn drop(&mut self) {
        // The thread sees the end of the pair. This fails only if the thread has ended.
        let _ = self.stop.shutdown(std::net::Shutdown::Both);
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
    stop: &UnixStream,
    obey: &impl Fn(&str) -> Result<String, String>,
) -> io::Result<()> {
    loop {
        let mut polled =
            [stop.as_fd(), socket.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match poll(&mut polled, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [stopped, _] = polled.map(|fd| !fd.revents().is_empty());
        if stopped {
            return Ok(());
        }
        let client = match socket.accept() {
            Ok((client, _)) => client,
            // A client that has already left is ignored.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                ) =>
            {
                continue;
            }
            Err(error) if is_exhaustion(&error) => {
                let stopped = PollFd::new(stop, PollFlags::IN);
                let back_off = Timespec::try_from(BACK_OFF).ok();
                poll(&mut [stopped], back_off.as_ref())?;
                continue;
            }
            Err(error) => return Err(error),
        };
        if let Err(error) = file.check_peer(&client) {
            log::warn!("{error}");
        } else if let Err(error) = answer(client, obey) {
            log::debug!("a client of the control socket: {error}");
        }
    }
}

fn answer(
    mut client: UnixStream,
    obey: &impl Fn(&str) -> Result<String, String>,
) -> io::Result<()> {
    client.set_nonblocking(false)?;
    client.set_write_timeout(Some(TIME_OUT))?;
    let answer = match read_line(&mut client)?.and_then(|line| obey(&line)) {
        Ok(done) => format!("ok {done}\n"),
        Err(cause) => format!("error {cause}\n"),
    };
    client.write_all(answer.as_bytes())
}

/// Reads a line that must arrive completely and in time. Returns it without its end, or the reason
/// why it is invalid.
fn read_line(client: &mut UnixStream) -> io::Result<Result<String, String>> {
    let deadline = Instant::now() + TIME_OUT;
    let mut line = Vec::new();
    let mut buffer = [0; LONGEST_LINE];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        // At most the longest line is read, in any number of parts.
        let free = buffer.get_mut(line.len()..).unwrap_or_default();
        if free.is_empty() {
            let wrong = format!("a line has at most {LONGEST_LINE} bytes, with its end");
            return Ok(Err(wrong));
        }
        client.set_read_timeout(Some(left))?;
        let count = client.read(free)?;
        line.extend_from_slice(free.get(..count).unwrap_or_default());
        let end = line.iter().position(|byte| *byte == b'\n');
        // A client that sends no more has ended its line.
        if let Some(end) = end.or_else(|| (count == 0 && !line.is_empty()).then_some(line.len())) {
            line.truncate(end);
            let line = String::from_utf8(line);
            return Ok(line.map_err(|error| format!("the line is not UTF-8: {error}")));
        }
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use rustix::net::{AddressFamily, SocketFlags, socketpair};

    use super::*;

    fn ask(path: &Path, line: &[u8]) -> String {
        let mut client = UnixStream::connect(path).unwrap();
        // The client may be disconnected before it has sent everything.
        let _ = client.write_all(line);
        let mut answer = String::new();
        // A client that is disconnected without an answer may see a reset.
        let _ = BufReader::new(client).read_line(&mut answer);
        answer
    }

    fn server(path: &Path) -> LineServer {
        let obey = |line: &str| match line {
            "do" => Ok("done".to_owned()),
            other => Err(format!("`{other}` is no order")),
        };
        LineServer::start(path, obey).unwrap()
    }

    #[test]
    fn orders_are_carried_out_and_answered() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let server = server(&path);
        assert_eq!(ask(&path, b"do\n"), "ok done\n");
        assert_eq!(ask(&path, b"x\n"), "error `x` is no order\n");
        let mut client = UnixStream::connect(&path).unwrap();
        client.write_all(b"do").unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        BufReader::new(client).read_line(&mut answer).unwrap();
        assert_eq!(answer, "ok done\n", "without an end of the line");
        drop(server);
        assert!(!path.exists());
    }

    #[test]
    fn line_in_parts_is_no_longer_than_one_at_once() {
        // Each part is one read.
        let pair = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        );
        let [mut client, mut server] = <[_; 2]>::from(pair.unwrap()).map(UnixStream::from);
        client.write_all(&[b'x'; LONGEST_LINE - 12]).unwrap();
        client.write_all(b"twelve more.\n").unwrap();
        let line = read_line(&mut server).unwrap();
        assert_eq!(
            line,
            Err("a line has at most 512 bytes, with its end".to_owned())
        );
        client.write_all(&[b'x'; LONGEST_LINE - 12]).unwrap();
        client.write_all(b"eleven more\n").unwrap();
        let line = read_line(&mut server).unwrap().unwrap();
        assert!(line.ends_with("xeleven more"), "{line}");
        assert_eq!(line.len(), LONGEST_LINE - 1);
    }

    #[test]
    fn client_that_sends_no_line_is_told_and_the_next_one_served() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let _server = server(&path);
        let silent = UnixStream::connect(&path).unwrap();
        let long = ask(&path, &[b'x'; 4 * LONGEST_LINE]);
        assert_eq!(long, "error a line has at most 512 bytes, with its end\n");
        let binary = ask(&path, b"\xff\n");
        assert!(
            binary.starts_with("error the line is not UTF-8: "),
            "{binary}"
        );
        assert_eq!(ask(&path, b"do\n"), "ok done\n");
        drop(silent);
    }
}
