//! The guest memory map.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use log::Level;
use peerbar_flight::{self as flight, Event, FileSpan};
use peerbar_pci::{Iova, Range};

use crate::lent_file::LentFile;
use crate::map::{Backing, MapError};
use crate::map_access::MapAccess;
use crate::memory_error::MemoryError;
use crate::recording;

use super::Requester;
use super::changes::Change;

impl Requester {
    /// Adds a mapping, over memory that the client lent (a descriptor and an offset in it) or,
    /// without it, over a device. Memory that cannot be mapped here is reached
    /// through the client. Fails if the client lends too much ([`MapError::TooMuch`]), or the file
    /// ends before the mapping does ([`MapError::PastFile`]).
    pub fn map(
        &self,
        range: Range<Iova>,
        access: MapAccess,
        memory: Option<(OwnedFd, u64)>,
    ) -> Result<(), MapError> {
        self.injects_into_mapping(range)?;
        let memory = memory.map(|(fd, offset)| (LentFile::new(fd), offset));
        let span = memory.as_ref().map(|(file, offset)| FileSpan {
            device: file.device(),
            inode: file.inode(),
            offset: *offset,
        });
        let backing = match memory {
            None => Backing::Device,
            Some((file, offset)) => self.lent(file, offset, range)?,
        };
        let recorded = match (span, &backing) {
            (Some(span), Backing::Ram(_)) => flight::Backing::Ram(span),
            (Some(span), _) => flight::Backing::RemoteRam(span),
            (None, _) => flight::Backing::Device,
        };
        let mut routes = self.change();
        routes.map.map(range, access, backing)?;
        self.ledger.note(|| recording::map(range, access, recorded));
        Ok(())
    }

    /// Returns the backing of a mapping for which the client lends memory.
    fn lent(&self, file: LentFile, offset: u64, range: Range<Iova>) -> Result<Backing, MapError> {
        let is_regular = file.is_regular();
        let (iova, size) = (range.first(), range.size());
        match self.client_memory.lock().span(file, offset, size) {
            Ok(span) => Ok(Backing::Ram(span)),
            Err(error @ MemoryError::OutOfRange { .. }) if is_regular => {
                log::warn!(
                    "mapping {iova}+{size:#x} is refused: {error}; \
                     have the client lend one file for all of it, as SPDK's tools do with -g"
                );
                Err(MapError::PastFile(range))
            }
            Err(error @ MemoryError::TooMuch { .. }) => {
                log::warn!("mapping {iova}+{size:#x} is refused: {error}");
                Err(MapError::TooMuch)
            }
            Err(error) => {
                let again = self.slow_reported.swap(true, Ordering::Relaxed);
                let level = if again { Level::Debug } else { Level::Warn };
                log::log!(
                    level,
                    "mapping {iova}+{size:#x} is reached by messages, slowly: {error}"
                );
                Ok(Backing::RemoteRam)
            }
        }
    }

    /// Removes the range from the map. Once this returns, no DMA touches it.
    pub fn unmap(&self, range: Range<Iova>) {
        self.take_out(self.change(), range);
    }

    /// Like [`Self::unmap`], for a client: fails, and changes nothing, if it would leave more
    /// mappings than a client may have.
    pub fn try_unmap(&self, range: Range<Iova>) -> Result<(), MapError> {
        let routes = self.change();
        routes.map.check_unmap(range)?;
        self.take_out(routes, range);
        Ok(())
    }

    fn take_out(&self, mut routes: Change<'_>, range: Range<Iova>) {
        routes.map.unmap(range);
        if routes.atc().invalidate(range) {
            self.share_ats(&routes);
        }
        if self.pins.meet(range.on_bus()) {
            // Recorded after the transfers that still use this mapping.
            drop(routes);
            self.wait_for_transfers(&[range.on_bus()]);
        }
        self.ledger.note(|| Event::Unmap(range));
    }

    /// Forgets every mapping.
    pub fn unmap_all(&self) {
        self.unmap(Range::all());
    }
}
