//! The daemon as a process.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use tempfile::TempDir;

use crate::wait_until;

/// How a daemon has ended, and what it said about it.
#[derive(Debug)]
pub(crate) struct Ending {
    /// `None` if a signal killed it.
    pub(crate) code: Option<i32>,
    pub(crate) stderr: String,
}

/// A daemon that serves, killed when dropped.
pub(crate) struct Daemon {
    child: Child,
    folder: TempDir,
    socket: PathBuf,
}

impl Daemon {
    /// Starts a daemon and waits until it is ready.
    #[track_caller]
    pub(crate) fn start(args: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        let socket = folder.path().join("socket");
        Self::start_at(folder, socket, args).unwrap()
    }

    /// Starts a daemon at a socket; what it says if it does not come up.
    pub(crate) fn start_at(
        folder: TempDir,
        socket: PathBuf,
        args: &[&str],
    ) -> Result<Self, Ending> {
        let log = File::create(folder.path().join("stderr")).unwrap();
        let mut child = command(&socket)
            .args(args)
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let mut daemon = Self {
            child,
            folder,
            socket,
        };
        match line.as_str() {
            "ready\n" => Ok(daemon),
            _ => Err(daemon.ending()),
        }
    }

    /// Where clients connect.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Asks it to end, and waits.
    pub(crate) fn terminate(mut self) -> Ending {
        kill_process(self.pid(), Signal::TERM).unwrap();
        self.ending()
    }

    /// Kills it without a warning, and leaves its folder to the caller.
    pub(crate) fn kill(mut self) -> (TempDir, PathBuf) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let folder = std::mem::replace(&mut self.folder, TempDir::new().unwrap());
        (folder, self.socket.clone())
    }

    /// What it has written to standard error so far.
    pub(crate) fn stderr(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("stderr")).unwrap()
    }

    /// Bytes of its address space (proc_pid_status(5), VmSize).
    pub(crate) fn address_space(&self) -> u64 {
        let status = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(status).unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
        let kilobytes = size.unwrap().trim().strip_suffix(" kB").unwrap();
        kilobytes.parse::<u64>().unwrap() << 10
    }

    /// Waits until the thread of that name sleeps.
    #[track_caller]
    pub(crate) fn wait_until_asleep(&self, thread: &str) {
        let tasks = format!("/proc/{}/task", self.child.id());
        wait_until(thread, || {
            let stats = std::fs::read_dir(&tasks).unwrap();
            let mut stats = stats.map(|task| {
                let stat = task.unwrap().path().join("stat");
                std::fs::read_to_string(stat).unwrap()
            });
            stats
                .any(|stat| stat.contains(&format!("({thread}) S")))
                .then_some(())
        });
    }

    /// The memory that it occupies.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", self.child.id())).unwrap();
        let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
        pages * 4096
    }

    /// Lets it have this many descriptors, or as many as it may have (proc_pid_limits(5)).
    pub(crate) fn limit_descriptors(&self, most: Option<u64>) {
        let limits = format!("/proc/{}/limits", self.child.id());
        let limits = std::fs::read_to_string(limits).unwrap();
        let files = limits
            .lines()
            .find_map(|line| line.strip_prefix("Max open files"));
        let hard = files
            .unwrap()
            .split_whitespace()
            .nth(1)
            .unwrap()
            .parse()
            .unwrap();
        let limit = Rlimit {
            current: most.or(Some(hard)),
            maximum: Some(hard),
        };
        prlimit(Some(self.pid()), Resource::Nofile, limit).unwrap();
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn ending(&mut self) -> Ending {
        let status = wait_until("the daemon's end", || self.child.try_wait().unwrap());
        Ending {
            code: status.code(),
            stderr: self.stderr(),
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Fails if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the daemon said: {:?}", self.stderr());
        }
    }
}

/// Runs a daemon that cannot start to its end.
#[track_caller]
pub(crate) fn refused(args: &[&str]) -> Ending {
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("socket");
    match Daemon::start_at(folder, socket, args) {
        Err(ending) => ending,
        Ok(_) => panic!("it serves with {args:?}"),
    }
}

fn command(socket: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_peerbar-nvme"));
    command
        .arg("--socket-path")
        .arg(socket)
        .args(["--serial", "test"])
        .stdin(Stdio::null());
    command
}
