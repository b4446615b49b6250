//! A driver's information about its host.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The control buffer of Set Feature, host info (`efa_admin_host_info`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct HostInfo {
    /// Name of the operating system's distribution, zero-terminated. Linux' driver puts the
    /// kernel's release here.
    pub distribution: [u8; 128],
    /// Operating system: 0, Linux.
    pub os: U32,
    /// Version of the kernel as text, zero-terminated.
    pub kernel_text: [u8; 32],
    /// Version of the kernel as a number: major, minor and patch in one byte each.
    pub kernel: U32,
    /// Version of the driver: major, minor, sub-minor and kind of module in one byte each.
    pub driver: U32,
    /// Bus, device and function of the adapter in the guest.
    pub bdf: U16,
    /// Version of the specification that the driver follows: minor and major in one byte each.
    pub specification: U16,
    /// Bit 0: the driver is part of the kernel. Bit 1: it supports GPUDirect RDMA by its own
    /// interface.
    pub flags: U32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_info_has_the_length_of_the_driver() {
        assert_eq!(size_of::<HostInfo>(), 180);
        assert_eq!(std::mem::offset_of!(HostInfo, bdf), 172);
    }
}
