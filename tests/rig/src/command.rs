//! The command that starts a daemon.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::{Daemon, Exit};

/// A program, its arguments, and a folder for its socket and its other files.
#[derive(Debug)]
pub struct DaemonCommand {
    program: OsString,
    under: Vec<OsString>,
    arguments: Vec<OsString>,
    input: Option<OwnedFd>,
    folder: TempDir,
    socket: PathBuf,
}

impl DaemonCommand {
    /// Makes a command for the program at this path, with the argument `--socket-path`.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        let folder = TempDir::new().unwrap();
        Self {
            program: program.as_ref().to_owned(),
            under: Vec::new(),
            arguments: Vec::new(),
            input: None,
            socket: folder.path().join("socket"),
            folder,
        }
    }

    /// Sets the path of its socket.
    #[must_use]
    pub fn socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.socket = path.into();
        self
    }

    /// Has another program execute it, such as one that makes it die with this process. `words` are
    /// the program and its arguments.
    #[must_use]
    pub fn under(mut self, words: impl IntoIterator<Item = OsString>) -> Self {
        self.under = words.into_iter().collect();
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args(mut self, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        let arguments = arguments.into_iter().map(Into::into);
        self.arguments.extend(arguments);
        self
    }

    /// Sets its standard input.
    #[must_use]
    pub fn input(mut self, input: impl Into<OwnedFd>) -> Self {
        self.input = Some(input.into());
        self
    }

    /// Adds an option for a file called `name` in the daemon's folder.
    #[must_use]
    pub fn file(self, option: &str, name: &str) -> Self {
        let path = self.folder.path().join(name);
        self.args([option.into(), path.into_os_string()])
    }

    /// Starts the daemon, and waits until it is ready.
    ///
    /// # Panics
    /// If it ends instead.
    #[track_caller]
    pub fn start(self) -> Daemon {
        match self.try_start() {
            Ok(daemon) => daemon,
            Err(exit) => panic!("the daemon does not start: {exit:?}"),
        }
    }

    /// Starts the daemon, and waits until it is ready.
    ///
    /// # Errors
    /// Its exit, if it never became ready.
    pub fn try_start(self) -> Result<Daemon, Exit> {
        Daemon::start(self)
    }

    /// Runs a daemon that cannot start to its end.
    ///
    /// # Panics
    /// If it becomes ready.
    #[track_caller]
    pub fn refused(self) -> Exit {
        match self.try_start() {
            Ok(daemon) => panic!("it serves: {daemon:?}"),
            Err(exit) => exit,
        }
    }

    /// Returns the command itself, for a test that starts the process in another way.
    pub fn command(&self) -> Command {
        let input = self.input.as_ref().map(|input| input.try_clone().unwrap());
        let mut words = self.under.iter().chain([&self.program]);
        let mut command = Command::new(words.next().unwrap());
        command
            .args(words)
            .arg("--socket-path")
            .arg(&self.socket)
            .args(&self.arguments)
            .stdin(input.map_or_else(Stdio::null, Stdio::from))
            .env_remove("RUST_LOG");
        command
    }

    /// Returns the daemon's folder, which is removed together with this value.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn program(&self) -> &OsStr {
        &self.program
    }

    pub(crate) fn socket_path(&self) -> &Path {
        &self.socket
    }
}
