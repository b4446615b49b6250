//! What a dma-buf of a buffer promises to its importers.

use crate::uapi;

/// What a dma-buf of a buffer promises to the drivers that import it, and so which of them may.
///
/// ```no_run
/// use peerbar_gds::{ExportPolicy, Gpu};
///
/// # fn register_memory(_: std::os::fd::OwnedFd, _: u64) {}
/// # fn main() -> Result<(), peerbar_gds::Error> {
/// let gpu = Gpu::open(0)?;
/// let buffer = gpu.allocate(1 << 20)?;
///
/// // A network driver that cannot be notified registers the memory, as efa does in ibv_reg_dmabuf_mr().
/// let dma_buf = buffer.export_as(ExportPolicy::Pinned)?;
/// register_memory(dma_buf, buffer.size());
///
/// // It keeps the memory until it deregisters it, whatever becomes of the buffer and of this process.
/// assert!(buffer.revoke().is_err());
/// buffer.free()?;
/// # Ok(())
/// # }
/// ```
///
/// An importer that a policy does not permit gets EOPNOTSUPP when it attaches, and ENODEV once the buffer is revoked. Where the
/// kernel has no way for peer-to-peer DMA between the two devices, the importer gets EINVAL when it maps (EREMOTEIO of older
/// kernels), and the kernel's log has the reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExportPolicy {
    /// The memory can be revoked at any time. For dynamic importers that can be notified of it, as irdma, mlx5, virtio-gpu and
    /// this GPU's own driver.
    #[default]
    Revocable,
    /// The memory is not revoked while an importer has pinned it. For all dynamic importers that take memory of a peer, also
    /// those that cannot be notified, as efa, mana, ionic and bnxt_re.
    Pinned,
    /// As [`ExportPolicy::Pinned`], and also for importers that attach statically, as devmem TCP and io_uring's zero-copy
    /// receive. These cannot say that they take memory of a peer: the program that exports must know that the importer uses
    /// DMA addresses only.
    Static,
}

impl ExportPolicy {
    /// As the driver's interface has it.
    pub(crate) fn code(self) -> u32 {
        match self {
            ExportPolicy::Revocable => uapi::EXPORT_REVOCABLE,
            ExportPolicy::Pinned => uapi::EXPORT_PINNED,
            ExportPolicy::Static => uapi::EXPORT_STATIC,
        }
    }
}
