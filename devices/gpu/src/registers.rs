//! The registers: their values, the immediate effects of a write, and its requests to the engine.
//! No DMA.

mod channel;
mod halves;
mod request;

use std::sync::Arc;

use peerbar_dma::PageTable;
use peerbar_endpoint::EngineRequests;

use crate::aperture;
use crate::doorbells::{CHANNELS, Doorbells};
use crate::faults::{Fault, FaultCode, FaultLog};
use channel::{ChannelRegisters, ChannelRequest};
use halves::halves;
pub(crate) use request::{EngineRequest, Setup};

const ID: u32 = u32::from_le_bytes(*b"PGBP");
const VERSION: u32 = 1;
const FEATURE_WINDOW: u32 = 1 << 0;
const PRESENT: u64 = 1 << 0;

/// Offsets of the device's registers. A read-only register of 4 bytes that follows another one is
/// at that one's offset plus 4.
mod offset {
    pub(super) const ID: u64 = 0x00;
    pub(super) const CHANNELS: u64 = 0x08;
    pub(super) const VRAM_SIZE: u64 = 0x10;
    pub(super) const APERTURE_SIZE: u64 = 0x18;
    pub(super) const CONTROL: u64 = 0x20;
    pub(super) const FAULTS: u64 = 0x28;
    pub(super) const KICK: u64 = 0x2c;
    pub(super) const FAULT_INFO: u64 = 0x30;
    pub(super) const FAULT_ACK: u64 = 0x34;
    pub(super) const FAULT_ADDRESS: u64 = 0x38;
    pub(super) const WINDOW_INDEX: u64 = 0x40;
    pub(super) const WINDOW_ENTRY: u64 = 0x48;
    pub(super) const DMA_LOG: u64 = 0x50;
    /// The registers of channel 0, and the distance from one channel's to the next.
    pub(super) const CHANNEL: u64 = 0x1000;
    pub(super) const CHANNEL_STRIDE: u64 = 0x100;
    /// End of the registers.
    pub(super) const END: u64 = CHANNEL + CHANNEL_STRIDE * super::CHANNELS as u64;
}

/// The effect of a write beyond the registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Reset the device.
    Reset,
    /// Make the engine read the doorbells.
    Kick,
    /// The engine has a request.
    Engine,
    /// A fault has been recorded.
    Fault,
    /// Update the visible DMA counters.
    DmaLog,
}

/// The register file.
pub(crate) struct Registers {
    vram_bytes: u64,
    aperture_bytes: u64,
    /// The page table of the aperture, if it is a window.
    window: Option<Arc<PageTable>>,
    window_index: u32,
    doorbells: Arc<Doorbells>,
    faults: FaultLog,
    channels: [ChannelRegisters; CHANNELS as usize],
    /// The engine still has channels from before the last reset.
    resetting: bool,
}

impl Registers {
    pub(crate) fn new(
        (vram_bytes, aperture_bytes): (u64, u64),
        window: Option<Arc<PageTable>>,
        doorbells: Arc<Doorbells>,
    ) -> Self {
        Self {
            vram_bytes,
            aperture_bytes,
            window,
            window_index: 0,
            doorbells,
            faults: FaultLog::default(),
            channels: Default::default(),
            resetting: false,
        }
    }

    /// Reads bytes at `offset`. A narrower read returns its part of the register.
    pub(crate) fn read(&self, offset: u64, data: &mut [u8]) {
        for (index, byte) in (0..).zip(data.iter_mut()) {
            let at = offset.wrapping_add(index);
            let byte_in_pair = usize::try_from(at & 7).unwrap_or(0);
            let bytes = self.pair(at & !7).to_le_bytes();
            *byte = bytes.get(byte_in_pair).copied().unwrap_or(0);
        }
    }

    /// Writes whole registers, 4 or 8 aligned bytes. Ignores other writes, and writes to read-only
    /// registers.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> Option<Effect> {
        let pair = <[u8; 8]>::try_from(data).ok().filter(|_| offset % 8 == 0);
        if let Some(value) = pair.map(u64::from_le_bytes) {
            let (low, high) = halves(value);
            return match offset {
                offset::WINDOW_ENTRY => self.write_window_entry(value),
                _ => self
                    .write_word(offset, low)
                    .or(self.write_word(offset | 4, high)),
            };
        }
        match <[u8; 4]>::try_from(data) {
            Ok(value) if offset % 4 == 0 => self.write_word(offset, u32::from_le_bytes(value)),
            _ => None,
        }
    }

    /// Returns the two registers of 4 bytes, or the one of 8, at `offset`, a multiple of 8.
    fn pair(&self, offset: u64) -> u64 {
        let two = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        if let Some((number, offset)) = channel_at(offset) {
            let channel = self.channels.get(usize::from(number));
            return channel.map_or(0, |channel| channel.pair(offset));
        }
        match offset {
            offset::ID => two(ID, VERSION),
            offset::CHANNELS => two(CHANNELS.into(), self.features()),
            offset::VRAM_SIZE => self.vram_bytes,
            offset::APERTURE_SIZE => self.aperture_bytes,
            offset::CONTROL => two(0, u32::from(!self.resetting)),
            offset::FAULTS => two(self.faults.total(), 0),
            offset::FAULT_INFO => two(self.faults.info(), 0),
            offset::FAULT_ADDRESS => self.faults.address(),
            offset::WINDOW_INDEX => two(self.window_index, 0),
            offset::WINDOW_ENTRY => self.window_entry(),
            _ => 0,
        }
    }

    fn write_word(&mut self, offset: u64, value: u32) -> Option<Effect> {
        if let Some((number, offset)) = channel_at(offset) {
            let channel = self.channels.get_mut(usize::from(number))?;
            let request = channel.write(offset, value)?;
            if request == ChannelRequest::Start {
                self.doorbells.clear(number);
            }
            return Some(Effect::Engine);
        }
        match offset {
            offset::CONTROL if value & 1 != 0 => return Some(Effect::Reset),
            offset::KICK => return Some(Effect::Kick),
            offset::DMA_LOG if value & 1 != 0 => return Some(Effect::DmaLog),
            offset::FAULT_ACK if value & 1 != 0 => self.faults.acknowledge(),
            offset::WINDOW_INDEX if self.window.is_some() => self.window_index = value,
            _ => {}
        }
        None
    }

    fn features(&self) -> u32 {
        if self.window.is_some() {
            FEATURE_WINDOW
        } else {
            0
        }
    }

    fn window_entry(&self) -> u64 {
        let table = self.window.as_ref();
        table
            .and_then(|table| table.get(self.window_index.into()))
            .map_or(0, |vram_offset| vram_offset | PRESENT)
    }

    /// Maps a page of the window to VRAM, or unmaps it. Once this returns, no access uses the
    /// previous entry.
    fn write_window_entry(&mut self, value: u64) -> Option<Effect> {
        let table = self.window.as_ref()?;
        let index = u64::from(self.window_index);
        let vram_offset = value & !(aperture::PAGE - 1);
        let entry = (value & PRESENT != 0).then_some(vram_offset);
        if table.set(index, entry).is_ok() {
            return None;
        }
        let in_window = index < self.aperture_bytes / aperture::PAGE;
        let (code, address) = if in_window {
            (FaultCode::VramRange, vram_offset)
        } else {
            (FaultCode::NoPage, index * aperture::PAGE)
        };
        self.fault(Fault {
            code,
            write: true,
            address,
        });
        Some(Effect::Fault)
    }

    /// Resets the device: the registers have their values after power-on at once, but the engine
    /// has to forget its channels before the device is ready.
    pub(crate) fn reset(&mut self) {
        for channel in &mut self.channels {
            channel.reset();
        }
        if let Some(table) = &self.window {
            table.clear();
        }
        self.window_index = 0;
        self.faults = FaultLog::default();
        self.doorbells.reset();
        self.resetting = true;
    }

    /// Completes a reset: the engine has forgotten every channel.
    pub(crate) fn was_reset(&mut self) {
        self.channels
            .iter_mut()
            .for_each(ChannelRegisters::released);
        self.resetting = false;
    }

    /// Returns `true` if the engine has no channel from before a reset.
    pub(crate) fn is_reset(&self) -> bool {
        !self.resetting
    }

    /// Records that the engine has forgotten a channel.
    pub(crate) fn released(&mut self, channel: u8) {
        if let Some(channel) = self.channel(channel) {
            channel.released();
        }
    }

    /// Records that a command of the channel is complete. Returns `false` if the channel has been
    /// disabled since.
    pub(crate) fn advance(&mut self, channel: u8, generation: u64, head: u32) -> bool {
        self.channel(channel)
            .is_some_and(|channel| channel.advance(generation, head))
    }

    /// Records that a channel has failed. Returns `false` if the channel has been disabled since.
    pub(crate) fn fail(&mut self, number: u8, generation: u64, fault: Fault) -> bool {
        let is_current = self
            .channel(number)
            .is_some_and(|channel| channel.fail(generation, fault.code));
        if is_current {
            self.faults.record(fault, Some(number));
        }
        is_current
    }

    /// Records a fault that belongs to no channel.
    pub(crate) fn fault(&mut self, fault: Fault) {
        self.faults.record(fault, None);
    }

    fn channel(&mut self, number: u8) -> Option<&mut ChannelRegisters> {
        self.channels.get_mut(usize::from(number))
    }
}

/// Returns the channel at an offset, and the register in it.
fn channel_at(offset: u64) -> Option<(u8, u64)> {
    if !(offset::CHANNEL..offset::END).contains(&offset) {
        return None;
    }
    let number = u8::try_from((offset - offset::CHANNEL) / offset::CHANNEL_STRIDE).ok()?;
    Some((number, offset % offset::CHANNEL_STRIDE))
}

impl EngineRequests for Registers {
    type Request = EngineRequest;

    fn take_request(&mut self) -> Option<EngineRequest> {
        if self.resetting {
            return Some(EngineRequest::Reset);
        }
        (0..)
            .zip(&mut self.channels)
            .find_map(|(number, channel)| channel.take_request(number))
    }
}

#[cfg(test)]
mod tests {
    use peerbar_dma::MemoryFile;
    use proptest::prelude::*;

    use peerbar_endpoint::{SharedRegisters, Task};

    use super::*;

    const VRAM: u64 = 4 << 20;
    const APERTURE: u64 = 2 << 20;

    fn registers(window: bool) -> Registers {
        let vram = Arc::new(MemoryFile::create("test", VRAM).unwrap());
        let table = window.then(|| Arc::new(PageTable::new(vram, 32, aperture::PAGE)));
        let doorbells = Arc::new(Doorbells::new(0x1_0000).unwrap());
        Registers::new((VRAM, APERTURE), table, doorbells)
    }

    fn read(registers: &Registers, offset: u64) -> u32 {
        let mut data = [0; 4];
        registers.read(offset, &mut data);
        u32::from_le_bytes(data)
    }

    fn wide(registers: &Registers, offset: u64) -> u64 {
        let mut data = [0; 8];
        registers.read(offset, &mut data);
        u64::from_le_bytes(data)
    }

    fn put(registers: &mut Registers, offset: u64, value: u32) -> Option<Effect> {
        registers.write(offset, &value.to_le_bytes())
    }

    fn put_wide(registers: &mut Registers, offset: u64, value: u64) -> Option<Effect> {
        registers.write(offset, &value.to_le_bytes())
    }

    /// Sets channel 2 up and enables it.
    fn enable(registers: &mut Registers) {
        put_wide(registers, 0x1200, 0x1_2345_6780);
        put(registers, 0x1208, 1);
        put(registers, 0x120c, 64);
        assert_eq!(put(registers, 0x1210, 1), Some(Effect::Engine));
    }

    /// Takes the requested start of channel 2.
    fn start(registers: &mut Registers) -> Setup {
        match registers.take_request() {
            Some(EngineRequest::Start(2, setup)) => setup,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_device_says_what_it_is() {
        let registers = registers(false);
        assert_eq!(read(&registers, 0x00), 0x5042_4750);
        assert_eq!(read(&registers, 0x04), 1);
        assert_eq!(read(&registers, 0x08), 16);
        assert_eq!(read(&registers, 0x0c), 0);
        assert_eq!(wide(&registers, 0x10), VRAM);
        assert_eq!(wide(&registers, 0x18), APERTURE);
        assert_eq!(read(&registers, 0x24), 1, "ready");
        assert_eq!(read(&self::registers(true), 0x0c), 1);
    }

    #[test]
    fn a_part_of_a_register_is_taken_out_of_the_whole() {
        let registers = registers(false);
        let mut byte = [0];
        registers.read(0x03, &mut byte);
        assert_eq!(byte, [0x50]);
        let mut across = [0; 4];
        registers.read(0x06, &mut across);
        assert_eq!(across, [0, 0, 16, 0]);
    }

    #[test]
    fn channel_starts_with_its_registers_at_the_enable() {
        let mut registers = registers(false);
        registers.doorbells.write(0x8080, &9u32.to_le_bytes());
        enable(&mut registers);
        assert_eq!(registers.doorbells.value(2), 0);
        put(&mut registers, 0x120c, 128);
        let setup = start(&mut registers);
        assert_eq!(
            (setup.address, setup.space, setup.entries),
            (0x1_2345_6780, 1, 64)
        );
        assert_eq!(registers.take_request(), None);
        assert_eq!(read(&registers, 0x1214), 1, "on");
        assert!(registers.advance(2, setup.generation, 5));
        assert_eq!(read(&registers, 0x1218), 5);
    }

    #[test]
    fn report_on_a_stopped_channel_is_ignored() {
        let mut registers = registers(false);
        enable(&mut registers);
        let old = start(&mut registers);
        put(&mut registers, 0x1210, 0);
        assert_eq!(read(&registers, 0x1214), 1 << 16, "off, stopping");
        put(&mut registers, 0x1210, 1);
        assert_eq!(read(&registers, 0x1214), 1 | 1 << 16, "on, stopping");
        let fault = Fault {
            code: FaultCode::Dma,
            write: false,
            address: 0,
        };
        assert!(!registers.advance(2, old.generation, 7));
        assert!(!registers.fail(2, old.generation, fault));
        assert_eq!((read(&registers, 0x1218), read(&registers, 0x28)), (0, 0));
        assert_eq!(registers.take_request(), Some(EngineRequest::Release(2)));
        registers.released(2);
        let new = start(&mut registers);
        assert!(registers.fail(2, new.generation, fault));
        assert_eq!(read(&registers, 0x1214), 2 | 2 << 8, "error: DMA failed");
        assert_eq!(read(&registers, 0x30), 0x8000_0202);
        put(&mut registers, 0x1210, 0);
        registers.released(2);
        assert_eq!(read(&registers, 0x1214), 0);
    }

    #[test]
    fn reset_is_ready_once_the_engine_has_no_channels() {
        let mut registers = registers(true);
        enable(&mut registers);
        let old = start(&mut registers);
        put_wide(&mut registers, 0x48, 0x10_0001);
        put_wide(&mut registers, 0x48, VRAM | 1);
        put(&mut registers, 0x40, 3);
        assert_eq!(put(&mut registers, 0x20, 1), Some(Effect::Reset));
        registers.reset();
        assert_eq!(read(&registers, 0x24), 0);
        for offset in [0x28, 0x30, 0x40, 0x48, 0x1208, 0x120c, 0x1210] {
            assert_eq!(read(&registers, offset), 0, "{offset:#x}");
        }
        assert!(!registers.advance(2, old.generation, 1));
        assert_eq!(registers.take_request(), Some(EngineRequest::Reset));
        registers.was_reset();
        assert_eq!((read(&registers, 0x24), read(&registers, 0x1214)), (1, 0));
        assert_eq!(registers.take_request(), None);
    }

    #[test]
    fn an_enable_during_a_reset_waits_for_its_end() {
        let mut registers = registers(false);
        registers.reset();
        enable(&mut registers);
        assert_eq!(registers.take_request(), Some(EngineRequest::Reset));
        registers.was_reset();
        start(&mut registers);
    }

    #[test]
    fn impossible_window_entries_are_faults() {
        let mut registers = registers(true);
        put(&mut registers, 0x40, 31);
        assert_eq!(put_wide(&mut registers, 0x48, 0x2_0001), None);
        assert_eq!(wide(&registers, 0x48), 0x2_0001);
        put(&mut registers, 0x48, 0);
        assert_eq!(wide(&registers, 0x48), 0x2_0001, "halves are ignored");
        assert_eq!(put_wide(&mut registers, 0x48, 0), None);
        assert_eq!(wide(&registers, 0x48), 0);
        let bad = put_wide(&mut registers, 0x48, VRAM | 1);
        assert_eq!(bad, Some(Effect::Fault));
        assert_eq!(read(&registers, 0x30), 0x8001_ff03);
        assert_eq!(wide(&registers, 0x38), VRAM);
        put(&mut registers, 0x34, 1);
        put(&mut registers, 0x40, 32);
        let bad = put_wide(&mut registers, 0x48, 1);
        assert_eq!(bad, Some(Effect::Fault));
        assert_eq!(read(&registers, 0x30), 0x8001_ff01);
        assert_eq!(wide(&registers, 0x38), APERTURE);
    }

    #[test]
    fn a_static_aperture_has_no_window_registers() {
        let mut registers = registers(false);
        put(&mut registers, 0x40, 3);
        assert_eq!(put_wide(&mut registers, 0x48, 1), None);
        assert_eq!((wide(&registers, 0x40), wide(&registers, 0x48)), (0, 0));
        assert_eq!(read(&registers, 0x28), 0);
    }

    proptest! {
        #[test]
        fn no_access_panics_or_makes_a_register_unknown(
            writes in prop::collection::vec((any::<bool>(), 0u64..0x2400, any::<u64>()), 0..40),
        ) {
            let mut registers = registers(true);
            for (wide, offset, value) in writes {
                let bytes = value.to_le_bytes();
                registers.write(offset, if wide { &bytes } else { &bytes[..4] });
                registers.take_request();
            }
            registers.write(u64::MAX, &[0; 4]);
            registers.read(u64::MAX - 2, &mut [0; 2]);
            prop_assert_eq!(read(&registers, 0), 0x5042_4750);
            prop_assert!(read(&registers, 0x1014) & !0x1_0001 == 0);
        }
    }

    #[test]
    fn engine_does_no_step_before_its_last_request() {
        let doorbells = Arc::new(Doorbells::new(0x1_0000).unwrap());
        let shared = SharedRegisters::new(Registers::new((0, 0), None, doorbells));
        let enable = |channel: u64, on: u8| {
            let control = 0x1010 + 0x100 * channel;
            shared.with(|registers| registers.write(control, &[on, 0, 0, 0]));
            shared.interrupt();
        };
        enable(0, 1);
        enable(1, 1);
        for channel in [0, 1] {
            let task = shared.next(false, None);
            assert!(
                matches!(task, Task::Registers(EngineRequest::Start(number, _)) if number == channel)
            );
        }
        assert_eq!(shared.next(true, None), Task::Doorbells);
        assert!(!shared.urgent());
        enable(0, 0);
        enable(1, 0);
        for channel in [0, 1] {
            let release = Task::Registers(EngineRequest::Release(channel));
            assert_eq!(shared.next(true, None), release);
            assert!(shared.urgent(), "the engine may still hold a ring");
            shared.with(|registers| registers.released(channel));
        }
        assert_eq!(shared.next(true, None), Task::Doorbells);
        assert!(!shared.urgent());
    }
}
