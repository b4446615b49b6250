//! Faults, and the log in which the driver finds them.

use std::collections::VecDeque;

/// Faults that are kept until the driver acknowledges them.
const KEPT: usize = 64;
/// FAULT_INFO, channel: the fault belongs to no channel.
const NO_CHANNEL: u32 = 0xff;

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum FaultCode {
    /// That part of the aperture has no page.
    NoPage = 1,
    /// A DMA failed.
    Dma = 2,
    /// An address is not in VRAM.
    VramRange = 3,
    /// A command that does not exist, or has invalid operands.
    BadCommand = 4,
    /// An invalid ring, or a doorbell beyond it.
    BadRing = 5,
    /// A command that is too long.
    TooLong = 6,
    /// A command on which the engine has worked for longer than the limit.
    TimeOut = 7,
    /// An NVMe completion of a command that is not in progress.
    BadCompletion = 8,
    /// A command that failed because of a fault rule.
    Injected = 9,
}

/// A fault, and its location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) code: FaultCode,
    /// The device, or the guest, tried to write.
    pub(crate) write: bool,
    /// In an address space that depends on the code.
    pub(crate) address: u64,
}

/// Faults that the driver has not acknowledged yet, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct FaultLog {
    total: u32,
    kept: VecDeque<(Fault, Option<u8>)>,
}

impl FaultLog {
    /// Records a fault of a channel, or of the device. Without a free entry the fault is only
    /// counted.
    pub(crate) fn record(&mut self, fault: Fault, channel: Option<u8>) {
        log::debug!("fault {fault:x?}, channel {channel:?}");
        self.total = self.total.saturating_add(1);
        if self.kept.len() < KEPT {
            self.kept.push_back((fault, channel));
        }
    }

    /// FAULTS: returns the number of faults.
    pub(crate) fn total(&self) -> u32 {
        self.total
    }

    /// Returns FAULT_INFO of the oldest.
    pub(crate) fn info(&self) -> u32 {
        self.kept.front().map_or(0, |(fault, channel)| {
            let channel = channel.map_or(NO_CHANNEL, u32::from);
            fault.code as u32 | channel << 8 | u32::from(fault.write) << 16 | 1 << 31
        })
    }

    /// Returns FAULT_ADDRESS of the oldest.
    pub(crate) fn address(&self) -> u64 {
        self.kept.front().map_or(0, |(fault, _)| fault.address)
    }

    /// FAULT_ACK: forgets the oldest.
    pub(crate) fn acknowledge(&mut self) {
        self.kept.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(address: u64) -> Fault {
        Fault {
            code: FaultCode::Dma,
            write: true,
            address,
        }
    }

    #[test]
    fn the_oldest_fault_is_shown_until_acknowledged() {
        let mut log = FaultLog::default();
        assert_eq!((log.info(), log.address(), log.total()), (0, 0, 0));
        log.record(fault(0x1000), Some(3));
        let page = Fault {
            code: FaultCode::NoPage,
            write: false,
            address: 0x2000,
        };
        log.record(page, None);
        assert_eq!((log.info(), log.address()), (0x8001_0302, 0x1000));
        log.acknowledge();
        assert_eq!((log.info(), log.address()), (0x8000_ff01, 0x2000));
        log.acknowledge();
        log.acknowledge();
        assert_eq!((log.info(), log.address(), log.total()), (0, 0, 2));
    }

    #[test]
    fn fault_without_free_entry_is_counted() {
        let mut log = FaultLog::default();
        for address in 0..100 {
            log.record(fault(address), None);
        }
        assert_eq!(log.total(), 100);
        let mut kept = 0;
        while log.info() != 0 {
            assert_eq!(log.address(), kept);
            kept += 1;
            log.acknowledge();
        }
        assert_eq!(kept, 64);
    }
}
