//! Descriptors whose close(2) may wait for another process: a separate thread closes them.
//!
//! close(2) of a FUSE file waits until the server of that file system has answered (FUSE_FLUSH),
//! and no signal ends that wait. close(2) of a TCP socket waits, for the time of its SO_LINGER,
//! until the other side has received all data. This also holds if the kernel closes it, for example
//! with a message that was never received. So a thread that serves never closes a socket that a
//! client has sent, nor a file, unless it lies in the host's memory or on its disks, and it leaves
//! none in a connection that it closes. While many descriptors of one connection wait to be closed,
//! no more descriptors that come on it are passed on.

use std::collections::HashMap;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::cmsg_space;
use rustix::fs::{AtFlags, FileType, StatxFlags, fcntl_get_seals, fstat, statx};
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_linger, socket_domain};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, Shutdown, recvmsg,
    shutdown,
};

/// Descriptors of one connection that may wait to be closed before no more of them are passed on.
pub(crate) const MOST: usize = 64;
/// Descriptors of all connections that may wait before the kernel has to drop others, so that the
/// server keeps some descriptors for itself.
const EXHAUSTED: usize = 4096;

/// More messages than the queue of a socket with the usual buffer size can hold.
pub(crate) const MOST_PACKETS: usize = 1024;

/// The most descriptors in one message (Linux, SCM_MAX_FD).
pub(crate) const MOST_OF_A_MESSAGE: usize = 253;

/// Unset before the first such descriptor.
static CLOSER: OnceLock<Closer<Closing>> = OnceLock::new();

/// Arranges that a descriptor that came on `socket` is closed soon, without waiting for it.
pub(crate) fn close(socket: impl AsFd, descriptor: OwnedFd) {
    let closer = CLOSER.get_or_init(Closer::start);
    closer.close(connection(socket), Closing::Owned(descriptor));
}

/// The same for a descriptor that was also sent on: its file stays as it is for the others that
/// have it.
pub(crate) fn close_copy(socket: impl AsFd, descriptor: OwnedFd) {
    let closer = CLOSER.get_or_init(Closer::start);
    closer.close(connection(socket), Closing::Copy(descriptor));
}

/// Returns the number of a connection. Linux does not reuse it before it has assigned 2^32.
fn connection(socket: impl AsFd) -> u64 {
    fstat(socket).map_or(0, |status| status.st_ino)
}

/// A descriptor of any kind. Its drop waits for other processes only if that is unavoidable.
enum Closing {
    /// The only one of its file, except in the sender.
    Owned(OwnedFd),
    /// Another process uses the same file.
    Copy(#[expect(dead_code, reason = "only dropped")] OwnedFd),
}

impl Drop for Closing {
    fn drop(&mut self) {
        let Self::Owned(socket) = self else {
            return;
        };
        // The calls fail if it is not a socket. A socket that is reset is closed at once. A Unix
        // socket is emptied first.
        let _ = set_socket_linger(&*socket, Some(Duration::ZERO));
        let _ = shutdown(&*socket, Shutdown::Read);
        for _ in 0..MOST_PACKETS {
            match take(&*socket) {
                // The kernel nests sockets in sockets at most four times.
                Ok(inner) => inner.into_iter().map(Self::Owned).for_each(drop),
                Err(_) => return,
            }
        }
    }
}

/// Receives and discards a message without waiting. Returns its descriptors, of any kind.
pub(crate) fn take(socket: impl AsFd) -> Result<Vec<OwnedFd>, Errno> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MOST_OF_A_MESSAGE))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut [0; 4096])],
        &mut control,
        flags,
    )?;
    Ok(rights(&mut control).collect())
}

/// Returns the descriptors of a recvmsg(2). Does not allocate.
pub(crate) fn rights(control: &mut RecvAncillaryBuffer<'_>) -> impl Iterator<Item = OwnedFd> {
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    rights.flatten()
}

/// Returns `true` if [`EXHAUSTED`] descriptors wait to be closed, so that the kernel has to drop
/// new ones.
pub(crate) fn is_exhausted() -> bool {
    CLOSER
        .get()
        .is_some_and(|closer| closer.waiting() >= EXHAUSTED)
}

/// Returns `true` if [`MOST`] descriptors that came on `socket` wait to be closed, so that no more
/// of them may be passed on.
pub(crate) fn is_full(socket: impl AsFd) -> bool {
    let closer = CLOSER.get().filter(|closer| closer.waiting() >= MOST);
    closer.is_some_and(|closer| closer.is_full(connection(socket)))
}

/// The kind of a descriptor, with respect to its close(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Closed without asking another process.
    Own,
    /// A regular file that is not in memory, of a file system without a block device, such as FUSE
    /// and NFS: another process or host may have to answer.
    Foreign,
    /// A socket of a kind that is not expected.
    Socket,
}

/// Returns the kind of a descriptor. Only files in memory have seals (fcntl(2), F_GET_SEALS). This
/// asks no other process.
pub(crate) fn kind(descriptor: &OwnedFd, sockets: Sockets) -> Kind {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let Ok(status) = statx(descriptor, "", flags, StatxFlags::TYPE) else {
        return Kind::Own;
    };
    let is_unix = || socket_domain(descriptor) == Ok(AddressFamily::UNIX);
    let is_in_memory = || fcntl_get_seals(descriptor).is_ok();
    match FileType::from_raw_mode(status.stx_mode.into()) {
        FileType::Socket if sockets == Sockets::None || !is_unix() => Kind::Socket,
        FileType::RegularFile if status.stx_dev_major == 0 && !is_in_memory() => Kind::Foreign,
        _ => Kind::Own,
    }
}

/// The sockets that a client may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sockets {
    /// No sockets.
    None,
    /// Unix sockets.
    Unix,
}

/// A thread that drops the items that it receives, one after the other.
struct Closer<T> {
    sender: Sender<(u64, T)>,
    waiting: Arc<Waiting>,
}

/// The number of waiting items.
#[derive(Default)]
struct Waiting {
    all: AtomicUsize,
    /// The number for each connection with waiting items.
    each: Mutex<HashMap<u64, usize>>,
}

impl Waiting {
    fn add(&self, connection: u64) {
        self.all.fetch_add(1, Ordering::Relaxed);
        let mut each = self.each.lock();
        let count = each.entry(connection).or_default();
        *count = count.saturating_add(1);
    }

    fn remove(&self, connection: u64) {
        let mut each = self.each.lock();
        if let Some(count) = each.get_mut(&connection) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                each.remove(&connection);
            }
        }
        self.all.fetch_sub(1, Ordering::Release);
    }
}

impl<T: Send + 'static> Closer<T> {
    fn start() -> Self {
        let (sender, receiver) = channel::<(u64, T)>();
        let waiting = Arc::<Waiting>::default();
        let left = waiting.clone();
        let run = move || {
            for (connection, item) in receiver {
                drop(item);
                left.remove(connection);
            }
        };
        // Without the thread there is no receiver, and the sender drops its items itself.
        if let Err(error) = thread::Builder::new().name("closer".to_owned()).spawn(run) {
            log::warn!("no thread closes clients' files: {error}");
        }
        Self { sender, waiting }
    }

    fn close(&self, connection: u64, item: T) {
        self.waiting.add(connection);
        if self.sender.send((connection, item)).is_err() {
            self.waiting.remove(connection);
        }
    }

    fn waiting(&self) -> usize {
        self.waiting.all.load(Ordering::Acquire)
    }

    fn is_full(&self, connection: u64) -> bool {
        let count = self.waiting.each.lock().get(&connection).copied();
        count.is_some_and(|count| count >= MOST)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::mpsc::Receiver;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    /// Its drop waits for a message, as close(2) waits for a server.
    struct Slow(Receiver<()>);

    impl Drop for Slow {
        fn drop(&mut self) {
            // Fails once the sender is gone.
            let _ = self.0.recv();
        }
    }

    #[test]
    fn one_that_does_not_close_fills_its_connection_for_a_time() {
        let closer = Closer::start();
        let (answer, never) = channel();
        closer.close(1, Slow(never));
        for number in 1..MOST {
            assert!(!closer.is_full(1), "{number}");
            let (_, answered) = channel();
            closer.close(1, Slow(answered));
        }
        let (_, answered) = channel();
        closer.close(2, Slow(answered));
        assert!(closer.is_full(1) && !closer.is_full(2));
        assert_eq!(closer.waiting(), MOST + 1);
        answer.send(()).unwrap();
        while closer.waiting() > 0 {
            thread::yield_now();
        }
        assert!(!closer.is_full(1) && closer.waiting.each.lock().is_empty());
    }

    #[test]
    fn each_connection_has_a_number_of_its_own() {
        let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_ne!(connection(&one), connection(&other));
        assert_eq!(connection(&one), connection(one.try_clone().unwrap()));
    }

    #[test]
    fn files_of_memory_and_what_is_no_file_are_not_foreign() {
        let open = |path| OwnedFd::from(File::open(path).unwrap());
        let kind = |fd: &OwnedFd| kind(fd, Sockets::None);
        assert_eq!(kind(&open("/proc/self/stat")), Kind::Foreign);
        let memory = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        let (pipe, _) = rustix::pipe::pipe().unwrap();
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
        let (folder, null) = (open("/proc/self"), open("/dev/null"));
        for ours in [memory, pipe, event, folder, null] {
            assert_eq!(kind(&ours), Kind::Own, "{ours:?}");
        }
    }

    #[test]
    fn only_unix_sockets_may_come_and_only_where_expected() {
        let tcp = OwnedFd::from(std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        let unix = OwnedFd::from(std::os::unix::net::UnixDatagram::unbound().unwrap());
        let found = [Sockets::None, Sockets::Unix]
            .map(|sockets| [&tcp, &unix].map(|socket| kind(socket, sockets)));
        let socket = Kind::Socket;
        assert_eq!(found, [[socket, socket], [socket, Kind::Own]]);
    }
}
