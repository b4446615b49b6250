//! Queues of a disk that Linux' own driver keeps.

#![expect(unsafe_code)]

pub mod uapi;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::ioctl::{Getter, Setter, Updater, ioctl};

use crate::{Buffer, Doorbells, Error, Gpu, GpuQueue, Result};

/// The device file of the module `peerbar_nvme_queues`.
const NODE: &str = "/dev/peerbar-nvme-queues";

/// I/O queues of a disk in addition to those of Linux' nvme, which keeps the disk. The module
/// `peerbar_nvme_queues` makes them.
///
/// ```no_run
/// use std::path::Path;
/// use std::time::Duration;
///
/// use peerbar_gds::{DiskQueues, Gpu, GpuQueue, GpuRequest};
///
/// # fn main() -> Result<(), peerbar_gds::Error> {
/// let gpu = Gpu::open(0)?;
/// let mut queue = GpuQueue::allocate(&gpu, 64, 1000)?;
/// let buffer = gpu.allocate(4096)?;
///
/// let disk = DiskQueues::open(Path::new("/dev/nvme0"))?;
/// let data = disk.map(&buffer)?;
/// let pair = disk.create(&queue)?;
/// let doorbells = pair.doorbells(&gpu)?;
///
/// queue.submit(&doorbells, 1, &[GpuRequest::read(0, 8, data.address())], Duration::from_secs(1))?;
/// let statuses = queue.wait(Duration::from_secs(10))?;
/// println!("status {:#x}", statuses[0]);
///
/// drop((doorbells, pair));
/// queue.release();
/// # Ok(())
/// # }
/// ```
///
/// The disk must grant more queues than Linux asks for, and the process needs `CAP_SYS_RAWIO`:
/// commands of these queues reach all memory that Linux has mapped for the disk, and without an
/// IOMMU all memory.
///
/// Memory that is mapped for the disk stays until it is unmapped, even when its buffer is freed. If
/// it is revoked ([`Buffer::revoke`]), all queues made by this value are deleted.
#[derive(Clone, Debug)]
pub struct DiskQueues {
    attached: Arc<Attached>,
}

/// An opening of the device file that has a disk.
#[derive(Debug)]
struct Attached {
    file: File,
    granted: u32,
    of_linux: u32,
}

/// A buffer that a disk can access. Dropping it unmaps it: at once, or with the last [`QueuePair`]
/// of its [`DiskQueues`], whose commands may use it.
#[derive(Debug)]
pub struct DiskMemory {
    attached: Arc<Attached>,
    id: u32,
    address: u64,
    length: u64,
}

/// A pair of queues. Dropping it deletes them.
#[derive(Debug)]
pub struct QueuePair {
    /// The memory of the queues. It is unmapped after they are deleted.
    memory: DiskMemory,
    number: u32,
    tail: u64,
    head: u64,
}

/// The state of a pair of queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueState {
    /// The disk has it.
    Live,
    /// Linux has reset the disk, which has forgotten it.
    Reset,
    /// Memory was revoked, and the queues were deleted.
    Revoked,
    /// Linux' driver has left the disk. The queues were deleted before that.
    Removed,
}

/// A request that takes a structure and returns its results in it.
macro_rules! update {
    ($self:expr, $request:ident, $value:expr, $what:expr) => {{
        // SAFETY: the request's number names exactly this type, which is plain numbers without holes.
        let request = unsafe { Updater::<{ uapi::$request }, _>::new($value) };
        // SAFETY: as above; the driver touches nothing but the structure.
        let done = unsafe { ioctl(&$self.file, request) };
        done.map_err(|source| refused($what, source))
    }};
}

/// A request that only takes a structure.
macro_rules! set {
    ($self:expr, $request:ident, $value:expr) => {{
        // SAFETY: as for `update`.
        let request = unsafe { Setter::<{ uapi::$request }, _>::new($value) };
        // SAFETY: as above; the driver touches nothing but the structure.
        unsafe { ioctl(&$self.file, request) }
    }};
}

fn refused(what: impl Into<String>, source: impl Into<io::Error>) -> Error {
    Error::DiskQueues {
        what: what.into(),
        source: source.into(),
    }
}

impl DiskQueues {
    /// Takes the disk whose controller is `node`, such as `/dev/nvme0`.
    ///
    /// # Errors
    /// [`Error::DiskQueues`]: without the module or the right to use it, or if `node` is not a
    /// controller that nvme drives.
    pub fn open(node: &Path) -> Result<Self> {
        let open = |path: &Path| {
            let file = OpenOptions::new().read(true).write(true).open(path);
            file.map_err(|source| refused(format!("open {}", path.display()), source))
        };
        let (file, disk) = (open(Path::new(NODE))?, open(node)?);
        Self::attach(file, &disk)
            .map_err(|source| refused(format!("take {}", node.display()), source))
    }

    fn attach(file: File, disk: &File) -> io::Result<Self> {
        let mut attach = uapi::Attach {
            fd: disk.as_raw_fd(),
            ..uapi::Attach::default()
        };
        // SAFETY: as for `update`.
        let request = unsafe { Updater::<{ uapi::ATTACH }, _>::new(&mut attach) };
        // SAFETY: as above; the driver touches nothing but the structure.
        unsafe { ioctl(&file, request)? };
        let attached = Attached {
            file,
            granted: attach.queues,
            of_linux: attach.linux_queues,
        };
        Ok(Self {
            attached: Arc::new(attached),
        })
    }

    /// Returns the number of pairs of I/O queues that the disk has granted.
    pub fn granted(&self) -> u32 {
        self.attached.granted
    }

    /// Returns the number of these that Linux uses.
    pub fn of_linux(&self) -> u32 {
        self.attached.of_linux
    }

    /// Maps a buffer for the disk, for data of its commands.
    ///
    /// # Errors
    /// [`Error::DiskQueues`], with EINVAL if the kernel has no way for peer-to-peer DMA between the
    /// two devices; those of [`Buffer::export`].
    pub fn map(&self, buffer: &Buffer) -> Result<DiskMemory> {
        let dma_buf = buffer.export()?;
        let mut map = uapi::Map {
            fd: dma_buf.as_fd().as_raw_fd(),
            ..uapi::Map::default()
        };
        update!(self.attached, MAP, &mut map, "map the buffer for the disk")?;
        Ok(DiskMemory {
            attached: Arc::clone(&self.attached),
            id: map.id,
            address: map.address,
            length: map.length,
        })
    }

    /// Creates a pair of queues of the disk in the memory of `queue`, which stays mapped for the
    /// disk.
    ///
    /// # Errors
    /// [`Error::DiskQueues`], with ENOSPC if the disk has granted no more queues than Linux and
    /// others have, with EAGAIN if Linux has reset the disk since; those of [`DiskQueues::map`].
    pub fn create(&self, queue: &GpuQueue) -> Result<QueuePair> {
        let memory = self.map(queue.memory())?;
        let mut create = uapi::Create {
            memory: memory.id,
            entries: queue.entries().into(),
            completion: queue.completion_offset(),
            ..uapi::Create::default()
        };
        update!(
            self.attached,
            CREATE,
            &mut create,
            "create queues of the disk"
        )?;
        Ok(QueuePair {
            memory,
            number: create.queue,
            tail: create.tail,
            head: create.head,
        })
    }
}

impl DiskMemory {
    /// Returns the disk's address for its first byte. The others follow.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns its length in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }
}

impl Drop for DiskMemory {
    fn drop(&mut self) {
        // This fails only if there is no such mapping. The module keeps it as long as there are
        // queues.
        let _ = set!(
            self.attached,
            UNMAP,
            uapi::Unmap {
                id: self.id,
                pad: 0
            }
        );
    }
}

impl QueuePair {
    /// Returns the number of both queues.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the doorbells of the pair, for queues that `gpu` has. They are revoked with the last
    /// value of [`DiskQueues`] and [`QueuePair`], and when Linux' driver leaves the disk.
    ///
    /// # Errors
    /// [`Error::DiskQueues`]; those of [`Gpu::import`].
    pub fn doorbells(&self, gpu: &Gpu) -> Result<Doorbells> {
        // SAFETY: as for `update`.
        let request = unsafe { Getter::<{ uapi::DOORBELLS }, uapi::Descriptor>::new() };
        // SAFETY: as above; the driver touches nothing but the structure.
        let exported = unsafe { ioctl(&self.memory.attached.file, request) };
        let exported = exported.map_err(|source| refused("export the doorbells", source))?;
        // SAFETY: the driver has made this descriptor for the request that has just succeeded, so
        // nothing else owns it.
        let registers = unsafe { OwnedFd::from_raw_fd(exported.fd) };
        Ok(Doorbells {
            registers: gpu.import(registers)?,
            tail: self.tail,
            head: self.head,
        })
    }

    /// Asks the disk for the state of the queues.
    ///
    /// # Errors
    /// [`Error::DiskQueues`], with EIO if the disk does not answer.
    pub fn state(&self) -> Result<QueueState> {
        let mut query = uapi::Query {
            queue: self.number,
            state: 0,
        };
        update!(
            self.memory.attached,
            QUERY,
            &mut query,
            "ask for the queues"
        )?;
        Ok(match query.state {
            0 => QueueState::Live,
            1 => QueueState::Reset,
            2 => QueueState::Revoked,
            _ => QueueState::Removed,
        })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // This fails only if there is no such pair.
        let _ = set!(
            self.memory.attached,
            DELETE,
            uapi::Delete {
                queue: self.number,
                pad: 0
            }
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_request_is_an_error_with_the_reason() {
        let file = || tempfile::tempfile().unwrap();
        let error = DiskQueues::attach(file(), &file()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
        let error = refused("take /dev/nvme0", error);
        assert_eq!(
            error.to_string(),
            "the module peerbar_nvme_queues does not take /dev/nvme0"
        );
    }

    #[test]
    fn file_that_cannot_be_opened_is_named() {
        let error = DiskQueues::open(Path::new("/dev/null/no-disk")).unwrap_err();
        assert!(matches!(error, Error::DiskQueues { .. }), "{error}");
        assert!(error.to_string().contains("open /dev/"), "{error}");
    }
}
