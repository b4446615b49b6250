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
    /// Of those, the ones that were refused: no mapping, no permission, or no known address.
    pub refused: u64,
    /// Cached translations that the guest's unmapping has taken away.
    pub invalidated: u64,
    /// Cached translations that were evicted for others.
    pub evicted: u64,
    /// Translations in the cache at this moment.
    pub cached: u64,
}

impl AtsCounts {
    /// The page.
    pub fn page(&self) -> Vec<u8> {
        self.words()
            .into_iter()
            .flat_map(u64::to_le_bytes)
            .collect()
    }

    /// The words of the page.
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

    /// What the words of a page say.
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
