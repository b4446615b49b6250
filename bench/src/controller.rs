//! A small NVMe driver: brings a controller up over its socket and creates queues.

use std::cell::RefCell;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use peerbar_nvme_spec::cmb::Cmbmsc;
use peerbar_nvme_spec::command::admin::{
    CompletionQueueFlags, CreateCompletionQueue, CreateSubmissionQueue, GetLogPage, Identify,
    SetFeatures, SubmissionQueueFlags,
};
use peerbar_nvme_spec::command::{AdminOpcode, SubmissionEntry};
use peerbar_nvme_spec::dma_log;
use peerbar_nvme_spec::feature::fid;
use peerbar_nvme_spec::identify::{cns, controller};
use peerbar_nvme_spec::registers::{Aqa, Cap, Cc, Csts, offset};
use rustix::event::{EventfdFlags, eventfd};
use vfio_user::Client;
use vm_memory::FileOffset;
use zerocopy::{FromBytes, FromZeros};

use crate::Error;
use crate::doorbell::{Doorbell, REGISTERS, Register, Shadow};
use crate::memory::{Memory, PAGE, Pages};
use crate::queue::{Place, QueuePair};

/// VFIO_PCI_CONFIG_REGION_INDEX.
const CONFIG: u32 = 7;
/// VFIO_PCI_MSIX_IRQ_INDEX, and VFIO_IRQ_SET_DATA_EVENTFD with VFIO_IRQ_SET_ACTION_TRIGGER.
const MSI_X: u32 = 2;
const EVENTS: u32 = 1 << 2 | 1 << 5;
/// PCI Local Bus 3.0, 6.2.2: memory space and bus master.
const COMMAND: (u64, [u8; 2]) = (4, [0b110, 0]);
/// Where the device sees the start of our memory.
const BASE: u64 = 0x1000_0000;
/// How long a controller may take to do what it is told.
const PATIENCE: Duration = Duration::from_secs(10);
const ADMIN_ENTRIES: u16 = 16;

/// A controller that is ready.
pub(crate) struct Controller {
    /// Memory that it reaches at [`Self::address`].
    pub(crate) memory: Arc<Memory>,
    /// What is left of the memory.
    pub(crate) pages: Pages,
    bells: Bells,
    admin: QueuePair,
    /// What the device's first message signals: nobody waits for it.
    _interrupt: OwnedFd,
    /// Where in the memory the record of its DMA is put.
    log: usize,
    queues: u16,
}

/// Where doorbells are.
struct Bells {
    client: Rc<RefCell<Client>>,
    memory: Arc<Memory>,
    /// Bytes between two doorbells.
    stride: u64,
    /// The page that can be mapped, and where in the BAR it starts.
    page: Option<(Arc<Memory>, u64)>,
    /// Offsets of the shadow doorbell buffer and of the event index buffer.
    shadows: Option<[usize; 2]>,
}

impl Controller {
    /// Brings the controller at `socket` up with `bytes` bytes of memory to share.
    pub(crate) fn bring_up(socket: &Path, bytes: usize) -> Result<Self, Error> {
        let mut client = Client::new(socket)?;
        let (memory, file) = Memory::create(bytes)?;
        let memory = Arc::new(memory);
        client.dma_map(0, BASE, u64_of(bytes), file.as_raw_fd())?;
        client.region_write(CONFIG, COMMAND.0, &COMMAND.1)?;
        let mut cap = [0; 8];
        client.region_read(REGISTERS, offset::CAP, &mut cap)?;
        let cap = Cap::from_bits(u64::from_le_bytes(cap));
        let page = mappable(&client, offset::DOORBELLS)?;
        let interrupt = take_messages(&mut client)?;
        let client = Rc::new(RefCell::new(client));
        let bells = Bells {
            client: client.clone(),
            memory: memory.clone(),
            stride: 4 << cap.dstrd(),
            page,
            shadows: None,
        };
        let pages = Pages::new(bytes);
        let place = Place::take(&pages, ADMIN_ENTRIES)?;
        enable(&mut client.borrow_mut(), place)?;
        let admin = QueuePair::new(0, memory.clone(), place, bells.pair(0)?);
        let log = pages.take(dma_log::MAX_SIZE)?;
        let mut controller = Self {
            memory,
            pages,
            bells,
            admin,
            _interrupt: interrupt,
            log,
            queues: 0,
        };
        controller.use_shadows()?;
        controller.ask_for_queues()?;
        Ok(controller)
    }

    /// Where the device sees our memory at `offset`.
    pub(crate) fn address(offset: usize) -> u64 {
        BASE + u64_of(offset)
    }

    /// The PRP entries of a command whose data lie in `pages` (NVMe Base 2.0, 4.1.1), with a list if there are many.
    pub(crate) fn prps(&self, pages: &[u64]) -> Result<[u64; 2], Error> {
        match pages {
            [] => Ok([0, 0]),
            [only] => Ok([*only, 0]),
            [first, second] => Ok([*first, *second]),
            [first, rest @ ..] => {
                // A list of one page has room for 2 MiB of data.
                let list = self.pages.take(PAGE)?;
                for (at, page) in (list..list + PAGE).step_by(8).zip(rest) {
                    self.memory.store64(at, *page)?;
                }
                Ok([*first, Self::address(list)])
            }
        }
    }

    /// How doorbells are rung.
    pub(crate) fn doorbells(&self) -> &'static str {
        match (&self.bells.shadows, &self.bells.page) {
            (Some(_), Some(_)) => "shadow, mapped",
            (Some(_), None) => "shadow",
            (None, Some(_)) => "mapped",
            (None, None) => "trapped",
        }
    }

    /// Lends the device the `bytes` bytes at `offset` of `file` at `address`.
    pub(crate) fn map(
        &self,
        file: &File,
        offset: u64,
        address: u64,
        bytes: u64,
    ) -> Result<(), Error> {
        let mut client = self.bells.client.borrow_mut();
        Ok(client.dma_map(offset, address, bytes, file.as_raw_fd())?)
    }

    /// Opens the Controller Memory Buffer, which is in that BAR, at `address`, as Linux does (NVMe Base 2.0, 3.1.3.15).
    pub(crate) fn open_cmb(&self, bar: u8, address: u64) -> Result<Memory, Error> {
        let mut client = self.bells.client.borrow_mut();
        place_bar(&mut client, bar, address)?;
        let control = Cmbmsc::new()
            .with_cre(true)
            .with_cmse(true)
            .with_cba(address >> 12);
        let control = control.into_bits().to_le_bytes();
        client.region_write(REGISTERS, offset::CMBMSC, &control)?;
        bar_memory(&client, bar)
    }

    /// The controller's record of its DMA, a log page of its own.
    pub(crate) fn dma_log(&mut self) -> Result<Vec<u8>, Error> {
        let bytes = dma_log::MAX_SIZE;
        let [first, second] = [0, PAGE].map(|offset| Self::address(self.log + offset));
        let mut entry = admin_entry(AdminOpcode::GetLogPage);
        [entry.prp1, entry.prp2] = [first, second].map(Into::into);
        let mut page = GetLogPage::from(&entry);
        page.lid = dma_log::LID;
        page.numdl = u16::try_from(bytes / 4 - 1).unwrap_or(u16::MAX).into();
        page.apply_to(&mut entry);
        self.admin(entry)?;
        let mut log = vec![0; bytes];
        self.memory
            .slice(self.log, bytes)?
            .copy_to(log.as_mut_slice());
        Ok(log)
    }

    /// Creates a pair of I/O queues of `entries` entries that raise no interrupts.
    pub(crate) fn create_queues(&mut self, entries: u16) -> Result<QueuePair, Error> {
        let place = Place::take(&self.pages, entries)?;
        let id = self.queues + 1;
        let mut entry = admin_entry(AdminOpcode::CreateCompletionQueue);
        entry.prp1 = Self::address(place.completion).into();
        let mut completion = CreateCompletionQueue::from(&entry);
        completion.qid = id.into();
        completion.qsize = (entries - 1).into();
        completion.flags = CompletionQueueFlags::new().with_pc(true);
        completion.apply_to(&mut entry);
        self.admin(entry)?;
        let mut entry = admin_entry(AdminOpcode::CreateSubmissionQueue);
        entry.prp1 = Self::address(place.submission).into();
        let mut submission = CreateSubmissionQueue::from(&entry);
        submission.qid = id.into();
        submission.qsize = (entries - 1).into();
        submission.flags = SubmissionQueueFlags::new().with_pc(true);
        submission.cqid = id.into();
        submission.apply_to(&mut entry);
        self.admin(entry)?;
        self.queues = id;
        let bells = self.bells.pair(id)?;
        Ok(QueuePair::new(id, self.memory.clone(), place, bells))
    }

    /// Does an admin command.
    fn admin(&mut self, entry: SubmissionEntry) -> Result<(), Error> {
        self.admin.push(&entry)?;
        self.admin.ring()?;
        let admin = &mut self.admin;
        let completion = wait("the completion of an admin command", || admin.pop())?;
        self.admin.ring()?;
        match completion.status {
            0 => Ok(()),
            status => Err(Error::Command {
                opcode: entry.opcode,
                status,
            }),
        }
    }

    /// Doorbell Buffer Config, if the controller has it.
    fn use_shadows(&mut self) -> Result<(), Error> {
        let at = self.pages.take(PAGE)?;
        let mut entry = admin_entry(AdminOpcode::Identify);
        entry.prp1 = Self::address(at).into();
        let mut identify = Identify::from(&entry);
        identify.cns = cns::CONTROLLER;
        identify.apply_to(&mut entry);
        self.admin(entry)?;
        let mut bytes = vec![0; PAGE];
        self.memory.slice(at, PAGE)?.copy_to(bytes.as_mut_slice());
        let offers = controller::Controller::read_from_bytes(&bytes)
            .is_ok_and(|controller| controller.oacs.doorbell_buffer());
        if offers {
            let shadows = [self.pages.take(PAGE)?, self.pages.take(PAGE)?];
            let [values, events] = shadows.map(Self::address);
            let mut entry = admin_entry(AdminOpcode::DoorbellBufferConfig);
            entry.prp1 = values.into();
            entry.prp2 = events.into();
            self.admin(entry)?;
            self.bells.shadows = Some(shadows);
        }
        Ok(())
    }

    /// Set Features, Number of Queues: as many as there can be (NVMe Base 2.0, 5.27.1.5).
    fn ask_for_queues(&mut self) -> Result<(), Error> {
        let mut entry = admin_entry(AdminOpcode::SetFeatures);
        let mut features = SetFeatures::from(&entry);
        features.fid = fid::NUMBER_OF_QUEUES;
        features.cdw11 = 0xfffe_fffe.into();
        features.apply_to(&mut entry);
        self.admin(entry)
    }
}

impl Bells {
    /// The doorbells of the submission queue and the completion queue `id` (NVMe over PCIe 1.0, 3.1.2). Those of the
    /// admin queue have no shadow, as in Linux: it is rung before there are any.
    fn pair(&self, id: u16) -> Result<[Doorbell; 2], Error> {
        let bell = |number: u64| {
            let at = number * self.stride;
            let shadows = self.shadows.filter(|_| id != 0);
            let shadow = shadows.map(|[values, events]| Shadow {
                memory: self.memory.clone(),
                value: values + usize_of(at),
                event: events + usize_of(at),
            });
            Doorbell::new(self.register(offset::DOORBELLS + at), shadow)
        };
        let first = 2 * u64::from(id);
        Ok([bell(first), bell(first + 1)])
    }

    fn register(&self, at: u64) -> Register {
        let mapped = self.page.as_ref().and_then(|(page, start)| {
            let offset = usize_of(at.checked_sub(*start)?);
            let page = page.clone();
            (offset + 4 <= page.bytes()).then_some(Register::Mapped { page, offset })
        });
        mapped.unwrap_or_else(|| Register::Trapped {
            client: self.client.clone(),
            offset: at,
        })
    }
}

/// Takes interrupts as MSI-X messages, since shadow doorbells are not for those who take them by the pin.
fn take_messages(client: &mut Client) -> Result<OwnedFd, Error> {
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(Error::system("create an eventfd"))?;
    client.set_irqs(MSI_X, EVENTS, 0, 1, &[event.as_raw_fd()])?;
    Ok(event)
}

/// The part of the register BAR that the server lends, if the register at `wanted` is in it, and where it starts.
pub(crate) fn mappable(client: &Client, wanted: u64) -> Result<Option<(Arc<Memory>, u64)>, Error> {
    let Some(region) = client.region(REGISTERS) else {
        return Ok(None);
    };
    let area = region
        .sparse_areas
        .iter()
        .find(|area| (area.offset..area.offset + area.size).contains(&wanted));
    let (Some(area), Some(file)) = (area, &region.file_offset) else {
        return Ok(None);
    };
    let page = map_lent(file, area.offset, area.size)?;
    Ok(Some((Arc::new(page), area.offset)))
}

/// The memory behind a BAR that the server lends as a whole.
pub(crate) fn bar_memory(client: &Client, bar: u8) -> Result<Memory, Error> {
    let region = client.region(bar.into());
    let lent = region.and_then(|region| Some((region.file_offset.as_ref()?, region.size)));
    let (file, size) = lent.ok_or(Error::NotLent { bar })?;
    map_lent(file, 0, size)
}

fn map_lent(file: &FileOffset, offset: u64, bytes: u64) -> Result<Memory, Error> {
    let copy = file
        .file()
        .try_clone()
        .map_err(Error::system("copy a descriptor"))?;
    Memory::map(
        FileOffset::new(copy, file.start() + offset),
        usize_of(bytes),
    )
}

/// Has a 64-bit BAR of memory answer at `address` (PCI Local Bus 3.0, 6.2.5).
pub(crate) fn place_bar(client: &mut Client, bar: u8, address: u64) -> Result<(), Error> {
    let register = 0x10 + 4 * u64::from(bar);
    client.region_write(CONFIG, register, &address.to_le_bytes())?;
    Ok(client.region_write(CONFIG, COMMAND.0, &COMMAND.1)?)
}

/// Gives the controller its admin queues and waits until it is ready (NVMe Base 2.0, 3.5.1).
fn enable(client: &mut Client, admin: Place) -> Result<(), Error> {
    let entries = admin.entries - 1;
    let sizes = Aqa::new().with_asqs(entries).with_acqs(entries);
    client.region_write(REGISTERS, offset::AQA, &sizes.into_bits().to_le_bytes())?;
    for (register, place) in [
        (offset::ASQ, admin.submission),
        (offset::ACQ, admin.completion),
    ] {
        let address = Controller::address(place).to_le_bytes();
        client.region_write(REGISTERS, register, &address)?;
    }
    let cc = Cc::new().with_en(true).with_iosqes(6).with_iocqes(4);
    client.region_write(REGISTERS, offset::CC, &cc.into_bits().to_le_bytes())?;
    wait("CSTS.RDY", || {
        let mut csts = [0; 4];
        client.region_read(REGISTERS, offset::CSTS, &mut csts)?;
        let csts = Csts::from_bits(u32::from_le_bytes(csts));
        Ok(csts.rdy().then_some(()))
    })
}

/// Asks until there is an answer.
fn wait<T>(
    what: &'static str,
    mut ask: impl FnMut() -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if begun.elapsed() > PATIENCE {
            let seconds = PATIENCE.as_secs();
            return Err(Error::Late { what, seconds });
        }
        std::thread::yield_now();
    }
}

fn admin_entry(opcode: AdminOpcode) -> SubmissionEntry {
    let mut entry = SubmissionEntry::new_zeroed();
    entry.opcode = opcode as u8;
    entry
}

/// On the machines that this runs on, both have 64 bits.
fn u64_of(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn usize_of(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
