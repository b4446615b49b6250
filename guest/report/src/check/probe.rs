//! `probe`: what becomes of DMA between two devices.

use super::{Keys, Pair, check};

check! {
    /// Tries peer-to-peer DMA between two devices, a write and a read, and reports the outcome. Only success with wrong
    /// data fails.
    "probe": "{client} to the memory of {provider}"
    pub struct Probe {
        /// Name of an `[[nvme]]` with a `cmb`, or of a `[[gpu]]`: the one with the memory.
        pub provider: String = Keys::provider,
        /// Name of an `[[nvme]]` or a `[[gpu]]`: the one with the DMA. A disk may be its own provider.
        pub client: String = Keys::device,
    }

    fn pairs(&self) -> Vec<Pair> {
        vec![Pair::of(&self.provider, &self.client)]
    }
}
