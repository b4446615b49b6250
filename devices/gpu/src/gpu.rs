//! The GPU as its bus sees it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use peerbar_dma::{Buffer, MemoryFile, PageTable, Requester, Span};
use peerbar_endpoint::{
    BarMemory, Endpoint, LONGEST_STEP, PeerPages, Running, SharedRegisters, StartError, Vectors,
};
use peerbar_fault::Kind;
use peerbar_pci::{Bar, ConfigSpace, Function, Identity, Interrupts, MsiX, UnsupportedRequest};

use crate::aperture;
use crate::config::{Config, ConfigError};
use crate::doorbells::{self, CHANNELS, Doorbells};
use crate::engine::Engine;
use crate::executor::Executor;
use crate::faults::{Fault, FaultCode};
use crate::gpu_memory::GpuMemory;
use crate::registers::{Effect, Registers};

const REGISTER_BAR: u8 = 0;
const REGISTER_BAR_BYTES: u64 = 0x1_0000;
const APERTURE_BAR: u8 = 2;
/// End of the registers in BAR0.
const REGISTERS_END: u64 = 0x4000;
/// Range of the doorbells in BAR0.
const DOORBELLS: std::ops::Range<u64> =
    doorbells::PAGE_OFFSET..doorbells::PAGE_OFFSET + doorbells::PAGE_BYTES;
/// Range of the DMA counters in BAR0.
const DMA_LOG: std::ops::Range<u64> = 0xc000..0xe000;

/// Number of MSI-X vectors: vector 0 is the device's, the others are the channels'.
pub const VECTORS: u16 = CHANNELS as u16 + 1;
const MSI_X: MsiX = MsiX {
    vectors: VECTORS,
    bar: REGISTER_BAR,
    table: 0x4000,
    pending: 0x5000,
};

/// A number from the range that virtio leaves to experiments, and the class of a 3D controller.
const IDENTITY: Identity = Identity {
    vendor: 0x1af4,
    device: 0x10f0,
    subsystem_vendor: 0x1af4,
    subsystem: 0x10f0,
    revision: 1,
    class: 0x03_02_00,
};

/// The side of the GPU that the guest's accesses meet: registers, doorbells and the window.
pub struct Gpu {
    shared: Arc<SharedRegisters<Registers>>,
    doorbells: Arc<Doorbells>,
    window: Option<Arc<PageTable>>,
    vram: Arc<MemoryFile>,
    requester: Arc<Requester>,
    interrupts: Arc<dyn Interrupts>,
    /// The DMA counters at the driver's last request.
    dma_log: Mutex<Vec<u8>>,
}

impl Gpu {
    /// Starts a GPU with VRAM that is all zero.
    pub fn start(config: &Config) -> Result<Running<Self>, StartError<ConfigError>> {
        let Assembled {
            endpoint,
            engine,
            shared,
        } = Self::assemble(config)?;
        Running::start(endpoint, || engine.run(), move || shared.stop()).map_err(StartError::Thread)
    }

    /// Makes a GPU whose engine does not work yet.
    pub(crate) fn assemble(config: &Config) -> Result<Assembled, StartError<ConfigError>> {
        let vectors = Arc::new(Vectors::new(VECTORS).map_err(StartError::Interrupts)?);
        let unstarted = UnstartedGpu::new(config, vectors.clone())?;
        let config = ConfigSpace::new(&IDENTITY, &unstarted.bars, &MSI_X);
        let (shared, requester) = (
            unstarted.gpu.shared.clone(),
            unstarted.gpu.requester.clone(),
        );
        let gpu = Arc::new(unstarted.gpu);
        Ok(Assembled {
            endpoint: Endpoint::new(gpu, config, unstarted.behind, requester, vectors),
            engine: unstarted.engine,
            shared,
        })
    }

    /// Makes the engine of this GPU.
    fn engine(&self, job_timeout: Duration) -> Engine {
        let memory = GpuMemory::new(self.vram.clone(), self.requester.clone());
        let executor = Executor::new(memory);
        Engine::new(
            self.shared.clone(),
            self.doorbells.clone(),
            self.interrupts.clone(),
            executor,
            job_timeout,
        )
    }

    /// Returns the memory behind each of the BARs.
    fn behind_bars(&self) -> Vec<BarMemory> {
        let page = (doorbells::PAGE_OFFSET, doorbells::PAGE_BYTES);
        // A peer does not kick engines that sleep.
        let peers = PeerPages::Notified;
        let registers = BarMemory::RegistersWithPages(self.doorbells.file(), vec![page], peers);
        let aperture = match &self.window {
            Some(table) => BarMemory::Pages(table.clone()),
            None => BarMemory::Memory(Span {
                file: self.vram.clone(),
                offset: 0,
            }),
        };
        vec![registers, aperture]
    }

    fn read_dma_log(&self, offset: u64, data: &mut [u8]) {
        let page = self.dma_log.lock();
        let start = usize::try_from(offset - DMA_LOG.start).unwrap_or(usize::MAX);
        let bytes = page.get(start..).unwrap_or_default();
        for (to, from) in data.iter_mut().zip(bytes) {
            *to = *from;
        }
    }

    fn write_registers(&self, offset: u64, data: &[u8]) {
        let effect = self.shared.with(|registers| registers.write(offset, data));
        match effect {
            Some(Effect::Reset) => self.reset(),
            Some(Effect::Engine) => self.shared.interrupt(),
            Some(Effect::Kick) => self.shared.kick(),
            Some(Effect::Fault) => self.interrupts.raise(0),
            Some(Effect::DmaLog) => {
                let page = self.requester.ledger().counters().page();
                *self.dma_log.lock() = page;
            }
            None => {}
        }
    }

    /// Handles an access of the guest to a part of the window that has no page.
    fn no_page(&self, write: bool, address: u64) {
        self.shared.with(|registers| {
            registers.fault(Fault {
                code: FaultCode::NoPage,
                write,
                address,
            });
        });
        self.interrupts.raise(0);
    }
}

impl Function for Gpu {
    fn bar_read(&self, bar: u8, offset: u64, data: &mut [u8]) {
        data.fill(0);
        match (bar, &self.window) {
            (APERTURE_BAR, Some(table)) => {
                aperture::access(table, offset, Buffer::Read(data), |at| {
                    self.no_page(false, at)
                });
            }
            _ if offset < REGISTERS_END => {
                self.shared.with(|registers| registers.read(offset, data));
            }
            _ if DOORBELLS.contains(&offset) => self.doorbells.read(offset, data),
            _ if DMA_LOG.contains(&offset) => self.read_dma_log(offset, data),
            _ => {}
        }
    }

    fn bar_write(&self, bar: u8, offset: u64, data: &[u8]) {
        match (bar, &self.window) {
            (APERTURE_BAR, Some(table)) => {
                aperture::access(table, offset, Buffer::Write(data), |at| {
                    self.no_page(true, at)
                });
            }
            _ if offset < REGISTERS_END => self.write_registers(offset, data),
            _ if DOORBELLS.contains(&offset) => {
                self.doorbells.write(offset, data);
                self.shared.kick();
            }
            _ => {}
        }
    }

    /// A peer can access the doorbells and the aperture only: with the other registers it could
    /// make the GPU execute the peer's own commands.
    fn peer_write(&self, bar: u8, offset: u64, data: &[u8]) -> Result<(), UnsupportedRequest> {
        if bar != APERTURE_BAR && !DOORBELLS.contains(&offset) {
            return Err(UnsupportedRequest);
        }
        self.bar_write(bar, offset, data);
        Ok(())
    }

    fn bus_master_enabled(&self) {
        self.shared.kick();
    }

    fn reset(&self) {
        self.shared.with(|registers| {
            self.requester.halt();
            registers.reset();
        });
        self.shared.interrupt();
    }

    /// The engine writes to VRAM until it has taken the reset.
    fn renew_memory(&self) -> io::Result<()> {
        self.shared.wait(LONGEST_STEP, Registers::is_reset)?;
        self.dma_log.lock().clear();
        let renewed = self.vram.renew().and_then(|()| self.doorbells.renew());
        renewed.map_err(io::Error::other)
    }
}

/// A GPU as an endpoint, and its engine, which does not work yet.
pub(crate) struct Assembled {
    pub(crate) endpoint: Endpoint<Gpu>,
    pub(crate) engine: Engine,
    shared: Arc<SharedRegisters<Registers>>,
}

/// A GPU that does not run yet.
struct UnstartedGpu {
    gpu: Gpu,
    engine: Engine,
    bars: Vec<Bar>,
    /// The memory behind each of the BARs.
    behind: Vec<BarMemory>,
}

impl UnstartedGpu {
    fn new(
        config: &Config,
        interrupts: Arc<dyn Interrupts>,
    ) -> Result<Self, StartError<ConfigError>> {
        let checked = config.check_keys();
        checked.map_err(|(_, error)| StartError::Config(error))?;
        let sizes @ (vram_bytes, aperture_bytes) = (config.vram.0, config.aperture().0);
        let vram = MemoryFile::create("peerbar-gpu-vram", vram_bytes).map_err(|source| {
            StartError::Config(ConfigError::Memory {
                vram: config.vram,
                source,
            })
        })?;
        let vram = Arc::new(vram);
        let window = config.is_window().then(|| {
            let pages = usize::try_from(aperture_bytes / aperture::PAGE).unwrap_or(0);
            Arc::new(PageTable::new(vram.clone(), pages, aperture::PAGE))
        });
        let doorbells = Doorbells::new(REGISTER_BAR_BYTES).map_err(StartError::Doorbells)?;
        let doorbells = Arc::new(doorbells);
        let registers = Registers::new(sizes, window.clone(), doorbells.clone());
        let requester = Arc::new(Requester::new());
        requester.faults().serve(&Kind::OF_GPUS);
        let gpu = Gpu {
            shared: Arc::new(SharedRegisters::new(registers)),
            doorbells,
            window,
            vram,
            requester,
            interrupts,
            dma_log: Mutex::default(),
        };
        Ok(Self {
            bars: vec![
                Bar::new(REGISTER_BAR, REGISTER_BAR_BYTES, false)?,
                Bar::new(APERTURE_BAR, aperture_bytes, true)?,
            ],
            behind: gpu.behind_bars(),
            engine: gpu.engine(config.job_timeout),
            gpu,
        })
    }
}

#[cfg(test)]
mod tests {
    use peerbar_endpoint::Size;

    use super::*;

    #[test]
    fn peer_has_no_register_but_the_doorbells() {
        let config = Config {
            vram: Size(4 << 20),
            ..Config::default()
        };
        let vectors = Arc::new(Vectors::new(VECTORS).unwrap());
        let gpu = UnstartedGpu::new(&config, vectors).unwrap().gpu;
        // The ring of channel 0: its address, and its enable bit.
        for (offset, value) in [(0x1000, 4096u32), (0x1010, 1)] {
            let refused = gpu.peer_write(REGISTER_BAR, offset, &value.to_le_bytes());
            assert_eq!(refused, Err(UnsupportedRequest), "{offset:#x}");
            let mut register = [1; 4];
            gpu.bar_read(REGISTER_BAR, offset, &mut register);
            assert_eq!(register, [0; 4], "{offset:#x}");
        }
        let refused = gpu.peer_write(REGISTER_BAR, DMA_LOG.start, &[1; 4]);
        assert_eq!(refused, Err(UnsupportedRequest));
        gpu.peer_write(REGISTER_BAR, DOORBELLS.start, &[3, 0, 0, 0])
            .unwrap();
        assert_eq!(gpu.doorbells.value(0), 3);
    }
}
