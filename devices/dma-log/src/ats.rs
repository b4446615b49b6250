//! The statistics of a device's address translation cache, and the page in which the device shows
//! them to its guest.

/// Words of the page, 8 bytes each, little-endian, in the order of the fields.
const WORDS: usize = 8;

/// Version of the page.
const VERSION: u64 = 1;

/// The statistics of a device's address translation cache since the device was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AtsCounts {
    /// The guest has turned the cache on.
    pub enabled: bool,
    /// Requests that used a cached translation.
    pub hits: u64,
    /// Translations that the device requested.
    pub asked: u64,
    /// Requested translations that were refused: no mapping, no permission, or no known address.
    pub refused: u64,
    /// Cached translations that an unmap by the guest has removed.
    pub invalidated: u64,
    /// Cached translations that were evicted for others.
    pub evicted: u64,
    /// Translations currently in the cache.
    pub cached: u64,
}

impl AtsCounts {
    /// Returns the page.
    pub fn page(&self) -> Vec<u8> {
        self.words()
            .into_iter()
            .flat_map(u64::to_le_bytes)
            .collect()
    }

    /// Returns the words of the page.
    pub(crate) fn words(&self) -> [u64; WORDS] {
        [
            VERSION,
            self.enabled.into(),
            self.hits,
            self.asked,
            self.refused,
            self.invalidated,
            self.evicted,
            self.cached,
        ]
    }

    /// Returns the statistics in the words of a page.
    pub(crate) fn from_words(words: [u64; WORDS]) -> Self {
        let [
            _version,
            enabled,
            hits,
            asked,
            refused,
            invalidated,
            evicted,
            cached,
        ] = words;
        Self {
            enabled: enabled != 0,
            hits,
            asked,
            refused,
            invalidated,
            evicted,
            cached,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_each_count_at_its_offset() {
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
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
            .collect();
        assert_eq!(words, [1, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(AtsCounts::from_words(counts.words()), counts);
    }
}
