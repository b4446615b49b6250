//! A peer of the devices: a function in the test's process, below the same switch, which lends its
//! memory.

use std::io;
use std::path::Path;
use std::sync::Arc;

use peerbar_dma::{MemoryFile, Origin, Purpose, RegisterValue, Requester, Span};
use peerbar_endpoint::{BarMemory, Endpoint, Vectors};
use peerbar_nvme_driver::Registers;
use peerbar_pci::{Bar, ConfigSpace, Iova, NoRegisters};
use peerbar_vfio_user::{CONFIG_REGION, Device};

use crate::GuestRam;

/// The memory BAR.
const MEMORY: u8 = 2;
/// PCI Local Bus 3.0, 6.2.2: the Command register, memory space and bus master.
const COMMAND: u64 = 4;
const MEMORY_SPACE: u8 = 0b010;
const BUS_MASTER: u8 = 0b100;

/// A function below a switch, with memory that its peers reach by bus address.
pub struct Peer {
    endpoint: Endpoint<NoRegisters>,
    /// For its DMA.
    pub requester: Arc<Requester>,
    /// Its memory.
    pub memory: GuestRam,
}

impl Peer {
    /// Attaches it to a switch, with `bytes` of memory at `address`, as a bus master.
    pub fn attach(switch: &Path, name: &str, address: u64, bytes: u64) -> Self {
        let bars = [Bar::new(0, 0x4000, false), Bar::new(MEMORY, bytes, true)].map(Result::unwrap);
        let file = Arc::new(MemoryFile::create(name, bytes).unwrap());
        let lent = file.file().try_clone().unwrap();
        let span = Span { file, offset: 0 };
        let requester = Arc::new(Requester::new());
        let mut endpoint = Endpoint::new(
            Arc::new(NoRegisters),
            ConfigSpace::of_test_function(&bars),
            [BarMemory::Registers, BarMemory::Memory(span)],
            requester.clone(),
            Arc::new(Vectors::new(1).unwrap()),
        );
        endpoint.attach_to_switch(switch, name).unwrap();
        let mut peer = Self {
            endpoint,
            requester,
            memory: GuestRam::from_file(lent, 0, address, bytes),
        };
        peer.configure(0x10 + 4 * u64::from(MEMORY), &address.to_le_bytes());
        peer.set_mastering(true);
        peer
    }

    /// Enables or disables its bus mastering.
    pub fn set_mastering(&mut self, on: bool) {
        let command = MEMORY_SPACE | if on { BUS_MASTER } else { 0 };
        self.configure(COMMAND, &[command, 0]);
    }

    /// Returns the registers at `address` of the bus, which it writes by DMA.
    pub fn registers(&self, address: u64) -> PeerRegisters {
        PeerRegisters {
            requester: self.requester.clone(),
            address,
        }
    }

    fn configure(&mut self, offset: u64, data: &[u8]) {
        let written = self.endpoint.region_write(CONFIG_REGION, offset, data);
        written.unwrap();
    }
}

/// Registers of another device, which a [`Peer`] accesses by DMA.
#[derive(Clone)]
pub struct PeerRegisters {
    requester: Arc<Requester>,
    address: u64,
}

impl Registers for PeerRegisters {
    fn read_register(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let read = self
            .requester
            .read(Purpose::Control, Iova(self.address + offset), data);
        read.map_err(io::Error::other)
    }

    fn write_register(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let value = match *data {
            [a, b, c, d] => RegisterValue::Word(u32::from_le_bytes([a, b, c, d])),
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        };
        let at = self.address + offset;
        let written = self
            .requester
            .write_register(Origin::Device, Iova(at), value);
        written.map_err(io::Error::other)
    }
}
