//! The interface between a device's logic and its bus.

/// The logic behind one PCI function, as its bus sees it.
///
/// Every method may be called from the thread that answers the guest's accesses, and `bar_read` and `bar_write` at the same
/// time from the one that answers peers below the same switch: none may wait for DMA, for a lock that is held across DMA, or
/// for a disk.
pub trait Function: Send + Sync {
    /// Reads `data.len()` bytes at `offset` of a trapped BAR. The range lies inside the BAR.
    fn bar_read(&self, bar: u8, offset: u64, data: &mut [u8]);

    /// Writes `data` at `offset` of a trapped BAR. The range lies inside the BAR.
    fn bar_write(&self, bar: u8, offset: u64, data: &[u8]);

    /// A conventional or function-level reset. No DMA and no interrupt of the time before may be seen
    /// once this returns (PCIe Base 6.0, 6.6.2).
    fn reset(&self);
}

/// How the guest has set up the function's interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterruptMode {
    /// Not set up.
    Off,
    /// The INTx pin.
    Pin,
    /// MSI-X messages.
    MsiX,
}

/// Interrupts from a function to the guest.
pub trait Interrupts: Send + Sync {
    /// How the guest has set up interrupts at this moment.
    fn mode(&self) -> InterruptMode;

    /// Sends the MSI-X message of `vector`. A vector that the guest has not set up is ignored.
    fn raise(&self, vector: u16);

    /// Sets the level of the INTx pin (PCI Local Bus 3.0, 2.2.6). It has no effect while MSI-X is in use.
    fn set_pin(&self, asserted: bool);
}
