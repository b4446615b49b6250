//! A server that is taken over, for tests: its main thread, stopped by ptrace(2), makes the system
//! calls that a test requests, so that all of the server's restrictions apply.

use std::ffi::{CStr, c_int, c_long};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, ErrorKind};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};

use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::Connections;
use crate::limits::{ADDRESS_SPACE, ServerKind};

/// The `syscall` instruction.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Distance below the stack pointer of the text that is passed to a call: below the red zone.
const TEXT_BELOW: u64 = 4096;

/// The limits of a server, as /proc/PID/limits names them.
fn limits(kind: ServerKind) -> [(&'static str, u64); 3] {
    [
        ("Max core file size", 0),
        ("Max open files", kind.descriptors()),
        ("Max address space", ADDRESS_SPACE),
    ]
}

/// A child process whose main thread is stopped. It continues when this is dropped.
#[derive(Debug)]
pub struct TakenOver {
    pid: Pid,
    memory: File,
    syscall: u64,
}

/// An argument of a system call.
#[derive(Clone, Copy, Debug)]
pub enum Argument<'a> {
    /// A number.
    Number(u64),
    /// The address of a text.
    Text(&'a CStr),
}

/// Makes the attempts that an attacker would make first in the server that `command` starts.
/// Returns each with its outcome. The server must print `ready`, and is killed in the end. All
/// attempts fail in a confined server that makes `connections` while it serves; the first success
/// is the last attempt.
///
/// # Errors
/// Those of [`TakenOver::of`], or of starting a process.
pub fn attempts(
    command: &mut Command,
    connections: Connections,
) -> io::Result<Vec<(&'static str, io::Result<u64>)>> {
    while_serving(command, |child| {
        Ok(TakenOver::of(child)?.attempts(connections))
    })
}

/// Fails a test unless the server that `command` starts has the limits of its `kind`, can gain no
/// privileges, and is denied each of the [`attempts`].
///
/// # Panics
/// If the server lacks a limit or does not start, or if an attempt succeeds or fails for another
/// reason.
#[track_caller]
pub fn assert_confined(command: &mut Command, kind: ServerKind, connections: Connections) {
    let tried = while_serving(command, |child| {
        let excesses = excesses(child.id(), kind)?;
        Ok((excesses, TakenOver::of(child)?.attempts(connections)))
    });
    let (excesses, outcomes) = tried.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert_eq!(excesses, [""; 0], "a running server");
    for (attempt, outcome) in outcomes {
        let denied = matches!(&outcome, Err(error) if error.kind() == ErrorKind::PermissionDenied);
        assert!(denied, "{attempt}: {outcome:?}");
    }
}

/// Calls `look` on the server that `command` starts, once it has printed `ready`. The server is
/// killed in the end.
fn while_serving<T>(
    command: &mut Command,
    look: impl FnOnce(&Child) -> io::Result<T>,
) -> io::Result<T> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let found = ready(&mut child).and_then(|()| look(&child));
    child.kill()?;
    child.wait()?;
    found
}

/// Returns the lines of proc(5) that show more resources or privileges than a server may have.
fn excesses(pid: u32, kind: ServerKind) -> io::Result<Vec<String>> {
    let read = |name| fs::read_to_string(format!("/proc/{pid}/{name}"));
    let (found, status) = (read("limits")?, read("status")?);
    let within = limits(kind).map(|(name, most)| {
        let of = move |line: &&str| line.starts_with(name);
        let line = found.lines().find(of).unwrap_or(name);
        (line, is_at_most(line.strip_prefix(name), most))
    });
    // No new privileges, and filters of seccomp (proc(5), NoNewPrivs and Seccomp).
    let statuses = [("NoNewPrivs:", "1"), ("Seccomp:", "2")].map(|(name, value)| {
        let of = move |line: &&str| line.starts_with(name);
        let line = status.lines().find(of).unwrap_or(name);
        (line, line.split_whitespace().nth(1) == Some(value))
    });
    let all = within.into_iter().chain(statuses);
    let wrong = all.filter(|(_, is_right)| !is_right);
    Ok(wrong.map(|(line, _)| line.to_owned()).collect())
}

/// Returns `true` if the soft and the hard limit, which come first in the rest of a line, are both
/// numbers of at most `most`.
fn is_at_most(rest: Option<&str>, most: u64) -> bool {
    let numbers = rest.into_iter().flat_map(str::split_whitespace).take(2);
    let within = numbers.filter(|number| number.parse().is_ok_and(|number: u64| number <= most));
    within.count() == 2
}

fn ready(child: &mut Child) -> io::Result<()> {
    let mut line = String::new();
    let stdout = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    BufReader::new(stdout).read_line(&mut line)?;
    match line.as_str() {
        "ready\n" => Ok(()),
        _ => Err(io::Error::other(format!("the server said {line:?}"))),
    }
}

impl TakenOver {
    /// Takes a child over.
    ///
    /// # Errors
    /// The error of ptrace(2), or `NotFound` if no `syscall` instruction is in the child's memory.
    pub fn of(child: &Child) -> io::Result<Self> {
        let number = i32::try_from(child.id()).map_err(io::Error::other)?;
        let pid = Pid::from_raw(number);
        ptrace::seize(pid, Options::empty())?;
        ptrace::interrupt(pid)?;
        stopped(pid)?;
        let memory = File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/mem"))?;
        let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
        let code = maps.lines().filter(|line| line.contains(" r-xp "));
        let syscall = code
            .filter_map(range)
            .find_map(|(start, len)| find(&memory, start, len));
        Ok(Self {
            pid,
            memory,
            syscall: syscall.ok_or(io::ErrorKind::NotFound)?,
        })
    }

    /// Makes a system call in the child. Returns its result, or its error.
    ///
    /// # Errors
    /// The error of the call, or of ptrace(2).
    pub fn call(&mut self, number: c_long, arguments: &[Argument<'_>]) -> io::Result<u64> {
        let before = ptrace::getregs(self.pid)?;
        let mut registers = before;
        let mut values = [0; 6];
        for (value, argument) in values.iter_mut().zip(arguments) {
            *value = match argument {
                Argument::Number(number) => *number,
                Argument::Text(text) => {
                    let address = before.rsp.wrapping_sub(TEXT_BELOW);
                    self.memory
                        .write_all_at(text.to_bytes_with_nul(), address)?;
                    address
                }
            };
        }
        registers.rip = self.syscall;
        registers.rax = u64::from_ne_bytes(number.to_ne_bytes());
        // No call is restarted when the thread continues.
        registers.orig_rax = u64::MAX;
        [
            registers.rdi,
            registers.rsi,
            registers.rdx,
            registers.r10,
            registers.r8,
            registers.r9,
        ] = values;
        ptrace::setregs(self.pid, registers)?;
        ptrace::step(self.pid, None)?;
        stopped(self.pid)?;
        let result = ptrace::getregs(self.pid)?.rax;
        ptrace::setregs(self.pid, before)?;
        match result.wrapping_neg() {
            error @ 1..=4095 => Err(Errno::from_raw(c_int::try_from(error).unwrap_or(0)).into()),
            _ => Ok(result),
        }
    }

    /// Makes the attempts that an attacker would make first.
    fn attempts(&mut self, connections: Connections) -> Vec<(&'static str, io::Result<u64>)> {
        use Argument::{Number as N, Text};
        let parent = N(std::process::id().into());
        let number = |value: c_int| N(u32::from_ne_bytes(value.to_ne_bytes()).into());
        let at = number(libc::AT_FDCWD);
        let (inet, stream) = (number(libc::AF_INET), number(libc::SOCK_STREAM));
        let executable = number(libc::PROT_READ | libc::PROT_EXEC);
        let private = number(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let new = number(libc::O_CREAT | libc::O_WRONLY);
        let (datagrams, unix) = (number(libc::SOCK_DGRAM), number(libc::AF_UNIX));
        let attempts: [(&str, c_long, &[Argument<'_>]); 12] = [
            ("open a file", libc::SYS_openat, &[at, Text(c"/etc/passwd")]),
            ("open by io_uring", libc::SYS_io_uring_setup, &[N(1), N(0)]),
            (
                "make a file",
                libc::SYS_openat,
                &[at, Text(c"/tmp/taken-over"), new, N(0o600)],
            ),
            // If Landlock denies the deletion, a missing file is still reported as missing.
            (
                "delete a file",
                libc::SYS_unlinkat,
                &[at, Text(c"/tmp/taken-over"), N(0)],
            ),
            (
                "start a program",
                libc::SYS_execve,
                &[Text(c"/bin/true"), N(0), N(0)],
            ),
            ("fork", libc::SYS_clone, &[number(libc::SIGCHLD)]),
            ("connect out", libc::SYS_socket, &[inet, stream]),
            ("signal its parent", libc::SYS_kill, &[parent, N(0)]),
            (
                "signal its parent by a descriptor",
                libc::SYS_fcntl,
                &[N(0), number(libc::F_SETOWN), parent],
            ),
            (
                "send datagrams",
                libc::SYS_socketpair,
                &[unix, datagrams, N(0), N(0)],
            ),
            ("trace its parent", libc::SYS_ptrace, &[N(0x4206), parent]),
            (
                "map executable memory",
                libc::SYS_mmap,
                &[N(0), N(4096), executable, private],
            ),
        ];
        let pair: &[Argument<'_>] = &[unix, stream, N(0), N(0)];
        let pair = ("send descriptors to itself", libc::SYS_socketpair, pair);
        let connection: &[Argument<'_>] = &[unix, stream];
        let connection = ("connect to a server", libc::SYS_socket, connection);
        let others = [
            (connections != Connections::Pairs).then_some(pair),
            (connections != Connections::Unix).then_some(connection),
        ];
        let mut outcomes = Vec::new();
        for (name, number, with) in attempts.into_iter().chain(others.into_iter().flatten()) {
            let outcome = self.call(number, with);
            let succeeded = outcome.is_ok();
            outcomes.push((name, outcome));
            // A fork or a new program could no longer be stopped.
            if succeeded {
                break;
            }
        }
        outcomes
    }
}

impl Drop for TakenOver {
    fn drop(&mut self) {
        // The process may be gone.
        let _ = ptrace::detach(self.pid, None);
    }
}

/// Waits until the thread is stopped.
fn stopped(pid: Pid) -> io::Result<()> {
    match waitpid(pid, None)? {
        WaitStatus::Stopped(..) | WaitStatus::PtraceEvent(..) => Ok(()),
        other => Err(io::Error::other(format!(
            "the server did not stop: {other:?}"
        ))),
    }
}

/// Returns start and length of a line of /proc/PID/maps.
fn range(line: &str) -> Option<(u64, usize)> {
    let (start, end) = line.split_once(' ')?.0.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = (number(start)?, number(end)?);
    Some((start, usize::try_from(end - start).ok()?))
}

/// Returns the address of the first `syscall` instruction in a range of memory.
fn find(memory: &File, start: u64, len: usize) -> Option<u64> {
    let mut code = vec![0; len];
    memory.read_exact_at(&mut code, start).ok()?;
    let at = code.windows(2).position(|bytes| bytes == SYSCALL)?;
    Some(start + at as u64)
}
