//! Commands and completions as bytes, by the numbers in the specification's figures and in Linux's
//! headers.

#![allow(missing_docs, reason = "the names are the specification's")]

/// A command of 64 bytes (NVMe Base 2.0, 3.3.3.1).
#[derive(Clone, Copy, Debug, Default)]
pub struct Command {
    pub opcode: u8,
    pub flags: u8,
    pub nsid: u32,
    pub prp1: u64,
    pub prp2: u64,
    /// Dwords 10 to 15.
    pub dwords: [u32; 6],
}

impl Command {
    pub fn new(opcode: u8, nsid: u32, dwords: &[u32]) -> Self {
        let mut command = Self {
            opcode,
            nsid,
            ..Self::default()
        };
        command.dwords[..dwords.len()].copy_from_slice(dwords);
        command
    }

    /// The same command with these PRPs.
    pub fn at(self, prp1: u64, prp2: u64) -> Self {
        Self { prp1, prp2, ..self }
    }

    /// The same command with an SGL whose first descriptor this is, and PSDT 1.
    pub fn with_sgl(self, first: [u8; 16]) -> Self {
        let [prp1, prp2] =
            [0, 8].map(|at| u64::from_le_bytes(first[at..at + 8].try_into().unwrap()));
        let flags = self.flags | 0x40;
        Self {
            flags,
            ..self.at(prp1, prp2)
        }
    }

    pub fn encode(&self, cid: u16) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[0] = self.opcode;
        bytes[1] = self.flags;
        bytes[2..4].copy_from_slice(&cid.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.nsid.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.prp1.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.prp2.to_le_bytes());
        for (to, dword) in bytes[40..].chunks_mut(4).zip(self.dwords) {
            to.copy_from_slice(&dword.to_le_bytes());
        }
        bytes
    }
}

/// An SGL descriptor of 16 bytes (NVMe Base 2.0, 4.1.2) with this type, by address.
pub fn descriptor(kind: u8, address: u64, length: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&address.to_le_bytes());
    bytes[8..12].copy_from_slice(&length.to_le_bytes());
    bytes[15] = kind << 4;
    bytes
}

pub const DATA_BLOCK: u8 = 0x0;
pub const BIT_BUCKET: u8 = 0x1;
pub const SEGMENT: u8 = 0x2;
pub const LAST_SEGMENT: u8 = 0x3;

pub const FLUSH: u8 = 0x00;
pub const WRITE: u8 = 0x01;
pub const READ: u8 = 0x02;
pub const COMPARE: u8 = 0x05;
pub const WRITE_ZEROES: u8 = 0x08;
pub const DATASET_MANAGEMENT: u8 = 0x09;
pub const VERIFY: u8 = 0x0c;

/// A command on `blocks` blocks from `start` on of namespace 1 (NVM Command Set 1.0, 3.2).
pub fn blocks(opcode: u8, start: u64, blocks: u32) -> Command {
    let dwords = [start as u32, (start >> 32) as u32, blocks - 1];
    Command::new(opcode, 1, &dwords)
}

pub fn identify(cns: u8, nsid: u32) -> Command {
    Command::new(0x06, nsid, &[cns.into()])
}

/// Get Log Page of `len` bytes, a multiple of 4, for every namespace.
pub fn get_log(lid: u8, offset: u64, len: u32) -> Command {
    let dwords = len / 4 - 1;
    let cdw10 = u32::from(lid) | (dwords & 0xffff) << 16;
    let offset = [offset as u32, (offset >> 32) as u32];
    Command::new(0x02, u32::MAX, &[cdw10, dwords >> 16, offset[0], offset[1]])
}

pub fn set_feature(fid: u8, value: u32) -> Command {
    Command::new(0x09, 0, &[fid.into(), value])
}

/// Get Features; `select` is 0 current, 1 default, 2 saved, 3 capabilities.
pub fn get_feature(fid: u8, select: u32, dword: u32) -> Command {
    Command::new(0x0a, 0, &[u32::from(fid) | select << 8, dword])
}

pub fn async_event_request() -> Command {
    Command::new(0x0c, 0, &[])
}

pub fn doorbell_buffer(values: u64, events: u64) -> Command {
    Command::new(0x7c, 0, &[]).at(values, events)
}

/// Create I/O Completion Queue, contiguous, with interrupts.
pub fn create_cq(id: u16, entries: u32, vector: u16, address: u64) -> Command {
    let dwords = [
        u32::from(id) | (entries - 1) << 16,
        u32::from(vector) << 16 | 0b11,
    ];
    Command::new(0x05, 0, &dwords).at(address, 0)
}

/// Create I/O Submission Queue, contiguous.
pub fn create_sq(id: u16, entries: u32, cq: u16, address: u64) -> Command {
    let dwords = [u32::from(id) | (entries - 1) << 16, u32::from(cq) << 16 | 1];
    Command::new(0x01, 0, &dwords).at(address, 0)
}

pub fn delete_sq(id: u16) -> Command {
    Command::new(0x00, 0, &[id.into()])
}

pub fn delete_cq(id: u16) -> Command {
    Command::new(0x04, 0, &[id.into()])
}

/// A completion of 16 bytes (NVMe Base 2.0, 3.3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    pub dw0: u32,
    pub sqhd: u16,
    pub sqid: u16,
    pub cid: u16,
    /// Dword 3 after the phase tag.
    status: u16,
}

impl Completion {
    pub(crate) fn new(taken: peerbar_nvme_driver::Completion, dw0: u32) -> Self {
        Self {
            dw0,
            sqhd: taken.sqhd,
            sqid: taken.sqid,
            cid: taken.cid,
            status: taken.status,
        }
    }

    /// Status code type and status code, as one number as in Linux's `NVME_SC_*`.
    pub fn code(&self) -> u16 {
        self.status & 0x7ff
    }
}

/// Linux's `NVME_SC_*`: status code type in bits 8 to 10, status code below.
pub mod sc {
    pub const INVALID_OPCODE: u16 = 0x001;
    pub const INVALID_FIELD: u16 = 0x002;
    pub const DATA_XFER_ERROR: u16 = 0x004;
    pub const ABORT_REQ: u16 = 0x007;
    pub const INVALID_NS: u16 = 0x00b;
    pub const CMD_SEQ_ERROR: u16 = 0x00c;
    pub const SGL_INVALID_LAST: u16 = 0x00d;
    pub const SGL_INVALID_COUNT: u16 = 0x00e;
    pub const SGL_INVALID_DATA: u16 = 0x00f;
    pub const SGL_INVALID_TYPE: u16 = 0x011;
    pub const CMB_INVALID_USE: u16 = 0x012;
    pub const PRP_INVALID_OFFSET: u16 = 0x013;
    pub const SANITIZE_FAILED: u16 = 0x01c;
    pub const SANITIZE_IN_PROGRESS: u16 = 0x01d;
    pub const LBA_RANGE: u16 = 0x080;
    pub const CAPACITY_EXCEEDED: u16 = 0x081;
    pub const CQ_INVALID: u16 = 0x100;
    pub const QID_INVALID: u16 = 0x101;
    pub const QUEUE_SIZE: u16 = 0x102;
    pub const ASYNC_LIMIT: u16 = 0x105;
    pub const INVALID_VECTOR: u16 = 0x108;
    pub const INVALID_LOG_PAGE: u16 = 0x109;
    pub const INVALID_QUEUE: u16 = 0x10c;
    pub const FEATURE_NOT_SAVEABLE: u16 = 0x10d;
    pub const FEATURE_NOT_PER_NS: u16 = 0x10f;
    /// QEMU's and SPDK's; Linux has it among the generic codes.
    pub const INVALID_IOCS: u16 = 0x12c;
    pub const WRITE_FAULT: u16 = 0x280;
    pub const UNRECOVERED_READ: u16 = 0x281;
    pub const COMPARE_FAILED: u16 = 0x285;
}
