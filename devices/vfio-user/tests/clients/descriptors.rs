//! No descriptor of a client is leaked, or reaches another message.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use peerbar_pci::{Iova, Range};
use peerbar_rig::RawClient;
use peerbar_rig::wire::*;
use peerbar_vfio_user::{Options, Stop, serve};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::EMFILE;
use crate::board::{Call, Rig, board};

/// Returns the number of descriptors of this process whose target in `/proc` has `part` in its
/// name. Other tests run in the same process, so a count of all descriptors would prove nothing.
fn open_descriptors(part: &str) -> usize {
    fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
        .filter(|target| target.to_string_lossy().contains(part))
        .count()
}

#[test]
fn unexpected_descriptors_are_closed_at_once() {
    let mut rig = Rig::fresh();
    let memory = memfd_create("unasked", MemfdFlags::CLOEXEC).unwrap();
    let fds = [memory.as_fd(); 3];
    rig.raw.ask_with(13, &[], &fds).errno();
    rig.raw.ask_with(1, &version(0, 0, "{}"), &fds).ok();
    for command in 0..=20 {
        // The command may succeed or fail: none takes three descriptors with this payload.
        rig.raw.ask_with(command, &[0; 40], &fds);
    }
    let unmap = dma_unmap(0, 0x1000, 0x1000);
    rig.raw.ask_with(3, &unmap, &fds[..1]).ok();
    rig.raw.ask_with(8, &set_irqs(0x21, 2, 0, 0), &fds).ok();
    rig.raw.send_with(&message(1, 11, REPLY, &[]), &fds);
    rig.raw.send_with(&message(1, 9, 3, &[]), &fds);
    rig.raw.receive().errno();
    rig.raw.ask_with(2, &dma_map(3, 0, 0, 1), &fds).errno();
    rig.raw.ask(13, &[]).ok();
    assert_eq!(open_descriptors("memfd:unasked"), 1);
}

/// The kernel attaches descriptors to a sendmsg, and one recvmsg of the server may return the bytes
/// of several sendmsgs.
#[test]
fn back_to_back_messages_keep_their_descriptors() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut raw = RawClient::new(ours);
    raw.send(&message(1, 1, 0, &version(0, 0, "{}")));
    let events: Vec<OwnedFd> = (0..60)
        .map(|_| eventfd(0, EventfdFlags::NONBLOCK).unwrap())
        .collect();
    let memory = memfd_create("back-to-back", MemfdFlags::CLOEXEC).unwrap();
    let mut expected = vec![Call::Attached];
    for (round, pair) in (0_u32..).zip(events.chunks(2)) {
        let vector = round % 7;
        let pair = [pair[0].as_fd(), pair[1].as_fd()];
        let ask = set_irqs(0x24, 2, vector, 2);
        raw.send_with(&message(2, 8, NO_REPLY, &ask), &pair);
        expected.push(Call::Irqs(2, vector, 2, "2 events".into()));
        for iova in 0..u64::from(round % 4) {
            let unmap = dma_unmap(0, iova, 1);
            raw.send(&message(3, 3, NO_REPLY, &unmap));
            expected.push(Call::Unmap(Range::new(Iova(iova), 1).unwrap()));
        }
        let offset = u64::from(round) << 12;
        let lent = (round % 3 == 0).then_some(memory.as_fd());
        let map = message(4, 2, NO_REPLY, &dma_map(3, offset, offset, 4096));
        raw.send_with(&map, lent.as_slice());
        let offset_if_lent = lent.map(|_| offset);
        expected.push(Call::Map(offset, 4096, true, true, offset_if_lent));
        if round % 5 == 0 {
            // Longer than the bytes that are received at once.
            let data = vec![round as u8; 0x1000];
            let write = [region_access(2, 0, 0x1000), data.clone()].concat();
            raw.send(&message(5, 10, NO_REPLY, &write).repeat(3));
            expected.extend((0..3).map(|_| Call::Write(2, 0, data.clone())));
        }
    }
    raw.send(&message(6, 13, 0, &[]));
    expected.extend([Call::Reset, Call::Detached]);

    let (mut board, calls, _clients) = board();
    let session = std::thread::spawn(move || {
        serve(theirs, &mut board, &Options::new(Stop::new().unwrap())).unwrap();
    });
    raw.receive().ok();
    raw.receive().ok();
    drop(raw);
    session.join().unwrap();
    let reported: Vec<Call> = calls.into_iter().collect();
    assert_eq!(reported, expected);
    for (round, pair) in (0_u64..).zip(events.chunks(2)) {
        let counts = [0, 1].map(|event: usize| {
            let mut count = [0; 8];
            rustix::io::read(&pair[event], &mut count).unwrap();
            u64::from_ne_bytes(count)
        });
        let vector = round % 7;
        assert_eq!(counts, [vector + 1, vector + 2], "round {round}");
    }
}

#[test]
fn descriptors_of_unfinished_message_close_with_the_session() {
    let memory = memfd_create("unfinished", MemfdFlags::CLOEXEC).unwrap();
    let mut rig = Rig::agreed();
    let map = message(1, 2, 0, &dma_map(3, 0, 0, 1));
    rig.raw.send_with(&map[..20], &[memory.as_fd(); 2]);
    rig.hang_up().0.unwrap_err();
    assert_eq!(open_descriptors("memfd:unfinished"), 1);
}

#[test]
fn descriptors_beyond_the_limit_are_closed() {
    let memory = memfd_create("beyond", MemfdFlags::CLOEXEC).unwrap();
    let mut rig = Rig::agreed();
    let map = message(1, 2, 0, &dma_map(3, 0, 0, 1));
    for part in map.chunks(4) {
        rig.raw.send_with(part, &[memory.as_fd(); 60]);
    }
    assert_eq!(rig.raw.receive().errno(), EMFILE);
    assert_eq!(open_descriptors("memfd:beyond"), 1);
}

#[test]
fn the_descriptor_of_a_region_is_only_lent() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let inodes = [&ours, &theirs].map(|end| {
        let inode = rustix::fs::fstat(end).unwrap().st_ino;
        format!("socket:[{inode}]")
    });
    let session = std::thread::spawn(move || {
        let (mut board, _, clients) = board();
        let options = Options::new(Stop::new().unwrap());
        serve(theirs, &mut board, &options).unwrap();
        clients.recv().unwrap()
    });
    let mut raw = RawClient::new(ours);
    raw.agree();
    let ask = [words(&[4096, 0, 1, 0]), quads(&[0, 0])].concat();
    for _ in 0..50 {
        assert_eq!(raw.ask(5, &ask).descriptors.len(), 1);
    }
    drop(raw);
    // A client handle that outlives its session keeps no socket open.
    let _client = session.join().unwrap();
    assert_eq!(inodes.map(|inode| open_descriptors(&inode)), [0, 0]);
}
