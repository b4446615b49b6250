//! The socket of a server of another project, and the file that shows that it serves.

use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use peerbar_host::socket_file::{BindError, remove_stale};

use crate::exit::Failure;

/// The kernel's list of Unix sockets (proc(5)).
const SOCKETS: &str = "/proc/net/unix";
/// The flag of a socket that listens in that list: `__SO_ACCEPTCON` (Linux include/linux/net.h).
const LISTENS: u32 = 1 << 16;

/// Frees the path of a socket for a server that is about to be started: removes the socket of a
/// server that has ended.
///
/// # Errors
/// The path has another file, or a server listens there.
pub(crate) fn free(socket: &Path) -> Result<(), Failure> {
    remove_stale(socket).map_err(|error| match error {
        BindError::System { .. } => Failure::Environment(error.into()),
        BindError::InUse(path) => Failure::Usage(anyhow!(
            "a server already listens at {}: leave `command` out to use that one, or end it",
            path.display()
        )),
        error => Failure::Usage(error.into()),
    })
}

/// The file that shows that a server serves. If it is a socket, the server must also listen at it.
#[derive(Debug)]
pub(crate) struct ReadyFile {
    path: PathBuf,
    /// The state of the file before the server was started, if it existed.
    before: Option<FileState>,
}

/// Device, inode, and the time of the last change in seconds and nanoseconds.
type FileState = (u64, u64, i64, i64);

impl ReadyFile {
    /// Returns the file at `path` of a server that is about to be started. If it exists already, it
    /// shows nothing until it changes.
    pub(crate) fn before_start(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            before: fs::metadata(path).ok().as_ref().map(state),
        }
    }

    /// Returns the reason why the server is not ready, or `None` if it is. A connection would tell
    /// that too, but many servers take only one.
    pub(crate) fn lack(&self) -> Option<String> {
        let path = self.path.display();
        let found = match fs::metadata(&self.path) {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Some(format!("it has not made {path}"));
            }
            Err(error) => return Some(format!("cannot look at {path}: {error}")),
        };
        if self.before == Some(state(&found)) {
            return Some(format!("{path} is from before its start"));
        }
        let is_unheard = found.file_type().is_socket() && !listens(&self.path);
        is_unheard.then(|| format!("it does not listen at {path}"))
    }
}

fn state(found: &Metadata) -> FileState {
    (found.dev(), found.ino(), found.ctime(), found.ctime_nsec())
}

fn listens(socket: &Path) -> bool {
    let sockets = fs::read_to_string(SOCKETS).unwrap_or_default();
    // A server in another mount or network namespace is not in the list by this path.
    listening(&sockets, socket).unwrap_or(true)
}

/// Returns `true` if a socket bound at `file` listens, or `None` if the list has no such socket.
fn listening(sockets: &str, file: &Path) -> Option<bool> {
    let path = file.to_str()?;
    let at_path = sockets.lines().filter_map(|line| {
        let (fields, bound) = line.split_once(path)?;
        let flags = fields.split_whitespace().nth(3)?;
        let flags = u32::from_str_radix(flags, 16).ok()?;
        bound.is_empty().then_some(flags & LISTENS != 0)
    });
    at_path.reduce(|one, other| one || other)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, socket};

    use super::*;

    /// Returns the reason why a server that has just been started is not ready, without the folder.
    fn lack(file: &ReadyFile) -> Option<String> {
        let folder = format!("{}/", file.path.parent().unwrap().display());
        file.lack().map(|reason| reason.replace(&folder, ""))
    }

    #[test]
    fn socket_is_ready_once_it_listens() {
        let folder = tempfile::tempdir().unwrap();
        let [bound, listens, file] =
            ["a", "b", "c"].map(|name| ReadyFile::before_start(&folder.path().join(name)));
        assert_eq!(lack(&bound).unwrap(), "it has not made a");
        let _bound = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        bind(&_bound, &SocketAddrUnix::new(&bound.path).unwrap()).unwrap();
        let _listener = UnixListener::bind(&listens.path).unwrap();
        fs::write(&file.path, "").unwrap();
        assert_eq!(lack(&bound).unwrap(), "it does not listen at a");
        assert_eq!([lack(&listens), lack(&file)], [None, None]);
    }

    #[test]
    fn file_from_before_the_start_is_not_ready_until_it_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("up");
        fs::write(&path, "of an earlier server").unwrap();
        let file = ReadyFile::before_start(&path);
        let reason = "up is from before its start";
        assert_eq!(lack(&file).unwrap(), reason);
        fs::remove_file(&path).unwrap();
        fs::write(folder.path().join("new"), "").unwrap();
        fs::rename(folder.path().join("new"), &path).unwrap();
        assert_eq!(lack(&file), None);
    }

    #[test]
    fn only_a_stale_socket_is_removed_before_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let [stale, live, file] = ["a", "b", "c"].map(|name| folder.path().join(name));
        drop(UnixListener::bind(&stale).unwrap());
        // A process that another test starts keeps a copy of the socket for a moment.
        while free(&stale).is_err() {
            std::thread::yield_now();
        }
        let _listener = UnixListener::bind(&live).unwrap();
        fs::write(&file, "data").unwrap();
        assert!(!stale.exists());
        free(&stale).unwrap();
        let refused = [&live, &file].map(|path| match free(path) {
            Err(Failure::Usage(error)) => error.to_string(),
            other => panic!("{other:?}"),
        });
        assert!(refused[0].ends_with("b: leave `command` out to use that one, or end it"));
        assert!(refused[1].ends_with("c exists and is not a socket: choose another socket path"));
        assert!(live.exists());
        assert_eq!(fs::read(&file).unwrap(), b"data");
    }
}
