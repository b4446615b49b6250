//! The requests of a front-end (Vhost-user Protocol, "Front-end message types").

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use peerbar_dma::{LentGuestMemory, LentRegion};
use peerbar_host::eventfd::Event;
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVirtioFeatures,
    VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use vm_memory::{GuestAddress, GuestMemoryRegion};

use crate::device::{FrontEndSpan, QUEUES, VsockDevice};
use crate::ring::Ring;

const PROTOCOL_FEATURES: u64 = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
const EVENT_INDEX: u64 = 1 << VIRTIO_RING_F_EVENT_IDX;
/// The features that a front-end may use.
const FEATURES: u64 = 1 << VIRTIO_F_VERSION_1 | EVENT_INDEX | PROTOCOL_FEATURES;
/// The answer to a request that no offered feature permits.
const NOT_OFFERED: Error = Error::InvalidOperation("it was not offered");

fn failed(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::ReqHandlerError(io::Error::other(source))
}

/// Returns the eventfd of a request, if it has one.
fn event(file: Option<File>) -> Result<Option<Event>> {
    let event = file.map(|file| Event::try_from(OwnedFd::from(file)));
    event
        .transpose()
        .map_err(|errno| failed(io::Error::from(errno)))
}

impl VsockDevice {
    fn ring(&mut self, index: u32) -> Result<&mut Ring> {
        let ring = usize::try_from(index)
            .ok()
            .and_then(|index| self.rings.get_mut(index));
        ring.ok_or(Error::InvalidParam)
    }

    fn guest_address(&self, address: u64) -> Result<GuestAddress> {
        let mut spans = self.spans.iter();
        let found = spans.find_map(|span| span.guest_address(address));
        found.ok_or_else(|| failed(format!("a ring at {address:#x} is not in lent memory")))
    }
}

/// An error ends the session.
impl VhostUserBackendReqHandlerMut for VsockDevice {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(FEATURES)
    }

    /// The driver starts: ends the connections of an earlier one.
    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !FEATURES != 0 {
            return Err(Error::InvalidParam);
        }
        for ring in &mut self.rings {
            ring.set_event_index(features & EVENT_INDEX != 0);
            if features & PROTOCOL_FEATURES == 0 {
                ring.set_enabled(true);
            }
        }
        self.multiplexer.reset();
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::REPLY_ACK)
    }

    fn set_protocol_features(&mut self, _features: u64) -> Result<()> {
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        u64::try_from(QUEUES).map_err(failed)
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        let mut mapped = Vec::with_capacity(regions.len());
        for (region, file) in regions.iter().zip(files) {
            let start = GuestAddress(region.guest_phys_addr);
            let (offset, size) = (region.mmap_offset, region.memory_size);
            let region = LentRegion::map(&mut self.pool, file.into(), offset, size, start);
            mapped.push(region.map_err(failed)?);
        }
        mapped.sort_by_key(LentRegion::start_addr);
        self.memory = Some(LentGuestMemory::from_regions(mapped).map_err(failed)?);
        let spans = regions.iter().map(|region| FrontEndSpan {
            start: region.user_addr,
            size: region.memory_size,
            guest: region.guest_phys_addr,
        });
        self.spans = spans.collect();
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, size: u32) -> Result<()> {
        let size = u16::try_from(size).map_err(|_| Error::InvalidParam)?;
        self.ring(index)?.set_size(size).map_err(failed)
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        let addresses = [
            self.guest_address(descriptors)?,
            self.guest_address(available)?,
            self.guest_address(used)?,
        ];
        let memory = self.memory.clone().ok_or(Error::InvalidParam)?;
        let ring = self.ring(index)?;
        ring.set_addresses(&memory, addresses).map_err(failed)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let base = u16::try_from(base).map_err(|_| Error::InvalidParam)?;
        self.ring(index)?.set_next(base);
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let next = self.ring(index)?.stop();
        Ok(VhostUserVringState::new(index, next.into()))
    }

    fn set_vring_kick(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let kick = event(file)?;
        self.ring(index.into())?.set_kick(kick);
        Ok(())
    }

    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let call = event(file)?;
        self.ring(index.into())?.set_call(call);
        Ok(())
    }

    /// The device does not report errors of a ring.
    fn set_vring_err(&mut self, _index: u8, _file: Option<File>) -> Result<()> {
        Ok(())
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.ring(index)?.set_enabled(enable);
        Ok(())
    }

    /// The device's only register is the guest's CID (virtio 1.2, 5.10.4).
    fn get_config(&mut self, offset: u32, size: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let config = self.cid.to_le_bytes();
        let bytes = usize::try_from(offset).ok().zip(usize::try_from(size).ok());
        let part = bytes.and_then(|(from, count)| config.get(from..from.checked_add(count)?));
        Ok(part.unwrap_or_default().to_vec())
    }

    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        Err(Error::InvalidOperation(
            "the device's register is read-only",
        ))
    }

    fn reset_device(&mut self) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        Err(NOT_OFFERED)
    }

    fn get_inflight_fd(&mut self, _: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        Err(NOT_OFFERED)
    }

    fn set_inflight_fd(&mut self, _: &VhostUserInflight, _: File) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Err(NOT_OFFERED)
    }

    fn add_mem_region(
        &mut self,
        _: &VhostUserSingleMemoryRegion,
        _: File,
        _: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        Err(NOT_OFFERED)
    }

    fn remove_mem_region(&mut self, _: &VhostUserSingleMemoryRegion) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        Err(NOT_OFFERED)
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(NOT_OFFERED)
    }

    fn set_log_base(&mut self, _: &VhostUserLog, _: File) -> Result<()> {
        Err(NOT_OFFERED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_of_the_front_end_leads_to_the_guests() {
        let span = FrontEndSpan {
            start: 0x7000_0000,
            size: 0x1000,
            guest: 0x1_0000_0000,
        };
        for (address, guest) in [
            (0x7000_0000, Some(0x1_0000_0000)),
            (0x7000_0fff, Some(0x1_0000_0fff)),
            (0x7000_1000, None),
            (0x6fff_ffff, None),
            (u64::MAX, None),
        ] {
            let found = span.guest_address(address);
            assert_eq!(found, guest.map(GuestAddress), "{address:#x}");
        }
    }
}
