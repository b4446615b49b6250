//! Transfers between files and memory by the kernel (io_uring(7)): many at once, without a buffer
//! in between.
//!
//! A [`FileRing`] belongs to one thread, which starts operations, submits them
//! ([`FileRing::submit`]) and takes those that have ended ([`FileRing::take_ended`]); an eventfd
//! signals that there are any. Only functions whose documentation says so wait.
//!
//! Memory is pinned ([`Pinned`]) only as long as the kernel may touch it: a change of the memory
//! map waits for that. The thread of the ring unpins the memory when it processes completions. So
//! before that thread waits for another thread that may wait for such a change, it must release all
//! pins ([`FileRing::unpin`]).
//!
//! A transfer is complete or it has failed: a short step is continued, and a file that ends too
//! early is an error.
//!
//! The crate contains unsafe code, because the kernel gets addresses.

mod check;
mod file;
mod operation;
mod progress;
mod transfer;
mod zeroing;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use io_uring::register::Restriction;
use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};
use peerbar_dma::{MemoryFile, Pinned, Span};

pub use check::Differs;
use check::{Check, STEP};
pub use file::RingFile;
use operation::{Operation, Work};
use progress::Progress;
use slab::Slab;
pub use transfer::MOST_PARTS;
use transfer::{Addresses, Transfer};
use zeroing::Zeroing;

/// Operations that a ring accepts at once.
pub const MOST: usize = 1024;
/// Entries of the kernel's ring: each operation uses at most one.
const ENTRIES: u32 = 1024;

/// The kernel's threads for operations that block, such as every sync. If all of them wait for a
/// slow disk, other operations wait, too. The kernel's default limit, four for each processor, is
/// quickly reached.
const THREADS: u32 = 64;

/// The only operations of a ring. Without this restriction a ring could open files and connect,
/// past a filter of system calls.
const OPERATIONS: [u8; 6] = [
    opcode::Fallocate::CODE,
    opcode::Fsync::CODE,
    opcode::Read::CODE,
    opcode::Readv::CODE,
    opcode::Write::CODE,
    opcode::Writev::CODE,
];

/// Time after which a wait is logged.
const LOGGED_AFTER: Timespec = Timespec::new().sec(10);

/// Operations on files that the kernel executes.
pub struct FileRing<T> {
    ring: IoUring,
    /// The operations by their keys, which are also their numbers for the kernel.
    operations: Slab<Operation<T>>,
    /// Number of operations with pinned memory.
    pinned: usize,
    /// Set while no operation may make a further step.
    stopping: bool,
    ended: VecDeque<(T, io::Result<()>)>,
    /// Empty lists of transfers that have ended, so that a new transfer need not allocate.
    spare: Vec<Addresses>,
    /// Buffers of checks: a step for each key, sparse until used.
    checked: Arc<MemoryFile>,
}

impl<T> FileRing<T> {
    /// Makes a ring that signals the eventfd `ended` whenever operations have ended. Fails if the
    /// kernel has no io_uring (before 5.11), or does not permit it.
    pub fn new(ended: BorrowedFd<'_>) -> io::Result<Self> {
        let ring = IoUring::builder().setup_r_disabled().build(ENTRIES)?;
        if !ring.params().is_feature_ext_arg() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        ring.submitter().register_eventfd(ended.as_raw_fd())?;
        // Kernels before 5.15 keep their limit.
        let _ = ring
            .submitter()
            .register_iowq_max_workers(&mut [THREADS, 0]);
        let mut permitted = OPERATIONS.map(Restriction::sqe_op);
        ring.submitter().register_restrictions(&mut permitted)?;
        ring.submitter().register_enable_rings()?;
        let checked = MemoryFile::create("peerbar-file-ring", (MOST * STEP) as u64);
        Ok(Self {
            ring,
            operations: Slab::new(),
            pinned: 0,
            stopping: false,
            ended: VecDeque::new(),
            spare: Vec::new(),
            checked: Arc::new(checked.map_err(io::Error::other)?),
        })
    }

    /// Returns the number of operations in progress.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Returns `true` if no operation is in progress.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of operations that can still be started.
    pub fn free_entries(&self) -> usize {
        MOST.saturating_sub(self.len())
    }

    /// Returns `true` if any operation has pinned memory.
    pub fn has_pinned(&self) -> bool {
        self.pinned > 0
    }

    /// Starts a transfer between pinned memory and a file from `offset` on: to the file if the
    /// memory is pinned for reading. If the file is in memory, the transfer ends at once: io_uring
    /// would use a thread, because such file systems do not declare that they never block.
    pub fn transfer(&mut self, (file, offset): (&RingFile, u64), memory: Pinned, owner: T) {
        let addresses = self.spare.pop().unwrap_or_default();
        let mut transfer = match Transfer::new(memory, offset, addresses) {
            Ok(transfer) => transfer,
            Err(error) => return self.ended.push_back((owner, Err(error))),
        };
        if file.is_in_memory() {
            let outcome = transfer.move_now(file.file());
            self.spare.push(transfer.end(&outcome));
            return self.ended.push_back((owner, outcome));
        }
        self.pinned += 1;
        self.start(Operation {
            file: file.clone(),
            work: Work::Transfer(transfer),
            owner,
        });
    }

    /// Starts to read `len` bytes of a file from `offset` on, and to compare them with pinned
    /// memory, if there is any. It fails with [`Differs`] if they are not equal.
    pub fn check(
        &mut self,
        file: &RingFile,
        (offset, len): (u64, u64),
        memory: Option<Pinned>,
        owner: T,
    ) {
        let key = self.operations.vacant_key();
        let buffer = Span {
            file: self.checked.clone(),
            offset: (key * STEP) as u64,
        };
        let check = match Check::new((offset, len), memory, buffer) {
            Ok(check) => check,
            Err(error) => return self.ended.push_back((owner, Err(error))),
        };
        self.pinned += usize::from(check.has_pinned());
        self.start(Operation {
            file: file.clone(),
            work: Work::Check(check),
            owner,
        });
    }

    /// Starts to bring earlier writes to a file, or to a `part` of it (an offset and a length), to
    /// stable storage. If the file is in memory, this ends at once.
    ///
    /// The kernel reports a failure to only one sync, which need not be the one that waited for the
    /// lost data.
    pub fn sync(&mut self, file: &RingFile, part: Option<(u64, u64)>, owner: T) {
        if file.is_in_memory() {
            return self.ended.push_back((owner, Ok(())));
        }
        let part = part.and_then(|(offset, len)| Some((offset, u32::try_from(len).ok()?)));
        let (offset, len) = part.unwrap_or_default();
        self.start(Operation {
            file: file.clone(),
            work: Work::Sync { offset, len },
            owner,
        });
    }

    /// Starts to make `len` bytes of a file from `offset` on read as zero, and with `deallocate`
    /// also frees their storage. Zeros are written if the file system supports neither.
    pub fn zero(&mut self, file: &RingFile, (offset, len): (u64, u64), deallocate: bool, owner: T) {
        self.start(Operation {
            file: file.clone(),
            work: Work::Zeroing(Zeroing::new((offset, len), deallocate)),
            owner,
        });
    }

    fn start(&mut self, operation: Operation<T>) {
        let key = self.operations.insert(operation);
        self.step(key);
    }

    /// Queues the next step of an operation for the kernel.
    fn step(&mut self, key: usize) {
        let Some(operation) = self.operations.get(key) else {
            return;
        };
        let entry = operation.entry().user_data(key as u64);
        // SAFETY: the entry names a file, and static zeroes, or an address, or a list of addresses,
        // and memory there. The operation, which is kept until the kernel has completed the step,
        // keeps all three: the file open, the list (whose items lie on the heap) unchanged, and the
        // memory mapped. Other processes write that memory too; there is no reference to it.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        if pushed.is_err() {
            self.end(key, Err(io::ErrorKind::ResourceBusy.into()));
        }
    }

    /// Submits all started operations. Returns `true` if the kernel has taken all of them. If not,
    /// call this again.
    pub fn submit(&mut self) -> bool {
        if self.ring.submission().is_empty() {
            return true;
        }
        if let Err(error) = self.ring.submit() {
            log::debug!("the kernel takes no transfers at this moment: {error}");
        }
        self.ring.submission().is_empty()
    }

    /// Returns an operation that has ended, and its result.
    pub fn take_ended(&mut self) -> Option<(T, io::Result<()>)> {
        if self.ended.is_empty() {
            self.reap();
        }
        self.ended.pop_front()
    }

    /// Waits until no memory is pinned. [`FileRing::take_ended`] returns the operations that have
    /// ended by then.
    pub fn unpin(&mut self) {
        while self.has_pinned() {
            self.wait();
        }
    }

    /// Waits until the kernel no longer touches memory or changes files: by then, operations other
    /// than syncs have ended, or were abandoned after the step in progress.
    pub fn stop(&mut self) {
        self.stopping = true;
        let is_met =
            |(_, operation): (usize, &Operation<T>)| !matches!(operation.work, Work::Sync { .. });
        while self.operations.iter().any(is_met) {
            self.wait();
        }
        self.stopping = false;
    }

    /// Waits until every operation has ended, or was abandoned after the step in progress.
    pub fn finish(&mut self) {
        self.stopping = true;
        while !self.is_empty() {
            self.wait();
        }
        self.stopping = false;
    }

    /// Waits without a limit until a step of some operation is over: until then the kernel may
    /// touch the memory. If it does not let this thread wait, the process ends, and the kernel ends
    /// the operations before the memory goes.
    fn wait(&mut self) {
        let limit = SubmitArgs::new().timespec(&LOGGED_AFTER);
        let waited = self.ring.submitter().submit_with_args(1, &limit);
        self.reap();
        match waited.map_err(|error| error.raw_os_error()) {
            Ok(_) | Err(Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {}
            Err(Some(libc::ETIME)) => log::warn!(
                "the host's disk does not answer: {} transfers are in progress, and the guest waits for them",
                self.len()
            ),
            Err(error) => {
                log::error!(
                    "the kernel refuses to wait for transfers (errno {error:?}): the process ends, as its memory is in use"
                );
                std::process::abort();
            }
        }
    }

    /// Processes the completions of the kernel.
    fn reap(&mut self) {
        loop {
            // A separate statement, so that the borrow of the queue ends here.
            let done = self.ring.completion().next();
            let Some(done) = done else {
                return;
            };
            let result = match done.result() {
                error if error < 0 => Err(io::Error::from_raw_os_error(-error)),
                count => Ok(usize::try_from(count).unwrap_or(0)),
            };
            if let Ok(key) = usize::try_from(done.user_data()) {
                self.advance(key, result);
            }
        }
    }

    /// Continues an operation after a step.
    fn advance(&mut self, key: usize, result: io::Result<usize>) {
        let Some(operation) = self.operations.get_mut(key) else {
            return;
        };
        match operation.work.advance(result) {
            Progress::More if self.stopping => {
                self.end(key, Err(io::ErrorKind::Interrupted.into()))
            }
            Progress::More => self.step(key),
            Progress::Over(outcome) => self.end(key, outcome),
        }
    }

    /// Ends an operation: the kernel no longer touches its memory, which is unpinned, or its file.
    fn end(&mut self, key: usize, outcome: io::Result<()>) {
        let Some(Operation { work, owner, .. }) = self.operations.try_remove(key) else {
            return;
        };
        match work {
            Work::Transfer(transfer) => {
                self.pinned -= 1;
                self.spare.push(transfer.end(&outcome));
            }
            Work::Check(check) => {
                self.pinned -= usize::from(check.has_pinned());
                check.end(&outcome);
            }
            Work::Zeroing(_) | Work::Sync { .. } => {}
        }
        self.ended.push_back((owner, outcome));
    }
}

impl<T> Drop for FileRing<T> {
    fn drop(&mut self) {
        self.finish();
    }
}

#[cfg(test)]
mod tests;
