//! The server's device as a function of its endpoint, and the memory behind its BARs.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use peerbar_dma::{PeerId, Requester};
use peerbar_endpoint::{BarMemory, PeerPages};
use peerbar_pci::{Bar, Function, UnsupportedRequest};
use peerbar_vfio_user::remote::{RemoteDevice, RemoteMapping};

/// The longest wait for the answer to a peer's access. The guest's writes to configuration space may
/// wait for one access.
const PEER_TIME_OUT: Duration = Duration::from_secs(1);

/// The server's device as a function.
pub struct ForeignFunction(pub(crate) Arc<RemoteDevice>);

impl Function for ForeignFunction {
    fn bar_read(&self, bar: u8, offset: u64, data: &mut [u8]) {
        if let Err(error) = self.0.region_read(bar.into(), offset, data) {
            log::debug!("BAR{bar}+{offset:#x}: {error}");
            data.fill(0xff);
        }
    }

    fn bar_write(&self, bar: u8, offset: u64, data: &[u8]) {
        if let Err(error) = self.0.region_write(bar.into(), offset, data) {
            log::debug!("BAR{bar}+{offset:#x}: {error}");
        }
    }

    fn peer_read(&self, bar: u8, offset: u64, data: &mut [u8]) -> Result<(), UnsupportedRequest> {
        let read = self
            .0
            .region_read_within(PEER_TIME_OUT, bar.into(), offset, data);
        read.map_err(|_| UnsupportedRequest)
    }

    fn peer_write(&self, bar: u8, offset: u64, data: &[u8]) -> Result<(), UnsupportedRequest> {
        let written = self
            .0
            .region_write_within(PEER_TIME_OUT, bar.into(), offset, data);
        written.map_err(|_| UnsupportedRequest)
    }

    fn makes_peers_wait(&self) -> bool {
        true
    }

    fn reset(&self) {
        if let Err(error) = self.0.reset() {
            log::warn!("the server has not reset its device: {error}");
        }
    }
}

/// Returns the memory behind a BAR of the server's device.
pub(crate) fn bar_memory(remote: &RemoteDevice, requester: &Requester, bar: &Bar) -> BarMemory {
    let region = remote.region(bar.index().into());
    let Some(RemoteMapping::Memory {
        file,
        offset,
        areas,
    }) = region.map(|region| &region.mapping)
    else {
        return BarMemory::Registers;
    };
    let span = file.as_fd().try_clone_to_owned().map(|fd| {
        // The server lends it like a peer, one that is not below the switch.
        requester.borrow_memory(PeerId::NONE, fd, (*offset, bar.size()))
    });
    match (span, areas) {
        (Ok(Ok(span)), None) => BarMemory::Memory(span),
        (Ok(Ok(span)), Some(areas)) if *offset == 0 && span.offset == 0 => {
            // The server maps these pages for its client, so it polls them.
            BarMemory::RegistersWithPages(span.file, areas.clone(), PeerPages::Lent)
        }
        (Ok(Err(error)), _) => {
            // SPDK's file of doorbells, for one, ends after them.
            log::info!("BAR{} is reached by messages: {error}", bar.index());
            BarMemory::Registers
        }
        _ => BarMemory::Registers,
    }
}
