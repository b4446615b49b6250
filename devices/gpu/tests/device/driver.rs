//! A driver of the GPU, and the machine around it: guest RAM, bus addresses, interrupts.

use std::fs::File;
use std::ops::Deref;
use std::os::unix::fs::FileExt;

use peerbar_endpoint::Size;
use peerbar_gpu::{Config, Gpu, Mode};
use peerbar_rig::gpu::doorbell;
use peerbar_rig::{GuestRam, Link, LocalDevice, MEMORY, REGISTERS, poll_until, wait_until};
use peerbar_vfio_user::{Device, RegionMapping};

pub(crate) use peerbar_rig::gpu::{Command, channel_register};
pub(crate) use peerbar_rig::pattern;

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

/// A vector for faults, and one for each channel.
const VECTORS: u32 = 17;
/// Every command has a fence in guest RAM and raises an interrupt.
const FLAGS: u8 = 0b011;

/// The contents of the oldest fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) code: u8,
    pub(crate) channel: u8,
    pub(crate) write: bool,
    pub(crate) address: u64,
}

pub(crate) struct Driver {
    gpu: LocalDevice<Gpu>,
    ram: GuestRam,
    /// Commands put on each channel since it was enabled.
    put: [u32; 16],
    /// Fences requested so far.
    fences: u64,
    /// Entries of each ring.
    entries: u32,
    rings_in_vram: bool,
}

impl Deref for Driver {
    type Target = LocalDevice<Gpu>;

    fn deref(&self) -> &Self::Target {
        &self.gpu
    }
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
        let driver = Self {
            gpu: LocalDevice::new(Gpu::start(config).unwrap(), VECTORS),
            ram: GuestRam::new(RAM, RAM_BYTES),
            put: [0; 16],
            fences: 0,
            entries: 64,
            rings_in_vram: false,
        };
        driver.gpu.lend(&driver.ram).unwrap();
        driver.set_up_function();
        driver
    }

    /// Puts the rings that are enabled from now on into VRAM.
    pub(crate) fn put_rings_into_vram(&mut self) {
        self.rings_in_vram = true;
    }

    /// Assigns BAR2 and turns memory space and bus mastering on.
    pub(crate) fn set_up_function(&self) {
        self.configure(0x18, &BAR2.to_le_bytes());
        self.set_command(0b110);
    }

    /// Maps a page of the aperture to a page of VRAM, or unmaps it.
    pub(crate) fn set_window(&self, index: u32, vram: Option<u64>) {
        self.set_register(0x40, index);
        self.set_wide_register(0x48, vram.map_or(0, |offset| offset | 1));
    }

    pub(crate) fn channel_status(&self, channel: u8) -> u32 {
        self.register(channel_register(channel, 0x14))
    }

    pub(crate) fn head(&self, channel: u8) -> u32 {
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

    pub(crate) fn disable(&self, channel: u8) {
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
        let bytes = command.encode(FLAGS, (fence, self.fences));
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
    pub(crate) fn ring_trapped(&self, channel: u8, value: u32) {
        self.set_register(doorbell(channel), value);
    }

    /// Waits for a command's fence. Returns the command's result.
    #[track_caller]
    pub(crate) fn wait(&self, (fence, value): (u64, u64)) -> u64 {
        wait_until("the fence", || {
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

    /// Returns the oldest fault, and acknowledges it.
    pub(crate) fn take_fault(&self) -> Option<Fault> {
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
    pub(crate) fn wait_for_status(&self, channel: u8, status: u32) {
        let found = poll_until(|| (self.channel_status(channel) == status).then_some(()));
        let now = self.channel_status(channel);
        assert!(found.is_some(), "status {now:#x}, not {status:#x}");
    }

    /// Waits until a channel has taken this number of entries.
    #[track_caller]
    pub(crate) fn wait_for_head(&self, channel: u8, head: u32) {
        wait_until("the entries are taken", || {
            (self.head(channel) == head).then_some(())
        });
    }

    /// Waits until the device is ready.
    #[track_caller]
    pub(crate) fn wait_until_ready(&self) {
        wait_until("ready", || (self.register(0x24) == 1).then_some(()));
    }

    pub(crate) fn write_ram(&self, address: u64, data: &[u8]) {
        self.ram.store(address, data);
    }

    pub(crate) fn read_ram(&self, address: u64, data: &mut [u8]) {
        data.copy_from_slice(&self.ram.load(address, data.len()));
    }

    pub(crate) fn region_size(&self, region: u32) -> u64 {
        self.endpoint().region(region).unwrap().size
    }

    pub(crate) fn is_mappable(&self, region: u32) -> bool {
        let endpoint = self.endpoint();
        let region = endpoint.region(region).unwrap();
        matches!(region.mapping, RegionMapping::Whole(_))
    }

    /// The areas of a region that may be mapped.
    pub(crate) fn areas(&self, region: u32) -> Vec<(u64, u64)> {
        let endpoint = self.endpoint();
        match endpoint.region(region).unwrap().mapping {
            RegionMapping::Areas(_, areas) => areas,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn read_bar2(&self, offset: u64, data: &mut [u8]) {
        self.gpu.read(MEMORY, offset, data);
    }

    pub(crate) fn write_bar2(&self, offset: u64, data: &[u8]) {
        self.gpu.write(MEMORY, offset, data);
    }

    /// Returns all of VRAM, the view of a test: the file behind the aperture of a static GPU.
    pub(crate) fn vram(&self) -> File {
        self.gpu.memory(MEMORY)
    }

    /// Returns the current DMA log.
    pub(crate) fn dma_log(&self) -> Vec<peerbar_dma_log::Entry> {
        self.set_register(0x50, 1);
        let mut page = vec![0; 0x2000];
        self.gpu.read(REGISTERS, 0xc000, &mut page);
        peerbar_dma_log::parse(&page).unwrap()
    }
}
