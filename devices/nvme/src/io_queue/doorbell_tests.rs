//! Tests of `doorbell.rs`.

use std::sync::Arc;

use peerbar_dma::{MapAccess, MemoryFile, Requester, Session};
use peerbar_nvme_spec::feature::InterruptCoalescing;
use peerbar_nvme_spec::registers::Doorbell;
use peerbar_pci::{Iova, Range};

use super::doorbell::{GuestWords, QueueDoorbell, ShadowBuffer, Unreachable};
use super::fixture::{self, TwoWords, completion_queue, flush, stage, submission_queue};
use crate::doorbell_page::DoorbellPage;

const TAIL: Doorbell = Doorbell::SubmissionTail(3);
const HEAD: Doorbell = Doorbell::CompletionHead(3);

/// A function that reaches `bytes` bytes of RAM at 1_0000h, and that RAM.
fn guest(bytes: u64) -> (Arc<Requester>, MemoryFile) {
    let requester = Arc::new(Requester::new());
    requester.set_bus_master(true);
    let ram = MemoryFile::create("ram", bytes).unwrap();
    let fd = ram.file().try_clone().unwrap().into();
    requester
        .map(
            Range::new(Iova(0x1_0000), bytes).unwrap(),
            MapAccess::READ_WRITE,
            Some((fd, 0)),
        )
        .unwrap();
    (requester, ram)
}

#[test]
fn each_doorbell_has_a_word_in_both_pages_while_mapped() {
    let (requester, ram) = guest(0x2000);
    let mut session = Session::new(requester.clone());
    let buffer = ShadowBuffer {
        values: Iova(0x1_0000),
        events: Iova(0x1_1000),
    };
    let page = Arc::new(DoorbellPage::new(4, 0x4000).unwrap());
    page.set_owner(TAIL, Some(crate::doorbell_page::Owner(1)));
    page.ring(TAIL, 5);
    let mut tail = QueueDoorbell::new(page.clone(), TAIL);
    let mut head = QueueDoorbell::new(page, HEAD);
    tail.move_to(buffer, &mut session);
    head.move_to(buffer, &mut session);
    assert_eq!((ram.load(24).unwrap(), ram.load(0x1018).unwrap()), (5, 5));
    ram.store(28, 0xabcd_0009).unwrap();
    assert_eq!(head.read(&mut session), Ok(9));
    assert!(head.is_new(9));
    assert_eq!(head.arm(&mut session), Ok(true));
    assert_eq!(ram.load(0x101c).unwrap(), 9);
    assert!(buffer.is_mapped(&mut session, [TAIL, HEAD]));
    session.release();
    requester.unmap(Range::from_bounds(Iova(0x1_1000), Iova(0x1_1fff)).unwrap());
    assert!(!buffer.is_mapped(&mut session, [TAIL, HEAD]));
    assert_eq!(tail.arm(&mut session), Err(Unreachable));
    assert_eq!(head.read(&mut session), Ok(9));
    session.release();
    requester.unmap_all();
    assert_eq!(head.read(&mut session), Err(Unreachable));
}

/// A doorbell in the shadow buffer, and its page of registers.
fn shadow_doorbell(memory: &mut TwoWords) -> (QueueDoorbell, Arc<DoorbellPage>) {
    let page = Arc::new(DoorbellPage::new(4, 0x4000).unwrap());
    page.set_owner(TAIL, Some(crate::doorbell_page::Owner(1)));
    let mut doorbell = QueueDoorbell::new(page.clone(), TAIL);
    doorbell.move_to(BUFFER, memory);
    (doorbell, page)
}

#[test]
fn doorbell_moves_to_a_second_buffer_with_its_latest_value() {
    let (requester, ram) = guest(0x4000);
    let mut session = Session::new(requester);
    let buffer = |values| ShadowBuffer {
        values: Iova(values),
        events: Iova(values + 0x1000),
    };
    let page = Arc::new(DoorbellPage::new(4, 0x4000).unwrap());
    let mut doorbell = QueueDoorbell::new(page, TAIL);
    doorbell.move_to(buffer(0x1_0000), &mut session);
    ram.store(24, 40).unwrap();
    assert_eq!(doorbell.read(&mut session), Ok(40));
    assert!(doorbell.is_new(40));
    // The guest has written once more, and itself puts the value into the new buffer.
    ram.store(24, 41).unwrap();
    ram.store(0x2018, 41).unwrap();
    doorbell.move_to(buffer(0x1_2000), &mut session);
    assert_eq!(
        (ram.load(0x2018).unwrap(), ram.load(0x3018).unwrap()),
        (41, 41)
    );
    assert_eq!(doorbell.read(&mut session), Ok(41));
}

#[test]
fn register_write_takes_effect_with_a_shadow_buffer() {
    let mut memory = TwoWords::default();
    let (mut doorbell, page) = shadow_doorbell(&mut memory);
    for value in [1, 7, 0, 3] {
        page.ring(TAIL, value);
        assert_eq!(doorbell.is_unchanged(&mut memory), Ok(false));
        assert_eq!(doorbell.read(&mut memory), Ok(value));
        assert!(doorbell.is_new(value));
        assert_eq!(doorbell.arm(&mut memory), Ok(true));
    }
    memory.value = 5;
    assert_eq!(doorbell.read(&mut memory), Ok(5));
    assert_eq!(doorbell.read(&mut memory), Ok(5));
}

#[test]
fn older_register_does_not_undo_the_shadow_buffer() {
    let mut memory = TwoWords::default();
    let (mut doorbell, page) = shadow_doorbell(&mut memory);
    // The guest rings for 4, and goes on in the buffer before the worker reads anything.
    memory.value = 4;
    page.ring(TAIL, 4);
    memory.value = 6;
    assert_eq!(doorbell.read(&mut memory), Ok(6));
    // The worker reads the buffer before the guest rings for the same value.
    memory.value = 8;
    assert_eq!(doorbell.read(&mut memory), Ok(8));
    page.ring(TAIL, 8);
    assert_eq!(doorbell.read(&mut memory), Ok(8));
    memory.value = 9;
    assert_eq!(doorbell.read(&mut memory), Ok(9));
}

/// The buffer of a guest that writes its next value, and the register, right after the first load.
struct RungDuringRead {
    words: TwoWords,
    next: Option<(u32, Arc<DoorbellPage>)>,
}

impl GuestWords for RungDuringRead {
    fn load(&mut self, address: Iova) -> Option<u32> {
        let loaded = self.words.load(address);
        if let Some((value, page)) = self.next.take() {
            self.words.value = value;
            page.ring(TAIL, value);
        }
        loaded
    }

    fn store(&mut self, address: Iova, value: u32) -> bool {
        self.words.store(address, value)
    }
}

#[test]
fn doorbell_rung_during_a_read_does_not_hide_the_next_value() {
    let mut words = TwoWords::default();
    let (mut doorbell, page) = shadow_doorbell(&mut words);
    let next = Some((1, page));
    let mut memory = RungDuringRead { words, next };
    assert_eq!(doorbell.read(&mut memory), Ok(1));
    // In a ring of two entries the next value is that of the first load.
    memory.words.value = 0;
    assert_eq!(doorbell.read(&mut memory), Ok(0));
}

const BUFFER: ShadowBuffer = ShadowBuffer {
    values: Iova(0),
    events: Iova(0x1000),
};

/// Linux nvme_dbbuf_need_event.
fn rings(event: u32, old: u32, new: u32) -> bool {
    let distance = |from: u32| new.wrapping_sub(from) & 0xffff;
    distance(event.wrapping_add(1)) < distance(old)
}

#[test]
fn polled_tail_doorbell_is_not_rung_again() {
    for (entries, step) in [
        (2, 1),
        (5, 1),
        (5, 2),
        (64, 1),
        (64, 7),
        (64, 32),
        (512, 200),
        (512, 256),
        (1024, 100),
    ] {
        let (interrupts, _) = fixture::interrupts(InterruptCoalescing::new());
        let mut queue = submission_queue(&interrupts, 1, (0, entries));
        let mut memory = TwoWords::default();
        queue.doorbell.move_to(BUFFER, &mut memory);
        let mut seen = 0;
        let mut rung = Vec::new();
        for poll in 0..5 * entries / step {
            let tail = (seen + step) % entries;
            if rings(memory.event, seen, tail) {
                rung.push(poll);
            }
            assert!(queue.set_tail(tail, &mut memory));
            seen = tail;
        }
        assert_eq!(rung, [0], "{step} of {entries} at a time");
    }
}

#[test]
fn polled_head_doorbell_is_not_rung_again() {
    for (entries, step) in [(5, 2), (64, 8), (64, 32), (512, 256)] {
        let (interrupts, _) = fixture::interrupts(InterruptCoalescing::new());
        let mut queue = completion_queue(&interrupts, 1, (0, entries));
        let mut memory = TwoWords::default();
        queue.doorbell.move_to(BUFFER, &mut memory);
        let mut head = 0;
        let mut rung = Vec::new();
        for round in 0..8 * entries / step {
            if queue.free_entries() < step {
                queue.take_head(&interrupts, &mut memory);
            }
            for _ in 0..step {
                stage(&mut queue);
                flush(&mut queue, &interrupts).unwrap();
            }
            let next = (head + step) % entries;
            if rings(memory.event, head, next) {
                rung.push(round);
            }
            (head, memory.value) = (next, next);
        }
        assert_eq!(rung, [0], "{step} of {entries} at a time");
    }
}
