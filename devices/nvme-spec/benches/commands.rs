//! The cost of reading a command from the bytes of a submission queue entry:
//! `cargo bench -p peerbar-nvme-spec`.

#![allow(clippy::unwrap_used, reason = "a benchmark panics if it fails")]

use divan::black_box;
use peerbar_nvme_spec::command::nvm::BlockRange;
use peerbar_nvme_spec::command::{NvmOpcode, SubmissionEntry};
use zerocopy::FromBytes;

fn main() {
    divan::main();
}

/// A Read of 8 blocks from block 0x1234 on.
fn read() -> [u8; 64] {
    let mut bytes = [0; 64];
    for (offset, byte) in [(0, 0x02), (4, 1), (40, 0x34), (41, 0x12), (48, 7)] {
        *bytes.get_mut(offset).unwrap() = byte;
    }
    bytes
}

#[divan::bench]
fn a_read() -> (NvmOpcode, u64, u32) {
    let bytes = black_box(read());
    let entry = SubmissionEntry::read_from_bytes(&bytes).unwrap();
    let range = BlockRange::from(&entry);
    (
        NvmOpcode::try_from(entry.opcode).unwrap(),
        range.slba.get(),
        range.blocks(),
    )
}
