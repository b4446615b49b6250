//! Queues of a disk that the GPU drives.

use std::mem::ManuallyDrop;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::buffer::{Buffer, ImportedBuffer};
use crate::command::{Command, Kernel, NvmeIo};
use crate::fence::Fence;
use crate::{Error, Gpu, Result};

/// Bytes of an entry of each queue, of the state and of a request (devices/gpu/INTERFACE.md, Kernel 5).
const SUBMISSION_BYTES: u64 = 64;
const COMPLETION_BYTES: u64 = 16;
const STATE_BYTES: u64 = 32;
const REQUEST_BYTES: u64 = 32;
/// Offset of the outcome in a request, and the status in it.
const OUTCOME: u64 = 28;
const STATUS: u32 = 0xffff;
/// Queues start at pages of the controller (NVMe Base 2.0, 5.5, PRP Entry 1).
const PAGE: u64 = 4096;
/// Minimum number of entries of a queue (NVMe Base 2.0, 3.3.3.1).
const FEWEST_ENTRIES: u16 = 2;
/// Threads of a block.
const BLOCK: u32 = 256;
/// Allowed numbers of logical blocks of a request: 16 bits, 0's based.
const BLOCKS: RangeInclusive<u32> = 1..=1 << 16;
/// Bytes of a doorbell.
const DOORBELL_BYTES: u64 = 4;

/// A pair of I/O queues of a disk in the memory of a GPU, which the GPU drives by itself.
///
/// ```no_run
/// use std::os::fd::OwnedFd;
/// use std::time::Duration;
///
/// use peerbar_gds::{Doorbells, Gpu, GpuQueue, GpuRequest, Result};
///
/// # fn create(id: u16, submission: u64, completion: u64, entries: u16) -> (u64, u64) { (0, 0) }
/// # fn delete(id: u16) {}
/// # fn registers_of_the_disk() -> OwnedFd { unimplemented!() }
/// fn read_by_gpu(gpu: &Gpu) -> Result<()> {
///     let mut queue = GpuQueue::allocate(gpu, 64, 1000)?;
///     let (submission, completion) = (queue.submission_address()?, queue.completion_address()?);
///     let (tail, head) = create(2, submission, completion, 64);
///     let registers = gpu.import(registers_of_the_disk())?;
///     let doorbells = Doorbells { registers, tail, head };
///
///     let data = gpu.allocate(4096)?;
///     let read = GpuRequest::read(0, 8, data.placement(0)?.bus_address);
///     queue.submit(&doorbells, 1, &[read], Duration::from_secs(1))?;
///     let statuses = queue.wait(Duration::from_secs(10))?;
///     println!("status {:#x}, {:?}", statuses[0], queue.statistics()?);
///
///     delete(2);
///     queue.release();
///     Ok(())
/// }
/// ```
///
/// The GPU writes submission entries and doorbells and polls the completions. The disk's driver,
/// such as one in user space over VFIO, creates the queues at [`GpuQueue::submission_address`] and
/// [`GpuQueue::completion_address`], without an interrupt, exports the registers as a dma-buf, and
/// deletes the queues in the end. For several pairs of queues at once, allocate each from a
/// separate opening ([`Gpu::open`]): the commands of one opening run one after the other.
///
/// The addresses are bus addresses, which devices below one switch use, and devices without an
/// IOMMU. With an IOMMU in between, the caller maps the memory for the disk, and creates the queues
/// by those addresses.
///
/// After an error of [`GpuQueue::wait`] other than [`Error::TimedOut`], commands may be in
/// progress: delete the queues of the disk and allocate another `GpuQueue`. This also applies if
/// the disk's registers are revoked during a launch ([`Fault::Revoked`](crate::Fault::Revoked)).
///
/// # Freeing the memory
/// A disk that still has the queues fetches commands from the memory and writes completions to it,
/// whoever owns it by then; neither this library nor the driver knows of the disk. Only
/// [`GpuQueue::release`] therefore frees the memory. Call it after the disk's queues are deleted or
/// the disk is reset. Dropping frees nothing: the memory, and the opening of the GPU, stay until
/// the process ends. Delete the queues before that, too. The data of requests is in buffers of the
/// caller, who must keep them until the requests have ended.
#[derive(Debug)]
pub struct GpuQueue {
    gpu: Gpu,
    /// A drop must not free memory that a disk may be using.
    memory: ManuallyDrop<Buffer>,
    entries: u16,
    most: u16,
    launch: Option<(Fence, u16)>,
}

/// The location of the doorbells of the queues.
#[derive(Clone, Debug)]
pub struct Doorbells {
    /// The disk's registers: a dma-buf of its BAR 0.
    pub registers: ImportedBuffer,
    /// The submission queue's tail: its byte offset in the registers.
    pub tail: u64,
    /// The completion queue's head: its byte offset in the registers.
    pub head: u64,
}

/// One command for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuRequest {
    /// Opcode of the NVM command set.
    pub opcode: u8,
    /// The first logical block.
    pub block: u64,
    /// Number of logical blocks, 1 to 65536; 1 for a command without data.
    pub blocks: u32,
    /// PRP 1 and PRP 2 (NVMe Base 2.0, 4.1.1): the location of the data, by addresses that the disk
    /// uses.
    pub prps: [u64; 2],
}

/// The GPU's activity on a queue since the queue was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueStatistics {
    /// Commands submitted.
    pub submitted: u64,
    /// Completions taken.
    pub completed: u64,
    /// Doorbells written.
    pub doorbells: u64,
}

impl GpuRequest {
    /// Makes a read of `blocks` logical blocks to the address `to`, at most to the end of its page
    /// of 4 KiB.
    pub fn read(block: u64, blocks: u32, to: u64) -> Self {
        Self {
            opcode: 2,
            block,
            blocks,
            prps: [to, 0],
        }
    }

    /// Makes a write of `blocks` logical blocks from the address `from`, at most to the end of its
    /// page of 4 KiB.
    pub fn write(block: u64, blocks: u32, from: u64) -> Self {
        Self {
            opcode: 1,
            prps: [from, 0],
            ..Self::read(block, blocks, 0)
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let [prp1, prp2] = self.prps;
        let mut bytes: Vec<u8> = [self.block, prp1, prp2]
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect();
        // 0's based; `check` has verified that 16 bits hold it.
        let [low, high, ..] = self.blocks.wrapping_sub(1).to_le_bytes();
        bytes.extend([low, high, self.opcode, 0, 0, 0, 0, 0]);
        bytes
    }
}

/// Fails with the first request whose number of blocks cannot be encoded.
fn check(requests: &[GpuRequest]) -> Result<()> {
    let numbers = requests.iter().map(|request| request.blocks);
    let refused = numbers.enumerate().find(|(_, n)| !BLOCKS.contains(n));
    refused.map_or(Ok(()), |(index, blocks)| {
        Err(Error::Blocks { index, blocks })
    })
}

impl GpuQueue {
    /// Allocates memory for queues of `entries` entries each, and for launches of up to `most`
    /// requests.
    ///
    /// # Errors
    /// [`Error::Entries`] for fewer than 2 entries, and as for [`Gpu::allocate`].
    pub fn allocate(gpu: &Gpu, entries: u16, most: u16) -> Result<Self> {
        if entries < FEWEST_ENTRIES {
            return Err(Error::Entries(entries));
        }
        let requests = u64::from(most).saturating_mul(REQUEST_BYTES);
        let size = requests_at(entries).saturating_add(requests);
        Ok(Self {
            gpu: gpu.clone(),
            memory: ManuallyDrop::new(gpu.allocate(size)?),
            entries,
            most,
            launch: None,
        })
    }

    /// Returns the bus address of the submission queue.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn submission_address(&self) -> Result<u64> {
        Ok(self.memory.placement(0)?.bus_address)
    }

    /// Returns the bus address of the completion queue.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn completion_address(&self) -> Result<u64> {
        Ok(self
            .memory
            .placement(completions_at(self.entries))?
            .bus_address)
    }

    /// Returns the number of entries of each of the two queues.
    pub(crate) fn entries(&self) -> u16 {
        self.entries
    }

    /// Returns the offset in [`GpuQueue::memory`] of the completion queue. The submission queue is
    /// at its start.
    pub fn completion_offset(&self) -> u64 {
        completions_at(self.entries)
    }

    /// Returns the memory of queues, state and requests.
    pub fn memory(&self) -> &Buffer {
        &self.memory
    }

    /// Lets the GPU execute `requests` in namespace `nsid`, as many at a time as the queues take.
    /// Returns at once. `limit` is the longest time from one completion to the next.
    ///
    /// # Errors
    /// [`Error::LaunchInProgress`], [`Error::TooManyRequests`], [`Error::Blocks`], and those of
    /// [`Gpu::submit`].
    pub fn submit(
        &mut self,
        doorbells: &Doorbells,
        nsid: u32,
        requests: &[GpuRequest],
        limit: Duration,
    ) -> Result<()> {
        if self.launch.is_some() {
            return Err(Error::LaunchInProgress);
        }
        let given = requests.len();
        let count = u16::try_from(given)
            .ok()
            .filter(|count| *count <= self.most);
        let count = count.ok_or(Error::TooManyRequests {
            given,
            most: self.most,
        })?;
        check(requests)?;
        let bytes: Vec<u8> = requests.iter().flat_map(GpuRequest::bytes).collect();
        self.memory
            .mapping()
            .write(requests_at(self.entries), &bytes)?;
        let kernel = self.kernel(doorbells, nsid, count, limit)?;
        let fence = self.gpu.submit(&Command::Launch {
            kernel,
            grid: u32::from(count).div_ceil(BLOCK),
            block: BLOCK,
        })?;
        self.launch = Some((fence, count));
        Ok(())
    }

    /// Waits for the requests that were submitted last. Returns the NVMe status of each, 0 for
    /// success. The list is empty if there are none.
    ///
    /// # Errors
    /// [`Error::TimedOut`], after which it can be called again; [`Error::Fault`], with
    /// [`Fault::TimeOut`](crate::Fault::TimeOut) if no completion came in time, and
    /// [`Fault::Dma`](crate::Fault::Dma) if a doorbell cannot be written; [`Error::Driver`].
    pub fn wait(&mut self, time_out: Duration) -> Result<Vec<u16>> {
        let Some((fence, count)) = &self.launch else {
            return Ok(Vec::new());
        };
        let count = *count;
        match fence.wait(time_out) {
            Err(Error::TimedOut(time_out)) => return Err(Error::TimedOut(time_out)),
            done => {
                self.launch = None;
                done?;
            }
        }
        (0..count).map(|index| self.status(index)).collect()
    }

    /// Returns the GPU's activity on the queues.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], which does not happen.
    pub fn statistics(&self) -> Result<QueueStatistics> {
        let at = state_at(self.entries);
        let word = |offset: u64| {
            let mut word = [0; 8];
            let read = self
                .memory
                .mapping()
                .read(at.saturating_add(offset), &mut word);
            read.map(|()| u64::from_le_bytes(word))
        };
        Ok(QueueStatistics {
            submitted: word(0)?,
            completed: word(8)?,
            doorbells: word(16)?,
        })
    }

    /// Frees the memory, once the disk has no queues there any more.
    pub fn release(self) {
        drop(ManuallyDrop::into_inner(self.memory));
    }

    fn kernel<'a>(
        &'a self,
        doorbells: &'a Doorbells,
        nsid: u32,
        count: u16,
        limit: Duration,
    ) -> Result<Kernel<'a>> {
        let part = |start: u64, bytes: u64| self.memory.span(start..start.saturating_add(bytes));
        let register = |at: u64| {
            let end = at.saturating_add(DOORBELL_BYTES);
            doorbells.registers.span(at..end)
        };
        let entries = u64::from(self.entries);
        let requests = u64::from(count).saturating_mul(REQUEST_BYTES);
        Ok(Kernel::NvmeIo(NvmeIo {
            submission: part(0, entries.saturating_mul(SUBMISSION_BYTES))?,
            completion: part(
                completions_at(self.entries),
                entries.saturating_mul(COMPLETION_BYTES),
            )?,
            tail: register(doorbells.tail)?,
            head: register(doorbells.head)?,
            state: part(state_at(self.entries), STATE_BYTES)?,
            requests: part(requests_at(self.entries), requests)?,
            depth: 0,
            nsid,
            limit,
        }))
    }

    fn status(&self, index: u16) -> Result<u16> {
        let request = u64::from(index).saturating_mul(REQUEST_BYTES);
        let at = requests_at(self.entries).saturating_add(request);
        let mut outcome = [0; 4];
        self.memory
            .mapping()
            .read(at.saturating_add(OUTCOME), &mut outcome)?;
        let status = u32::from_le_bytes(outcome) & STATUS;
        Ok(u16::try_from(status).unwrap_or(u16::MAX))
    }
}

/// Returns the offset of the completion queue, behind the submission queue.
fn completions_at(entries: u16) -> u64 {
    let bytes = u64::from(entries).saturating_mul(SUBMISSION_BYTES);
    bytes.next_multiple_of(PAGE)
}

/// Returns the offset of the state, behind the completion queue.
fn state_at(entries: u16) -> u64 {
    let bytes = u64::from(entries).saturating_mul(COMPLETION_BYTES);
    completions_at(entries).saturating_add(bytes.next_multiple_of(PAGE))
}

/// Returns the offset of the requests, behind the state.
fn requests_at(entries: u16) -> u64 {
    state_at(entries).saturating_add(PAGE)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::fake::{DISK_BLOCKS, gpu_with};

    /// Returns a queue of 8 entries for launches of 3 requests, and the doorbells of queue 2.
    fn lab() -> (GpuQueue, Doorbells) {
        let (_, gpu) = gpu_with(1 << 20);
        let queue = GpuQueue::allocate(&gpu, 8, 3).unwrap();
        let registers = gpu.import(File::open("/dev/null").unwrap()).unwrap();
        let (tail, head) = (0x1010, 0x1014);
        let doorbells = Doorbells {
            registers,
            tail,
            head,
        };
        (queue, doorbells)
    }

    #[test]
    fn each_request_has_its_status() {
        let (mut queue, doorbells) = lab();
        assert_eq!(queue.wait(Duration::ZERO).unwrap(), []);
        let second = Duration::from_secs(1);
        let requests = [0, DISK_BLOCKS, 8].map(|block| GpuRequest::read(block, 8, 0x1000));
        queue.submit(&doorbells, 1, &requests, second).unwrap();
        let again = queue.submit(&doorbells, 1, &requests, second);
        assert!(matches!(again, Err(Error::LaunchInProgress)));
        assert_eq!(queue.wait(second).unwrap(), [0, 0x80, 0]);
        let counts = QueueStatistics {
            submitted: 3,
            completed: 3,
            doorbells: 2,
        };
        assert_eq!(queue.statistics().unwrap(), counts);
        queue.submit(&doorbells, 1, &requests, second).unwrap();
    }

    #[test]
    fn queue_of_fewer_than_two_entries_is_refused() {
        let (fake, gpu) = gpu_with(1 << 20);
        for entries in [0, 1] {
            let refused = GpuQueue::allocate(&gpu, entries, 3);
            assert!(matches!(refused, Err(Error::Entries(number)) if number == entries));
        }
        assert_eq!(fake.handles(), 0);
        assert_eq!(GpuQueue::allocate(&gpu, 2, 3).unwrap().entries, 2);
    }

    #[test]
    fn memory_is_freed_by_release_and_not_by_a_drop() {
        let (fake, gpu) = gpu_with(1 << 20);
        drop(GpuQueue::allocate(&gpu, 8, 3).unwrap());
        assert_eq!(fake.handles(), 1);
        GpuQueue::allocate(&gpu, 8, 3).unwrap().release();
        assert_eq!(fake.handles(), 1);
    }

    #[test]
    fn more_requests_than_there_is_room_for_are_refused() {
        let (mut queue, doorbells) = lab();
        let requests = [GpuRequest::write(0, 8, 0); 4];
        let refused = queue.submit(&doorbells, 1, &requests, Duration::ZERO);
        assert!(matches!(
            refused,
            Err(Error::TooManyRequests { given: 4, most: 3 })
        ));
    }

    #[test]
    fn request_without_an_encoding_is_refused() {
        let (mut queue, doorbells) = lab();
        for refused in [0, 65537, u32::MAX] {
            let requests = [1, 65536, refused].map(|blocks| GpuRequest::read(0, blocks, 0));
            let outcome = queue.submit(&doorbells, 1, &requests, Duration::ZERO);
            assert!(
                matches!(outcome, Err(Error::Blocks { index: 2, blocks }) if blocks == refused),
                "{outcome:?}"
            );
            assert_eq!(queue.wait(Duration::ZERO).unwrap(), []);
        }
        let requests = [1, 65536].map(|blocks| GpuRequest::read(0, blocks, 0));
        queue
            .submit(&doorbells, 1, &requests, Duration::ZERO)
            .unwrap();
    }

    #[test]
    fn operands_are_where_the_interface_says() {
        let (queue, doorbells) = lab();
        let kernel = queue
            .kernel(&doorbells, 7, 2, Duration::from_micros(1))
            .unwrap();
        let launch = Command::Launch {
            kernel,
            grid: 1,
            block: 256,
        };
        let submit = launch.encode(&queue.gpu.driver).unwrap();
        assert_eq!((submit.opcode, submit.kernel), (5, 5));
        assert_eq!(submit.address_mask, 0b11_1111);
        let numbers = submit.operand.map(|operand| operand.offset);
        let expected = [
            0,
            0x1000,
            0x1010,
            0x1014,
            0x2000,
            0x3000,
            2,
            8 << 32 | 8,
            0,
            7,
            1000,
            1,
            256,
        ];
        assert_eq!(numbers, expected);
        assert_eq!(submit.length[..6], [512, 128, 4, 4, 32, 64]);
    }

    #[test]
    fn request_is_laid_out_as_the_interface_says() {
        let bytes = GpuRequest::write(0x10, 8, 0x2000).bytes();
        assert_eq!((bytes.len(), bytes[0], bytes[9]), (32, 0x10, 0x20));
        assert_eq!(bytes[24..27], [7, 0, 1]);
        assert_eq!(GpuRequest::read(0, 65536, 0).bytes()[24..27], [255, 255, 2]);
    }
}
