//! A driver of the GPU, and the machine around it: guest RAM, bus addresses, interrupts.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use peerbar_endpoint::{Endpoint, Running, Size};
use peerbar_gpu::{Config, Gpu, Mode};
use peerbar_pci::find_capability;
use peerbar_vfio_user::{CONFIG_REGION, Device, DmaMap, IrqAction, RegionMapping};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{MemfdFlags, SealFlags};

pub(crate) const MIB: u64 = 1 << 20;
/// Start and size of guest RAM.
pub(crate) const RAM: u64 = 0x1000_0000;
pub(crate) const RAM_BYTES: u64 = 16 * MIB;
/// The address of BAR2.
pub(crate) const BAR2: u64 = 0x40_0000_0000;
/// Start of the channels' rings in guest RAM or in VRAM.
const RINGS: u64 = 8 * MIB;
/// Start of their fences in guest RAM.
const FENCES: u64 = 9 * MIB;

const MSI_X: u32 = 2;
/// The longest wait of a test.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A command of 128 bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Command {
    pub(crate) opcode: u8,
    pub(crate) spaces: u16,
    pub(crate) kernel: u32,
    pub(crate) operands: [u64; 13],
}

impl Command {
    /// A command whose operands in VRAM are those of the bits of `spaces`.
    pub(crate) fn new(opcode: u8, spaces: u16, operands: &[u64]) -> Self {
        let mut command = Self {
            opcode,
            spaces,
            ..Self::default()
        };
        command.operands[..operands.len()].copy_from_slice(operands);
        command
    }

    pub(crate) fn launch(
        kernel: u32,
        spaces: u16,
        operands: &[u64],
        (grid, block): (u64, u64),
    ) -> Self {
        let mut command = Self::new(5, spaces, operands);
        command.kernel = kernel;
        command.operands[11] = grid;
        command.operands[12] = block;
        command
    }

    /// Its bytes, with a fence in guest RAM and an interrupt.
    fn encode(&self, fence: u64, fence_value: u64) -> [u8; 128] {
        let mut bytes = [0; 128];
        bytes[0] = self.opcode;
        bytes[1] = 0b011;
        bytes[2..4].copy_from_slice(&self.spaces.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.kernel.to_le_bytes());
        bytes[8..16].copy_from_slice(&fence.to_le_bytes());
        bytes[16..24].copy_from_slice(&fence_value.to_le_bytes());
        for (to, operand) in bytes[24..].chunks_mut(8).zip(self.operands) {
            to.copy_from_slice(&operand.to_le_bytes());
        }
        bytes
    }
}

/// The contents of the oldest fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) code: u8,
    pub(crate) channel: u8,
    pub(crate) write: bool,
    pub(crate) address: u64,
}

pub(crate) struct Driver {
    gpu: Running<Gpu>,
    ram: File,
    events: Vec<OwnedFd>,
    /// Commands put on each channel since it was enabled.
    put: [u32; 16],
    /// Fences requested so far.
    fences: u64,
    /// Entries of each ring.
    entries: u32,
    rings_in_vram: bool,
}

impl Driver {
    /// A GPU with an aperture of 4 MiB over 32 MiB of VRAM, set up as Linux would leave it to its driver.
    pub(crate) fn new(mode: Mode) -> Self {
        Self::with(&Self::config(mode))
    }

    /// The configuration that `new` starts.
    pub(crate) fn config(mode: Mode) -> Config {
        Config {
            vram: Size(32 * MIB),
            aperture: Some(Size(4 * MIB)),
            mode,
            ..Config::default()
        }
    }

    pub(crate) fn with(config: &Config) -> Self {
        let fd = rustix::fs::memfd_create("ram", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, RAM_BYTES).unwrap();
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        let mut driver = Self {
            gpu: Gpu::start(config).unwrap(),
            ram: File::from(fd),
            events: (0..17)
                .map(|_| eventfd(0, EventfdFlags::NONBLOCK).unwrap())
                .collect(),
            put: [0; 16],
            fences: 0,
            entries: 64,
            rings_in_vram: false,
        };
        driver.map_ram();
        driver.set_up_function();
        driver.set_up_vectors();
        driver
    }

    /// Puts the rings that are enabled from now on into VRAM.
    pub(crate) fn put_rings_into_vram(&mut self) {
        self.rings_in_vram = true;
    }

    fn map_ram(&mut self) {
        let fd = self.ram.try_clone().unwrap().into();
        let map = DmaMap {
            iova: RAM,
            size: RAM_BYTES,
            readable: true,
            writable: true,
            memory: Some((fd, 0)),
        };
        self.gpu.endpoint.dma_map(map).unwrap();
    }

    /// Assigns BAR2 and turns memory space and bus mastering on.
    pub(crate) fn set_up_function(&mut self) {
        self.configure(0x18, &BAR2.to_le_bytes());
        self.set_command(0b110);
    }

    pub(crate) fn set_command(&mut self, command: u16) {
        self.configure(0x04, &command.to_le_bytes());
    }

    pub(crate) fn configure(&mut self, offset: u64, data: &[u8]) {
        self.endpoint()
            .region_write(CONFIG_REGION, offset, data)
            .unwrap();
    }

    /// Returns the offset in configuration space of the capability with this number.
    pub(crate) fn capability(&mut self, id: u8) -> u64 {
        let read = |offset| {
            let mut bytes = [0; 2];
            let read = self
                .endpoint()
                .region_read(CONFIG_REGION, offset, &mut bytes);
            read.map(|()| bytes).unwrap()
        };
        find_capability(id, read).unwrap()
    }

    fn set_up_vectors(&mut self) {
        let events = self.events.iter();
        let events = events
            .map(|event| Some(event.try_clone().unwrap().try_into().unwrap()))
            .collect();
        self.gpu
            .endpoint
            .set_irqs(MSI_X, 0, 17, IrqAction::Events(events))
            .unwrap();
    }

    pub(crate) fn endpoint(&mut self) -> &mut Endpoint<Gpu> {
        &mut self.gpu.endpoint
    }

    /// A register of 4 bytes of the device.
    pub(crate) fn register(&mut self, offset: u64) -> u32 {
        let mut data = [0; 4];
        self.endpoint().region_read(0, offset, &mut data).unwrap();
        u32::from_le_bytes(data)
    }

    pub(crate) fn wide_register(&mut self, offset: u64) -> u64 {
        let mut data = [0; 8];
        self.endpoint().region_read(0, offset, &mut data).unwrap();
        u64::from_le_bytes(data)
    }

    pub(crate) fn set_register(&mut self, offset: u64, value: u32) {
        self.endpoint()
            .region_write(0, offset, &value.to_le_bytes())
            .unwrap();
    }

    pub(crate) fn set_wide_register(&mut self, offset: u64, value: u64) {
        self.endpoint()
            .region_write(0, offset, &value.to_le_bytes())
            .unwrap();
    }

    /// Maps a page of the aperture to a page of VRAM, or unmaps it.
    pub(crate) fn set_window(&mut self, index: u32, vram: Option<u64>) {
        self.set_register(0x40, index);
        self.set_wide_register(0x48, vram.map_or(0, |offset| offset | 1));
    }

    pub(crate) fn channel_status(&mut self, channel: u8) -> u32 {
        self.register(channel_register(channel, 0x14))
    }

    pub(crate) fn head(&mut self, channel: u8) -> u32 {
        self.register(channel_register(channel, 0x18))
    }

    pub(crate) fn enable(&mut self, channel: u8) {
        let (ring, space) = self.ring(channel);
        self.enable_with(channel, ring, space, self.entries);
    }

    pub(crate) fn enable_with(&mut self, channel: u8, address: u64, space: u32, entries: u32) {
        self.set_wide_register(channel_register(channel, 0x00), address);
        self.set_register(channel_register(channel, 0x08), space);
        self.set_register(channel_register(channel, 0x0c), entries);
        self.put[usize::from(channel)] = 0;
        self.set_register(channel_register(channel, 0x10), 1);
    }

    pub(crate) fn disable(&mut self, channel: u8) {
        self.set_register(channel_register(channel, 0x10), 0);
    }

    /// Returns the address of a channel's ring, and its space.
    pub(crate) fn ring(&self, channel: u8) -> (u64, u32) {
        let at = RINGS + u64::from(channel) * 0x1_0000;
        if self.rings_in_vram {
            (at, 1)
        } else {
            (RAM + at, 0)
        }
    }

    /// Puts a command on a channel's ring and rings. Returns the address of its fence, and the
    /// fence's value.
    pub(crate) fn submit(&mut self, channel: u8, command: &Command) -> (u64, u64) {
        let fence = self.put_entry(channel, command);
        self.ring_trapped(channel, self.put[usize::from(channel)]);
        fence
    }

    /// Puts a command on a channel's ring without ringing.
    pub(crate) fn put_entry(&mut self, channel: u8, command: &Command) -> (u64, u64) {
        self.fences += 1;
        let fence = RAM + FENCES + self.fences % 4096 * 16;
        let bytes = command.encode(fence, self.fences);
        self.put_bytes(channel, &bytes);
        (fence, self.fences)
    }

    /// Puts any 128 bytes on a channel's ring without ringing.
    pub(crate) fn put_bytes(&mut self, channel: u8, bytes: &[u8; 128]) {
        let put = self.put[usize::from(channel)];
        let (ring, space) = self.ring(channel);
        let at = ring + u64::from(put % self.entries) * 128;
        if space == 1 {
            self.vram().write_all_at(bytes, at).unwrap();
        } else {
            self.write_ram(at, bytes);
        }
        self.put[usize::from(channel)] = put.wrapping_add(1);
    }

    pub(crate) fn put_so_far(&self, channel: u8) -> u32 {
        self.put[usize::from(channel)]
    }

    /// Writes a doorbell by a trapped access.
    pub(crate) fn ring_trapped(&mut self, channel: u8, value: u32) {
        self.set_register(0x8000 + 0x40 * u64::from(channel), value);
    }

    /// Waits for a command's fence. Returns the command's result.
    #[track_caller]
    pub(crate) fn wait(&self, (fence, value): (u64, u64)) -> u64 {
        self.until("fence", || {
            let mut words = [0; 16];
            self.read_ram(fence, &mut words);
            let (number, result) = words.split_at(8);
            (number == value.to_le_bytes()).then(|| u64::from_le_bytes(result.try_into().unwrap()))
        })
    }

    pub(crate) fn is_fenced(&self, (fence, value): (u64, u64)) -> bool {
        let mut words = [0; 8];
        self.read_ram(fence, &mut words);
        words == value.to_le_bytes()
    }

    /// Makes a channel execute a command. Returns its result.
    #[track_caller]
    pub(crate) fn run(&mut self, channel: u8, command: &Command) -> u64 {
        let fence = self.submit(channel, command);
        self.wait(fence)
    }

    /// Waits until a vector has been raised, and takes it.
    #[track_caller]
    pub(crate) fn wait_for_vector(&self, vector: usize) {
        let event = &self.events[vector];
        let mut fds = [PollFd::new(event, PollFlags::IN)];
        let timeout = TIMEOUT.try_into().unwrap();
        assert_eq!(
            poll(&mut fds, Some(&timeout)).unwrap(),
            1,
            "vector {vector}"
        );
        assert!(self.take_vector(vector));
    }

    /// Returns `true` if a vector has been raised since the last call.
    pub(crate) fn take_vector(&self, vector: usize) -> bool {
        rustix::io::read(&self.events[vector], &mut [0; 8]).is_ok()
    }

    /// Returns the oldest fault, and acknowledges it.
    pub(crate) fn take_fault(&mut self) -> Option<Fault> {
        let info = self.register(0x30);
        let address = self.wide_register(0x38);
        self.set_register(0x34, 1);
        let [code, channel, write, _] = info.to_le_bytes();
        (info >> 31 == 1).then_some(Fault {
            code,
            channel,
            write: write & 1 == 1,
            address,
        })
    }

    /// Waits until a channel has this status.
    #[track_caller]
    pub(crate) fn wait_for_status(&mut self, channel: u8, status: u32) {
        let start = Instant::now();
        loop {
            let now = self.channel_status(channel);
            if now == status {
                return;
            }
            assert!(
                start.elapsed() < TIMEOUT,
                "status {now:#x}, not {status:#x}"
            );
            std::thread::yield_now();
        }
    }

    /// Waits until a channel has taken this number of entries.
    #[track_caller]
    pub(crate) fn wait_for_head(&mut self, channel: u8, head: u32) {
        let start = Instant::now();
        while self.head(channel) != head {
            assert!(start.elapsed() < TIMEOUT, "not {head} entries taken");
            std::thread::yield_now();
        }
    }

    /// Waits until the device is ready.
    #[track_caller]
    pub(crate) fn wait_until_ready(&mut self) {
        let start = Instant::now();
        while self.register(0x24) != 1 {
            assert!(start.elapsed() < TIMEOUT, "not ready");
            std::thread::yield_now();
        }
    }

    #[track_caller]
    pub(crate) fn until<T>(&self, what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(answer) = ask() {
                return answer;
            }
            assert!(start.elapsed() < TIMEOUT, "no {what}");
            std::thread::yield_now();
        }
    }

    pub(crate) fn write_ram(&self, address: u64, data: &[u8]) {
        self.ram.write_all_at(data, address - RAM).unwrap();
    }

    pub(crate) fn read_ram(&self, address: u64, data: &mut [u8]) {
        self.ram.read_exact_at(data, address - RAM).unwrap();
    }

    /// The file behind a BAR.
    pub(crate) fn bar_file(&mut self, bar: u32) -> File {
        let region = self.endpoint().region(bar).unwrap();
        match region.mapping {
            RegionMapping::Whole(fd) | RegionMapping::Areas(fd, _) => {
                File::from(fd.try_clone_to_owned().unwrap())
            }
            nothing => panic!("{nothing:?}"),
        }
    }

    pub(crate) fn region_size(&mut self, region: u32) -> u64 {
        self.endpoint().region(region).unwrap().size
    }

    pub(crate) fn is_mappable(&mut self, region: u32) -> bool {
        let region = self.endpoint().region(region).unwrap();
        matches!(region.mapping, RegionMapping::Whole(_))
    }

    /// The areas of a region that may be mapped.
    pub(crate) fn areas(&mut self, region: u32) -> Vec<(u64, u64)> {
        match self.endpoint().region(region).unwrap().mapping {
            RegionMapping::Areas(_, areas) => areas,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn read_bar2(&mut self, offset: u64, data: &mut [u8]) {
        self.endpoint().region_read(2, offset, data).unwrap();
    }

    pub(crate) fn write_bar2(&mut self, offset: u64, data: &[u8]) {
        self.endpoint().region_write(2, offset, data).unwrap();
    }

    /// Returns all of VRAM, the view of a test: the file behind the aperture of a static GPU.
    pub(crate) fn vram(&mut self) -> File {
        self.bar_file(2)
    }

    /// Returns the current DMA log.
    pub(crate) fn dma_log(&mut self) -> Vec<peerbar_dma_log::Entry> {
        self.set_register(0x50, 1);
        let mut page = vec![0; 0x2000];
        self.endpoint().region_read(0, 0xc000, &mut page).unwrap();
        peerbar_dma_log::parse(&page).unwrap()
    }
}

/// Offset of a channel's register.
pub(crate) fn channel_register(channel: u8, offset: u64) -> u64 {
    0x1000 + 0x100 * u64::from(channel) + offset
}

/// Returns bytes that identify their own position.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i % 251) as u8 ^ (i / 251) as u8 ^ seed)
        .collect()
}
