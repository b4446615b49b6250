//! The structures of `/dev/peerbar-nvme-queues`: `guest/nvme-queues/include/peerbar_nvme_queues.h`,
//! field for field.

use rustix::ioctl::{Opcode, opcode};

const GROUP: u8 = b'P';

/// `struct peerbar_nvme_attach`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Attach {
    /// An open `/dev/nvmeN`.
    pub fd: i32,
    /// Out: pairs of I/O queues that the controller has granted.
    pub queues: u32,
    /// Out: those of them that nvme uses.
    pub linux_queues: u32,
    /// Out: maximum number of entries of a queue.
    pub entries: u32,
}

/// `struct peerbar_nvme_map`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Map {
    /// A dma-buf.
    pub fd: i32,
    /// Out: id of the mapping.
    pub id: u32,
    /// Out: the controller's address for its first byte.
    pub address: u64,
    /// Out: length in bytes.
    pub length: u64,
}

/// `struct peerbar_nvme_unmap`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Unmap {
    /// Id of a mapping.
    pub id: u32,
    /// Zero.
    pub pad: u32,
}

/// `struct peerbar_nvme_create`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Create {
    /// Id of a mapping.
    pub memory: u32,
    /// Number of entries of each queue, 2 or more.
    pub entries: u32,
    /// Offset in the dma-buf.
    pub submission: u64,
    /// Offset in the dma-buf.
    pub completion: u64,
    /// Out: number of both queues.
    pub queue: u32,
    /// Zero.
    pub pad: u32,
    /// Out: offset of the doorbell in the dma-buf of the doorbells.
    pub tail: u64,
    /// Out: likewise.
    pub head: u64,
}

/// `struct peerbar_nvme_delete`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Delete {
    /// Number of the queues.
    pub queue: u32,
    /// Zero.
    pub pad: u32,
}

/// `struct peerbar_nvme_query`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Query {
    /// Number of the queues.
    pub queue: u32,
    /// Out: `enum peerbar_nvme_state`.
    pub state: u32,
}

/// `struct peerbar_nvme_doorbells`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Descriptor {
    /// Out: a dma-buf.
    pub fd: i32,
    /// Zero.
    pub pad: u32,
}

/// `PEERBAR_NVME_ATTACH`.
pub const ATTACH: Opcode = opcode::read_write::<Attach>(GROUP, 0x80);
/// `PEERBAR_NVME_MAP`.
pub const MAP: Opcode = opcode::read_write::<Map>(GROUP, 0x81);
/// `PEERBAR_NVME_UNMAP`.
pub const UNMAP: Opcode = opcode::write::<Unmap>(GROUP, 0x82);
/// `PEERBAR_NVME_CREATE`.
pub const CREATE: Opcode = opcode::read_write::<Create>(GROUP, 0x83);
/// `PEERBAR_NVME_DELETE`.
pub const DELETE: Opcode = opcode::write::<Delete>(GROUP, 0x84);
/// `PEERBAR_NVME_QUERY`.
pub const QUERY: Opcode = opcode::read_write::<Query>(GROUP, 0x85);
/// `PEERBAR_NVME_DOORBELLS`.
pub const DOORBELLS: Opcode = opcode::read::<Descriptor>(GROUP, 0x86);

#[cfg(test)]
mod tests {
    use super::*;

    /// The results of `sizeof`, `_IOR`, `_IOW` and `_IOWR` of the header on x86-64.
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
