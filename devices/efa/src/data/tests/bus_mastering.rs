//! Bus mastering that the guest turns off and on while work requests are posted and in progress.

use std::sync::Arc;

use peerbar_dma::{Buffer, MapAccess, Requester, Upstream, UpstreamRequest};
use peerbar_efa_spec::admin::event_counter::QpEvents;
use peerbar_efa_spec::completion::{CompletionDoorbell, CompletionStatus as S};
use peerbar_efa_spec::work::Operation;
use peerbar_pci::{Iova, Range};

use super::connected::{Connected, TO};
use super::fixture::{Adapter, PAYLOAD, Post, RAM};
use crate::memory_bar::Doorbell;
use crate::objects::{CreateEventCounter, QueuePairKind, QueuePairState};

/// Address of memory that only the client can access.
const ASKED: u64 = 0x8000_0000;
/// The address of a counter's word.
const WORD: u64 = PAYLOAD + (3 << 20);

/// A guest that turns bus mastering off as soon as its memory is read.
struct TurnedOff(Arc<Requester>);

impl Upstream for TurnedOff {
    fn carry_out(&self, requests: &mut [UpstreamRequest<'_>], _: &dyn Fn() -> bool) {
        for ask in requests {
            if let Buffer::Read(data) = &mut ask.data {
                data.fill(7);
            }
            ask.outcome = Some(Ok(()));
        }
        self.0.set_bus_master(false);
    }
}

/// Returns the content of guest RAM.
fn image(adapter: &Adapter) -> Vec<u8> {
    adapter.bytes(0, usize::try_from(RAM).unwrap())
}

#[test]
fn work_requests_wait_while_it_is_off() {
    let mut it = Connected::new();
    it.adapter.receive(&mut it.b, 1, &[(it.keys.local, TO, 64)]);
    let sent = it.adapter.fill(PAYLOAD, 64, 9);
    it.adapter.requester.set_bus_master(false);
    it.post(&it.message(64));
    let before = image(&it.adapter);
    assert_eq!(it.adapter.work(), None);
    assert!(image(&it.adapter) == before, "no byte of RAM changes");
    it.adapter.requester.set_bus_master(true);
    it.adapter.work();
    assert_eq!(it.statuses(), [(0, S::Ok)]);
    assert_eq!(it.adapter.one(&mut it.b).id, 1);
    assert!(it.adapter.bytes(TO, 64) == sent);
}

#[test]
fn completion_counter_and_event_of_a_lost_transfer_are_written_once_it_is_on() {
    let mut adapter = Adapter::new();
    let (events, address) = adapter.event_queue(16);
    let queue = adapter.completion_queue(Some(events));
    let kind = QueuePairKind::ReliableDatagram;
    let a = adapter.pair_with(kind, queue, 64, false);
    let b = adapter.reliable();
    let (uar, number) = (adapter.uar, a.queue.number);
    adapter.set_state(a.number, QueuePairState::Reset);
    let counted = QpEvents::new().with_write_error(true);
    let mut objects = adapter.path.objects();
    let create = CreateEventCounter { uar, address: WORD };
    let counter = objects.create_event_counter(create, |_, _| true).unwrap();
    objects
        .attach_event_counter(counter, a.number, counted)
        .unwrap();
    drop(objects);
    adapter.make_ready(a.number);
    adapter
        .requester
        .map(
            Range::new(Iova(ASKED), 1 << 20).unwrap(),
            MapAccess::READ_WRITE,
            None,
        )
        .unwrap();
    let guest = TurnedOff(adapter.requester.clone());
    adapter.requester.set_upstream(Some(Arc::new(guest)));
    adapter.path.arm_event_queue(events);
    let arm = CompletionDoorbell::new().with_arm(true);
    let doorbell = Doorbell::Completion(number);
    adapter.path.doorbell(uar, doorbell, arm.into_bits());

    let mut it = Connected::of(adapter, a, b);
    let asked = it.adapter.region(ASKED, 4096).local;
    let write = it.rdma(Operation::RdmaWrite, 512);
    let lost = Post {
        local: vec![(asked, ASKED, 512)],
        ..write.clone()
    };
    let before = image(&it.adapter);
    it.post(&lost);
    it.adapter.work();
    assert!(image(&it.adapter) == before, "no byte of RAM changes");
    assert!(it.adapter.raised.0.lock().is_empty());

    it.adapter.requester.set_bus_master(true);
    it.adapter.work();
    let done = it.statuses();
    assert_eq!(done.len(), 1);
    assert_ne!(done[0].1, S::Ok, "a failed DMA is never a success");
    assert_eq!(it.adapter.bytes(WORD, 8), 1u64.to_le_bytes());
    let event = it.adapter.event(address, 0);
    assert!(event.common.phase() && event.completion_queue.get() == number);
    assert_eq!(*it.adapter.raised.0.lock(), [5]);
    it.post(&write.with_id(1));
    it.adapter.work();
    assert_eq!(it.statuses(), [(1, S::Ok)], "the queue pair goes on");
}
