//! A program's standard streams: pipes, or a terminal.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use anyhow::Context;
use peerbar_report::exec::TerminalSize;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// Bytes that are read at once.
const CHUNK: usize = 256 << 10;
/// Size of a pipe in bytes. With the usual 64 KiB a program and this process take turns, and a
/// guest without KVM spends most of its time on that.
const PIPE: usize = 1 << 20;

/// The guest's ends of a program's streams, which do not block.
#[derive(Debug)]
pub(super) struct Streams {
    /// For its input, until the input ends.
    pub(super) input: Option<File>,
    /// Its output, until the output ends.
    pub(super) output: Option<File>,
    /// Its error output, if it is a separate stream.
    pub(super) errors: Option<File>,
    /// `true` if the streams are a terminal.
    pub(super) is_terminal: bool,
    /// Its terminal, if it has one that has not been taken.
    pub(super) terminal: Option<File>,
}

impl Streams {
    /// Makes pipes for `command`.
    pub(super) fn pipes(command: &mut Command) -> anyhow::Result<Self> {
        let pipe = || -> anyhow::Result<_> {
            let ends = pipe_with(PipeFlags::CLOEXEC).context("cannot make a pipe")?;
            // A smaller one works, too.
            let _ = fcntl_setpipe_size(&ends.0, PIPE);
            Ok(ends)
        };
        let ((their_input, input), (output, their_output)) = (pipe()?, pipe()?);
        let (errors, their_errors) = pipe()?;
        command
            .stdin(their_input)
            .stdout(their_output)
            .stderr(their_errors);
        Ok(Self {
            input: Some(not_blocking(input)?),
            output: Some(not_blocking(output)?),
            errors: Some(not_blocking(errors)?),
            is_terminal: false,
            terminal: None,
        })
    }

    /// Makes a terminal of this size for `command`, which must make it its controlling terminal.
    pub(super) fn terminal(command: &mut Command, size: TerminalSize) -> anyhow::Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags).context("cannot make a terminal")?;
        grantpt(&ours).context("cannot grant a terminal")?;
        unlockpt(&ours).context("cannot unlock a terminal")?;
        let theirs = ioctl_tiocgptpeer(&ours, flags).context("cannot open a terminal")?;
        let theirs = File::from(theirs);
        let ours = not_blocking(ours)?;
        resize(&ours, size)?;
        command
            .stdin(Stdio::from(theirs.try_clone()?))
            .stdout(Stdio::from(theirs.try_clone()?))
            .stderr(Stdio::from(theirs));
        Ok(Self {
            input: Some(ours.try_clone()?),
            output: Some(ours.try_clone()?),
            errors: None,
            is_terminal: true,
            terminal: Some(ours),
        })
    }
}

/// Sets the size of a terminal. The program gets SIGWINCH.
pub(super) fn resize(terminal: &File, size: TerminalSize) -> anyhow::Result<()> {
    let size = Winsize {
        ws_row: size.rows,
        ws_col: size.columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(terminal, size).context("cannot tell a terminal its size")
}

fn not_blocking(end: OwnedFd) -> anyhow::Result<File> {
    rustix::io::ioctl_fionbio(&end, true).context("cannot keep a stream from blocking")?;
    Ok(File::from(end))
}

/// Reads the available data of a stream, and forgets a stream that has ended.
pub(super) fn read(stream: &mut Option<File>) -> Option<Vec<u8>> {
    let mut bytes = vec![0; CHUNK];
    loop {
        match stream.as_mut()?.read(&mut bytes) {
            Ok(count) if count > 0 => {
                bytes.truncate(count);
                return Some(bytes);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // A terminal whose program is gone returns an error (pty(7), EIO).
            Ok(_) | Err(_) => *stream = None,
        }
    }
}
