//! A running daemon, and its end.

use std::fmt::Debug;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::proxied::Proxied;
use crate::{DaemonCommand, TIME_OUT};

/// The end of a daemon.
#[derive(Debug)]
pub struct Exit {
    /// Its exit status, or `None` if a signal killed it.
    pub code: Option<i32>,
    /// Its output to standard error.
    pub stderr: String,
}

impl Exit {
    /// Returns its output to standard error, without the line's end.
    ///
    /// # Panics
    /// If that is not one line.
    #[track_caller]
    pub fn line(&self) -> &str {
        assert_eq!(self.stderr.lines().count(), 1, "{}", self.stderr);
        self.stderr.trim_end()
    }
}

/// A daemon that serves.
#[derive(Debug)]
pub struct Daemon {
    command: DaemonCommand,
    child: Child,
    stdout: BufReader<ChildStdout>,
    /// `true` if the test has ended it, or waits for its end.
    is_ended: bool,
    /// A proxy between its clients and it.
    proxy: Option<Proxied>,
}

impl Daemon {
    pub(crate) fn start(command: DaemonCommand) -> Result<Self, Exit> {
        let (child, stdout) = spawn(&command);
        let mut daemon = Self {
            command,
            child,
            stdout,
            is_ended: false,
            proxy: None,
        };
        match daemon.next_line().as_str() {
            "ready" => {
                daemon.proxy = Proxied::start(&daemon.command);
                Ok(daemon)
            }
            _ => Err(daemon.exit()),
        }
    }

    /// Returns the path of its socket.
    pub fn socket(&self) -> &Path {
        match &self.proxy {
            Some(proxy) => proxy.socket(),
            None => self.command.socket_path(),
        }
    }

    /// Returns the folder of its files.
    pub fn folder(&self) -> &Path {
        self.command.folder()
    }

    /// Returns its process ID.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Connects a client, as soon as the daemon has noticed the end of a former one.
    ///
    /// A closed socket may stay open for a while in a process that another test is about to start:
    /// it has copies of all descriptors until it executes its own program.
    ///
    /// # Panics
    /// If it still fails after 20 s.
    pub fn connect<C, E: Debug>(&self, mut connect: impl FnMut(&Path) -> Result<C, E>) -> C {
        let start = Instant::now();
        loop {
            match connect(self.socket()) {
                Ok(client) => return client,
                Err(error) => assert!(start.elapsed() < TIME_OUT, "no connection: {error:?}"),
            }
            std::thread::yield_now();
        }
    }

    /// Returns the next line of its standard output, or an empty string at the end.
    fn next_line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Returns its output to standard error so far.
    pub fn stderr(&self) -> String {
        fs::read_to_string(log(&self.command)).unwrap()
    }

    /// Sends it a signal that does not end it.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Returns `true` if it has not ended.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Asks it to end, and waits.
    ///
    /// # Panics
    /// If it does not end within 20 s.
    pub fn terminate(&mut self) -> Exit {
        self.signal(Signal::TERM);
        self.exit()
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.is_ended = true;
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again with the same arguments. Kills it first if it still runs.
    ///
    /// # Panics
    /// If it does not become ready.
    pub fn restart(&mut self) {
        self.kill();
        (self.child, self.stdout) = spawn(&self.command);
        let line = self.next_line();
        assert_eq!(line, "ready", "{}", self.stderr());
        self.proxy = None;
        self.proxy = Proxied::start(&self.command);
        self.is_ended = false;
    }

    /// Waits until it ends by itself.
    ///
    /// # Panics
    /// If it does not end within 20 s.
    pub fn end(&mut self) -> Exit {
        self.exit()
    }

    fn exit(&mut self) -> Exit {
        self.is_ended = true;
        let process = pidfd_open(self.pid(), PidfdFlags::empty()).unwrap();
        let mut polled = [PollFd::new(&process, PollFlags::IN)];
        let limit = Timespec::try_from(TIME_OUT).unwrap();
        let ended = poll(&mut polled, Some(&limit)).unwrap();
        assert_eq!(ended, 1, "the daemon does not end in {TIME_OUT:?}");
        Exit {
            code: self.child.wait().unwrap().code(),
            stderr: self.stderr(),
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let ended = self.child.try_wait().unwrap();
        // Fails if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the daemon said: {}", self.stderr());
        } else if let Some(status) = ended.filter(|_| !self.is_ended) {
            panic!("the daemon ended by itself: {status}: {}", self.stderr());
        }
    }
}

fn spawn(command: &DaemonCommand) -> (Child, BufReader<ChildStdout>) {
    let stderr = File::options()
        .create(true)
        .append(true)
        .open(log(command))
        .unwrap();
    let mut process = command.command();
    let process = process.stdout(Stdio::piped()).stderr(stderr);
    let mut child = process.spawn().unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    (child, stdout)
}

fn log(command: &DaemonCommand) -> PathBuf {
    command.folder().join("stderr")
}
