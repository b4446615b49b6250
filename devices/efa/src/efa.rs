//! The adapter as the bus sees it.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use peerbar_dma::{Direction, MemoryFile, Purpose, Requester, Session};
use peerbar_efa_spec::registers::ReadRequest;
use peerbar_endpoint::{
    BarMemory, Endpoint, LONGEST_STEP, PeerPages, Running, SharedRegisters, StartError, Vectors,
};
use peerbar_pci::{Bar, ConfigSpace, Function, Identity, Iova, MsiX, UnsupportedRequest};
use zerocopy::IntoBytes;

use crate::config::{Config, ConfigError};
use crate::data::{DataPath, Setup};
use crate::engine::Engine;
use crate::interrupts::MaskedInterrupts;
use crate::limits;
use crate::memory_bar::{self, Doorbell};
use crate::objects::Gid;
use crate::registers::{Effect, Registers};

const REGISTER_BAR: u8 = 0;
const REGISTER_BAR_BYTES: u64 = 0x4000;
const VECTOR_BAR: u8 = 4;
const VECTOR_BAR_BYTES: u64 = 0x4000;

/// Vector 0 belongs to the admin queues, the others to the event queues.
pub(crate) const VECTORS: u16 = limits::EVENT_QUEUES + 1;
const MSI_X: MsiX = MsiX {
    vectors: VECTORS,
    bar: VECTOR_BAR,
    table: 0,
    pending: 0x2000,
};

/// The fourth generation of the adapter, the newest that the provider of Debian's rdma-core knows.
/// It supports RDMA reads and writes. Like the real one it has the class of an Ethernet controller.
const IDENTITY: Identity = Identity {
    vendor: 0x1d0f,
    device: 0xefa3,
    subsystem_vendor: 0x1d0f,
    subsystem: 0xefa3,
    revision: 0,
    class: 0x02_00_00,
};

/// The side of the adapter that serves the guest's accesses: registers and doorbells.
pub struct Efa {
    shared: Arc<SharedRegisters<Registers>>,
    requester: Arc<Requester>,
    interrupts: Arc<MaskedInterrupts>,
    data: Arc<DataPath>,
    memory: Arc<MemoryFile>,
    /// Writes answers to read requests to memory that is mapped here.
    answers: Mutex<Session>,
}

impl Efa {
    /// Starts an adapter.
    pub fn start(config: &Config) -> Result<Running<Self>, StartError<ConfigError>> {
        let gid = config.gid().map_err(StartError::Config)?;
        let vectors = Arc::new(Vectors::new(VECTORS).map_err(StartError::Interrupts)?);
        let setup = setup(config, gid, vectors.clone())?;
        let fabric = config.attach(gid).map_err(StartError::Config)?;
        let efa = Self::new(setup, |setup| {
            let mut data = DataPath::start(setup).map_err(StartError::Thread)?;
            if let Some(fabric) = fabric {
                let attached = data.attach(fabric).map_err(ConfigError::Fabric);
                attached.map_err(StartError::Config)?;
            }
            Ok::<_, StartError<ConfigError>>(data)
        })?;
        let engine = efa.engine(gid);
        let shared = efa.shared.clone();
        let endpoint = efa.on_bus(vectors)?;
        let running = Running::start(endpoint, || engine.run(), move || shared.stop());
        let running = running.map_err(StartError::Thread)?;
        Ok(match config.fabric {
            Some(_) => running.with_unix_connections(),
            None => running,
        })
    }

    /// Makes an adapter with the data path that `make` makes.
    pub(crate) fn new<E>(
        (setup, interrupts): (Setup, Arc<MaskedInterrupts>),
        make: impl FnOnce(Setup) -> Result<DataPath, E>,
    ) -> Result<Self, E> {
        let (requester, memory) = (setup.requester.clone(), setup.bar_memory.clone());
        Ok(Self {
            shared: Arc::new(SharedRegisters::new(Registers::new())),
            answers: Mutex::new(Session::new(requester.clone())),
            data: Arc::new(make(setup)?),
            requester,
            interrupts,
            memory,
        })
    }

    pub(crate) fn on_bus(
        self,
        vectors: Arc<Vectors>,
    ) -> Result<Endpoint<Self>, peerbar_pci::BarError> {
        let (requester, behind) = (self.requester.clone(), self.behind_bars());
        let space = ConfigSpace::new(&IDENTITY, &bars()?, &MSI_X);
        let efa = Arc::new(self);
        Ok(Endpoint::new(efa, space, behind, requester, vectors))
    }

    pub(crate) fn engine(&self, gid: Gid) -> Engine {
        Engine::new(
            self.shared.clone(),
            self.requester.clone(),
            self.interrupts.clone(),
            self.data.clone(),
            gid,
        )
    }

    /// Returns the memory behind each of the BARs. The guest maps the send queues in BAR2, and the
    /// doorbells of queues that are only polled. Other doorbells in BAR2 are messages.
    fn behind_bars(&self) -> [BarMemory; 3] {
        let areas = [memory_bar::POLLED_DOORBELLS, memory_bar::SEND_QUEUES];
        let areas = areas.map(|area| (area.start, area.end - area.start));
        let memory = self.memory.clone();
        [
            BarMemory::Registers,
            BarMemory::RegistersWithPages(memory, areas.to_vec(), PeerPages::Notified),
            BarMemory::Registers,
        ]
    }

    /// Wakes the engine, to look for a reset, which is urgent, and for commands.
    fn notify(&self) {
        if self.shared.with(|registers| registers.is_in_reset()) {
            self.shared.interrupt();
        }
        self.shared.kick();
    }

    fn write_register(&self, offset: u64, value: u32) {
        match self.shared.with(|registers| registers.write(offset, value)) {
            Some(Effect::Engine) => self.notify(),
            Some(Effect::Read(request)) => self.answer(request),
            Some(Effect::Arm(queue)) => self.data.arm_event_queue(queue),
            None => {}
        }
    }

    /// Answers a request to read a register. If its address is memory that is mapped here, the
    /// answer is written at once, since the driver waits for only 50 ms. Otherwise the engine
    /// answers, which may wait.
    fn answer(&self, request: ReadRequest) {
        let (answer, is_answering) = self
            .shared
            .with(|registers| (registers.answer(request), registers.is_answering()));
        let Some((address, answer)) = answer else {
            return log::debug!(
                "register {:#x} is not read: the driver has set no address for the answer",
                request.offset()
            );
        };
        if is_answering || !self.write_answer(address, answer.as_bytes()) {
            self.shared
                .with(|registers| registers.request_read(request));
            self.shared.notify();
        }
    }

    /// Writes an answer, if its address is memory that is mapped here. Returns `true` if it was
    /// written.
    fn write_answer(&self, address: u64, answer: &[u8]) -> bool {
        let mut session = self.answers.lock();
        let (purpose, address) = (Purpose::Control, Iova(address));
        let range = (address, answer.len());
        let is_written = session.reaches(purpose, Direction::Write, range)
            && session
                .write_entries(purpose, address, answer, answer.len())
                .is_ok();
        session.release();
        is_written
    }

    fn write_memory_bar(&self, offset: u64, data: &[u8]) {
        if memory_bar::is_memory(offset) {
            if let Err(error) = self.memory.write(offset, data) {
                log::debug!("send queue: {error}");
            }
            return;
        }
        match (Doorbell::at(offset), word(data)) {
            (Some((uar, doorbell)), Some(value)) => self.data.doorbell(uar, doorbell, value),
            _ => log::debug!("BAR2: no doorbell of {} bytes at {offset:#x}", data.len()),
        }
    }
}

impl Function for Efa {
    fn bus_master_enabled(&self) {
        self.shared.kick();
        self.data.bus_master_enabled();
    }

    fn bar_read(&self, bar: u8, offset: u64, data: &mut [u8]) {
        data.fill(0);
        match bar {
            REGISTER_BAR => {
                let value = self.shared.with(|registers| registers.read(offset & !3));
                let bytes = value.to_le_bytes();
                let from = bytes.iter().skip((offset % 4) as usize);
                data.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            }
            memory_bar::BAR if memory_bar::is_memory(offset) => {
                if let Err(error) = self.memory.read(offset, data) {
                    log::debug!("send queue: {error}");
                }
            }
            _ => {}
        }
    }

    fn bar_write(&self, bar: u8, offset: u64, data: &[u8]) {
        match (bar, word(data)) {
            (REGISTER_BAR, Some(value)) => self.write_register(offset, value),
            (memory_bar::BAR, _) => self.write_memory_bar(offset, data),
            _ => log::debug!(
                "BAR{bar}: no register of {} bytes at {offset:#x}",
                data.len()
            ),
        }
    }

    /// Only doorbells and send queues are accessible to peers.
    fn peer_write(&self, bar: u8, offset: u64, data: &[u8]) -> Result<(), UnsupportedRequest> {
        if bar != memory_bar::BAR {
            return Err(UnsupportedRequest);
        }
        self.write_memory_bar(offset, data);
        Ok(())
    }

    fn reset(&self) {
        self.shared.with(|registers| {
            drop(self.requester.halt());
            self.interrupts.mask();
            registers.reset_function();
        });
        self.notify();
    }

    /// Returns the engine clears the send queues when it takes the reset.
    fn renew_memory(&self) -> io::Result<()> {
        let is_reset = |registers: &Registers| !registers.is_halted();
        self.shared.wait(LONGEST_STEP, is_reset)?;
        self.memory.renew().map_err(io::Error::other)
    }
}

/// Returns the parts of an adapter's data path, and the interrupts that resets stop.
pub(crate) fn setup(
    config: &Config,
    gid: Gid,
    vectors: Arc<Vectors>,
) -> Result<(Setup, Arc<MaskedInterrupts>), StartError<ConfigError>> {
    let memory = MemoryFile::create("peerbar-efa-bar2", memory_bar::BAR_BYTES);
    let interrupts = Arc::new(MaskedInterrupts::new(vectors));
    let setup = Setup {
        requester: Arc::new(Requester::new()),
        interrupts: interrupts.clone(),
        bar_memory: Arc::new(memory.map_err(StartError::Doorbells)?),
        gid,
        seed: config.seed,
    };
    Ok((setup, interrupts))
}

fn bars() -> Result<[Bar; 3], peerbar_pci::BarError> {
    Ok([
        Bar::new(REGISTER_BAR, REGISTER_BAR_BYTES, false)?,
        Bar::new(memory_bar::BAR, memory_bar::BAR_BYTES, true)?,
        Bar::new(VECTOR_BAR, VECTOR_BAR_BYTES, false)?,
    ])
}

/// Returns the value of an access of 4 bytes, the only length for registers and doorbells.
fn word(data: &[u8]) -> Option<u32> {
    data.try_into().ok().map(u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use peerbar_efa_spec::registers::offset;

    use super::*;

    #[test]
    fn peer_has_doorbells_and_send_queues_only() {
        let vectors = Arc::new(Vectors::new(VECTORS).unwrap());
        let setup = setup(&Config::default(), Gid([1; 16]), vectors).unwrap();
        let efa = Efa::new(setup, DataPath::start).unwrap();
        let start_reset = || efa.peer_write(REGISTER_BAR, offset::DEV_CTL, &[1, 0, 0, 0]);
        assert_eq!(start_reset(), Err(UnsupportedRequest));
        assert!(!efa.shared.with(|registers| registers.is_in_reset()));
        let vector = efa.peer_write(VECTOR_BAR, 0, &[1; 4]);
        assert_eq!(vector, Err(UnsupportedRequest));
        let queue = memory_bar::SEND_QUEUES.start;
        efa.peer_write(memory_bar::BAR, queue, &[7; 64]).unwrap();
        let mut entry = [0; 64];
        efa.bar_read(memory_bar::BAR, queue, &mut entry);
        assert_eq!(entry, [7; 64]);
    }
}
