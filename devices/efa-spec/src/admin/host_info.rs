//! What a driver says of its host.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The control buffer of Set Feature, host info (`efa_admin_host_info`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct HostInfo {
    /// Name of the operating system's distribution, ended by a zero. Linux' driver puts the kernel's release here.
    pub distribution: [u8; 128],
    /// Operating system: 0, Linux.
    pub os: U32,
    /// Version of the kernel as text, ended by a zero.
    pub kernel_text: [u8; 32],
    /// Version of the kernel as a number: major, minor, patch in a byte each.
    pub kernel: U32,
    /// Version of the driver: major, minor, sub-minor and kind of module in a byte each.
    pub driver: U32,
    /// Bus, device and function of the adapter in the guest.
    pub bdf: U16,
    /// Version of the specification that the driver follows: minor and major in a byte each.
    pub specification: U16,
    /// Bit 0: the driver is the kernel's own. Bit 1: it supports GPUDirect RDMA by its own interface.
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
