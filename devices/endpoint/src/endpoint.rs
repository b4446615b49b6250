//! The vfio-user device that a PCI function is.

use std::os::fd::AsFd;
use std::sync::Arc;

use peerbar_dma::{MapError, Requester, Span, Upstream, UpstreamError, Window, WindowId};
use peerbar_pci::{Bar, CONFIG_BYTES, ConfigSpace, Function};
use peerbar_vfio_user::{
    Client, Device, DeviceInfo, DmaMap, DmaSpan, Irq, IrqAction, Region, RegionMapping,
    RequestError,
};
use rustix::io::Errno;

use crate::Vectors;

/// VFIO_PCI_CONFIG_REGION_INDEX: the region that is configuration space, after six BARs and the ROM.
const CONFIG_REGION: u32 = 7;
/// VFIO_PCI_NUM_REGIONS.
const REGIONS: u32 = 9;
/// VFIO_PCI_INTX_IRQ_INDEX and those that follow it: MSI, MSI-X, error, request.
const INTX: u32 = 0;
const MSI: u32 = 1;
const MSI_X: u32 = 2;
const ERROR: u32 = 3;
const REQUEST: u32 = 4;

/// What is behind a BAR.
#[derive(Clone, Debug)]
pub enum BarMemory {
    /// Registers: every access goes to [`Function::bar_read`] and [`Function::bar_write`].
    Registers,
    /// Memory from the start of a file on, which the guest maps as a whole.
    Memory(Span),
}

/// A PCI function, served over vfio-user.
pub struct Endpoint<F> {
    function: Arc<F>,
    config: ConfigSpace,
    memory: Vec<(Bar, BarMemory)>,
    requester: Arc<Requester>,
    vectors: Arc<Vectors>,
}

impl<F: Function> Endpoint<F> {
    /// Puts a function on its bus. `memory` has what is behind each BAR of `config`, in order.
    pub fn new(
        function: Arc<F>,
        config: ConfigSpace,
        memory: impl IntoIterator<Item = BarMemory>,
        requester: Arc<Requester>,
        vectors: Arc<Vectors>,
    ) -> Self {
        let memory = config.bars().iter().copied().zip(memory).collect();
        Self {
            function,
            config,
            memory,
            requester,
            vectors,
        }
    }

    fn bar(&self, index: u32) -> Option<&(Bar, BarMemory)> {
        self.memory
            .iter()
            .find(|(bar, _)| u32::from(bar.index()) == index)
    }

    /// Tells the requester what the guest's configuration allows it and where its own windows are.
    fn apply_routing(&self) {
        self.requester.set_bus_master(self.config.bus_master());
        for (bar, memory) in &self.memory {
            let window = self.config.window(bar).map(|address| Window {
                address,
                size: bar.size(),
                memory: match memory {
                    BarMemory::Registers => None,
                    BarMemory::Memory(span) => Some(span.clone()),
                },
            });
            self.requester
                .set_window(WindowId::Bar(bar.index()), window);
        }
    }

    fn reset_all(&mut self) {
        self.function.reset();
        self.config.reset();
        self.apply_routing();
    }
}

impl<F: Function> Device for Endpoint<F> {
    fn attached(&mut self, client: Client) {
        self.requester
            .set_upstream(Some(Arc::new(ClientMemory(client))));
    }

    fn detached(&mut self) {
        self.requester.set_upstream(None);
        self.requester.unmap_all();
        self.vectors.clear();
        self.reset_all();
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            regions: REGIONS,
            irqs: REQUEST + 1,
        }
    }

    fn region(&self, index: u32) -> Option<Region<'_>> {
        if index == CONFIG_REGION {
            return Some(Region {
                size: CONFIG_BYTES as u64,
                readable: true,
                writable: true,
                mapping: None,
            });
        }
        match self.bar(index) {
            Some((bar, memory)) => Some(Region {
                size: bar.size(),
                readable: true,
                writable: true,
                mapping: match memory {
                    BarMemory::Registers => None,
                    BarMemory::Memory(span) => Some(RegionMapping {
                        fd: span.file.file().as_fd(),
                        areas: Vec::new(),
                    }),
                },
            }),
            None if index < REGIONS => Some(Region {
                size: 0,
                readable: false,
                writable: false,
                mapping: None,
            }),
            None => None,
        }
    }

    fn irq(&self, index: u32) -> Option<Irq> {
        let edge = |count| {
            Some(Irq {
                count,
                automasked: false,
                maskable: false,
            })
        };
        match index {
            INTX => Some(Irq {
                count: 1,
                automasked: true,
                maskable: true,
            }),
            MSI => edge(0),
            MSI_X => edge(self.vectors.count()),
            ERROR | REQUEST => edge(1),
            _ => None,
        }
    }

    fn region_read(&mut self, index: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        if index == CONFIG_REGION {
            self.config.read(offset, data);
            return Ok(());
        }
        match self.bar(index).ok_or(Errno::INVAL)? {
            (bar, BarMemory::Registers) => self.function.bar_read(bar.index(), offset, data),
            (_, BarMemory::Memory(span)) => {
                span.file
                    .read(span.offset.saturating_add(offset), data)
                    .map_err(|_| Errno::INVAL)?;
            }
        }
        Ok(())
    }

    fn region_write(&mut self, index: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        if index == CONFIG_REGION {
            let effects = self.config.write(offset, data);
            if effects.function_reset {
                self.function.reset();
            }
            if effects.routing {
                self.apply_routing();
            }
            return Ok(());
        }
        match self.bar(index).ok_or(Errno::INVAL)? {
            (bar, BarMemory::Registers) => self.function.bar_write(bar.index(), offset, data),
            (_, BarMemory::Memory(span)) => {
                span.file
                    .write(span.offset.saturating_add(offset), data)
                    .map_err(|_| Errno::INVAL)?;
            }
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
        match index {
            INTX => self.vectors.set_pin_events(action),
            MSI_X => self.vectors.set_msi_x(start, count, action)?,
            // Nothing here ever reports an error or asks to be unplugged; the client may set the events up all the same.
            ERROR | REQUEST => {}
            _ => return Err(Errno::INVAL),
        }
        Ok(())
    }

    fn dma_map(&mut self, map: DmaMap) -> Result<(), Errno> {
        let access = (map.readable, map.writable);
        self.requester
            .map(map.iova, map.size, access, map.memory)
            .map_err(|error| {
                log::debug!("{error}");
                match error {
                    MapError::BadSpan { .. } => Errno::INVAL,
                    MapError::Overlap { .. } => Errno::EXIST,
                    MapError::Full => Errno::NOSPC,
                }
            })
    }

    fn dma_unmap(&mut self, span: DmaSpan) -> Result<(), Errno> {
        self.requester.unmap(span.iova, span.last);
        Ok(())
    }

    fn reset(&mut self) -> Result<(), Errno> {
        self.reset_all();
        Ok(())
    }
}

/// The client as the way upstream.
struct ClientMemory(Client);

impl Upstream for ClientMemory {
    fn read(&self, address: u64, data: &mut [u8]) -> Result<(), UpstreamError> {
        self.0.dma_read(address, data).map_err(upstream_error)
    }

    fn write(&self, address: u64, data: &[u8]) -> Result<(), UpstreamError> {
        self.0.dma_write(address, data).map_err(upstream_error)
    }
}

fn upstream_error(error: RequestError) -> UpstreamError {
    match error {
        RequestError::Refused(errno) => UpstreamError::Refused(errno.raw_os_error()),
        RequestError::TimedOut => UpstreamError::TimedOut,
        RequestError::Gone => UpstreamError::Gone,
    }
}
