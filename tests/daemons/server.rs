//! Daemons that die with the test, and their resources.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, anyhow, ensure};
use peerbar_lab::parent_death;
use peerbar_lab::programs::program;
use peerbar_rig::{Daemon, DaemonCommand};

/// The resources of a process (proc(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) descriptors: usize,
    pub(crate) threads: usize,
    pub(crate) mappings: usize,
    pub(crate) anonymous_bytes: u64,
}

/// Starts a program with `words`.
pub(crate) fn start(program_name: &str, words: &[&str]) -> anyhow::Result<Daemon> {
    let wrapped = parent_death::confined(&Command::new(program(program_name)?))?;
    let mut under: Vec<OsString> = vec![wrapped.get_program().into()];
    under.extend(wrapped.get_args().map(OsString::from));
    let program = under.pop().context("no program")?;
    let command = DaemonCommand::new(program).under(under);
    let started = command.args(words.iter().copied()).try_start();
    started.map_err(|exit| anyhow!("{program_name} does not start: {exit:?}"))
}

/// Kills a daemon without warning.
pub(crate) fn kill(daemon: &mut Daemon) -> anyhow::Result<()> {
    check_alive(daemon)?;
    daemon.kill();
    Ok(())
}

/// Checks that a daemon has not ended.
pub(crate) fn check_alive(daemon: &mut Daemon) -> anyhow::Result<()> {
    let socket = daemon.socket().display().to_string();
    ensure!(
        daemon.is_running(),
        "{socket} has ended: {}",
        daemon.stderr()
    );
    Ok(())
}

/// Asks a daemon to end, which must succeed and leave no file but its log.
pub(crate) fn end(mut daemon: Daemon) -> anyhow::Result<()> {
    let exit = daemon.terminate();
    ensure!(exit.code == Some(0), "{exit:?}");
    for entry in fs::read_dir(daemon.folder())? {
        let path = entry?.path();
        let is_ours = path.ends_with("stderr");
        ensure!(is_ours, "{} is left", path.display());
    }
    Ok(())
}

/// Returns the resources of a daemon.
pub(crate) fn usage(daemon: &Daemon) -> anyhow::Result<Usage> {
    let entries = |folder| anyhow::Ok(fs::read_dir(daemon.proc_path(folder))?.count());
    // Not its files: filled pages of a flight record count there.
    let status = fs::read_to_string(daemon.proc_path("status"))?;
    let mut lines = status.lines();
    let anonymous = lines.find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = anonymous.and_then(|text| text.trim().strip_suffix(" kB"));
    let kib: u64 = kib.context("no RssAnon")?.parse()?;
    let maps = fs::read_to_string(daemon.proc_path("maps"))?;
    Ok(Usage {
        descriptors: entries("fd")?,
        threads: threads(daemon.proc_path("task").as_ref())?,
        mappings: maps.lines().count(),
        anonymous_bytes: kib * 1024,
    })
}

/// Returns the number of the process's own threads. The kernel adds and ends others for requests of
/// io_uring that would block (iou-wrk-*).
fn threads(tasks: &Path) -> anyhow::Result<usize> {
    let mut count = 0;
    for task in fs::read_dir(tasks)? {
        // A thread that has just ended has no name.
        let name = fs::read_to_string(task?.path().join("comm"));
        count += usize::from(name.is_ok_and(|name| !name.starts_with("iou-wrk")));
    }
    Ok(count)
}
