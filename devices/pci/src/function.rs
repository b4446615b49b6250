//! The interface between a device's logic and its bus.

use std::io;

use thiserror::Error;

/// The logic of one PCI function, from the view of its bus.
///
/// Every method may be called from the thread that answers the guest's accesses, and `peer_read`
/// and `peer_write` at the same time from the thread that answers peers below the same switch. No
/// method may wait for DMA or for a lock that is held across DMA. Only `bar_read` and `bar_write`
/// may wait for a disk.
pub trait Function: Send + Sync {
    /// Reads `data.len()` bytes at `offset` of a trapped BAR. The range lies inside the BAR.
    fn bar_read(&self, bar: u8, offset: u64, data: &mut [u8]);

    /// Writes `data` at `offset` of a trapped BAR. The range lies inside the BAR.
    fn bar_write(&self, bar: u8, offset: u64, data: &[u8]);

    /// Like [`Function::bar_read`], for a peer below the same switch. While this runs, the function
    /// accepts no change of its peers' windows, and the switch gives up on the function after 4 s:
    /// the method may only wait for a copy in progress, unless [`Function::makes_peers_wait`].
    fn peer_read(&self, bar: u8, offset: u64, data: &mut [u8]) -> Result<(), UnsupportedRequest> {
        self.bar_read(bar, offset, data);
        Ok(())
    }

    /// Like [`Function::bar_write`], for a peer below the same switch, with the limits of
    /// [`Function::peer_read`].
    fn peer_write(&self, bar: u8, offset: u64, data: &[u8]) -> Result<(), UnsupportedRequest> {
        self.bar_write(bar, offset, data);
        Ok(())
    }

    /// Returns `true` if `peer_read` and `peer_write` may wait for another process. They are then
    /// called from a thread of their own.
    fn makes_peers_wait(&self) -> bool {
        false
    }

    /// A conventional or function-level reset. No earlier DMA or interrupt may become visible once
    /// this returns (PCIe Base 6.0, 6.6.2).
    fn reset(&self);

    /// The guest has turned bus mastering on. The function may now issue its pending requests.
    fn bus_master_enabled(&self) {}

    /// The client has left, and the function was reset: gives each BAR that a client maps new,
    /// zeroed memory, since the client may have kept its mapping. Operations that the function had
    /// begun for that client do not touch the new memory. May wait for a step of an engine.
    ///
    /// # Errors
    /// There is no memory or descriptor left, an engine does not finish its step, or the reset has
    /// failed. The next client is disconnected, and this is called again.
    fn renew_memory(&self) -> io::Result<()> {
        Ok(())
    }
}

/// The function does not support a peer's request (PCIe Base 6.0, 2.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the function does not answer this request of a peer")]
pub struct UnsupportedRequest;

/// The guest's configuration of the function's interrupts.
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
    /// Returns the guest's current configuration of interrupts.
    fn mode(&self) -> InterruptMode;

    /// Sends the MSI-X message of `vector`. A vector that the guest has not set up is ignored.
    fn raise(&self, vector: u16);

    /// Sets the level of the INTx pin (PCI Local Bus 3.0, 2.2.6). It has no effect while MSI-X is in use.
    fn set_pin(&self, asserted: bool);
}
