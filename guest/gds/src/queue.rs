//! Many transfers at once, by io_uring.

#![expect(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use io_uring::{IoUring, opcode, squeue, types};

use crate::transfer::{FileRange, Transfer};
use crate::{Buffer, Direction, Error, GpuFile, Result};

/// Limit of the bytes that one entry of the ring requests. The rest of a longer transfer follows
/// when it completes.
const LONGEST: u64 = 1 << 30;

/// Number of requests that [`batch`] keeps in progress.
const BATCH_DEPTH: u32 = 64;

/// A requested transfer. It keeps its file and its buffer until it has ended.
#[derive(Clone, Debug)]
pub struct Request {
    /// The direction.
    pub direction: Direction,
    /// The file.
    pub file: GpuFile,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// The buffer.
    pub buffer: Buffer,
    /// The part of the buffer, in bytes.
    pub range: Range<u64>,
}

/// Identifies a request of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// A request that has ended.
#[derive(Debug)]
pub struct Completion {
    /// The request.
    pub ticket: Ticket,
    /// Bytes that were moved, or the error: as for [`GpuFile::read_at`] and [`GpuFile::write_at`].
    pub result: Result<u64>,
}

/// A queue of transfers that run while the program does something else.
///
/// The kernel executes the peer-to-peer transfers, in any order. The waiting thread executes the
/// bounces that the policy allows. Dropping the queue waits for requests in progress, and executes
/// the rest of them.
pub struct Queue {
    ring: IoUring,
    depth: u32,
    next: u64,
    in_progress: BTreeMap<u64, (Request, Transfer)>,
    done: VecDeque<Completion>,
}

impl Queue {
    /// Makes a queue for `depth` requests at a time, 1 to 32768.
    ///
    /// # Errors
    /// [`Error::Ring`].
    pub fn new(depth: u32) -> Result<Self> {
        let ring = IoUring::new(depth).map_err(|source| Error::Ring {
            what: "set up",
            source,
        })?;
        Ok(Queue {
            ring,
            depth,
            next: 0,
            in_progress: BTreeMap::new(),
            done: VecDeque::new(),
        })
    }

    /// Starts a request.
    ///
    /// # Errors
    /// [`Error::QueueFull`] if the queue has no free entries; those errors of [`GpuFile::read_at`]
    /// that are known before a byte has moved.
    pub fn push(&mut self, request: Request) -> Result<Ticket> {
        if self.in_progress.len() >= usize::try_from(self.depth).unwrap_or(usize::MAX) {
            return Err(Error::QueueFull(self.depth));
        }
        let transfer = request.file.plan(
            request.direction,
            &request.buffer,
            request.range.clone(),
            request.offset,
        )?;
        let ticket = self.next;
        self.next = self.next.wrapping_add(1);
        let middle = transfer.middle();
        // A request that bounces as a whole uses the ring, too, so that the queue polls readable.
        let entry = match middle.length() {
            0 => opcode::Nop::new().build(),
            _ => entry(&request, &middle)?,
        };
        self.start(&entry.user_data(ticket))?;
        self.in_progress.insert(ticket, (request, transfer));
        // An entry that the kernel does not take now is submitted in `wait`, which reports errors.
        let _ = self.enter(0);
        Ok(Ticket(ticket))
    }

    /// Returns the number of requests that are in progress or not yet reported.
    pub fn pending(&self) -> usize {
        self.in_progress.len().saturating_add(self.done.len())
    }

    /// Waits until some request has ended. Returns `None` if none is left.
    ///
    /// # Errors
    /// [`Error::Ring`].
    pub fn wait(&mut self) -> Result<Option<Completion>> {
        while self.done.is_empty() && !self.in_progress.is_empty() {
            self.enter(1)?;
            self.reap();
        }
        Ok(self.done.pop_front())
    }

    /// Puts an entry into the ring. Its request must be in `in_progress` before the kernel is
    /// entered.
    fn start(&mut self, entry: &squeue::Entry) -> Result<()> {
        let mut entries = self.ring.submission();
        // SAFETY: the entry names a span within a mapping and a descriptor, and the request in
        // `in_progress` keeps both until its completion has been reaped.
        unsafe { entries.push(entry) }.map_err(|_| Error::QueueFull(self.depth))
    }

    /// Submits new entries, and waits for `completions`.
    fn enter(&mut self, completions: usize) -> Result<()> {
        loop {
            match self.ring.submit_and_wait(completions) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(Error::Ring {
                        what: "use",
                        source,
                    });
                }
            }
        }
    }

    /// Ends one request that the kernel has finished. The others stay in the ring, which polls
    /// readable for them.
    fn reap(&mut self) {
        let Some(entry) = self.ring.completion().next() else {
            return;
        };
        let (ticket, result) = (entry.user_data(), entry.result());
        if let Some((request, transfer)) = self.in_progress.remove(&ticket) {
            let first = (transfer.middle().length() > 0).then(|| {
                u64::try_from(result)
                    .map_err(|_| io::Error::from_raw_os_error(result.saturating_neg()))
            });
            self.finish(ticket, &request, &transfer, first);
        }
    }

    /// Executes the rest of a request, and stores its outcome for [`Queue::wait`].
    fn finish(
        &mut self,
        ticket: u64,
        request: &Request,
        transfer: &Transfer,
        first: Option<io::Result<u64>>,
    ) {
        let result = request.file.carry_out(transfer, &request.buffer, first);
        self.done.push_back(Completion {
            ticket: Ticket(ticket),
            result,
        });
    }
}

impl AsFd for Queue {
    /// Polls readable when [`Queue::wait`] has a result.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring is open as long as the queue, which the result borrows.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue")
            .field("depth", &self.depth)
            .field("in_progress", &self.in_progress.len())
            .finish_non_exhaustive()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        while !self.in_progress.is_empty() {
            if self.enter(1).is_err() {
                // The kernel may still write to these buffers, so they must stay mapped.
                std::mem::forget(std::mem::take(&mut self.in_progress));
                return;
            }
            self.reap();
        }
    }
}

/// Returns the entry of the ring for a range of a file.
fn entry(request: &Request, file_range: &FileRange) -> Result<squeue::Entry> {
    let file = types::Fd(request.file.as_fd().as_raw_fd());
    let length = file_range.length().min(LONGEST);
    let end = file_range.range.start.saturating_add(length);
    let refused = |source| Error::Ring {
        what: "describe the buffer to",
        source,
    };
    let (address, length) = request
        .buffer
        .mapping()
        .pointer(file_range.range.start..end)
        .map_err(refused)?;
    let length = u32::try_from(length).map_err(|error| refused(io::Error::other(error)))?;
    Ok(match file_range.direction {
        Direction::Read => opcode::Read::new(file, address.as_ptr(), length)
            .offset(file_range.offset)
            .build(),
        Direction::Write => opcode::Write::new(file, address.as_ptr(), length)
            .offset(file_range.offset)
            .build(),
    })
}

/// Executes all of `requests`, many of them at a time and in any order. Returns the result of each,
/// in the order of the requests.
///
/// # Errors
/// [`Error::Ring`] if nothing can be done at all. Errors of a single request are in its result.
pub fn batch(requests: impl IntoIterator<Item = Request>) -> Result<Vec<Result<u64>>> {
    let mut queue = Queue::new(BATCH_DEPTH)?;
    let mut results: Vec<Option<Result<u64>>> = Vec::new();
    let mut indexes = BTreeMap::new();
    for request in requests {
        while queue.in_progress.len() >= usize::try_from(BATCH_DEPTH).unwrap_or(usize::MAX) {
            settle(&mut queue, &mut indexes, &mut results)?;
        }
        let index = results.len();
        results.push(None);
        match queue.push(request) {
            Ok(ticket) => {
                indexes.insert(ticket, index);
            }
            Err(error) => {
                if let Some(result) = results.get_mut(index) {
                    *result = Some(Err(error));
                }
            }
        }
    }
    while queue.pending() > 0 {
        settle(&mut queue, &mut indexes, &mut results)?;
    }
    Ok(results.into_iter().flatten().collect())
}

/// Waits for one request of a batch and keeps its result.
fn settle(
    queue: &mut Queue,
    indexes: &mut BTreeMap<Ticket, usize>,
    results: &mut [Option<Result<u64>>],
) -> Result<()> {
    let Some(completion) = queue.wait()? else {
        return Ok(());
    };
    let index = indexes.remove(&completion.ticket);
    if let Some(result) = index.and_then(|index| results.get_mut(index)) {
        *result = Some(completion.result);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use tempfile::NamedTempFile;

    use super::*;
    use crate::fake::{bytes_of, gpu_with, open_anywhere};
    use crate::{Gpu, Policy};

    fn lab(policy: Policy) -> (Gpu, Buffer, GpuFile, NamedTempFile) {
        let (_, gpu) = gpu_with(1 << 20);
        let buffer = gpu.allocate(1 << 18).unwrap();
        let named = NamedTempFile::new().unwrap();
        let bytes: Vec<u8> = (0..=255).cycle().take(1 << 18).collect();
        named.as_file().write_all_at(&bytes, 0).unwrap();
        let file = open_anywhere(&gpu, named.path(), policy);
        (gpu, buffer, file, named)
    }

    fn read(file: &GpuFile, buffer: &Buffer, offset: u64, range: Range<u64>) -> Request {
        Request {
            direction: Direction::Read,
            file: file.clone(),
            offset,
            buffer: buffer.clone(),
            range,
        }
    }

    #[test]
    fn a_batch_longer_than_its_queue_keeps_its_order() {
        let (_gpu, buffer, file, _named) = lab(Policy::AllowBounce);
        let mut requests: Vec<Request> = (0..100_u64)
            .map(|index| {
                let at = index % 30 * 8192;
                read(&file, &buffer, at, at..at + 4096)
            })
            .collect();
        requests[7].range = 0..(1 << 18) + 1;
        requests[9].offset += 5;
        let results = batch(requests).unwrap();
        assert_eq!(results.len(), 100);
        for (index, result) in results.into_iter().enumerate() {
            match index {
                7 => assert!(matches!(result, Err(Error::OutOfBounds { .. }))),
                _ => assert_eq!(result.unwrap(), 4096),
            }
        }
        assert_eq!(bytes_of(&buffer, 8192, 3), [0, 1, 2]);
        assert_eq!(file.traffic().peer_bytes, 98 * 4096);
        assert_eq!(file.traffic().bounced_bytes, 4096);
    }

    #[test]
    fn full_queue_refuses_and_a_drop_waits() {
        let (_gpu, buffer, file, _named) = lab(Policy::PeerOnly);
        let mut queue = Queue::new(2).unwrap();
        let first = queue.push(read(&file, &buffer, 0, 0..4096)).unwrap();
        let second = queue.push(read(&file, &buffer, 0, 4096..8192)).unwrap();
        assert_ne!(first, second);
        let third = queue.push(read(&file, &buffer, 0, 8192..12288));
        assert!(matches!(third, Err(Error::QueueFull(2))));
        let done = queue.wait().unwrap().unwrap();
        assert_eq!(done.result.unwrap(), 4096);
        queue.push(read(&file, &buffer, 0, 8192..12288)).unwrap();
        drop(queue);
        assert_eq!(bytes_of(&buffer, 8192, 3), [0, 1, 2]);
    }

    #[test]
    fn queue_polls_readable_while_it_has_a_completion() {
        let (_gpu, buffer, file, _named) = lab(Policy::AllowBounce);
        let mut queue = Queue::new(4).unwrap();
        let readable = |queue: &Queue| {
            let mut polled = [rustix::event::PollFd::new(
                queue,
                rustix::event::PollFlags::IN,
            )];
            let time_out = rustix::event::Timespec {
                tv_sec: 20,
                tv_nsec: 0,
            };
            rustix::event::poll(&mut polled, Some(&time_out)).unwrap()
        };
        queue.push(read(&file, &buffer, 5, 0..100)).unwrap();
        queue.push(read(&file, &buffer, 0, 4096..8192)).unwrap();
        queue.push(read(&file, &buffer, 7, 8192..8292)).unwrap();
        for _ in 0..3 {
            assert_eq!(readable(&queue), 1);
            queue.wait().unwrap().unwrap().result.unwrap();
        }
        assert_eq!(file.traffic().bounced_bytes, 200);
    }

    #[test]
    fn a_dropped_queue_leaves_no_transfer_half_done() {
        let (_gpu, buffer, file, _named) = lab(Policy::AllowBounce);
        let mut queue = Queue::new(2).unwrap();
        queue.push(read(&file, &buffer, 1, 0..100)).unwrap();
        drop(queue);
        assert_eq!(bytes_of(&buffer, 0, 3), [1, 2, 3]);
    }

    #[test]
    fn an_empty_queue_has_nothing_to_wait_for() {
        assert!(Queue::new(1).unwrap().wait().unwrap().is_none());
    }
}
