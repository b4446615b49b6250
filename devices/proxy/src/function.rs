//! The server's device as a function of its endpoint, and the memory behind its BARs.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use peerbar_dma::{PeerId, Requester};
use peerbar_endpoint::{BarMemory, PeerPages};
use peerbar_pci::{Bar, Function, UnsupportedRequest};
use peerbar_vfio_user::CONFIG_REGION;
use peerbar_vfio_user::remote::{CallError, RemoteDevice, RemoteMapping};

/// The longest wait for the answer to a peer's access. The guest's writes to configuration space may
/// wait for one access.
const PEER_TIME_OUT: Duration = Duration::from_secs(1);

/// The command register.
const COMMAND: u64 = 0x04;

/// The server's device as a function.
pub struct ForeignFunction {
    remote: Arc<RemoteDevice>,
    /// The reason for which the last reset failed.
    failure: Mutex<Option<CallError>>,
}

impl ForeignFunction {
    pub(crate) fn new(remote: Arc<RemoteDevice>) -> Self {
        Self {
            remote,
            failure: Mutex::default(),
        }
    }

    /// Resets the device. One that cannot be reset gets its command register cleared, so that it is
    /// no bus master (PCIe Base 6.0, 7.5.1.1.3).
    fn try_reset(&self) -> Result<(), CallError> {
        if self.remote.info().can_reset {
            return self.remote.reset();
        }
        self.remote
            .region_write_unposted(CONFIG_REGION, COMMAND, &[0; 2])
    }
}

impl Function for ForeignFunction {
    fn bar_read(&self, bar: u8, offset: u64, data: &mut [u8]) {
        if let Err(error) = self.remote.region_read(bar.into(), offset, data) {
            log::debug!("BAR{bar}+{offset:#x}: {error}");
            data.fill(0xff);
        }
    }

    fn bar_write(&self, bar: u8, offset: u64, data: &[u8]) {
        if let Err(error) = self.remote.region_write(bar.into(), offset, data) {
            log::debug!("BAR{bar}+{offset:#x}: {error}");
        }
    }

    fn peer_read(&self, bar: u8, offset: u64, data: &mut [u8]) -> Result<(), UnsupportedRequest> {
        let read = self
            .remote
            .region_read_within(PEER_TIME_OUT, bar.into(), offset, data);
        read.map_err(|_| UnsupportedRequest)
    }

    fn peer_write(&self, bar: u8, offset: u64, data: &[u8]) -> Result<(), UnsupportedRequest> {
        let written = self
            .remote
            .region_write_within(PEER_TIME_OUT, bar.into(), offset, data);
        written.map_err(|_| UnsupportedRequest)
    }

    fn makes_peers_wait(&self) -> bool {
        true
    }

    fn reset(&self) {
        let failure = self.try_reset().err();
        if let Some(error) = failure {
            log::warn!("the server has not reset its device: {error}");
        }
        *self.failure.lock() = failure;
    }

    /// Fails if the last reset has.
    fn renew_memory(&self) -> io::Result<()> {
        let failure = *self.failure.lock();
        failure.map_or(Ok(()), |error| Err(io::Error::other(error)))
    }
}

/// Returns the memory behind a BAR of the server's device, as peers of the proxy reach it.
pub fn bar_memory(remote: &RemoteDevice, requester: &Requester, bar: &Bar) -> BarMemory {
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

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use peerbar_pci::Iova;
    use peerbar_rig::RawServer;
    use peerbar_rig::wire::{ERROR, REPLY, command, message_with, words};
    use peerbar_vfio_user::remote::{RemoteEnd, RemoteHandler, TIME_OUT};
    use rustix::io::Errno;

    use super::*;

    /// A handler of a server that sends no requests.
    struct NoDma;

    impl RemoteHandler for NoDma {
        fn dma_read(&self, _: Iova, _: &mut [u8]) -> Result<(), Errno> {
            Err(Errno::IO)
        }

        fn dma_write(&self, _: Iova, _: &[u8]) -> Result<(), Errno> {
            Err(Errno::IO)
        }

        fn ended(&self, _: RemoteEnd) {}
    }

    #[test]
    fn refused_write_to_the_command_register_is_a_failed_reset() {
        const EBUSY: u32 = 16;
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = std::thread::spawn(move || {
            RawServer::new(theirs).serve(|server, asked| {
                match asked.command {
                    // It has no reset.
                    command::INFO => server.reply(asked, &words(&[16, 2, 9, 5])),
                    command::REGION_WRITE => {
                        let refusal = (REPLY | ERROR, EBUSY);
                        let refusal = message_with(asked.id, asked.command, refusal, &[]);
                        server.send(&refusal, &[]);
                    }
                    _ => return false,
                }
                true
            });
        });
        let remote = RemoteDevice::start(ours, Arc::new(NoDma), TIME_OUT).unwrap();
        let remote = Arc::new(remote);
        let function = ForeignFunction::new(remote.clone());
        let posted = remote.post_writes(TIME_OUT);
        function.reset();
        assert!(function.renew_memory().is_err());
        drop((posted, function));
        drop(remote);
        server.join().unwrap();
    }
}
