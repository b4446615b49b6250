//! The doorbell page, and the protocol that lets the device sleep without missing a doorbell.
//!
//! The driver writes its doorbell and then reads the device's word; the device writes its word and
//! then reads the doorbells. Each has a full barrier between the two, so at least one of them sees
//! the other's write: either the device finds the doorbell before it sleeps, or the driver finds it
//! asleep and writes KICK.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use peerbar_dma::{MemoryError, MemoryFile};

/// Number of channels.
pub(crate) const CHANNELS: u8 = 16;

/// Offset of the page in BAR0.
pub(crate) const PAGE_OFFSET: u64 = 0x8000;
/// Its length.
pub(crate) const PAGE_BYTES: u64 = 0x1000;
/// Distance from one channel's doorbell to the next.
const STRIDE: u64 = 0x40;
/// Distance from a doorbell to the device's word that follows it.
const WORD: u64 = 4;

/// The doorbells of all channels. Each is followed by the device's word, which is 1 while the
/// device does not poll.
pub(crate) struct Doorbells {
    /// A file as long as BAR0; only the page is used.
    file: Arc<MemoryFile>,
}

impl Doorbells {
    /// Makes doorbells that are not polled yet, in a file as long as the BAR.
    pub(crate) fn new(bar_bytes: u64) -> Result<Self, MemoryError> {
        let file = Arc::new(MemoryFile::create("peerbar-gpu-doorbells", bar_bytes)?);
        let doorbells = Self { file };
        doorbells.reset();
        Ok(doorbells)
    }

    /// Returns the file, in which the page has the same offset as in the BAR.
    pub(crate) fn file(&self) -> Arc<MemoryFile> {
        self.file.clone()
    }

    /// Returns the doorbell of a channel.
    pub(crate) fn value(&self, channel: u8) -> u32 {
        self.file.load(doorbell_offset(channel)).unwrap_or(0)
    }

    /// Sets the doorbell of a channel that starts to 0.
    pub(crate) fn clear(&self, channel: u8) {
        self.store(doorbell_offset(channel), 0);
    }

    /// Restores the state after power-on. The device's words say that it does not poll, which costs
    /// at most a needless KICK.
    pub(crate) fn reset(&self) {
        for channel in 0..CHANNELS {
            self.clear(channel);
        }
        self.set_words(1);
    }

    /// Restores the state after power-on, in new memory ([`MemoryFile::renew`]).
    pub(crate) fn renew(&self) -> Result<(), MemoryError> {
        self.file.renew()?;
        self.reset();
        Ok(())
    }

    /// Announces that the device is about to sleep. Before it does, it must read every doorbell
    /// once more.
    pub(crate) fn announce_sleep(&self) {
        self.set_words(1);
        fence(Ordering::SeqCst);
    }

    /// Announces that the device is awake and polls.
    pub(crate) fn announce_poll(&self) {
        self.set_words(0);
    }

    /// Handles a trapped read of the page.
    pub(crate) fn read(&self, bar_offset: u64, data: &mut [u8]) {
        if let Err(error) = self.file.read(bar_offset, data) {
            log::debug!("doorbell page: {error}");
        }
    }

    /// Handles a trapped write to the page. A doorbell is written in one piece, as by a mapping.
    pub(crate) fn write(&self, bar_offset: u64, data: &[u8]) {
        let written = match <[u8; 4]>::try_from(data) {
            Ok(word) if bar_offset % 4 == 0 => {
                self.file.store(bar_offset, u32::from_le_bytes(word))
            }
            _ => self.file.write(bar_offset, data),
        };
        if let Err(error) = written {
            log::debug!("doorbell page: {error}");
        }
    }

    fn set_words(&self, value: u32) {
        for channel in 0..CHANNELS {
            self.store(doorbell_offset(channel) + WORD, value);
        }
    }

    fn store(&self, offset: u64, value: u32) {
        if let Err(error) = self.file.store(offset, value) {
            log::error!("doorbell page: {error}");
        }
    }
}

fn doorbell_offset(channel: u8) -> u64 {
    PAGE_OFFSET + STRIDE * u64::from(channel)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doorbells() -> Doorbells {
        Doorbells::new(0x1_0000).unwrap()
    }

    #[test]
    fn each_channel_has_a_doorbell_and_a_device_word() {
        let doorbells = doorbells();
        doorbells.write(0x8000 + 0x40 * 3, &7u32.to_le_bytes());
        doorbells.write(0x8000 + 0x40 * 15, &[1, 2, 3, 4]);
        assert_eq!(doorbells.value(3), 7);
        assert_eq!(doorbells.value(15), 0x0403_0201);
        let mut both = [0; 8];
        doorbells.read(0x80c0, &mut both);
        assert_eq!(both, [7, 0, 0, 0, 1, 0, 0, 0]);
        doorbells.announce_poll();
        doorbells.read(0x80c0, &mut both);
        assert_eq!(both, [7, 0, 0, 0, 0, 0, 0, 0]);
        doorbells.reset();
        doorbells.read(0x80c0, &mut both);
        assert_eq!(both, [0, 0, 0, 0, 1, 0, 0, 0]);
    }

    #[test]
    fn no_trapped_access_panics() {
        let doorbells = doorbells();
        for offset in [0x8001, 0x8fff, 0xffff, u64::MAX] {
            doorbells.write(offset, &[0xff; 4]);
            doorbells.read(offset, &mut [0; 64]);
        }
        assert_eq!(doorbells.value(0), 0xffff_ff00);
    }

    /// The driver's two steps of a ring, as in INTERFACE.md; the second returns `true` if the
    /// driver kicks.
    struct Driver<'a>(&'a Doorbells);

    impl Driver<'_> {
        fn put(&self) {
            self.0.write(PAGE_OFFSET, &1u32.to_le_bytes());
        }

        fn sees_sleep(&self) -> bool {
            let mut word = [0; 4];
            self.0.read(PAGE_OFFSET + WORD, &mut word);
            u32::from_le_bytes(word) != 0
        }
    }

    /// Every order of the driver's two steps and the device's two. With full barriers between the
    /// two steps of each side, no other outcome is possible than that of one of these orders.
    #[test]
    fn no_order_of_steps_loses_a_ring() {
        let mut lost_without_the_second_poll = 0;
        for first in 0..=2 {
            for second in first..=2 {
                let doorbells = doorbells();
                doorbells.announce_poll();
                let driver = Driver(&doorbells);
                let (mut kicked, mut found) = (false, false);
                for step in 0..=2 {
                    if step == first {
                        driver.put();
                    }
                    if step == second {
                        kicked = driver.sees_sleep();
                    }
                    match step {
                        0 => doorbells.announce_sleep(),
                        1 => found = doorbells.value(0) != 0,
                        _ => {}
                    }
                }
                assert!(kicked || found, "steps before {first} and {second}");
                lost_without_the_second_poll += u32::from(!kicked);
            }
        }
        assert_eq!(lost_without_the_second_poll, 1, "the poll is needed");
    }
}
