//! The vfio-user device that represents a PCI function.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use peerbar_dma::{
    Buffer, CounterFile, Link, MapAccess, MapError, MemoryFile, OwnWindow, OwnWindowMemory,
    PageTable, Requester, Span, Upstream, UpstreamError, UpstreamRequest, WindowId,
};
use peerbar_fault::{AddError, Rule};
use peerbar_flight::Recorder;
use peerbar_pci::{Bar, CONFIG_BYTES, ConfigSpace, Effects, Function, Iova, Range};
use peerbar_switch::AttachError;
use peerbar_vfio_user::{
    CONFIG_REGION, Client, Data, Device, DeviceInfo, DmaMap, DmaRequest, Irq, IrqAction, Region,
    RegionMapping, RequestError,
};
use rustix::io::Errno;

use crate::Vectors;
use crate::decoder::OpenWindow;
use crate::switch_port::{SwitchPort, WindowObserver, limit_windows};

/// VFIO_PCI_NUM_REGIONS.
const REGIONS: u32 = 9;
/// VFIO_PCI_INTX_IRQ_INDEX and those that follow it: MSI, MSI-X, error, request.
const INTX: u32 = 0;
const MSI: u32 = 1;
const MSI_X: u32 = 2;
const ERROR: u32 = 3;
const REQUEST: u32 = 4;

/// The memory behind a BAR.
#[derive(Clone, Debug)]
pub enum BarMemory {
    /// Registers: every access goes to [`Function::bar_read`] and [`Function::bar_write`].
    Registers,
    /// Registers with some pages that the guest may map: areas (offset, size) of a file as long as
    /// the BAR. The function, which also has the file, gets every access except those by a mapping.
    RegistersWithPages(Arc<MemoryFile>, Vec<(u64, u64)>, PeerPages),
    /// Memory whose pages lie elsewhere, so that no part of it can be mapped: every access goes to
    /// the function. The function's own DMA follows the page table.
    Pages(Arc<PageTable>),
    /// Memory from the start of a file on, which the guest maps as a whole.
    Memory(Span),
}

/// The way in which peers below the same switch write register pages that the guest may map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerPages {
    /// By a mapping, like the guest: the function polls them.
    Lent,
    /// By messages: the function must be notified, as it is by the guest after a write.
    Notified,
}

impl BarMemory {
    /// Returns the memory that the function's own DMA finds behind the BAR.
    fn behind_window(&self) -> OwnWindowMemory {
        match self {
            Self::Registers | Self::RegistersWithPages(..) => OwnWindowMemory::Registers,
            Self::Pages(table) => OwnWindowMemory::Pages(table.clone()),
            Self::Memory(span) => OwnWindowMemory::Span(span.clone()),
        }
    }

    /// Returns the part of the BAR that the guest may map.
    fn mapping(&self) -> RegionMapping<'_> {
        match self {
            // The guest must not continue before the function knows of a write. Otherwise the guest
            // may finish all work while the function raises the INTx pin for it. QEMU lowers the
            // pin only at an access to the device, so a guest without further work would be
            // interrupted indefinitely.
            Self::Registers => RegionMapping::NoArea,
            Self::Pages(_) => RegionMapping::Nothing,
            Self::RegistersWithPages(file, areas, _) => {
                RegionMapping::Areas(file.file().as_fd(), areas.clone())
            }
            Self::Memory(span) => RegionMapping::Whole(span.file.file().as_fd()),
        }
    }
}

/// A PCI function, served over vfio-user.
pub struct Endpoint<F> {
    function: Arc<F>,
    config: ConfigSpace,
    memory: Vec<(Bar, BarMemory)>,
    requester: Arc<Requester>,
    vectors: Arc<Vectors>,
    port: Option<SwitchPort<F>>,
    observer: Option<Arc<dyn WindowObserver>>,
    /// A message for the log if a client leaves without a write.
    hint: Option<&'static str>,
    /// The client has written to a region.
    written: bool,
    /// The link-down count at the last reset that followed one.
    link_downs: u64,
    /// A client has left that may have kept a mapping of the BARs' memory, and the memory could not
    /// be renewed, or the function could not be reset.
    is_memory_shared: bool,
    /// The link has gone down, and the guest has not given the function its memory space since.
    is_unconfigured: bool,
}

impl<F: Function + 'static> Endpoint<F> {
    /// Attaches the function to the switch at `path`, under a name that is unique there. From now
    /// on its peers reach it and it reaches them.
    pub fn attach_to_switch(&mut self, path: &Path, name: &str) -> Result<(), AttachError> {
        let (function, requester) = (self.function.clone(), self.requester.clone());
        let observer = self.observer.clone();
        let port = SwitchPort::attach(path, name, function, requester, observer)?;
        let windows = self.open_windows();
        self.port.insert(port).set(windows);
        Ok(())
    }
}

impl<F: Function> Endpoint<F> {
    /// Offers ATS to the guest: the function requests translations of addresses. Must be called
    /// before it is served.
    pub fn offer_ats(&mut self) {
        self.config.offer_ats();
    }

    /// Has the observer learn of the peers' windows. Must be called before the function is attached
    /// to a switch.
    pub fn observe_windows(&mut self, observer: Arc<dyn WindowObserver>) {
        self.observer = Some(observer);
    }

    /// Makes transfers on the function's link take time from now on. Must be called before it is
    /// attached to a switch.
    pub fn set_link(&mut self, link: Link) {
        self.requester.set_link(link);
    }

    /// Records all DMA of the function, and the state that it depends on, from now on.
    pub fn record_in(&self, recorder: Recorder) {
        self.requester.ledger().record_in(recorder);
    }

    /// Notes in the record that the function has ended in order.
    pub(crate) fn end_record(&self) {
        self.requester.ledger().end_record();
    }

    /// Adds a fault rule. Must be called after [`Endpoint::record_in`], which notes its text.
    pub fn add_fault(&self, rule: Rule) -> Result<(), AddError> {
        self.requester.add_fault(rule)
    }

    /// Returns the function's requester, which holds its fault rules.
    pub fn requester(&self) -> Arc<Requester> {
        self.requester.clone()
    }

    /// Removes all fault rules. Returns their number.
    pub fn clear_faults(&self) -> usize {
        self.requester.faults().clear()
    }

    /// Counts all DMA of the function in this file from now on.
    pub fn count_in(&self, file: CounterFile) {
        self.requester.count_in(file);
    }

    /// Puts a function on its bus. `memory` has the memory behind each BAR of `config`, in order.
    pub fn new(
        function: Arc<F>,
        config: ConfigSpace,
        memory: impl IntoIterator<Item = BarMemory>,
        requester: Arc<Requester>,
        vectors: Arc<Vectors>,
    ) -> Self {
        let mut memory: Vec<_> = config.bars().iter().copied().zip(memory).collect();
        limit_windows(&mut memory);
        vectors.attach(requester.clone());
        requester.faults().set_vectors(vectors.count());
        Self {
            function,
            config,
            memory,
            requester,
            vectors,
            port: None,
            observer: None,
            hint: None,
            written: false,
            link_downs: 0,
            is_memory_shared: false,
            is_unconfigured: false,
        }
    }

    /// Sets a hint that is logged when a client leaves without a write to the device: a step that
    /// such a client may have missed.
    pub fn hint_at_departure(&mut self, hint: &'static str) {
        self.hint = Some(hint);
    }

    fn bar(&self, index: u32) -> Option<&(Bar, BarMemory)> {
        self.memory
            .iter()
            .find(|(bar, _)| u32::from(bar.index()) == index)
    }

    /// Applies bus mastering, ATS and windows to the requester, announces the windows to the peers,
    /// and tells the function if it has become a bus master. Once this returns, no requester begins
    /// a request to the previous windows.
    fn apply_routing(&mut self) {
        let mut bus = self.requester.bus_mastering();
        self.requester.set_bus_master(self.config.bus_master());
        self.requester.set_ats(self.config.ats());
        for (bar, memory) in &self.memory {
            let window = self.config.window(bar).map(|range| OwnWindow {
                range,
                memory: memory.behind_window(),
            });
            self.requester
                .set_window(WindowId::Bar(bar.index()), window);
        }
        let windows = self.open_windows();
        if let Some(port) = &mut self.port {
            port.set(windows);
        }
        if bus.follow(&self.requester) {
            self.function.bus_master_enabled();
            self.vectors.bus_master_enabled();
        }
    }

    fn open_windows(&self) -> Vec<OpenWindow> {
        let open = |(bar, memory): &(Bar, BarMemory)| {
            Some(OpenWindow {
                bar: bar.index(),
                range: self.config.window(bar)?,
                memory: memory.clone(),
            })
        };
        self.memory.iter().filter_map(open).collect()
    }

    /// Resets the function if its link has gone down since the last call (PCIe Base 6.0, 2.9.1).
    /// Returns `true` if the link is up.
    fn follow_link(&mut self) -> bool {
        let downs = self.requester.link_downs();
        if std::mem::replace(&mut self.link_downs, downs) != downs {
            self.is_unconfigured = true;
            self.config.reset_function();
            self.apply_routing();
            self.reset_function();
        }
        self.requester.link_is_up()
    }

    /// Returns `true` if an access to a region reaches the function now: its link is up, and the
    /// guest has configured it since that was down.
    pub fn is_reached(&mut self, region: u32) -> bool {
        let is_up = self.follow_link();
        self.is_unconfigured &= !self.config.command().memory_space();
        is_up && (region == CONFIG_REGION || !self.is_unconfigured)
    }

    /// Applies a write to configuration space to the requester and to the windows. Returns its
    /// effects. If they include a reset of the function, that is left to the caller.
    pub fn follow_config_write(&mut self, offset: u64, data: &[u8]) -> Effects {
        let effects = self.config.write(offset, data);
        if effects.routing {
            self.apply_routing();
        }
        effects
    }

    /// Does the work of [`Device::attached`], with another path upstream than the client itself.
    pub fn attach(&mut self, client: &Client, upstream: Arc<dyn Upstream>) {
        self.written = false;
        if self.is_memory_shared {
            // When it leaves, the renewal is attempted again.
            client.disconnect();
        }
        self.requester.set_link_up();
        self.follow_link();
        self.is_unconfigured = false;
        self.requester.set_upstream(Some(upstream));
    }

    /// Resets the function. Interrupts that are held back are lost.
    fn reset_function(&self) {
        self.function.reset();
        self.vectors.forget();
    }

    /// Gives the BARs memory that is not mapped by any client that has left.
    fn renew_memory(&mut self) {
        let renewed = self.function.renew_memory();
        self.is_memory_shared = renewed.is_err();
        if let Err(error) = renewed {
            log::error!(
                "the function still has memory or state of the last client, so the next one is disconnected: {error}"
            );
        }
    }

    /// Closes the windows before the function is reset, so that no peer's late write reaches it afterwards.
    fn reset_all(&mut self) {
        self.config.reset();
        self.apply_routing();
        self.reset_function();
    }
}

impl<F: Function> Device for Endpoint<F> {
    fn attached(&mut self, client: Client) {
        let upstream = Arc::new(ClientMemory(client.clone()));
        self.attach(&client, upstream);
    }

    fn detached(&mut self) {
        if let Some(hint) = self.hint.filter(|_| !self.written) {
            log::warn!("a client has left without a write to the device: {hint}");
        }
        self.requester.set_upstream(None);
        self.requester.unmap_all();
        self.vectors.clear();
        self.reset_all();
        self.renew_memory();
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            regions: REGIONS,
            irqs: REQUEST + 1,
            can_reset: true,
        }
    }

    fn region(&self, index: u32) -> Option<Region<'_>> {
        if index == CONFIG_REGION {
            return Some(Region {
                size: CONFIG_BYTES as u64,
                readable: true,
                writable: true,
                mapping: RegionMapping::Nothing,
                offset: 0,
            });
        }
        match self.bar(index) {
            Some((bar, memory)) => Some(Region {
                size: bar.size(),
                readable: true,
                writable: true,
                mapping: memory.mapping(),
                offset: 0,
            }),
            None if index < REGIONS => Some(Region {
                size: 0,
                readable: false,
                writable: false,
                mapping: RegionMapping::Nothing,
                offset: 0,
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
                fixed_count: false,
            })
        };
        match index {
            INTX => Some(Irq {
                count: 1,
                automasked: true,
                maskable: true,
                fixed_count: false,
            }),
            MSI => edge(0),
            MSI_X => edge(self.vectors.count()),
            ERROR | REQUEST => edge(1),
            _ => None,
        }
    }

    fn region_read(&mut self, index: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        if !self.is_reached(index) {
            data.fill(0xff);
            return Ok(());
        }
        if index == CONFIG_REGION {
            self.config.read(offset, data);
            return Ok(());
        }
        match self.bar(index).ok_or(Errno::INVAL)? {
            (_, BarMemory::Memory(span)) => {
                span.file
                    .read(span.offset.saturating_add(offset), data)
                    .map_err(|_| Errno::INVAL)?;
            }
            (bar, _) => self.function.bar_read(bar.index(), offset, data),
        }
        Ok(())
    }

    fn region_write(&mut self, index: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        self.written = true;
        if !self.is_reached(index) {
            return Ok(());
        }
        if index == CONFIG_REGION {
            if self.follow_config_write(offset, data).function_reset {
                self.reset_function();
            }
            return Ok(());
        }
        match self.bar(index).ok_or(Errno::INVAL)? {
            (_, BarMemory::Memory(span)) => {
                span.file
                    .write(span.offset.saturating_add(offset), data)
                    .map_err(|_| Errno::INVAL)?;
            }
            (bar, _) => self.function.bar_write(bar.index(), offset, data),
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
            INTX => self.vectors.set_pin_events(action)?,
            MSI_X => self.vectors.set_msi_x(start, count, action)?,
            // The device never reports an error or asks to be unplugged, but the client may set up
            // the events. They are not kept, so nothing can be triggered.
            ERROR | REQUEST if matches!(action, IrqAction::Trigger) => return Err(Errno::NOTSUP),
            ERROR | REQUEST => {}
            _ => return Err(Errno::INVAL),
        }
        Ok(())
    }

    fn dma_map(&mut self, map: DmaMap) -> Result<(), Errno> {
        let access = MapAccess {
            readable: map.readable,
            writable: map.writable,
        };
        self.requester
            .map(map.range, access, map.memory)
            .map_err(map_errno)
    }

    fn dma_unmap(&mut self, range: Range<Iova>) -> Result<(), Errno> {
        let unmapped = self.requester.try_unmap(range);
        unmapped.map_err(map_errno)
    }

    fn reset(&mut self) -> Result<(), Errno> {
        self.reset_all();
        Ok(())
    }

    fn woken(&mut self) {
        self.follow_link();
    }
}

fn map_errno(error: MapError) -> Errno {
    log::debug!("{error}");
    match error {
        MapError::PastFile(_) => Errno::INVAL,
        MapError::Overlap(_) => Errno::EXIST,
        MapError::Full => Errno::NOSPC,
        MapError::TooMuch | MapError::Injected => Errno::NOMEM,
    }
}

/// The client as the path upstream.
#[derive(Debug)]
pub struct ClientMemory(pub Client);

impl Upstream for ClientMemory {
    fn carry_out(&self, requests: &mut [UpstreamRequest<'_>], may_go_on: &dyn Fn() -> bool) {
        let messages = requests.iter_mut().map(|request| {
            let data = match &mut request.data {
                Buffer::Read(data) => Data::Read(data),
                Buffer::Write(data) => Data::Write(data),
            };
            DmaRequest::new(request.address, data)
        });
        let mut messages: Vec<DmaRequest<'_>> = messages.collect();
        self.0.carry_out(&mut messages, may_go_on);
        let outcomes = messages.iter().map(|message| message.outcome);
        let outcomes: Vec<_> = outcomes.collect();
        for (request, outcome) in requests.iter_mut().zip(outcomes) {
            request.outcome = outcome.map(|outcome| outcome.map_err(upstream_error));
        }
    }

    fn disconnect(&self) {
        self.0.disconnect();
    }

    fn wake(&self) {
        self.0.wake();
    }
}

fn upstream_error(error: RequestError) -> UpstreamError {
    match error {
        RequestError::Refused(errno) => UpstreamError::Refused(errno.raw_os_error()),
        RequestError::TimedOut => UpstreamError::TimedOut,
        RequestError::Gone => UpstreamError::Gone,
        RequestError::Unserved => UpstreamError::Unserved,
        RequestError::Stopped => UpstreamError::Stopped,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use peerbar_dma::Purpose;
    use peerbar_pci::find_capability;

    use super::*;

    /// A function that records all writes. Its registers read as the number of the BAR.
    #[derive(Default)]
    struct RecordingFunction(Mutex<Vec<(u8, u64, Vec<u8>)>>);

    impl Function for RecordingFunction {
        fn bar_read(&self, bar: u8, _offset: u64, data: &mut [u8]) {
            data.fill(bar);
        }

        fn bar_write(&self, bar: u8, offset: u64, data: &[u8]) {
            self.0.lock().unwrap().push((bar, offset, data.to_vec()));
        }

        fn reset(&self) {}
    }

    fn file(size: u64) -> Arc<MemoryFile> {
        Arc::new(MemoryFile::create("test", size).unwrap())
    }

    /// BAR0 with a page that may be mapped, BAR2 of two pages, BAR4 in memory that is longer than it.
    fn endpoint() -> (Endpoint<RecordingFunction>, Arc<PageTable>, Arc<Requester>) {
        let bar = |index, size| Bar::new(index, size, true).unwrap();
        let bars = [bar(0, 0x4000), bar(2, 0x2000), bar(4, 0x1000)];
        let config = ConfigSpace::of_test_function(&bars);
        let table = Arc::new(PageTable::new(file(0x4000), 2, 0x1000));
        let memory = [
            BarMemory::RegistersWithPages(file(0x4000), vec![(0x3000, 0x1000)], PeerPages::Lent),
            BarMemory::Pages(table.clone()),
            BarMemory::Memory(Span {
                file: file(0x8000),
                offset: 0,
            }),
        ];
        let requester = Arc::new(Requester::new());
        let vectors = Arc::new(Vectors::new(2).unwrap());
        let endpoint = Endpoint::new(Arc::default(), config, memory, requester.clone(), vectors);
        (endpoint, table, requester)
    }

    #[test]
    fn region_offers_only_mappable_memory() {
        let (endpoint, ..) = endpoint();
        let region = |index| {
            let region = endpoint.region(index).unwrap();
            (region.size, region.mapping)
        };
        let (0x4000, RegionMapping::Areas(_, areas)) = region(0) else {
            panic!("{:?}", region(0));
        };
        assert_eq!(areas, [(0x3000, 0x1000)]);
        assert!(matches!(region(2), (0x2000, RegionMapping::Nothing)));
        assert!(matches!(region(4), (0x1000, RegionMapping::Whole(_))));
        assert!(matches!(region(7), (_, RegionMapping::Nothing)));
    }

    #[test]
    fn access_outside_memory_reaches_the_function() {
        let (mut endpoint, ..) = endpoint();
        for (region, offset) in [(0, 0x3000), (2, 0x1ff8), (4, 0x10)] {
            endpoint.region_write(region, offset, &[7; 4]).unwrap();
        }
        let writes = endpoint.function.0.lock().unwrap().clone();
        assert_eq!(writes, [(0, 0x3000, vec![7; 4]), (2, 0x1ff8, vec![7; 4])]);
        let mut data = [0; 4];
        endpoint.region_read(2, 0, &mut data).unwrap();
        assert_eq!(data, [2; 4]);
        endpoint.region_read(4, 0x10, &mut data).unwrap();
        assert_eq!(data, [7; 4]);
    }

    #[test]
    fn own_dma_follows_the_page_table_of_a_bar() {
        let (mut endpoint, table, requester) = endpoint();
        endpoint
            .region_write(CONFIG_REGION, 0x18, &0x8000_0000u32.to_le_bytes())
            .unwrap();
        endpoint
            .region_write(CONFIG_REGION, 0x04, &[0b110, 0])
            .unwrap();
        let write = |address| requester.write(Purpose::Payload, address, &[1; 8]);
        assert!(write(Iova(0x8000_1000)).is_err());
        table.set(1, Some(0x2000)).unwrap();
        write(Iova(0x8000_1000)).unwrap();
        let mut data = [0; 8];
        table.access(0x1000, Buffer::Read(&mut data)).unwrap();
        assert_eq!(data, [1; 8]);
    }

    /// Offset of the PCI Express capability.
    fn express(endpoint: &mut Endpoint<RecordingFunction>) -> u64 {
        let read = |offset| {
            let mut bytes = [0; 2];
            let read = endpoint.region_read(CONFIG_REGION, offset, &mut bytes);
            read.map(|()| bytes).unwrap()
        };
        find_capability(0x10, read).unwrap()
    }

    #[test]
    fn delayed_interrupt_is_lost_by_a_reset() {
        type Reset = fn(&mut Endpoint<RecordingFunction>);
        let resets: [Reset; 3] = [
            |endpoint| endpoint.reset().unwrap(),
            |endpoint| {
                endpoint
                    .add_fault("link-down device".parse().unwrap())
                    .unwrap();
                endpoint.woken();
                endpoint
                    .add_fault("link-up device".parse().unwrap())
                    .unwrap();
            },
            |endpoint| {
                // Initiate Function Level Reset (PCIe Base 6.0, 7.5.3.4).
                let control = express(endpoint) + 9;
                endpoint
                    .region_write(CONFIG_REGION, control, &[0x80])
                    .unwrap();
            },
        ];
        for reset in resets {
            let (mut endpoint, ..) = endpoint();
            // Due long after this test.
            assert!(endpoint.vectors.delay(0, Duration::from_secs(3600)));
            assert_eq!(endpoint.vectors.delayed(), 1);
            reset(&mut endpoint);
            assert_eq!(endpoint.vectors.delayed(), 0);
        }
    }
}
