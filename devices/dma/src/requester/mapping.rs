//! The guest memory map.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use log::Level;
use peerbar_flight::{self as flight, Event, FileSpan};

use crate::address::AddressRange;
use crate::lent_file::LentFile;
use crate::map::{Backing, MapError};
use crate::map_access::MapAccess;
use crate::memory_error::MemoryError;
use crate::recording;

use super::Requester;
use super::changes::Change;

impl Requester {
    /// Adds a mapping of `size` bytes at `iova`, over memory that the client lent (a descriptor and
    /// an offset in it) or, without it, over a device. Memory that cannot be mapped here is reached
    /// through the client. Fails if the client lends too much ([`MapError::TooMuch`]), or the file
    /// ends before the mapping does ([`MapError::PastFile`]).
    pub fn map(
        &self,
        iova: u64,
        size: u64,
        access: MapAccess,
        memory: Option<(OwnedFd, u64)>,
    ) -> Result<(), MapError> {
        self.injects_into_mapping(iova, size)?;
        let memory = memory.map(|(fd, offset)| (LentFile::new(fd), offset));
        let span = memory.as_ref().map(|(file, offset)| FileSpan {
            device: file.device(),
            inode: file.inode(),
            offset: *offset,
        });
        let backing = match memory {
            None => Backing::Device,
            Some((file, offset)) => self.lent(file, offset, (iova, size))?,
        };
        let recorded = match (span, &backing) {
            (Some(span), Backing::Ram(_)) => flight::Backing::Ram(span),
            (Some(span), _) => flight::Backing::RemoteRam(span),
            (None, _) => flight::Backing::Device,
        };
        let mut routes = self.change();
        routes.map.map(iova, size, access, backing)?;
        self.ledger
            .note(|| recording::map((iova, size), access, recorded));
        Ok(())
    }

    /// Returns the backing of a mapping of `size` bytes at `iova` for which the client lends
    /// memory.
    fn lent(
        &self,
        file: LentFile,
        offset: u64,
        (iova, size): (u64, u64),
    ) -> Result<Backing, MapError> {
        let is_regular = file.is_regular();
        match self.client_memory.lock().span(file, offset, size) {
            Ok(span) => Ok(Backing::Ram(span)),
            Err(error @ MemoryError::OutOfRange { .. }) if is_regular => {
                log::warn!(
                    "mapping {iova:#x}+{size:#x} is refused: {error}; \
                     have the client lend one file for all of it, as SPDK's tools do with -g"
                );
                Err(MapError::PastFile { iova, size })
            }
            Err(error @ MemoryError::TooMuch { .. }) => {
                log::warn!("mapping {iova:#x}+{size:#x} is refused: {error}");
                Err(MapError::TooMuch)
            }
            Err(error) => {
                let again = self.slow_reported.swap(true, Ordering::Relaxed);
                let level = if again { Level::Debug } else { Level::Warn };
                log::log!(
                    level,
                    "mapping {iova:#x}+{size:#x} is reached by messages, slowly: {error}"
                );
                Ok(Backing::RemoteRam)
            }
        }
    }

    /// Removes the span from `iova` to `last` (inclusive) from the map. Once this returns, no DMA
    /// touches it.
    pub fn unmap(&self, iova: u64, last: u64) {
        self.take_out(self.change(), iova, last);
    }

    /// Like [`Self::unmap`], for a client: fails, and changes nothing, if it would leave more
    /// mappings than a client may have.
    pub fn try_unmap(&self, iova: u64, last: u64) -> Result<(), MapError> {
        let routes = self.change();
        routes.map.check_unmap(iova, last)?;
        self.take_out(routes, iova, last);
        Ok(())
    }

    fn take_out(&self, mut routes: Change<'_>, iova: u64, last: u64) {
        routes.map.unmap(iova, last);
        if routes.atc().invalidate(iova, last) {
            self.share_ats(&routes);
        }
        let range = AddressRange { first: iova, last };
        if self.pins.meet(range) {
            // Recorded after the transfers that still use this mapping.
            drop(routes);
            self.wait_for_transfers(&[range]);
        }
        self.ledger.note(|| Event::Unmap { iova, last });
    }

    /// Forgets every mapping.
    pub fn unmap_all(&self) {
        self.unmap(0, u64::MAX);
    }
}
