//! Tests of `shadow.rs`, which the models (`tests/models`) include without them.

use std::sync::Arc;

use peerbar_dma::{MemoryFile, Requester, Session};
use peerbar_nvme_spec::registers::Doorbell;

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
