//! The server's DMA by messages, as DMA of the endpoint.

use std::sync::{Arc, OnceLock};

use peerbar_dma::{Buffer, DmaError, DmaFault, Purpose, Requester, UpstreamError};
use peerbar_pci::Iova;
use peerbar_vfio_user::Stop;
use peerbar_vfio_user::remote::{RemoteEnd, RemoteHandler};
use rustix::io::Errno;

/// Routes the server's requests, and ends the daemon with the server's session.
pub(crate) struct Router {
    requester: Arc<Requester>,
    ended: OnceLock<RemoteEnd>,
    stop: OnceLock<Stop>,
}

impl Router {
    pub(crate) fn new(requester: Arc<Requester>) -> Self {
        Self {
            requester,
            ended: OnceLock::new(),
            stop: OnceLock::new(),
        }
    }

    /// Triggers `stop` once the server's session has ended.
    pub(crate) fn stop_by(&self, stop: Stop) {
        let stop = self.stop.get_or_init(|| stop);
        if self.ended.get().is_some() {
            stop.trigger();
        }
    }

    /// Returns the reason for which the server's session has ended by itself.
    pub(crate) fn ended(&self) -> Option<RemoteEnd> {
        self.ended.get().copied()
    }

    fn access(&self, address: Iova, data: Buffer<'_>) -> Result<(), Errno> {
        let done = self.requester.access(Purpose::Payload, address, data);
        done.map_err(|error| {
            log::debug!("{error}: {}", error.cause);
            errno(&error)
        })
    }
}

/// Returns the errno that QEMU would answer, as far as it would.
fn errno(error: &DmaError) -> Errno {
    match error.cause {
        DmaFault::Upstream(UpstreamError::Refused(errno)) => Errno::from_raw_os_error(errno),
        DmaFault::NotMaster => Errno::NODEV,
        DmaFault::Forbidden => Errno::ACCESS,
        DmaFault::Wraps => Errno::INVAL,
        _ => Errno::IO,
    }
}

impl RemoteHandler for Router {
    fn dma_read(&self, address: Iova, data: &mut [u8]) -> Result<(), Errno> {
        self.access(address, Buffer::Read(data))
    }

    fn dma_write(&self, address: Iova, data: &[u8]) -> Result<(), Errno> {
        self.access(address, Buffer::Write(data))
    }

    fn ended(&self, reason: RemoteEnd) {
        let _ = self.ended.set(reason);
        if let Some(stop) = self.stop.get() {
            stop.trigger();
        }
    }
}
