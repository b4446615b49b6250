//! NVMe disks driven from user space over VFIO, with queues and data anywhere in an I/O address
//! space.
//!
//! ```no_run
//! use std::path::Path;
//! use std::sync::Arc;
//!
//! use peerbar_vfio_nvme::{AddressSpace, Binding, Direction, Disk, DmaSpace, RegisterAccess};
//!
//! # fn main() -> peerbar_vfio_nvme::Result<()> {
//! let binding = Binding::bind(Path::new("/sys/bus/pci/devices/0000:03:00.0"))?;
//! let space = DmaSpace::new(AddressSpace::type1()?);
//! let device = Arc::new(space.address_space().open(&binding)?);
//! let mut disk = Disk::start(device, space.clone(), RegisterAccess::Mapped)?;
//!
//! let buffer = space.allocate(4096)?;
//! disk.transfer(Direction::Read, 0, buffer, 4096)?;
//!
//! drop((disk, space));
//! binding.release()
//! # }
//! ```
//!
//! A [`Binding`] takes a device from its driver and binds it to vfio-pci. An [`AddressSpace`]
//! provides the devices' addresses: a container of type 1, or an I/O address space of iommufd. A
//! [`DmaSpace`] also knows the memory behind these addresses, as far as this process can access it.
//! A [`Disk`] has its admin queue and one pair of I/O queues there, and creates further queues
//! wherever the caller says, such as in the memory of a GPU. Its PRP lists may lie there, too.
//!
//! Not included: interrupts (completions are polled), guests without an IOMMU, and virtual
//! functions.

mod address_space;
mod binding;
mod commands;
mod device;
mod disk;
mod dma_space;
mod error;
mod iommufd;
mod registers;
mod request;
mod type1;

pub use address_space::AddressSpace;
pub use binding::Binding;
pub use device::{BarRange, DmaRange, VfioDevice};
pub use disk::{Direction, Disk, Identity, LIST_BYTES, QueueDoorbells};
pub use dma_space::DmaSpace;
pub use error::{Error, Result};
pub use registers::{RegisterAccess, RegisterBar};
