//! The device that QEMU sees.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use peerbar_dma::Requester;
use peerbar_endpoint::{ClientMemory, Endpoint, FaultObserver, Served, StartError, Vectors};
use peerbar_pci::{CONFIG_BYTES, ConfigSpace, Iova, Range};
use peerbar_vfio_user::remote::{CallError, RemoteDevice, TIME_OUT};
use peerbar_vfio_user::{
    CONFIG_REGION, Client, Device, DeviceInfo, DmaMap, Irq, IrqAction, Options, Region,
};
use rustix::io::Errno;

use crate::config::{Config, ProxyError};
use crate::function::{ForeignFunction, bar_memory};
use crate::lender::Lender;
use crate::mappings::Mappings;
use crate::router::Router;
use crate::unconfirmed::Unconfirmed;
use crate::upstream::PatientUpstream;
use crate::windows::Windows;

/// The longest wait for an answer to a request to QEMU. The server waits for it, and while it does,
/// it may answer none of QEMU's accesses.
const REQUEST_TIME_OUT: Duration = Duration::from_secs(3);

/// The device of another project's server, below a switch.
pub struct Proxy {
    remote: Arc<RemoteDevice>,
    endpoint: Endpoint<ForeignFunction>,
    router: Arc<Router>,
    lender: Arc<Lender>,
    windows: Arc<Windows>,
    /// The first address of the mapping that the client's last message extended, if that was a
    /// DMA_MAP.
    run: Option<Iova>,
    config: Config,
}

impl Proxy {
    /// Connects to the server.
    ///
    /// # Errors
    /// [`StartError::Interrupts`], or a [`ProxyError`].
    pub fn start(config: &Config) -> Result<Self, StartError<ProxyError>> {
        let requester = Arc::new(Requester::new());
        requester.faults().pass_interrupts_on();
        let unconfirmed = Arc::<Unconfirmed>::default();
        let gives_way = unconfirmed.clone();
        requester.on_missed_changes(move || gives_way.give_way());
        let router = Arc::new(Router::new(requester.clone()));
        let remote = RemoteDevice::connect(&config.server, router.clone(), TIME_OUT);
        let remote = Arc::new(remote.map_err(ProxyError::Connect)?);
        let space = mirror(&remote).map_err(|source| ProxyError::ConfigSpace {
            path: config.server.clone(),
            source,
        })?;
        let bars = space.bars().to_vec();
        let memory = bars.iter().map(|bar| bar_memory(&remote, &requester, bar));
        let memory: Vec<_> = memory.collect();
        let function = Arc::new(ForeignFunction::new(remote.clone()));
        // QEMU's event descriptors pass through, so the proxy signals none.
        let vectors = Arc::new(Vectors::new(0).map_err(StartError::Interrupts)?);
        let mappings = Mappings::new(remote.clone(), config);
        let lender = Lender::new(mappings, requester.clone(), config.count_all);
        let lender = Arc::new(lender);
        let windows = Windows::start(lender.clone(), unconfirmed);
        let windows = Arc::new(windows.map_err(StartError::Thread)?);
        let mut endpoint = Endpoint::new(function, space, memory, requester, vectors);
        endpoint.observe_windows(windows.clone());
        Ok(Self {
            endpoint,
            lender,
            windows,
            remote,
            router,
            run: None,
            config: config.clone(),
        })
    }
}

impl Proxy {
    /// Uses the mappings while the client waits, for the server and for the thread of the peers'
    /// windows, which may be using them.
    fn with_mappings<T>(&self, change: impl FnOnce(&mut Mappings) -> T) -> T {
        let _waits = self.remote.client_waits();
        change(&mut self.lender.mappings())
    }
}

/// Returns a mirror of the device's configuration space.
///
/// # Errors
/// It cannot be read.
pub fn mirror(remote: &RemoteDevice) -> Result<ConfigSpace, CallError> {
    let mut bytes = [0; CONFIG_BYTES];
    let size = remote.region(CONFIG_REGION).map_or(0, |region| region.size);
    let size = usize::try_from(size).unwrap_or(CONFIG_BYTES);
    let present = bytes.get_mut(..size.min(CONFIG_BYTES)).unwrap_or_default();
    remote.region_read(CONFIG_REGION, 0, present)?;
    let size = |index: u8| remote.region(index.into()).map_or(0, |region| region.size);
    Ok(ConfigSpace::mirror(&bytes, &[0, 1, 2, 3, 4, 5].map(size)))
}

impl Served for Proxy {
    type Function = ForeignFunction;

    fn endpoint(&mut self) -> &mut Endpoint<ForeignFunction> {
        &mut self.endpoint
    }

    fn device(&mut self) -> &mut dyn Device {
        self
    }

    fn fault_observer(&self) -> FaultObserver {
        let (lender, windows) = (self.lender.clone(), self.windows.clone());
        Box::new(move || {
            lender.follow_faults();
            windows.watch_link();
        })
    }

    fn prepare(&mut self, options: &mut Options) {
        options.request_time_out = REQUEST_TIME_OUT;
        self.fault_observer()();
        self.router.stop_by(options.stop.clone());
    }

    fn failure(&self) -> Option<Box<dyn Error>> {
        let reason = self.router.ended()?;
        let path = self.config.server.clone();
        Some(ProxyError::Lost { path, reason }.into())
    }
}

impl Device for Proxy {
    fn attached(&mut self, client: Client) {
        let upstream = PatientUpstream {
            client: ClientMemory(client.clone()),
            server: Arc::downgrade(&self.remote),
        };
        self.endpoint.attach(&client, Arc::new(upstream));
        // The link is up again.
        self.fault_observer()();
    }

    fn detached(&mut self) {
        self.run = None;
        // Resets the device, so that it no longer uses the memory.
        self.endpoint.detached();
        for index in (0..self.remote.info().irqs)
            .filter(|index| self.irq(*index).is_some_and(|irq| irq.count > 0))
        {
            let disabled = self.remote.set_irqs(index, 0, 0, &IrqAction::Disable);
            disabled.unwrap_or_else(|error| log::debug!("interrupt {index} stays set up: {error}"));
        }
        self.lender.mappings().unmap(Range::all());
    }

    fn info(&self) -> DeviceInfo {
        self.remote.info()
    }

    fn region(&self, index: u32) -> Option<Region<'_>> {
        Some(self.remote.region(index)?.describe())
    }

    fn irq(&self, index: u32) -> Option<Irq> {
        self.remote.irq(index)
    }

    fn region_read(&mut self, index: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        self.run = None;
        if !self.endpoint.is_reached(index) {
            data.fill(0xff);
            return Ok(());
        }
        self.remote
            .region_read(index, offset, data)
            .map_err(CallError::errno)
    }

    fn region_write(&mut self, index: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        self.run = None;
        if !self.endpoint.is_reached(index) {
            return Ok(());
        }
        if index == CONFIG_REGION {
            // A window closes before the server knows. It does the resets itself.
            let _ = self.endpoint.follow_config_write(offset, data);
        }
        self.remote
            .region_write(index, offset, data)
            .map_err(CallError::errno)
    }

    fn set_irqs(
        &mut self,
        index: u32,
        start: u32,
        count: u32,
        action: IrqAction,
    ) -> Result<(), Errno> {
        self.run = None;
        let set = self.remote.set_irqs(index, start, count, &action);
        set.map_err(CallError::errno)
    }

    fn dma_map(&mut self, map: DmaMap) -> Result<(), Errno> {
        let range = map.range;
        let lent = self.with_mappings(|mappings| mappings.lend(&map))?;
        self.endpoint.dma_map(map)?;
        let run = self.run.take();
        let mapped = self.with_mappings(|mappings| mappings.map(lent, run));
        self.run = Some(mapped.inspect_err(|_| {
            // It was made above.
            let _ = self.endpoint.dma_unmap(range);
        })?);
        Ok(())
    }

    fn dma_unmap(&mut self, range: Range<Iova>) -> Result<(), Errno> {
        self.run = None;
        self.endpoint.dma_unmap(range)?;
        self.with_mappings(|mappings| mappings.unmap(range));
        Ok(())
    }

    fn reset(&mut self) -> Result<(), Errno> {
        self.run = None;
        self.endpoint.reset()
    }

    fn woken(&mut self) {
        self.endpoint.woken();
        // This thread receives none of the client's answers in that time.
        let _waits = self.remote.client_waits();
        self.fault_observer()();
    }
}
