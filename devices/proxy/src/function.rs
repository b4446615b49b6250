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
use peerbar_vfio_user::remote::{CallError, RemoteDevice, RemoteMapping, TIME_OUT};

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
    /// no bus master (PCIe Base 6.0, 7.5.1.1.3). The server's earlier requests for DMA
    /// are answered once this returns.
    fn try_reset(&self) -> Result<(), CallError> {
        let reset = match self.remote.info().can_reset {
            true => self.remote.reset(),
            false => self
                .remote
                .region_write_unposted(CONFIG_REGION, COMMAND, &[0; 2]),
        };
        reset.and_then(|()| self.remote.finish_requests(TIME_OUT))
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
    use std::sync::mpsc::{Receiver, channel};

    use peerbar_pci::Iova;
    use peerbar_rig::RawServer;
    use peerbar_rig::wire::{self, ERROR, Message, NO_REPLY, REPLY, command};
    use peerbar_vfio_user::remote::{RemoteEnd, RemoteHandler};
    use rustix::io::Errno;

    use super::*;

    /// A handler that executes no request before the test allows it.
    struct Held(Mutex<Receiver<()>>);

    impl RemoteHandler for Held {
        fn dma_read(&self, _: Iova, _: &mut [u8]) -> Result<(), Errno> {
            Err(Errno::IO)
        }

        fn dma_write(&self, _: Iova, _: &[u8]) -> Result<(), Errno> {
            self.0.lock().recv().map_err(|_| Errno::IO)
        }

        fn ended(&self, _: RemoteEnd) {}
    }

    /// Returns the function of a server that answers by `answer`, as [`RawServer::serve`] does, whose
    /// requests wait for `release`.
    fn function(
        answer: impl FnMut(&RawServer, &Message) -> bool + Send + 'static,
        release: Receiver<()>,
    ) -> ForeignFunction {
        let (ours, theirs) = UnixStream::pair().unwrap();
        // It ends with the session.
        std::thread::spawn(move || RawServer::new(theirs).serve(answer));
        let held = Arc::new(Held(Mutex::new(release)));
        let remote = RemoteDevice::start(ours, held, TIME_OUT).unwrap();
        ForeignFunction::new(Arc::new(remote))
    }

    #[test]
    fn refused_write_to_the_command_register_is_a_failed_reset() {
        const EBUSY: u32 = 16;
        let answer = |server: &RawServer, asked: &Message| {
            match asked.command {
                // It has no reset.
                command::INFO => server.reply(asked, &wire::words(&[16, 2, 9, 5])),
                command::REGION_WRITE => {
                    let refusal = (REPLY | ERROR, EBUSY);
                    let refusal = wire::message_with(asked.id, asked.command, refusal, &[]);
                    server.send(&refusal, &[]);
                }
                _ => return false,
            }
            true
        };
        let function = function(answer, channel().1);
        let _posted = function.remote.post_writes(TIME_OUT);
        function.reset();
        assert!(function.renew_memory().is_err());
    }

    #[test]
    fn reset_waits_for_the_requests_before_it() {
        let answer = |server: &RawServer, asked: &Message| {
            if asked.command == command::RESET {
                let written = wire::quads(&[0x1000, 8, 5]);
                let written = wire::message(1, command::DMA_WRITE, NO_REPLY, &written);
                server.send(&written, &[]);
            }
            false
        };
        let ((release, released), (ended, end)) = (channel(), channel());
        let function = function(answer, released);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                function.reset();
                ended.send(()).unwrap();
            });
            let early = end.recv_timeout(Duration::from_millis(50));
            release.send(()).unwrap();
            assert!(early.is_err(), "the request was waiting");
            end.recv().unwrap();
        });
        function.renew_memory().unwrap();
    }
}
