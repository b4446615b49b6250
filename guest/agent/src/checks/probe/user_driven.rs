//! A disk as the client and a GPU as the provider, both driven from user space.

use std::sync::Arc;

use anyhow::Context;
use peerbar_gds::Mapping;
use peerbar_report::VfioBackend;
use peerbar_vfio_nvme::{Direction as Data, Disk, DmaSpace, RegisterAccess};

use super::pair::{BYTES, Direction, LENGTH, Pair};
use crate::checks::vfio_nvme::{TakenDevices, Vram, start};
use crate::user_drivers::address_space;

/// A disk, its driver's own memory and the GPU's, in one address space.
pub(super) struct UserDriven {
    disk: Disk,
    own: (u64, Arc<Mapping>),
    peer: (Vram, Arc<Mapping>),
}

impl UserDriven {
    pub(super) fn open(taken: &TakenDevices<'_>) -> anyhow::Result<Self> {
        let backend = VfioBackend::Type1;
        let space = DmaSpace::new(address_space(backend)?);
        let disk = start(taken, &space, RegisterAccess::Mapped)?;
        let (_, binding) = taken.gpu.as_ref().context("a pair without a GPU")?;
        let peer = Vram::map(&space, backend, binding, LENGTH)?;
        let own = space.allocate(LENGTH)?;
        let memory = |address| space.memory(address).context("memory that is not there");
        Ok(Self {
            own: (own, memory(own)?),
            peer: {
                let memory = memory(peer.address)?;
                (peer, memory)
            },
            disk,
        })
    }
}

impl Pair for UserDriven {
    fn load(&mut self, direction: Direction, bytes: &[u8]) -> anyhow::Result<()> {
        let (address, own) = &self.own;
        let (_, peer) = &self.peer;
        match direction {
            Direction::There => {
                peer.write(0, &[0; BYTES])?;
                own.write(0, bytes)?;
                Ok(self.disk.transfer(Data::Write, 0, *address, LENGTH)?)
            }
            Direction::Back => Ok(peer.write(0, bytes)?),
        }
    }

    fn carry(&mut self, direction: Direction) -> anyhow::Result<()> {
        let (vram, _) = &self.peer;
        let data = match direction {
            Direction::There => Data::Read,
            Direction::Back => Data::Write,
        };
        Ok(self.disk.transfer(data, 0, vram.address, LENGTH)?)
    }

    fn arrived(&mut self, direction: Direction) -> anyhow::Result<Vec<u8>> {
        let mut seen = vec![0; BYTES];
        match direction {
            Direction::There => self.peer.1.read(0, &mut seen)?,
            Direction::Back => {
                let (address, own) = &self.own;
                own.write(0, &seen)?;
                self.disk.transfer(Data::Read, 0, *address, LENGTH)?;
                own.read(0, &mut seen)?;
            }
        }
        Ok(seen)
    }
}
