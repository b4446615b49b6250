//! The data that the load writes, for the program in the guest and for the test on the host.

/// Bytes of a block, and of a file.
pub(crate) const BLOCK: usize = 4096;

/// Returns the block `number` of `disk`, or the content of its file of that number.
pub(crate) fn block(seed: u64, disk: &str, number: u64) -> Vec<u8> {
    let line = format!("peerbar {seed} {disk} {number}\n");
    line.bytes().cycle().take(BLOCK).collect()
}
