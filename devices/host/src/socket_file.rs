//! Unix sockets, for any protocol: messages with descriptors ([`descriptors`]), packets of them
//! ([`packets`]), and the socket file of a server. A server replaces a stale file of a dead server,
//! but never the file of a live one, nor any other file. A child process removes it when its server
//! ends, and ends the connection of a server that was killed. Only its owner may connect, which
//! [`SocketFile::check_peer`] checks once more.

mod cleanup;
mod closing;
pub mod descriptors;
pub mod exhaustion;
pub mod file_lock;
pub mod line_server;
pub mod packets;

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{UnixCredentials, getsockopt};
use rustix::fs::{Mode, OFlags, fchmod, open};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::process::geteuid;
use thiserror::Error;

use crate::socket_file::cleanup::Cleanup;

/// The longest path that fits into a socket address (unix(7)).
const LONGEST_PATH: usize = 107;

/// Time that a starting server waits for others that start in the same folder.
const LOCK_TIME_OUT: Duration = Duration::from_secs(10);

/// The reason why a server has no socket.
#[derive(Debug, Error)]
pub enum BindError {
    /// The path does not fit into a socket address.
    #[error("socket path {} is {length} bytes long: choose one of at most {LONGEST_PATH}", path.display())]
    TooLong {
        /// The path as given.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
    },
    /// A live server has a socket there.
    #[error("socket path {} is in use by a live server: stop that one or choose another path", .0.display())]
    InUse(PathBuf),
    /// The file at the path is not a socket. It is left alone.
    #[error("{} exists and is not a socket: choose another socket path", .0.display())]
    NotASocket(PathBuf),
    /// The operating system reported an error.
    #[error("cannot make the socket {}", path.display())]
    System {
        /// The path as given.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// The reason why a peer is not served.
#[derive(Debug, Error)]
pub enum PeerError {
    /// The peer belongs to another user.
    #[error("{}: process {pid} of user {uid} is refused, as the socket belongs to user {owner}: run both as one user, or give it to user {uid} (chown)", path.display())]
    OtherUser {
        /// The socket's path.
        path: PathBuf,
        /// The peer's process; 0 if it is in another PID namespace.
        pid: i32,
        /// The peer's effective user when it connected.
        uid: u32,
        /// The owner of the socket file, or the server's user if the file is gone.
        owner: u32,
    },
    /// The system does not report the peer's user.
    #[error("{}: cannot determine the user of a connection", path.display())]
    System {
        /// The socket's path.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// A socket file. It is removed from the file system when this is dropped, or when the process
/// ends.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode of our socket file. The listening socket keeps the inode from being used for another file.
    identity: (u64, u64),
    /// Removes the file when dropped.
    cleanup: Cleanup,
}

impl SocketFile {
    /// Makes the file, of mode 0600, and a nonblocking socket of this kind that listens there;
    /// `backlog` connections may wait. It forks, so a server calls it before its system calls are
    /// restricted.
    pub fn make(path: &Path, kind: SocketType, backlog: i32) -> Result<(Self, OwnedFd), BindError> {
        Self::make_with(path, kind, backlog, drop)
    }

    /// Like [`SocketFile::make`]. If this process is killed, another one calls `end` with the
    /// connection that was last passed to [`SocketFile::hold`], and closes it. `end` must not take
    /// a lock or allocate: it runs in a copy of this process without its other threads and
    /// descriptors.
    pub fn make_with(
        path: &Path,
        kind: SocketType,
        backlog: i32,
        end: impl FnOnce(OwnedFd),
    ) -> Result<(Self, OwnedFd), BindError> {
        let length = path.as_os_str().as_bytes().len();
        let path = path.to_owned();
        if length > LONGEST_PATH {
            return Err(BindError::TooLong { path, length });
        }
        let system = |source: io::Error| BindError::System {
            path: path.clone(),
            source,
        };
        let _alone = lock_directory(&path).map_err(system)?;
        remove_stale(&path)?;
        let socket = listening(&path, kind, backlog).map_err(|errno| system(errno.into()))?;
        let metadata = fs::symlink_metadata(&path).map_err(system)?;
        let identity = identity(&metadata);
        let cleanup = start_cleanup(&path, end).map_err(|source| {
            // A second failure does not matter: the file is stale then.
            let _ = fs::remove_file(&path);
            system(source)
        })?;
        let file = Self {
            path,
            identity,
            cleanup,
        };
        Ok((file, socket))
    }

    /// Makes another process hold `connection` as well, until this is called again, so that the
    /// connection does not end with this process. Only one is held. This never waits. If it fails,
    /// the previous connection is still held.
    pub fn hold(&self, connection: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        self.cleanup.hold(connection)
    }

    /// Refuses a connected peer unless it is run by the owner of the socket file, by this process's user or by root.
    pub fn check_peer(&self, peer: &impl AsFd) -> Result<(), PeerError> {
        // rustix's credentials cannot represent process 0.
        let credentials = getsockopt(peer, PeerCredentials);
        self.check(credentials.map_err(|errno| PeerError::System {
            path: self.path.clone(),
            source: errno.into(),
        })?)
    }

    fn check(&self, peer: UnixCredentials) -> Result<(), PeerError> {
        let server = geteuid().as_raw();
        let metadata = fs::symlink_metadata(&self.path);
        let ours = metadata.ok().filter(|metadata| self.is_ours(metadata));
        let owner = ours.map_or(server, |metadata| metadata.uid());
        if [0, server, owner].contains(&peer.uid()) {
            return Ok(());
        }
        Err(PeerError::OtherUser {
            path: self.path.clone(),
            pid: peer.pid(),
            uid: peer.uid(),
            owner,
        })
    }

    fn is_ours(&self, metadata: &Metadata) -> bool {
        identity(metadata) == self.identity
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn listening(path: &Path, kind: SocketType, backlog: i32) -> Result<OwnedFd, Errno> {
    let socket = new_socket(kind)?;
    // The file takes its mode from the socket, so it never has another mode.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, backlog)?;
    Ok(socket)
}

fn new_socket(kind: SocketType) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, kind, flags, None)
}

fn start_cleanup(path: &Path, end: impl FnOnce(OwnedFd)) -> io::Result<Cleanup> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::empty())?;
    Cleanup::start(path, directory(path), file, end)
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Locks the folder of `path`: two servers that start at once must not take each other's new socket
/// for a stale one.
fn lock_directory(path: &Path) -> io::Result<File> {
    let directory = File::open(directory(path))?;
    file_lock::acquire(&directory, LOCK_TIME_OUT).map_err(|errno| match errno {
        Errno::TIMEDOUT => {
            io::Error::other("another process holds the lock (flock) of its folder: end that one")
        }
        errno => errno.into(),
    })?;
    Ok(directory)
}

fn directory(path: &Path) -> &Path {
    let parent = path.parent();
    let parent = parent.filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Removes the socket of a server that has ended, if there is one at `path`.
///
/// # Errors
/// A server listens there, or the file is not a socket: it stays.
pub fn remove_stale(path: &Path) -> Result<(), BindError> {
    let system = |source| BindError::System {
        path: path.to_owned(),
        source,
    };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(system(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            Err(BindError::NotASocket(path.to_owned()))
        }
        Ok(_) if is_live(path).map_err(|errno| system(errno.into()))? => {
            Err(BindError::InUse(path.to_owned()))
        }
        Ok(_) => fs::remove_file(path).map_err(system),
    }
}

/// Returns `true` if a process listens, on any kind of socket. Never waits, even if that process
/// never accepts.
fn is_live(path: &Path) -> Result<bool, Errno> {
    match connect(new_socket(SocketType::STREAM)?, &SocketAddrUnix::new(path)?) {
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Ok(true),
        Err(Errno::CONNREFUSED) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [SocketType; 2] = [SocketType::STREAM, SocketType::SEQPACKET];

    fn make(path: &Path, kind: SocketType) -> Result<(SocketFile, OwnedFd), BindError> {
        SocketFile::make(path, kind, 1)
    }

    #[test]
    fn stale_socket_is_replaced_and_live_one_is_not() {
        for (live, other) in KINDS.into_iter().zip(KINDS.into_iter().rev()) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("s");
            drop(listening(&path, other, 1).unwrap());
            // A process that another test starts keeps a copy of the socket for a moment.
            while is_live(&path).unwrap() {
                std::thread::yield_now();
            }
            let server = make(&path, live).unwrap();
            for kind in KINDS {
                assert!(matches!(make(&path, kind), Err(BindError::InUse(_))));
            }
            drop(server);
            assert!(!path.exists());
        }
    }

    #[test]
    fn socket_file_is_its_owners_alone() {
        use std::os::unix::fs::PermissionsExt;
        for kind in KINDS {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("s");
            let _server = make(&path, kind).unwrap();
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
    }

    #[test]
    fn peer_of_another_user_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let (file, socket) = make(&path, SocketType::STREAM).unwrap();
        let peer = new_socket(SocketType::STREAM).unwrap();
        connect(&peer, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        let accepted = rustix::net::accept(&socket).unwrap();
        file.check_peer(&accepted).unwrap();

        let ours = geteuid().as_raw();
        let of_user = |uid| {
            let credentials = libc::ucred {
                pid: 77,
                uid,
                gid: 0,
            };
            file.check(credentials.into())
        };
        of_user(0).unwrap();
        let error = of_user(ours + 1).unwrap_err().to_string();
        let named = [
            format!("user {}", ours + 1),
            format!("to user {ours}:"),
            "process 77".into(),
        ];
        for part in named {
            assert!(error.contains(&part), "{error}");
        }
        drop(accepted);
        fs::remove_file(&path).unwrap();
        of_user(ours).unwrap();
        of_user(ours + 1).unwrap_err();
    }

    #[test]
    fn socket_file_of_another_server_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let (file, socket) = make(&path, SocketType::STREAM).unwrap();
        fs::remove_file(&path).unwrap();
        let _other = listening(&path, SocketType::STREAM, 1).unwrap();
        drop((file, socket));
        assert!(path.exists());
    }

    #[test]
    fn other_file_and_impossible_path_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "data").unwrap();
        let error = |path: &Path| make(path, SocketType::STREAM).unwrap_err();
        assert!(matches!(error(&path), BindError::NotASocket(_)));
        assert_eq!(fs::read(&path).unwrap(), b"data");
        let long = folder.path().join("x".repeat(LONGEST_PATH));
        assert!(matches!(error(&long), BindError::TooLong { .. }));
        let nowhere = folder.path().join("no/such");
        assert!(matches!(error(&nowhere), BindError::System { .. }));
    }
}
