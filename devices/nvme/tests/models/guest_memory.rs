//! Guest memory of two pages, of each of which one word is used, and the way there (`peerbar_dma::Session`).

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};

use crate::shadow::Shadow;

const PAGE: u64 = 0x1000;

/// The first page has the doorbell, the second its event index.
pub(crate) const SHADOW: Shadow = Shadow {
    values: 0,
    events: PAGE,
};

#[derive(Clone)]
pub(crate) struct Session(Arc<[AtomicU32; 2]>);

impl Session {
    pub(crate) fn new(words: [u32; 2]) -> Self {
        Self(Arc::new(words.map(AtomicU32::new)))
    }

    pub(crate) fn load(&mut self, address: u64) -> Option<u32> {
        let word = self.word(address)?;
        Some(word.load(Ordering::Acquire))
    }

    pub(crate) fn store(&mut self, address: u64, value: u32) -> bool {
        let word = self.word(address);
        word.map(|word| word.store(value, Ordering::Release))
            .is_some()
    }

    fn word(&self, address: u64) -> Option<&AtomicU32> {
        self.0.get(usize::try_from(address / PAGE).unwrap())
    }

    /// As the guest sees them.
    pub(crate) fn words(&self) -> &[AtomicU32; 2] {
        &self.0
    }
}
