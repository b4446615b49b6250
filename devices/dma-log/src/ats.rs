//! What a device's address translation cache has done, and the page in which it shows that to its guest.

/// Words of the page, 8 bytes each, little-endian, in the order of the fields.
const WORDS: usize = 8;

/// Version of the page.
const VERSION: u64 = 1;

/// What a device's address translation cache has done since the device was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AtsCounts {
    /// Whether the guest has it turned on.
    pub enabled: bool,
    /// Requests that used a translation of the cache.
    pub hits: u64,
    /// Translations asked for.
    pub asked: u64,
    /// Of those, the ones that were refused: no mapping, no permission, or no address that could be told.
    pub refused: u64,
    /// Cached translations that the guest's unmapping has taken away.
    pub invalidated: u64,
    /// Cached translations that had to make room for others.
    pub evicted: u64,
    /// Translations in the cache at this moment.
    pub cached: u64,
}

impl AtsCounts {
    /// The page.
    pub fn page(&self) -> Vec<u8> {
        let words: [u64; WORDS] = [
            VERSION,
            self.enabled.into(),
            self.hits,
            self.asked,
            self.refused,
            self.invalidated,
            self.evicted,
            self.cached,
        ];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_count_has_its_place() {
        let counts = AtsCounts {
            enabled: true,
            hits: 2,
            asked: 3,
            refused: 4,
            invalidated: 5,
            evicted: 6,
            cached: 7,
        };
        let page = counts.page();
        let words: Vec<u64> = page
            .as_chunks::<8>()
            .0
            .iter()
            .map(|word| u64::from_le_bytes(*word))
            .collect();
        assert_eq!(words, [1, 1, 2, 3, 4, 5, 6, 7]);
    }
}
