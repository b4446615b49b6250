//! Tests of `shadow.rs`, which the models (`tests/models`) include without them.

use std::sync::Arc;

use peerbar_dma::{MemoryFile, Requester, Session};
use peerbar_nvme_spec::completion::{CompletionEntry, Status};
use peerbar_nvme_spec::registers::Doorbell;
use zerocopy::FromZeros;

use crate::queues::{CompletionQueue, SubmissionQueue};
use crate::shadow::Shadow;

#[test]
fn each_doorbell_has_its_place_in_both_pages_while_they_are_mapped() {
    let requester = Arc::new(Requester::new());
    requester.set_bus_master(true);
    let ram = MemoryFile::create("ram", 0x2000).unwrap();
    let fd = ram.file().try_clone().unwrap().into();
    requester
        .map(0x1_0000, 0x2000, (true, true), Some((fd, 0)))
        .unwrap();
    let mut session = Session::new(requester.clone());
    let shadow = Shadow {
        values: 0x1_0000,
        events: 0x1_1000,
    };
    let (tail, head) = (Doorbell::SubmissionTail(3), Doorbell::CompletionHead(3));
    assert!(shadow.start(&mut session, tail, 5));
    assert_eq!((ram.load(24).unwrap(), ram.load(0x1018).unwrap()), (5, 5));
    ram.store(28, 0xabcd_0009).unwrap();
    assert_eq!(shadow.value(&mut session, head), Some(9));
    assert!(shadow.call_at(&mut session, head, 9));
    assert_eq!(ram.load(0x101c).unwrap(), 9);
    session.release();
    requester.unmap(0x1_1000, 0x1_1fff);
    assert!(!shadow.start(&mut session, tail, 0));
    assert!(!shadow.call_at(&mut session, tail, 0));
    assert_eq!(shadow.value(&mut session, head), Some(9));
    session.release();
    requester.unmap_all();
    assert_eq!(shadow.value(&mut session, head), None);
}

/// Linux nvme_dbbuf_need_event.
fn rings(event: u32, old: u32, new: u32) -> bool {
    let distance = |from: u32| new.wrapping_sub(from) & 0xffff;
    distance(event.wrapping_add(1)) < distance(old)
}

#[test]
fn a_guest_whose_doorbell_is_looked_at_rings_no_more() {
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
        let mut queue = SubmissionQueue::new(0, entries, 1);
        let mut event = 0;
        let mut rung = Vec::new();
        for look in 0..5 * entries / step {
            let seen = queue.seen();
            let tail = (seen + step) % entries;
            if rings(event, seen, tail) {
                rung.push(look);
            }
            queue.set_tail(tail).unwrap();
            event = queue.passed().unwrap_or(event);
        }
        assert_eq!(rung, [0], "{step} of {entries} at a time");
    }
}

#[test]
fn a_guest_whose_completions_are_looked_at_when_there_is_no_room_rings_no_more() {
    for (entries, step) in [(5, 2), (64, 8), (64, 32), (512, 256)] {
        let mut queue = CompletionQueue::new(0, entries, None);
        let (mut event, mut head) = (0, 0);
        let mut rung = Vec::new();
        for round in 0..8 * entries / step {
            if queue.room() < usize::try_from(step).unwrap() {
                queue.set_head(head).unwrap();
                event = queue.passed().unwrap_or(event);
            }
            for _ in 0..step {
                queue.stage(CompletionEntry::new_zeroed(), Status::SUCCESS);
                queue.posted();
            }
            let next = (head + step) % entries;
            if rings(event, head, next) {
                rung.push(round);
            }
            head = next;
        }
        assert_eq!(rung, [0], "{step} of {entries} at a time");
    }
}
