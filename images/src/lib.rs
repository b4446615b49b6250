//! Gets QEMU, the guest kernel, the initramfs and the guest's root.
//!
//! Five artifacts, each built only if the [`Cache`] lacks it:
//! - the [`Root`]: a Debian tree with QEMU, a kernel and tools, made by mmdebstrap from the archive
//!   that the host's apt uses. Only this one and the next need the network;
//! - a [`PackageTree`]: further packages, in addition to that root;
//! - [`Qemu`]: the user's, the host's or the root's, the first that has vfio-user;
//! - the [`Kernel`]: the root's or the user's, unpacked so that it boots faster, with drivers of
//!   our own built for it;
//! - the [`initramfs`]: the agent and the modules that the guest needs.
//!
//! Nothing here starts a guest, and nothing needs root.

#![forbid(unsafe_code)]

mod bootstrap;
mod btf;
mod build_tools;
mod bzimage;
mod cache;
mod cpio;
mod depmod;
mod elf;
mod entry_use;
mod error;
mod guest_image;
mod in_tree;
mod initramfs;
mod kernel;
mod kernel_build;
mod kernel_config;
mod kernel_tree;
mod live_lines;
mod manifest;
mod mirror;
mod module_names;
mod module_tree;
mod modules;
mod out_of_tree;
mod package_names;
mod packages;
mod pipe;
mod progress;
mod prune;
mod qemu;
mod qemu_choice;
mod recipe;
mod root;
mod toolchain;
mod unpack;
mod version;

pub use cache::Cache;
pub use error::ImageError;
pub use guest_image::GuestImage;
pub use initramfs::initramfs;
pub use kernel::Kernel;
pub use kernel_build::{KernelBuild, KernelSource};
pub use kernel_config::KernelConfig;
pub use kernel_tree::KernelTree;
pub use live_lines::LiveLines;
pub use manifest::Manifest;
pub use module_names::module_names;
pub use module_tree::module_tree;
pub use out_of_tree::is_module_folder;
pub use package_names::package_names;
pub use packages::PackageTree;
pub use progress::{Progress, Unit};
pub use prune::{CacheEntry, PruneRule};
pub use qemu::{Origin, QBOOT, Qemu, SANDBOX};
pub use root::Root;
pub use version::Version;
