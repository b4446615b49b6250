//! What passes between a program and `/dev/peerbar-nvme-queues`: `guest/nvme-queues/include/peerbar_nvme_queues.h`, field for field.

use rustix::ioctl::{Opcode, opcode};

const GROUP: u8 = b'P';

/// `struct peerbar_nvme_attach`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Attach {
    pub(super) fd: i32,
    pub(super) queues: u32,
    pub(super) linux_queues: u32,
    pub(super) entries: u32,
}

/// `struct peerbar_nvme_map`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Map {
    pub(super) fd: i32,
    pub(super) id: u32,
    pub(super) address: u64,
    pub(super) length: u64,
}

/// `struct peerbar_nvme_unmap`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Unmap {
    pub(super) id: u32,
    pub(super) pad: u32,
}

/// `struct peerbar_nvme_create`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Create {
    pub(super) memory: u32,
    pub(super) entries: u32,
    pub(super) submission: u64,
    pub(super) completion: u64,
    pub(super) queue: u32,
    pub(super) pad: u32,
    pub(super) tail: u64,
    pub(super) head: u64,
}

/// `struct peerbar_nvme_delete`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Delete {
    pub(super) queue: u32,
    pub(super) pad: u32,
}

/// `struct peerbar_nvme_query`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Query {
    pub(super) queue: u32,
    pub(super) state: u32,
}

/// `struct peerbar_nvme_doorbells`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Descriptor {
    pub(super) fd: i32,
    pub(super) pad: u32,
}

pub(super) const ATTACH: Opcode = opcode::read_write::<Attach>(GROUP, 0x80);
pub(super) const MAP: Opcode = opcode::read_write::<Map>(GROUP, 0x81);
pub(super) const UNMAP: Opcode = opcode::write::<Unmap>(GROUP, 0x82);
pub(super) const CREATE: Opcode = opcode::read_write::<Create>(GROUP, 0x83);
pub(super) const DELETE: Opcode = opcode::write::<Delete>(GROUP, 0x84);
pub(super) const QUERY: Opcode = opcode::read_write::<Query>(GROUP, 0x85);
pub(super) const DOORBELLS: Opcode = opcode::read::<Descriptor>(GROUP, 0x86);

#[cfg(test)]
mod tests {
    use super::*;

    /// As `sizeof`, `_IOR`, `_IOW` and `_IOWR` of the header come out on x86-64.
    #[test]
    fn requests_are_those_of_the_header() {
        assert_eq!(ATTACH, 0xc010_5080);
        assert_eq!(MAP, 0xc018_5081);
        assert_eq!(UNMAP, 0x4008_5082);
        assert_eq!(CREATE, 0xc030_5083);
        assert_eq!(DELETE, 0x4008_5084);
        assert_eq!(QUERY, 0xc008_5085);
        assert_eq!(DOORBELLS, 0x8008_5086);
    }
}
