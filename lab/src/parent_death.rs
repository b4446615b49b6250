//! The parent-death wrapper: children never outlive the process that starts them.
//!
//! A child is started through `peerbar die-with-parent`, which asks the kernel for SIGKILL at its
//! parent's death and then becomes the program that was wanted. So even a process that is killed
//! outright leaves no child behind, and no code has to run between fork and exec.

use std::env::current_exe;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::anyhow;
use peerbar_sandbox::restrict_to;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use rustix::thread::set_no_new_privs;

use crate::exit::Failure;
use crate::programs::program;

/// The hidden subcommand's name.
pub const NAME: &str = "die-with-parent";
/// Its option for a child that is confined.
const CONFINED: &str = "--confined";
/// Its option for a file or folder that a program of another project may write.
const WRITABLE: &str = "--writable";
/// The first descriptor after the standard streams.
const FIRST_INHERITED: libc::c_int = 3;
/// The program that has it.
const WRAPPER: &str = "peerbar";
/// This very program, even if its file has been replaced by a newer build since.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// Returns the words before a command line that make it die with this process.
pub fn words() -> Result<[OsString; 3], Failure> {
    let process = std::process::id().to_string();
    Ok([wrapper()?.into(), NAME.into(), process.into()])
}

fn wrapper() -> Result<PathBuf, Failure> {
    let own = current_exe().unwrap_or_default();
    let name = own.file_name().unwrap_or_default().to_string_lossy();
    // Of a file that has been replaced the kernel says so behind its name (proc_pid_exe(5)).
    if name.trim_end_matches(" (deleted)") == WRAPPER {
        return Ok(OWN_PROGRAM.into());
    }
    program(WRAPPER)
}

/// Returns `command` with its program, arguments and environment, but it dies with this process.
///
/// It gets a separate process group, so that Ctrl-C reaches this process alone, which then ends its
/// children in order. The thread that spawns it must live as long as the child is wanted (prctl(2),
/// `PR_SET_PDEATHSIG`).
pub fn wrapped(command: &Command) -> Result<Command, Failure> {
    wrapped_with(&[""; 0], command)
}

/// Does the work of [`wrapped`], for a child that serves a guest: neither it nor a program that it
/// starts gains privileges, for example by a set-user-ID file (prctl(2), `PR_SET_NO_NEW_PRIVS`),
/// and it inherits only its standard streams, independent of this process's descriptors.
pub fn confined(command: &Command) -> Result<Command, Failure> {
    wrapped_with(&[CONFINED], command)
}

/// Does the work of [`confined`], for a program of another project: it also writes only to
/// `writable` and to devices, makes no TCP connection, and reaches no process outside of it by a
/// signal or an abstract socket.
pub fn confined_to(writable: &[&Path], command: &Command) -> Result<Command, Failure> {
    let writable = writable.iter();
    let writable = writable.flat_map(|path| [WRITABLE.as_ref(), path.as_os_str()]);
    let options: Vec<&OsStr> = [CONFINED.as_ref()].into_iter().chain(writable).collect();
    wrapped_with(&options, command)
}

fn wrapped_with(options: &[impl AsRef<OsStr>], command: &Command) -> Result<Command, Failure> {
    let [program, name, process] = words()?;
    let mut wrapped = Command::new(program);
    wrapped.arg(name).args(options).arg(process);
    wrapped.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    wrapped.process_group(0);
    Ok(wrapped)
}

/// Becomes the program `words` after it has tied its life to that of the process `parent`,
/// optionally [`confined`], or [`confined_to`] `writable`. Returns only if that fails.
pub fn become_program(
    parent: i32,
    is_confined: bool,
    writable: &[PathBuf],
    words: &[OsString],
) -> Failure {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return anyhow!(error)
            .context("cannot ask for a signal at the launcher's death")
            .into();
    }
    // The launcher may have died before the kernel was asked.
    if getppid().map(Pid::as_raw_nonzero).map(i32::from) != Some(parent) {
        return anyhow!("the launcher {parent} is gone").into();
    }
    let confined = if is_confined { confine() } else { Ok(()) };
    if let Err(error) = confined {
        return anyhow!(error)
            .context("cannot take privileges and descriptors from a child")
            .into();
    }
    if !writable.is_empty() {
        if let Err(error) = restrict_to(writable) {
            return anyhow!(error).into();
        }
    }
    let Some((program, arguments)) = words.split_first() else {
        return Failure::Usage(anyhow!("{NAME}: no program"));
    };
    let error = Command::new(program).args(arguments).exec();
    anyhow!(error)
        .context(format!("cannot start {}", Path::new(program).display()))
        .into()
}

/// Gives up all that a program which this process becomes could gain or inherit.
fn confine() -> io::Result<()> {
    set_no_new_privs(true)?;
    close_at_exec()
}

/// Makes exec close every descriptor except the standard streams: one by one, because
/// close_range(2) is of Linux 5.11, and not every container permits it.
#[expect(
    unsafe_code,
    reason = "the descriptors are those of whatever started this process"
)]
fn close_at_exec() -> io::Result<()> {
    for entry in fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.parse().ok());
        let Some(number) = number.filter(|number: &libc::c_int| *number >= FIRST_INHERITED) else {
            continue;
        };
        // SAFETY: it closes nothing now, and nothing of this process runs after exec.
        if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
