//! Children that never outlive the launcher.
//!
//! A child is started through `peerbar leash`, which asks the kernel to kill it when its parent is gone and then
//! becomes the program that was wanted. So even a launcher that is killed outright leaves no process behind, and
//! no code has to run between fork and exec.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::anyhow;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use crate::exit::Failure;

/// The hidden subcommand's name.
pub const NAME: &str = "leash";
/// This very program, even if its file has been replaced by a newer build since.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// What the words of a command line stand behind to be held by a leash of this process.
pub fn words() -> [OsString; 3] {
    let process = std::process::id().to_string();
    [OWN_PROGRAM.into(), NAME.into(), process.into()]
}

/// `command` with its program, arguments and environment, held by a leash of this process.
///
/// It gets a process group of its own, so that Ctrl-C reaches the launcher alone, which then ends its children in
/// order. The thread that spawns it must live as long as the child is wanted (prctl(2), `PR_SET_PDEATHSIG`).
pub fn held(command: &Command) -> Command {
    let [program, rest @ ..] = words();
    let mut held = Command::new(program);
    held.args(rest);
    held.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => held.env(name, value),
            None => held.env_remove(name),
        };
    }
    held.process_group(0);
    held
}

/// Becomes `words`, held by the process `parent`. Returns only if that fails.
pub fn become_held(parent: i32, words: &[OsString]) -> Failure {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return anyhow!(error)
            .context("cannot ask for a signal at the launcher's death")
            .into();
    }
    // The launcher may have died before the kernel was asked.
    if getppid().map(Pid::as_raw_nonzero).map(i32::from) != Some(parent) {
        return anyhow!("the launcher {parent} is gone").into();
    }
    let Some((program, arguments)) = words.split_first() else {
        return Failure::Usage(anyhow!("{NAME}: no program"));
    };
    let error = Command::new(program).args(arguments).exec();
    anyhow!(error)
        .context(format!("cannot start {}", program.display()))
        .into()
}
