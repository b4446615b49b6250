//! The device of another server: it copies between addresses, in memory that it is lent, or else by
//! messages.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use peerbar_dma::MemoryFile;
use peerbar_pci::{Bar, CONFIG_BYTES, ConfigSpace, Iova, Range};
use peerbar_vfio_user::{
    CONFIG_REGION, Client, Data, Device, DeviceInfo, DmaMap, DmaRequest, Irq, IrqAction, Listener,
    Options, Region, RegionMapping, Stop,
};
use rustix::io::Errno;
use tempfile::TempDir;

use crate::until;

/// Registers in BAR0: source, destination, length. A write of the length begins the copy.
pub(crate) const SOURCE: u64 = 0;
pub(crate) const TO: u64 = 8;
pub(crate) const LENGTH: u64 = 16;
/// The number of copies that have ended, and of those that have failed.
pub(crate) const ENDED: u64 = 24;
pub(crate) const FAILED: u64 = 28;
/// The BAR of memory, and its size.
pub(crate) const MEMORY_BAR: u32 = 2;
pub(crate) const MEMORY_BYTES: u64 = 0x1_0000;
/// Vector that is signalled after each copy.
const MSI_X: u32 = 2;

/// A mapping: addresses, and the memory with the offset in it.
type Mapping = (Range<Iova>, Option<(File, u64)>);

/// The state of the device that the test sees.
#[derive(Default)]
pub(crate) struct State {
    registers: [u8; 32],
    pub(crate) mappings: Vec<Mapping>,
    pub(crate) resets: usize,
    pub(crate) sessions: usize,
    events: Vec<Option<peerbar_vfio_user::Event>>,
}

impl State {
    fn number(&self, offset: u64) -> u64 {
        let at = offset as usize;
        peerbar_rig::wire::number(&self.registers[at..at + 8])
    }

    fn count(&mut self, offset: u64) {
        let at = offset as usize;
        let count = peerbar_rig::wire::number(&self.registers[at..at + 4]) as u32 + 1;
        self.registers[at..at + 4].copy_from_slice(&count.to_le_bytes());
    }

    /// Returns the memory at an address, if it is lent.
    fn memory(&self, address: Iova) -> Option<(File, u64)> {
        let holds = |mapping: &&Mapping| mapping.0.contains(address);
        let (range, memory) = self.mappings.iter().find(holds)?;
        let (file, offset) = memory.as_ref()?;
        Some((
            file.try_clone().unwrap(),
            offset + range.offset_of(address)?,
        ))
    }

    /// Returns the mapping that begins at an address: its size, and `true` if it has memory.
    pub(crate) fn mapping(&self, address: u64) -> Option<(u64, bool)> {
        let begins = |mapping: &&Mapping| mapping.0.first() == Iova(address);
        let (range, memory) = self.mappings.iter().find(begins)?;
        Some((range.size(), memory.is_some()))
    }
}

struct Copier {
    config: ConfigSpace,
    state: Arc<Mutex<State>>,
    memory: Arc<MemoryFile>,
    client: Option<Client>,
}

/// A running server.
pub(crate) struct CopierServer {
    folder: TempDir,
    pub(crate) state: Arc<Mutex<State>>,
    pub(crate) memory: Arc<MemoryFile>,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl CopierServer {
    pub(crate) fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let bar = |index, size| Bar::new(index, size, true).unwrap();
        let memory = Arc::new(MemoryFile::create("copier", MEMORY_BYTES).unwrap());
        let mut copier = Copier {
            config: ConfigSpace::of_test_function(&[bar(0, 0x4000), bar(2, MEMORY_BYTES)]),
            state: Arc::default(),
            memory: memory.clone(),
            client: None,
        };
        let state = copier.state.clone();
        let stop = Stop::new().unwrap();
        let options = Options::new(stop.clone());
        let listener = Listener::bind(&folder.path().join("server")).unwrap();
        let thread = std::thread::spawn(move || listener.run(&mut copier, &options).unwrap());
        Self {
            folder,
            state,
            memory,
            stop,
            thread: Some(thread),
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("server")
    }

    /// Ends the server.
    pub(crate) fn end(&mut self) {
        self.stop.trigger();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }

    /// Waits until the mapping that begins at an address is this one.
    #[track_caller]
    pub(crate) fn wait_for_mapping(&self, address: u64, expected: Option<(u64, bool)>) {
        until(&format!("{address:#x} is {expected:x?}"), || {
            self.state.lock().unwrap().mapping(address) == expected
        });
    }
}

impl Drop for CopierServer {
    fn drop(&mut self) {
        self.end();
    }
}

impl Copier {
    /// Begins a copy of the registers' addresses in a thread of its own.
    fn begin(&self) {
        let state = self.state.clone();
        let client = self.client.clone().unwrap();
        std::thread::spawn(move || {
            let (from, to, len) = {
                let state = state.lock().unwrap();
                let len = state.number(LENGTH) as u32 as usize;
                (Iova(state.number(SOURCE)), Iova(state.number(TO)), len)
            };
            let mut data = vec![0; len];
            let is_done = access(&state, &client, from, Data::Read(&mut data))
                && access(&state, &client, to, Data::Write(&data));
            let mut state = state.lock().unwrap();
            if !is_done {
                state.count(FAILED);
            }
            state.count(ENDED);
            if let Some(Some(event)) = state.events.first() {
                rustix::io::write(event, &1_u64.to_ne_bytes()).unwrap();
            }
        });
    }
}

/// Accesses memory that is lent, or else asks the client. Returns `true` on success.
fn access(state: &Mutex<State>, client: &Client, address: Iova, data: Data<'_>) -> bool {
    let lent = state.lock().unwrap().memory(address);
    match (lent, data) {
        (Some((file, at)), Data::Read(data)) => file.read_exact_at(data, at).is_ok(),
        (Some((file, at)), Data::Write(data)) => file.write_all_at(data, at).is_ok(),
        (None, data) => {
            let mut requests = [DmaRequest::new(address, data)];
            client.carry_out(&mut requests, &|| true);
            requests[0].outcome == Some(Ok(()))
        }
    }
}

impl Device for Copier {
    fn attached(&mut self, client: Client) {
        self.client = Some(client);
        self.state.lock().unwrap().sessions += 1;
    }

    fn detached(&mut self) {
        self.client = None;
        self.state.lock().unwrap().mappings.clear();
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            regions: 10,
            irqs: 5,
            can_reset: true,
        }
    }

    fn region(&self, index: u32) -> Option<Region<'_>> {
        let (size, mapping) = match index {
            0 => (0x4000, RegionMapping::NoArea),
            MEMORY_BAR => (
                MEMORY_BYTES,
                RegionMapping::Whole(self.memory.file().as_fd()),
            ),
            6 => (0x1000, RegionMapping::Nothing),
            CONFIG_REGION => (CONFIG_BYTES as u64, RegionMapping::Nothing),
            9 => (0x100, RegionMapping::Nothing),
            1 | 3..=5 | 8 => (0, RegionMapping::Nothing),
            _ => return None,
        };
        Some(Region {
            size,
            readable: size > 0,
            writable: size > 0 && index != 6,
            mapping,
            offset: 0,
        })
    }

    fn irq(&self, index: u32) -> Option<Irq> {
        Some(Irq {
            count: *[1, 0, 40, 1, 1].get(index as usize)?,
            automasked: index == 0,
            maskable: index == 0,
            fixed_count: index == MSI_X,
        })
    }

    fn region_read(&mut self, index: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        match index {
            0 if offset + data.len() as u64 <= 32 => {
                let at = offset as usize;
                let registers = self.state.lock().unwrap().registers;
                data.copy_from_slice(&registers[at..at + data.len()]);
            }
            MEMORY_BAR => self.memory.read(offset, data).unwrap(),
            CONFIG_REGION => self.config.read(offset, data),
            0 => return Err(Errno::IO),
            _ => data.fill(index as u8),
        }
        Ok(())
    }

    fn region_write(&mut self, index: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        match index {
            0 if offset + data.len() as u64 <= 32 => {
                let at = offset as usize;
                let mut state = self.state.lock().unwrap();
                state.registers[at..at + data.len()].copy_from_slice(data);
                drop(state);
                if offset == LENGTH {
                    self.begin();
                }
            }
            MEMORY_BAR => self.memory.write(offset, data).unwrap(),
            CONFIG_REGION => {
                if self.config.write(offset, data).function_reset {
                    self.reset()?;
                }
            }
            _ => return Err(Errno::IO),
        }
        Ok(())
    }

    fn set_irqs(
        &mut self,
        index: u32,
        start: u32,
        count: u32,
        action: IrqAction,
    ) -> Result<(), Errno> {
        let mut state = self.state.lock().unwrap();
        state.events.resize_with(40, || None);
        match action {
            IrqAction::Events(events) if index == MSI_X => {
                let vectors = start as usize..(start + count) as usize;
                let vectors = state.events[vectors].iter_mut();
                vectors
                    .zip(events)
                    .for_each(|(vector, event)| *vector = event);
            }
            IrqAction::Disable => state.events.clear(),
            _ => {}
        }
        Ok(())
    }

    fn dma_map(&mut self, map: DmaMap) -> Result<(), Errno> {
        let memory = map.memory.map(|(fd, offset)| (File::from(fd), offset));
        let mut state = self.state.lock().unwrap();
        state.mappings.push((map.range, memory));
        Ok(())
    }

    /// Takes only whole mappings back, like libvfio-user.
    fn dma_unmap(&mut self, range: Range<Iova>) -> Result<(), Errno> {
        let mut state = self.state.lock().unwrap();
        let found = state.mappings.iter().position(|mapping| mapping.0 == range);
        state.mappings.remove(found.ok_or(Errno::NOENT)?);
        Ok(())
    }

    fn reset(&mut self) -> Result<(), Errno> {
        self.config.reset_function();
        self.state.lock().unwrap().resets += 1;
        Ok(())
    }
}

/// Has the device copy, and waits. Returns `true` if the copy has succeeded.
#[track_caller]
pub(crate) fn copy(link: &impl peerbar_rig::Link, from: u64, to: u64, len: u32) -> bool {
    let before = [ENDED, FAILED].map(|register| link.register(register));
    link.write(0, SOURCE, &from.to_le_bytes());
    link.write(0, TO, &to.to_le_bytes());
    link.write(0, LENGTH, &len.to_le_bytes());
    until("the copy has ended", || link.register(ENDED) != before[0]);
    link.register(FAILED) == before[1]
}
