//! The GPU itself.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use crate::buffer::{Buffer, HostBuffer, ImportedBuffer};
use crate::command::{Command, Kernel};
use crate::driver::{Driver, Node};
use crate::fence::Fence;
use crate::span::Span;
use crate::{Error, Result, uapi};

/// Time limit of [`Gpu::run`]: longer than any command takes, even on an emulated machine.
const TIME_OUT: Duration = Duration::from_secs(60);

/// A GPU, opened. Clones share the one opening, and with it the channel on which commands run in
/// order.
///
/// As a descriptor it polls readable when commands have completed.
#[derive(Clone, Debug)]
pub struct Gpu {
    pub(crate) driver: Arc<dyn Driver>,
    properties: Properties,
}

/// The properties of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Size of its memory in bytes.
    pub vram_bytes: u64,
    /// Size of its BAR in bytes.
    pub aperture_bytes: u64,
    /// Bytes that the kernel has as p2pmem, or 0 if the aperture is a window.
    pub p2pmem_bytes: u64,
    /// Command channels: the number of openings that can submit commands, at most seven for a user
    /// without CAP_SYS_RESOURCE. Others get EBUSY.
    pub channels: u32,
    /// `true` if its aperture is a window whose pages come and go: the processor can access its
    /// buffers, slowly, and disks cannot, since the buffers have no pages in the kernel.
    pub window: bool,
    /// Its PCI address as sysfs writes it: `0000:02:00.0`.
    pub address: String,
}

impl Properties {
    fn new(info: &uapi::Info) -> Self {
        Properties {
            vram_bytes: info.vram_size,
            aperture_bytes: info.aperture_size,
            p2pmem_bytes: info.p2pmem_size,
            channels: info.channels,
            window: info.features & uapi::FEATURE_WINDOW != 0,
            address: format!(
                "{:04x}:{:02x}:{:02x}.{}",
                info.domain,
                info.bus,
                info.devfn >> 3 & 0x1f,
                info.devfn & 7
            ),
        }
    }
}

impl Gpu {
    /// Opens GPU `number`, `/dev/peerbar-gpuNUMBER`.
    ///
    /// # Errors
    /// [`Error::Open`]; [`Error::Driver`] if the driver does not return the GPU's properties.
    pub fn open(number: u32) -> Result<Self> {
        let path = PathBuf::from(format!("/dev/peerbar-gpu{number}"));
        let node = Node::open(&path).map_err(|source| Error::Open { path, source })?;
        Gpu::with_driver(Arc::new(node))
    }

    pub(crate) fn with_driver(driver: Arc<dyn Driver>) -> Result<Self> {
        let info = driver
            .info()
            .map_err(|source| Error::driver("describe the GPU", source))?;
        let properties = Properties::new(&info);
        Ok(Gpu { driver, properties })
    }

    /// Returns its properties.
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// Allocates `size` bytes of its memory, rounded up to whole pages of the GPU (64 KiB) and
    /// zeroed, and maps them.
    ///
    /// # Errors
    /// [`Error::Driver`], with ENOMEM if there is not enough; [`Error::Map`].
    pub fn allocate(&self, size: u64) -> Result<Buffer> {
        Buffer::allocate(&self.driver, size, 0)
    }

    /// Allocates VRAM like [`Gpu::allocate`], but so that no two pages of 64 KiB that follow each
    /// other in the buffer do so in VRAM. Operations that the device cannot split then fail, and a
    /// dma-buf of the buffer has a range for each page.
    ///
    /// # Errors
    /// [`Error::Driver`], with ENOMEM if there is not one free range of twice the size, with
    /// EOPNOTSUPP if the aperture is a window; [`Error::Map`].
    pub fn allocate_scattered(&self, size: u64) -> Result<Buffer> {
        Buffer::allocate(&self.driver, size, uapi::ALLOC_SCATTERED)
    }

    /// Allocates `size` bytes of host memory, whole pages, that its engines can access.
    ///
    /// # Errors
    /// [`Error::Map`]; [`Error::Driver`].
    pub fn allocate_host(&self, size: u64) -> Result<HostBuffer> {
        HostBuffer::allocate(&self.driver, size)
    }

    /// Allocates `size` bytes, whole pages, of the memory of another device that its engines can
    /// access. `allocate` is that device's `p2pmem/allocate` in sysfs, opened for reading and
    /// writing.
    ///
    /// # Errors
    /// [`Error::Map`], with ENOMEM if the pool does not have as much; [`Error::Driver`] if the
    /// kernel refuses peer-to-peer DMA between the two devices.
    pub fn allocate_peer(&self, allocate: &File, size: u64) -> Result<HostBuffer> {
        HostBuffer::of_file(&self.driver, allocate, size)
    }

    /// Imports a dma-buf of another exporter.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn import(&self, dma_buf: impl AsFd) -> Result<ImportedBuffer> {
        ImportedBuffer::import(&self.driver, dma_buf)
    }

    /// Submits a command behind the earlier ones, and returns at once.
    ///
    /// # Errors
    /// [`Error::Lengths`] and [`Error::ShortOperand`] for operands that do not fit;
    /// [`Error::Freed`] and [`Error::ForeignBuffer`] for operands whose buffer was freed or belongs
    /// to another opening; [`Error::Driver`], with EAGAIN if too many commands of this opening are
    /// in progress, with EBUSY if too many programs use the GPU.
    pub fn submit(&self, command: &Command<'_>) -> Result<Fence> {
        let mut submit = command.encode(&self.driver)?;
        self.driver
            .submit(&mut submit)
            .map_err(|source| match source.raw_os_error() {
                // Another thread has freed it since the command was encoded. No other buffer gets
                // its handle so soon.
                Some(libc::ENOENT) => Error::Freed,
                _ => Error::driver("take the command", source),
            })?;
        Ok(Fence {
            driver: Arc::clone(&self.driver),
            value: submit.fence,
        })
    }

    /// Submits a command and waits until it is done, for at most a minute. Returns its result.
    ///
    /// # Errors
    /// As for [`Gpu::submit`] and [`Fence::wait`].
    pub fn run(&self, command: &Command<'_>) -> Result<u64> {
        self.submit(command)?.wait(TIME_OUT)
    }

    /// Copies, and waits.
    ///
    /// # Errors
    /// As for [`Gpu::run`].
    pub fn copy(&self, from: Span<'_>, to: Span<'_>) -> Result<()> {
        self.run(&Command::Copy { from, to }).map(drop)
    }

    /// Fills with a pattern of 8 bytes, and waits.
    ///
    /// # Errors
    /// As for [`Gpu::run`].
    pub fn fill(&self, to: Span<'_>, pattern: u64) -> Result<()> {
        self.run(&Command::Fill { to, pattern }).map(drop)
    }

    /// Compares. Returns the offset of the first difference, if there is one.
    ///
    /// # Errors
    /// As for [`Gpu::run`].
    pub fn compare(&self, first: Span<'_>, second: Span<'_>) -> Result<Option<u64>> {
        let equal = self.run(&Command::Compare { first, second })?;
        Ok((equal != first.length()).then_some(equal))
    }

    /// Returns the CRC-32C of `from`.
    ///
    /// # Errors
    /// As for [`Gpu::run`].
    pub fn crc32c(&self, from: Span<'_>) -> Result<u32> {
        let crc = self.run(&Command::Crc32c { from })?;
        u32::try_from(crc).map_err(|_| {
            Error::driver(
                format!("give a CRC of 32 bits, but {crc:#x}"),
                std::io::ErrorKind::InvalidData.into(),
            )
        })
    }

    /// Runs a kernel in `grid` blocks of `block` threads, and waits. Returns its result.
    ///
    /// # Errors
    /// As for [`Gpu::run`].
    pub fn launch(&self, kernel: Kernel<'_>, grid: u32, block: u32) -> Result<u64> {
        self.run(&Command::Launch {
            kernel,
            grid,
            block,
        })
    }

    /// Returns an eventfd that counts the commands of this opening that complete from now on. There
    /// is only one: a new one replaces the last.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn eventfd(&self) -> Result<OwnedFd> {
        let refused = |source| Error::driver("signal an eventfd", source);
        let descriptor =
            eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| refused(error.into()))?;
        let request = uapi::EventFd {
            fd: descriptor.as_raw_fd(),
            pad: 0,
        };
        self.driver.eventfd(request).map_err(refused)?;
        Ok(descriptor)
    }
}

impl AsFd for Gpu {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.driver.file()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{bytes_of, gpu_with};

    #[test]
    fn a_gpu_says_what_it_is() {
        let (_, gpu) = gpu_with(1 << 20);
        assert_eq!(gpu.properties().vram_bytes, 1 << 20);
        assert_eq!(gpu.properties().address, "0000:02:03.2");
        assert!(!gpu.properties().window);
    }

    #[test]
    fn comparison_reports_the_first_difference() {
        let (_, gpu) = gpu_with(1 << 20);
        let (vram, host) = (
            gpu.allocate(4096).unwrap(),
            gpu.allocate_host(4096).unwrap(),
        );
        let (left, right) = (vram.span(..100).unwrap(), host.span(..100).unwrap());
        assert_eq!(gpu.compare(left, right).unwrap(), None);
        host.mapping().write(42, &[1]).unwrap();
        assert_eq!(gpu.compare(left, right).unwrap(), Some(42));
        gpu.copy(right, left).unwrap();
        assert_eq!(gpu.compare(left, right).unwrap(), None);
    }

    #[test]
    fn handles_are_freed_with_their_last_user() {
        let (fake, gpu) = gpu_with(1 << 20);
        let buffer = gpu.allocate(1).unwrap();
        let clone = buffer.clone();
        let host = gpu.allocate_host(4096).unwrap();
        assert_eq!((buffer.size(), fake.handles()), (4096, 2));
        drop((buffer, host));
        assert_eq!(fake.handles(), 1);
        clone.free().unwrap();
        assert_eq!(fake.handles(), 0);
        assert!(matches!(clone.span(..), Err(Error::Freed)));
    }

    #[test]
    fn a_span_of_a_freed_buffer_never_meets_the_next_one() {
        let (_, gpu) = gpu_with(1 << 20);
        let (first, other) = (gpu.allocate(4096).unwrap(), gpu.allocate(4096).unwrap());
        other.mapping().write(0, &[1; 8]).unwrap();
        let (stale, from) = (first.span(..8).unwrap(), other.span(..8).unwrap());
        first.free().unwrap();
        let next = gpu.allocate(4096).unwrap();
        assert!(matches!(gpu.copy(from, stale), Err(Error::Freed)));
        assert!(matches!(gpu.copy(stale, from), Err(Error::Freed)));
        assert_eq!(bytes_of(&next, 0, 8), [0; 8]);
    }

    #[test]
    fn buffer_freed_during_submission_is_reported_as_freed() {
        let (_, gpu) = gpu_with(1 << 20);
        let buffer = gpu.allocate(4096).unwrap();
        let (handle, pad) = (buffer.handle().unwrap(), 0);
        gpu.driver.free(uapi::Handle { handle, pad }).unwrap();
        let span = buffer.span(..8).unwrap();
        assert!(matches!(gpu.copy(span, span), Err(Error::Freed)));
    }

    #[test]
    fn a_span_of_another_opening_is_refused() {
        let (_, gpu) = gpu_with(1 << 20);
        let (_, other) = gpu_with(1 << 20);
        let (own, foreign) = (gpu.allocate(4096).unwrap(), other.allocate(4096).unwrap());
        let (own, foreign) = (own.span(..8).unwrap(), foreign.span(..8).unwrap());
        assert!(matches!(gpu.copy(own, foreign), Err(Error::ForeignBuffer)));
        assert!(matches!(gpu.copy(foreign, own), Err(Error::ForeignBuffer)));
        gpu.clone().copy(own, own).unwrap();
    }

    #[test]
    fn oversized_mapping_is_refused_with_the_kernel_error() {
        use std::error::Error as _;

        let (_, gpu) = gpu_with(1 << 20);
        let error = gpu.allocate(2 << 20).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the GPU's driver does not allocate 2097152 bytes of VRAM"
        );
        assert!(error.source().unwrap().to_string().contains("memory"));
    }

    #[test]
    fn a_command_that_is_never_done_times_out() {
        let (_, gpu) = gpu_with(1 << 20);
        let fence = Fence {
            driver: Arc::clone(&gpu.driver),
            value: 99,
        };
        let error = fence.wait(Duration::from_millis(5)).unwrap_err();
        assert!(matches!(error, Error::TimedOut(_)), "{error}");
    }

    #[test]
    fn missing_gpu_is_named_by_its_path() {
        let error = Gpu::open(4096).unwrap_err().to_string();
        assert!(
            error.starts_with("cannot open /dev/peerbar-gpu4096; "),
            "{error}"
        );
    }
}
