//! Interrupts that a reset stops: none of the time before is raised once it is answered.

use std::sync::Arc;

use parking_lot::RwLock;
use peerbar_pci::{InterruptMode, Interrupts};

/// Interrupts of the function, but for the time in which it is reset.
pub(crate) struct GatedInterrupts {
    interrupts: Arc<dyn Interrupts>,
    is_open: RwLock<bool>,
}

impl GatedInterrupts {
    pub(crate) fn new(interrupts: Arc<dyn Interrupts>) -> Self {
        Self {
            interrupts,
            is_open: RwLock::new(true),
        }
    }

    /// No interrupt is raised from now on, until [`GatedInterrupts::open`]. None is in progress once this returns.
    pub(crate) fn close(&self) {
        *self.is_open.write() = false;
    }

    /// Interrupts are raised again.
    pub(crate) fn open(&self) {
        *self.is_open.write() = true;
    }
}

impl Interrupts for GatedInterrupts {
    fn mode(&self) -> InterruptMode {
        self.interrupts.mode()
    }

    fn raise(&self, vector: u16) {
        let is_open = self.is_open.read();
        if *is_open {
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
    fn interrupt_is_raised_only_while_the_gate_is_open() {
        let counted = Arc::new(Counted::default());
        let gated = GatedInterrupts::new(counted.clone());
        gated.raise(0);
        gated.close();
        gated.raise(0);
        assert_eq!(counted.0.load(Ordering::Relaxed), 1);
        gated.open();
        gated.raise(0);
        assert_eq!(counted.0.load(Ordering::Relaxed), 2);
    }
}
