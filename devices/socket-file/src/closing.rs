//! Descriptors whose close(2) may wait for another process: a thread of their own closes them.
//!
//! close(2) of a file of FUSE waits until the server of that file system has answered (FUSE_FLUSH), and no signal ends that wait. That of
//! a TCP socket waits for as long as its SO_LINGER says until the other side has received all, also where the kernel closes it, as
//! with a message that nobody has received. So no thread that serves closes a file that a client has sent, unless the file is of the
//! host's memory or disks, nor a socket; none is left in a connection that is closed. While many wait to be closed no
//! client's descriptors are handed on.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, StatxFlags, fcntl_get_seals, statx};
use rustix::net::sockopt::{set_socket_linger, socket_domain};
use rustix::net::{AddressFamily, Shutdown, shutdown};

use crate::descriptors::{self, MOST_PACKETS};

/// How many may wait to be closed before no more are handed on.
pub(crate) const MOST: usize = 64;
/// How many may wait before the kernel has to drop others, so that the server keeps some descriptors for itself.
const EXHAUSTED: usize = 4096;

/// None before the first descriptor of this kind.
static CLOSER: OnceLock<Closer<Closing>> = OnceLock::new();

/// Closes a descriptor soon, and does not wait for that.
pub(crate) fn close(descriptor: OwnedFd) {
    CLOSER.get_or_init(Closer::start).close(Closing(descriptor));
}

/// A descriptor that may be anything. Its drop waits for others only where nothing else is possible.
struct Closing(OwnedFd);

impl Drop for Closing {
    fn drop(&mut self) {
        // All of it fails if it is no socket. One that is reset is closed at once, and a Unix socket with what nobody has received of it.
        let _ = set_socket_linger(&self.0, Some(Duration::ZERO));
        let _ = shutdown(&self.0, Shutdown::Read);
        for _ in 0..MOST_PACKETS {
            match descriptors::take(&self.0) {
                // The kernel nests sockets in sockets four times at most.
                Ok(inner) => inner.into_iter().map(Closing).for_each(drop),
                Err(_) => return,
            }
        }
    }
}

/// Whether so many wait that the kernel has to drop descriptors that come.
pub(crate) fn is_exhausted() -> bool {
    CLOSER
        .get()
        .is_some_and(|closer| closer.waiting() >= EXHAUSTED)
}

/// Whether so many descriptors wait to be closed that no more may be handed on.
pub(crate) fn is_full() -> bool {
    CLOSER.get().is_some_and(Closer::is_full)
}

/// What a descriptor is, as far as its close(2) goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Closed without asking anybody.
    Own,
    /// A regular file of a file system without a block device, as FUSE and NFS, that is not in memory: another process or host may have to
    /// answer.
    Foreign,
    /// A socket but one of those that may come.
    Socket,
}

/// What a descriptor is. Only files in memory have seals (fcntl(2), F_GET_SEALS). This asks nobody.
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

/// The sockets that a client may hand over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sockets {
    /// None.
    None,
    /// Unix sockets.
    Unix,
}

/// A thread that drops what it gets, one after the other.
struct Closer<T> {
    sender: Sender<T>,
    waiting: Arc<AtomicUsize>,
}

impl<T: Send + 'static> Closer<T> {
    fn start() -> Self {
        let (sender, receiver) = channel::<T>();
        let waiting = Arc::new(AtomicUsize::new(0));
        let left = waiting.clone();
        let run = move || {
            for item in receiver {
                drop(item);
                left.fetch_sub(1, Ordering::Release);
            }
        };
        // Without the thread nobody receives, and the caller drops what it sends.
        if let Err(error) = thread::Builder::new().name("closer".to_owned()).spawn(run) {
            log::warn!("no thread closes clients' files: {error}");
        }
        Self { sender, waiting }
    }

    fn close(&self, item: T) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if self.sender.send(item).is_err() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    fn is_full(&self) -> bool {
        self.waiting() >= MOST
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::mpsc::Receiver;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    /// Its drop waits for a word, as close(2) does for a server.
    struct Slow(Receiver<()>);

    impl Drop for Slow {
        fn drop(&mut self) {
            // Fails once nobody can answer any more.
            let _ = self.0.recv();
        }
    }

    #[test]
    fn one_that_does_not_close_fills_the_closer_for_a_time() {
        let closer = Closer::start();
        let (answer, never) = channel();
        closer.close(Slow(never));
        for number in 1..MOST {
            assert!(!closer.is_full(), "{number}");
            let (_, answered) = channel();
            closer.close(Slow(answered));
        }
        assert!(closer.is_full());
        answer.send(()).unwrap();
        while closer.is_full() {
            thread::yield_now();
        }
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
