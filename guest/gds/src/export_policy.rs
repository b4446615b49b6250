//! The guarantees of a dma-buf of a buffer for its importers.

use crate::uapi;

/// The guarantees of a dma-buf of a buffer for the drivers that import it, and thus the drivers
/// that may do so.
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
/// // It keeps the memory until it deregisters it, regardless of the buffer and of this process.
/// assert!(buffer.revoke().is_err());
/// buffer.free()?;
/// # Ok(())
/// # }
/// ```
///
/// An importer that a policy does not permit gets EOPNOTSUPP when it attaches, and ENODEV once the
/// buffer is revoked. If the kernel has no way for peer-to-peer DMA between the two devices, the
/// importer gets EINVAL when it maps (EREMOTEIO of older kernels), and the kernel's log has the
/// reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExportPolicy {
    /// The memory can be revoked at any time. For dynamic importers that can be notified of it,
    /// such as irdma, mlx5, virtio-gpu and this GPU's own driver.
    #[default]
    Revocable,
    /// The memory is not revoked while an importer has pinned it. For all dynamic importers that
    /// accept a peer's memory, including those that cannot be notified, such as efa, mana, ionic
    /// and bnxt_re.
    Pinned,
    /// Like [`ExportPolicy::Pinned`], and also for importers that attach statically, such as devmem
    /// TCP and io_uring's zero-copy receive. These cannot declare that they accept a peer's memory:
    /// the exporting program must know that the importer uses only DMA addresses.
    Static,
}

impl ExportPolicy {
    /// Returns the code in the driver's interface.
    pub(crate) fn code(self) -> u32 {
        match self {
            ExportPolicy::Revocable => uapi::EXPORT_REVOCABLE,
            ExportPolicy::Pinned => uapi::EXPORT_PINNED,
            ExportPolicy::Static => uapi::EXPORT_STATIC,
        }
    }
}
