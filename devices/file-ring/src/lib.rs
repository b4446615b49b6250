//! Data between files and memory, moved by the kernel: many transfers at once, and no buffer of ours in between (io_uring(7)).
//!
//! A [`FileRing`] belongs to one thread, which starts operations, hands them over ([`FileRing::submit`]) and looks for those
//! that have ended ([`FileRing::take_ended`]); a bell rings when there are any. It never waits but where it says so.
//!
//! Memory is pinned ([`Pinned`]) for as long as the kernel may touch it, and no longer: whoever changes the memory map waits for
//! that. The pin is let go by the thread that owns the ring when it looks. So that thread lets the ring go empty of pins
//! ([`FileRing::unpin`]) before it waits for anybody who may wait for such a change.
//!
//! A transfer is whole or it has failed: what the kernel does by halves is gone on with, and a file that ends too early is
//! an error.
//!
//! There is unsafe code here, since the kernel is given addresses.

mod check;
mod file;
mod operation;
mod transfer;
mod zeroing;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use io_uring::IoUring;
use peerbar_dma::{MemoryFile, Pinned, Span};

pub use check::Differs;
use check::{Check, STEP};
pub use file::RingFile;
use operation::{Operation, Progress, Stretch, Work};
use transfer::{Addresses, Transfer};
use zeroing::Zeroing;

/// How many operations a ring takes at once.
pub const MOST: usize = 1024;
/// The same, as the kernel is told: each operation has at most one entry with it.
const ENTRIES: u32 = 1024;

/// How many threads the kernel may have for what it cannot do at once, such as every sync. If all of them wait for a slow
/// disk, other operations wait for them; its own limit, four for each processor, is soon reached.
const THREADS: u32 = 64;

/// Operations on files that go on by themselves.
pub struct FileRing<T> {
    ring: IoUring,
    /// By their places, which are their numbers for the kernel.
    operations: Vec<Option<Operation<T>>>,
    free: Vec<usize>,
    /// How many of them have memory pinned.
    pinned: usize,
    /// No operation makes a further step.
    stopping: bool,
    ended: VecDeque<(T, io::Result<()>)>,
    /// Of transfers that have ended: no transfer need allocate any.
    spare: Vec<Addresses>,
    /// What is read to be checked: a step for each place, sparse until read to.
    checked: Arc<MemoryFile>,
}

impl<T> FileRing<T> {
    /// A ring that rings `bell`, an eventfd, whenever operations have ended. It fails where the kernel has no io_uring, or
    /// permits none.
    pub fn new(bell: BorrowedFd<'_>) -> io::Result<Self> {
        let ring = IoUring::new(ENTRIES)?;
        ring.submitter().register_eventfd(bell.as_raw_fd())?;
        // Kernels before 5.15 keep their limit.
        let _ = ring
            .submitter()
            .register_iowq_max_workers(&mut [THREADS, 0]);
        let checked = MemoryFile::create("peerbar-file-ring", (MOST * STEP) as u64);
        Ok(Self {
            ring,
            operations: Vec::new(),
            free: Vec::new(),
            pinned: 0,
            stopping: false,
            ended: VecDeque::new(),
            spare: Vec::new(),
            checked: Arc::new(checked.map_err(io::Error::other)?),
        })
    }

    /// How many operations go on.
    pub fn len(&self) -> usize {
        self.operations.len() - self.free.len()
    }

    /// Whether none goes on.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many more can be started.
    pub fn room(&self) -> usize {
        MOST.saturating_sub(self.len())
    }

    /// Whether memory is pinned by any.
    pub fn has_pinned(&self) -> bool {
        self.pinned > 0
    }

    /// Starts to move data between pinned memory and a file from `offset` on: to the file if the memory is pinned to be read,
    /// and with `durable` to stable storage. If the file is in memory it has ended at once: io_uring would have a thread of its
    /// own do it, as such file systems do not tell that they never wait.
    pub fn transfer(
        &mut self,
        (file, offset): (&RingFile, u64),
        memory: Pinned,
        durable: bool,
        owner: T,
    ) {
        let addresses = self.spare.pop().unwrap_or_default();
        let mut transfer = match Transfer::new(memory, offset, durable, addresses) {
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

    /// Starts to read `len` bytes of a file from `offset` on, and to compare them with pinned memory, if there is any: it fails
    /// with [`Differs`] where they are not the same.
    pub fn check(
        &mut self,
        file: &RingFile,
        (offset, len): (u64, u64),
        memory: Option<Pinned>,
        owner: T,
    ) {
        let place = self.free.last().copied().unwrap_or(self.operations.len());
        let room = Span {
            file: self.checked.clone(),
            offset: (place * STEP) as u64,
        };
        let check = match Check::new((offset, len), memory, room) {
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

    /// Starts to bring all that was written to a file to stable storage.
    pub fn sync(&mut self, file: &RingFile, owner: T) {
        self.start(Operation {
            file: file.clone(),
            work: Work::Sync(Stretch::WHOLE),
            owner,
        });
    }

    /// Starts to make `len` bytes of a file from `offset` on read as zero, and with `deallocate` gives their storage back too.
    /// They are written where the file system cannot do either.
    pub fn zero(&mut self, file: &RingFile, (offset, len): (u64, u64), deallocate: bool, owner: T) {
        self.start(Operation {
            file: file.clone(),
            work: Work::Zeroing(Zeroing::new((offset, len), deallocate)),
            owner,
        });
    }

    fn start(&mut self, operation: Operation<T>) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.operations.push(None);
            self.operations.len() - 1
        });
        if let Some(slot) = self.operations.get_mut(place) {
            *slot = Some(operation);
        }
        self.step(place);
    }

    /// Puts the next step of an operation where the kernel will look for it.
    fn step(&mut self, place: usize) {
        let Some(Some(operation)) = self.operations.get(place) else {
            return;
        };
        let entry = operation.entry().user_data(place as u64);
        // SAFETY: the entry names a file, and zeroes that are there for good, or an address, or a list of addresses, and memory
        // there. The operation, which is kept until the kernel has told that the step is over, keeps all three: the file
        // open, the list, whose items lie on the heap, in place and unchanged, the memory mapped. Other processes write that
        // memory too; nobody holds a reference to it.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        if pushed.is_err() {
            self.end(place, Err(io::ErrorKind::ResourceBusy.into()));
        }
    }

    /// Hands everything that has been started to the kernel; whether it has taken it. If not, it is to be asked again.
    pub fn submit(&mut self) -> bool {
        if self.ring.submission().is_empty() {
            return true;
        }
        if let Err(error) = self.ring.submit() {
            log::debug!("the kernel takes no transfers at this moment: {error}");
        }
        self.ring.submission().is_empty()
    }

    /// An operation that has ended, and how.
    pub fn take_ended(&mut self) -> Option<(T, io::Result<()>)> {
        if self.ended.is_empty() {
            self.look();
        }
        self.ended.pop_front()
    }

    /// Waits until no memory is pinned. What has ended by then comes out of [`FileRing::take_ended`].
    pub fn unpin(&mut self) {
        while self.has_pinned() && self.wait() {}
    }

    /// Waits until the kernel touches no memory and changes no file any more: operations but syncs are over then, or given up
    /// after the step that goes on.
    pub fn stop(&mut self) {
        self.stopping = true;
        let is_met = |operation: &Operation<T>| !matches!(operation.work, Work::Sync(_));
        while self.operations.iter().flatten().any(is_met) && self.wait() {}
        self.stopping = false;
    }

    /// Waits until some operation has gone on; whether that can be waited for.
    fn wait(&mut self) -> bool {
        let waited = self.ring.submit_and_wait(1);
        self.look();
        match waited.map_err(|error| error.raw_os_error()) {
            Ok(_) | Err(Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => true,
            Err(error) => {
                log::error!("transfers cannot be waited for: errno {error:?}");
                false
            }
        }
    }

    /// Takes in what the kernel has done.
    fn look(&mut self) {
        loop {
            // A statement of its own: the queue is let go with it.
            let done = self.ring.completion().next();
            let Some(done) = done else {
                return;
            };
            let result = match done.result() {
                error if error < 0 => Err(io::Error::from_raw_os_error(-error)),
                count => Ok(usize::try_from(count).unwrap_or(0)),
            };
            if let Ok(place) = usize::try_from(done.user_data()) {
                self.go_on(place, result);
            }
        }
    }

    /// A step of an operation is over.
    fn go_on(&mut self, place: usize, result: io::Result<usize>) {
        let Some(Some(operation)) = self.operations.get_mut(place) else {
            return;
        };
        match operation.work.advance(result) {
            Progress::More if self.stopping => {
                self.end(place, Err(io::ErrorKind::Interrupted.into()))
            }
            Progress::More => self.step(place),
            Progress::ToSync(stretch) => self.sync_stretch(place, stretch),
            Progress::Over(outcome) => self.end(place, outcome),
        }
    }

    /// All data of a transfer is in the file, and is to be on stable storage; the memory is needed no more. It is a step of
    /// its own as the kernel makes writes to a file one after the other, each with its part of this if it has one (RWF_DSYNC).
    fn sync_stretch(&mut self, place: usize, stretch: Stretch) {
        let operation = self.operations.get_mut(place).and_then(Option::as_mut);
        let Some(operation) = operation else {
            return;
        };
        let work = std::mem::replace(&mut operation.work, Work::Sync(stretch));
        self.let_go(work, &Ok(()));
        self.step(place);
    }

    /// An operation is over: the kernel touches nothing of it any more.
    fn end(&mut self, place: usize, outcome: io::Result<()>) {
        let operation = self.operations.get_mut(place).and_then(Option::take);
        let Some(Operation { work, owner, .. }) = operation else {
            return;
        };
        self.free.push(place);
        self.let_go(work, &outcome);
        self.ended.push_back((owner, outcome));
    }

    /// Lets the memory go, if some is pinned for this.
    fn let_go(&mut self, work: Work, outcome: &io::Result<()>) {
        match work {
            Work::Transfer(transfer) => {
                self.pinned -= 1;
                self.spare.push(transfer.end(outcome));
            }
            Work::Check(check) => {
                self.pinned -= usize::from(check.has_pinned());
                check.end(outcome);
            }
            Work::Zeroing(_) | Work::Sync(_) => {}
        }
    }
}

impl<T> Drop for FileRing<T> {
    /// Waits until everything has ended, or been given up.
    fn drop(&mut self) {
        self.stopping = true;
        while !self.is_empty() {
            if !self.wait() {
                // Whatever the kernel may still touch stays as it is for good.
                std::mem::forget(std::mem::take(&mut self.operations));
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests;
