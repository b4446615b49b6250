//! One channel's registers.

use super::halves::halves;
use super::request::{EngineRequest, Setup};
use crate::faults::FaultCode;

const RING_ADDRESS: u64 = 0x00;
const RING_SPACE: u64 = 0x08;
const RING_ENTRIES: u64 = 0x0c;
const CONTROL: u64 = 0x10;
const HEAD: u64 = 0x18;

const ENABLE: u32 = 1 << 0;
const STATE_ON: u32 = 1;
const STATE_ERROR: u32 = 2;
const STOPPING: u32 = 1 << 16;

/// A request of a write to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChannelRequest {
    Start,
    Stop,
}

/// A channel as the driver sees it.
#[derive(Debug, Default)]
pub(super) struct ChannelRegisters {
    address: u64,
    space: u32,
    entries: u32,
    enabled: bool,
    error: Option<FaultCode>,
    head: u32,
    /// Counts enables, disables and resets.
    generation: u64,
    /// A start that the engine has not taken yet.
    pending: Option<Setup>,
    /// The generation that the engine serves, if it has this channel.
    held: Option<u64>,
}

impl ChannelRegisters {
    /// Returns the two registers of 4 bytes, or the one of 8, at `offset`, a multiple of 8.
    pub(super) fn pair(&self, offset: u64) -> u64 {
        let two = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        match offset {
            RING_ADDRESS => self.address,
            RING_SPACE => two(self.space, self.entries),
            CONTROL => two(u32::from(self.enabled), self.status()),
            HEAD => two(self.head, 0),
            _ => 0,
        }
    }

    pub(super) fn write(&mut self, offset: u64, value: u32) -> Option<ChannelRequest> {
        let (low, high) = halves(self.address);
        let joined = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        match offset {
            RING_ADDRESS => self.address = joined(value, high),
            _ if offset == RING_ADDRESS + 4 => self.address = joined(low, value),
            RING_SPACE => self.space = value & 1,
            RING_ENTRIES => self.entries = value,
            CONTROL if value & ENABLE != 0 && !self.enabled => return Some(self.enable()),
            CONTROL if value & ENABLE == 0 && self.enabled => return Some(self.disable()),
            _ => {}
        }
        None
    }

    fn enable(&mut self) -> ChannelRequest {
        self.generation += 1;
        self.enabled = true;
        self.head = 0;
        self.pending = Some(Setup {
            address: self.address,
            space: self.space,
            entries: self.entries,
            generation: self.generation,
        });
        ChannelRequest::Start
    }

    fn disable(&mut self) -> ChannelRequest {
        self.generation += 1;
        self.enabled = false;
        self.error = None;
        self.pending = None;
        ChannelRequest::Stop
    }

    fn status(&self) -> u32 {
        let state = match self.error {
            Some(code) => STATE_ERROR | (code as u32) << 8,
            None if self.enabled => STATE_ON,
            None => 0,
        };
        let stopping = self.held.is_some_and(|held| held != self.generation);
        state | if stopping { STOPPING } else { 0 }
    }

    /// Restores the state after power-on, except that the engine may still have the channel.
    pub(super) fn reset(&mut self) {
        *self = Self {
            generation: self.generation + 1,
            held: self.held,
            ..Self::default()
        };
    }

    pub(super) fn take_request(&mut self, number: u8) -> Option<EngineRequest> {
        if self.held.is_some_and(|held| held != self.generation) {
            return Some(EngineRequest::Release(number));
        }
        let setup = self.pending.take()?;
        self.held = Some(setup.generation);
        Some(EngineRequest::Start(number, setup))
    }

    pub(super) fn released(&mut self) {
        self.held = None;
    }

    fn is_over(&self, generation: u64) -> bool {
        self.generation != generation
    }

    pub(super) fn advance(&mut self, generation: u64, head: u32) -> bool {
        if self.is_over(generation) {
            return false;
        }
        self.head = head;
        true
    }

    pub(super) fn fail(&mut self, generation: u64, code: FaultCode) -> bool {
        if self.is_over(generation) {
            return false;
        }
        self.error = Some(code);
        true
    }
}
