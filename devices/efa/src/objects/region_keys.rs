//! Keys of memory regions. A program learns nothing about other keys from its own.

use std::hash::{BuildHasher, RandomState};

/// Makes keys by a keyed hash of a counter. The key of the hash is a random number of the operating
/// system.
#[derive(Default)]
pub(super) struct KeyGenerator {
    hash: RandomState,
    made: u64,
}

impl KeyGenerator {
    /// Returns a key within the bits of `mask`, which is not 0 and not in use.
    pub(super) fn next(&mut self, mask: u32, in_use: impl Fn(u32) -> bool) -> u32 {
        loop {
            self.made = self.made.wrapping_add(1);
            let [.., a, b, c, d] = self.hash.hash_one(self.made).to_le_bytes();
            let key = u32::from_le_bytes([a, b, c, d]) & mask;
            if key != 0 && !in_use(key) {
                return key;
            }
        }
    }
}
