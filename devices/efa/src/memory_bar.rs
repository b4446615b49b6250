//! BAR2: a page of doorbells for each UAR, and the memory of the send queues, which user space
//! writes (low-latency queues).
//!
//! A process maps only the page of its own UAR. A doorbell therefore counts only if it lies in the
//! page of the UAR that its queue belongs to.

use std::ops::Range;

/// Number of the BAR.
pub const BAR: u8 = 2;
/// Length of the BAR.
pub const BAR_BYTES: u64 = 64 << 20;
/// Page size of the guest: the smallest unit that a process maps.
pub const PAGE: u64 = 4096;
/// Number of UARs. Each belongs to a process that has opened the adapter.
pub const UARS: u16 = 256;
/// Number of queue pairs.
pub const QUEUE_PAIRS: u16 = 256;
/// Number of completion queues.
pub const COMPLETION_QUEUES: u16 = 512;
/// Size of the memory of one send queue.
pub const SEND_QUEUE_BYTES: u64 = 128 << 10;
/// Range of the doorbells.
pub const DOORBELLS: Range<u64> = 0..UARS as u64 * PAGE;
/// Range of the doorbells of completion queues that are only polled: memory in which user space
/// stores its consumer index, with a page for each UAR, too.
pub const POLLED_DOORBELLS: Range<u64> = 16 << 20..(16 << 20) + UARS as u64 * PAGE;
/// Range of the send queues.
pub const SEND_QUEUES: Range<u64> = 32 << 20..BAR_BYTES;

/// Distance between the doorbells of two queue pairs.
const PAIR_STRIDE: u64 = 8;
const WORD: u64 = 4;
/// Offset in a page of the completion queues' doorbells.
const COMPLETION_DOORBELLS: u64 = QUEUE_PAIRS as u64 * PAIR_STRIDE;

const _: () = assert!(COMPLETION_DOORBELLS + COMPLETION_QUEUES as u64 * WORD <= PAGE);
const _: () = assert!(DOORBELLS.end <= POLLED_DOORBELLS.start);
const _: () = assert!(POLLED_DOORBELLS.end <= SEND_QUEUES.start);
const _: () = assert!(
    QUEUE_PAIRS as u64 * SEND_QUEUE_BYTES <= SEND_QUEUES.end - SEND_QUEUES.start
        && SEND_QUEUE_BYTES % PAGE == 0
);

/// A queue that has a doorbell. A queue pair's is identified by the pair's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbell {
    /// Send queue of a queue pair.
    Send(u16),
    /// Receive queue of a queue pair.
    Receive(u16),
    /// Completion queue.
    Completion(u16),
}

impl Doorbell {
    /// Returns its offset in the BAR, for a queue of this UAR.
    pub fn offset(self, uar: u16) -> u64 {
        let in_page = match self {
            Self::Send(pair) => u64::from(pair) * PAIR_STRIDE,
            Self::Receive(pair) => u64::from(pair) * PAIR_STRIDE + WORD,
            Self::Completion(queue) => COMPLETION_DOORBELLS + u64::from(queue) * WORD,
        };
        u64::from(uar) * PAGE + in_page
    }

    /// Returns the UAR and the doorbell at this offset of the BAR, or `None` if there is no
    /// doorbell.
    pub fn at(offset: u64) -> Option<(u16, Self)> {
        if !DOORBELLS.contains(&offset) || offset % WORD != 0 {
            return None;
        }
        let uar = u16::try_from(offset / PAGE).ok()?;
        let in_page = offset % PAGE;
        let number = |index| u16::try_from(index).ok();
        let doorbell = match in_page.checked_sub(COMPLETION_DOORBELLS) {
            Some(offset) => Self::Completion(number(offset / WORD)?),
            None if in_page % PAIR_STRIDE == 0 => Self::Send(number(in_page / PAIR_STRIDE)?),
            None => Self::Receive(number(in_page / PAIR_STRIDE)?),
        };
        Some((uar, doorbell))
    }
}

/// Returns the offset in the BAR of the doorbell of a completion queue of this UAR that is only
/// polled.
pub fn polled_doorbell(uar: u16, queue: u16) -> u64 {
    POLLED_DOORBELLS.start + u64::from(uar) * PAGE + u64::from(queue) * WORD
}

/// Returns `true` if this offset of the BAR is memory, which the guest may map.
pub fn is_memory(offset: u64) -> bool {
    POLLED_DOORBELLS.contains(&offset) || SEND_QUEUES.contains(&offset)
}

/// Returns the offset in the BAR of the send queue of this queue pair.
pub fn send_queue(pair: u16) -> u64 {
    SEND_QUEUES.start + u64::from(pair) * SEND_QUEUE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doorbell_is_found_at_its_offset_and_nowhere_else() {
        let mut found = 0;
        for offset in (0..2 * PAGE).chain(DOORBELLS.end - PAGE..DOORBELLS.end + 64) {
            if let Some((uar, doorbell)) = Doorbell::at(offset) {
                assert_eq!(doorbell.offset(uar), offset);
                found += 1;
            }
        }
        assert_eq!(found, 3 * PAGE / WORD, "every aligned word of the pages");
        assert_eq!(Doorbell::at(u64::MAX), None);
    }

    #[test]
    fn queues_of_other_uars_have_other_pages() {
        let last = Doorbell::Completion(COMPLETION_QUEUES - 1);
        assert_eq!(last.offset(7) / PAGE, 7);
        assert_eq!(Doorbell::Send(0).offset(8) / PAGE, 8);
        let last = polled_doorbell(UARS - 1, COMPLETION_QUEUES - 1);
        assert!(is_memory(last) && !is_memory(POLLED_DOORBELLS.end));
        assert_eq!(polled_doorbell(7, COMPLETION_QUEUES - 1) / PAGE, 4096 + 7);
        assert_eq!(send_queue(QUEUE_PAIRS - 1) + SEND_QUEUE_BYTES, BAR_BYTES);
    }
}
