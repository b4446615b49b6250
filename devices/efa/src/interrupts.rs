//! Interrupts that a reset masks: once it is answered, no earlier interrupt is raised.

use std::sync::Arc;

use parking_lot::RwLock;
use peerbar_pci::{InterruptMode, Interrupts};

/// Interrupts of the function, masked while it is reset.
pub(crate) struct MaskedInterrupts {
    interrupts: Arc<dyn Interrupts>,
    is_masked: RwLock<bool>,
}

impl MaskedInterrupts {
    pub(crate) fn new(interrupts: Arc<dyn Interrupts>) -> Self {
        Self {
            interrupts,
            is_masked: RwLock::new(false),
        }
    }

    /// Masks all interrupts until [`MaskedInterrupts::unmask`]. None is in progress once this
    /// returns.
    pub(crate) fn mask(&self) {
        *self.is_masked.write() = true;
    }

    /// Unmasks interrupts.
    pub(crate) fn unmask(&self) {
        *self.is_masked.write() = false;
    }
}

impl Interrupts for MaskedInterrupts {
    fn mode(&self) -> InterruptMode {
        self.interrupts.mode()
    }

    fn raise(&self, vector: u16) {
        let is_masked = self.is_masked.read();
        if !*is_masked {
            self.interrupts.raise(vector);
        }
    }

    fn set_pin(&self, asserted: bool) {
        self.interrupts.set_pin(asserted);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU16, Ordering};

    use super::*;

    #[derive(Default)]
    struct Counted(AtomicU16);

    impl Interrupts for Counted {
        fn mode(&self) -> InterruptMode {
            InterruptMode::MsiX
        }

        fn raise(&self, _vector: u16) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn set_pin(&self, _asserted: bool) {}
    }

    #[test]
    fn masked_interrupt_is_not_raised() {
        let counted = Arc::new(Counted::default());
        let masked = MaskedInterrupts::new(counted.clone());
        masked.raise(0);
        masked.mask();
        masked.raise(0);
        assert_eq!(counted.0.load(Ordering::Relaxed), 1);
        masked.unmask();
        masked.raise(0);
        assert_eq!(counted.0.load(Ordering::Relaxed), 2);
    }
}
