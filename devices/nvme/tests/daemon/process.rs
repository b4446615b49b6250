//! The daemon as a process.

use peerbar_rig::{Daemon, DaemonCommand, Exit};

use peerbar_rig::wait_until;

pub(crate) fn command() -> DaemonCommand {
    let command = DaemonCommand::new(env!("CARGO_BIN_EXE_peerbar-nvme"));
    command.args(["--serial", "test"])
}

/// A running `peerbar-nvme`.
#[track_caller]
pub(crate) fn start(args: &[&str]) -> Daemon {
    command().args(args).start()
}

/// Runs a daemon that cannot start until it exits.
#[track_caller]
pub(crate) fn refused(args: &[&str]) -> Exit {
    command().args(args).refused()
}

/// Waits until the thread with this name sleeps.
#[track_caller]
pub(crate) fn wait_until_asleep(daemon: &Daemon, thread: &str) {
    wait_until(thread, || {
        let tasks = std::fs::read_dir(daemon.proc_path("task")).unwrap();
        // A thread may end during the search.
        let mut stats = tasks.filter_map(|task| {
            let stat = task.ok()?.path().join("stat");
            std::fs::read_to_string(stat).ok()
        });
        stats
            .any(|stat| stat.contains(&format!("({thread}) S")))
            .then_some(())
    });
}
