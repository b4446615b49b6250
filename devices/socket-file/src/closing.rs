//! Descriptors whose close(2) may wait for another process: a thread of their own closes them.
//!
//! close(2) of a file of FUSE waits until the server of that file system has answered (FUSE_FLUSH), and no signal ends that wait. So no
//! thread that serves closes a file that a client has sent, unless the file is of the host's memory or disks. While many wait to be
//! closed no client's descriptors are taken: the kernel drops them without asking anybody.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;

use rustix::fs::{AtFlags, FileType, StatxFlags, fcntl_get_seals, statx};

/// How many may wait to be closed before no more are taken.
pub(crate) const MOST: usize = 64;

/// None before the first descriptor of this kind.
static CLOSER: OnceLock<Closer<OwnedFd>> = OnceLock::new();

/// Closes a descriptor soon, and does not wait for that.
pub(crate) fn close(descriptor: OwnedFd) {
    CLOSER.get_or_init(Closer::start).close(descriptor);
}

/// Whether so many descriptors wait to be closed that no more may be taken.
pub(crate) fn is_full() -> bool {
    CLOSER.get().is_some_and(Closer::is_full)
}

/// Whether this is a file whose close(2) another process or host may have to answer: a regular one of a file system without a block device, as FUSE
/// and NFS, that is not in memory. Only files in memory have seals (fcntl(2), F_GET_SEALS). This asks nobody.
pub(crate) fn is_foreign(descriptor: &OwnedFd) -> bool {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let status = statx(descriptor, "", flags, StatxFlags::TYPE);
    let is_file = status.is_ok_and(|status| {
        let kind = FileType::from_raw_mode(status.stx_mode.into());
        kind.is_file() && status.stx_dev_major == 0
    });
    is_file && fcntl_get_seals(descriptor).is_err()
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

    fn is_full(&self) -> bool {
        self.waiting.load(Ordering::Acquire) >= MOST
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
        assert!(is_foreign(&open("/proc/self/stat")));
        let memory = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        let (pipe, _) = rustix::pipe::pipe().unwrap();
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
        let (folder, null) = (open("/proc/self"), open("/dev/null"));
        for ours in [memory, pipe, event, folder, null] {
            assert!(!is_foreign(&ours), "{ours:?}");
        }
    }
}
