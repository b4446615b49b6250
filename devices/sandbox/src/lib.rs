//! Confinement of a server: limits the actions that remain possible after a client or a guest has
//! taken it over.
//!
//! - **Files** ([`SandboxOptions::restrict_files`], before the server starts a thread): Landlock
//!   permits its own images and, for the socket file only, the folder of its socket. No core file
//!   contains guest memory, and descriptors and address space are limited.
//! - **System calls** ([`SandboxOptions::restrict_calls`], once all files and sockets are open):
//!   seccomp permits the calls that serving needs. All others fail with EPERM, such as opening or
//!   deleting a file, starting a program, making a socket, or signalling another process.
//!
//! On a machine without Landlock only the other restrictions apply, and the server logs that.
//! Neither layer hides the existence of a path (stat(2), readlink(2)).
#![forbid(unsafe_code)]

mod calls;
mod files;
mod limits;
#[cfg(all(feature = "take-over", target_arch = "x86_64"))]
pub mod take_over;

use std::io;
use std::path::Path;

use thiserror::Error;

pub use calls::Connections;
pub use files::FileAccess;
pub use limits::ServerKind;

/// The options of a server about its confinement.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct SandboxOptions {
    /// Serve without confinement, so that a compromised server has all rights of its user. Only for
    /// debuggers and tracers
    #[arg(long)]
    no_sandbox: bool,
}

/// The reason why a server is not confined. The way out is `--no-sandbox`.
#[derive(Debug, Error)]
pub enum SandboxError {
    /// Landlock refuses a rule.
    #[error("cannot restrict the server's files; `--no-sandbox` serves without a sandbox")]
    Files(#[from] landlock::RulesetError),
    /// A path of a rule cannot be opened.
    #[error("cannot restrict the server's files; `--no-sandbox` serves without a sandbox")]
    Path(#[from] landlock::PathFdError),
    /// The kernel refuses a limit.
    #[error("cannot limit {what} of the server; `--no-sandbox` serves without a sandbox")]
    Limit {
        /// The resource.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The kernel refuses the filter of system calls.
    #[error("cannot restrict the server's system calls; `--no-sandbox` serves without a sandbox")]
    Calls(#[from] seccompiler::Error),
}

impl SandboxOptions {
    /// Restricts this process to the files at `access`, and limits its resources. Only the calling thread and those that it
    /// starts later are restricted, so a server calls it first.
    ///
    /// # Errors
    /// [`SandboxError`], if the kernel has Landlock and refuses.
    pub fn restrict_files(
        self,
        kind: ServerKind,
        access: &[FileAccess<'_>],
    ) -> Result<(), SandboxError> {
        if self.no_sandbox {
            return Ok(());
        }
        limits::apply(kind)?;
        files::restrict(access)
    }

    /// Restricts all threads of this process to the system calls that serving needs.
    ///
    /// # Errors
    /// [`SandboxError::Calls`] if the kernel refuses.
    pub fn restrict_calls(self, connections: Connections) -> Result<(), SandboxError> {
        if self.no_sandbox {
            return Ok(());
        }
        calls::restrict(connections)
    }
}

/// Restricts this thread, and the program that it becomes, to writing the files and folders
/// `writable` and devices. It may read and execute all files of its user, but it makes no TCP connection, and
/// reaches no other process by a signal or an abstract socket. It is for servers that are not
/// peerbar's: nobody knows which files and system calls they need.
///
/// # Errors
/// [`SandboxError`], if the kernel has Landlock and refuses.
pub fn restrict_to(writable: &[impl AsRef<Path>]) -> Result<(), SandboxError> {
    files::restrict_to(writable)
}

/// Returns the folder of a path in a form that can be opened: `.` for a bare name.
fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}
