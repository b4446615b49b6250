//! A GPU whose engine works only when a target lets it, and its registers.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use peerbar_dma::MemoryFile;
use peerbar_endpoint::Size;
use peerbar_gpu::{Config, SteppedGpu};
use peerbar_vfio_user::{CONFIG_REGION, Device};

use super::guest_ram;

/// Bytes of its memory.
pub(crate) const VRAM: u64 = 2 << 20;

/// STATUS of an enabled channel.
pub(crate) const ON: u32 = 1;

const REGISTERS: u32 = 0;
const RESET: u64 = 0x20;
const READY: u64 = 0x24;

pub(crate) struct GpuBench(SteppedGpu);

impl GpuBench {
    /// Makes a GPU that may be a bus master. Its limit for commands is longer than any input takes.
    pub(crate) fn new() -> Self {
        let config = Config {
            vram: Size(VRAM),
            job_timeout: Duration::from_secs(3600),
            ..Config::default()
        };
        let mut bench = Self(SteppedGpu::start(&config).expect("a GPU"));
        bench.write_region(CONFIG_REGION, 4, &[6, 0]);
        bench
    }

    fn write_region(&mut self, region: u32, offset: u64, bytes: &[u8]) {
        let written = self.0.endpoint.region_write(region, offset, bytes);
        written.expect("a register");
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.write_region(REGISTERS, offset, bytes);
    }

    pub(crate) fn read(&mut self, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        let read = self.0.endpoint.region_read(REGISTERS, offset, &mut bytes);
        read.expect("a register");
        u32::from_le_bytes(bytes)
    }

    pub(crate) fn work(&mut self) {
        self.0.work();
    }

    pub(crate) fn vram(&self) -> &Arc<MemoryFile> {
        self.0.vram()
    }

    pub(crate) fn map(&mut self, iova: u64, size: u64, file: &File, offset: u64) {
        guest_ram::map(&mut self.0.endpoint, iova, size, file, offset);
    }

    pub(crate) fn unmap(&mut self, iova: u64, size: u64) {
        guest_ram::unmap(&mut self.0.endpoint, iova, size);
    }

    /// Resets the device.
    pub(crate) fn reset(&mut self) {
        self.write(RESET, &1_u32.to_le_bytes());
        self.work();
        assert_eq!(self.read(READY), 1, "it is ready after a reset");
    }

    /// Disables a channel, and enables it with an empty ring at a bus address.
    pub(crate) fn enable(&mut self, channel: u8, ring: u64, entries: u32) {
        let at = channel_registers(channel);
        self.write(at + 0x10, &0_u32.to_le_bytes());
        self.write(at, &ring.to_le_bytes());
        self.write(at + 8, &0_u32.to_le_bytes());
        self.write(at + 12, &entries.to_le_bytes());
        self.write(at + 0x10, &1_u32.to_le_bytes());
        self.work();
    }

    pub(crate) fn status(&mut self, channel: u8) -> u32 {
        self.read(channel_registers(channel) + 0x14)
    }

    pub(crate) fn head(&mut self, channel: u8) -> u32 {
        self.read(channel_registers(channel) + 0x18)
    }

    /// Writes a channel's doorbell.
    pub(crate) fn ring(&mut self, channel: u8, put: u32) {
        self.write(0x8000 + 0x40 * u64::from(channel), &put.to_le_bytes());
    }
}

/// Returns the STATUS of a channel whose command has failed.
pub(crate) fn failed(code: u32) -> u32 {
    2 | code << 8
}

fn channel_registers(channel: u8) -> u64 {
    0x1000 + 0x100 * u64::from(channel)
}
