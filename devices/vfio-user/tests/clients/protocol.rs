//! Each command, its reply and its refusals.

use std::os::fd::{AsFd, OwnedFd};

use peerbar_pci::{Iova, Range};
use peerbar_rig::wire::*;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::board::{BAD_IOVA, BAD_OFFSET, Call, Rig, pattern};
use crate::{E2BIG, EEXIST, EINVAL, EIO, ENOTSUP};

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

fn memory() -> OwnedFd {
    memfd_create("memory", MemfdFlags::CLOEXEC).unwrap()
}

fn count_of(event: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    rustix::io::read(event, &mut count).unwrap();
    u64::from_ne_bytes(count)
}

#[test]
fn version_is_answered_with_minor_0_and_our_capabilities() {
    let proposed = r#"{"capabilities": {"max_msg_fds": 1, "max_data_xfer_size": 4096, "migration": {},
        "max_dma_maps": 1, "pgsizes": 4096, "write_multiple": false}}"#;
    for minor in [0, 1, 7] {
        let mut rig = Rig::fresh();
        let reply = rig.raw.ask(1, &version(0, minor, proposed)).ok();
        assert_eq!(reply[..4], [0; 4]);
        let (nul, json) = reply[4..].split_last().unwrap();
        assert_eq!(*nul, 0);
        let json: serde_json::Value = serde_json::from_slice(json).unwrap();
        let expected = serde_json::json!({"capabilities": {
            "max_msg_fds": 16, "max_data_xfer_size": 1048576, "max_dma_maps": 65535,
            "pgsizes": 4096, "write_multiple": true,
        }});
        assert_eq!(json, expected);
    }
}

#[test]
fn version_is_answered_with_no_capability_but_those_proposed() {
    let pgsizes = br#"{"capabilities":{"pgsizes":4096}}"#;
    for (proposed, answered) in [
        ("{}", br#"{"capabilities":{}}"#.as_slice()),
        (
            r#"{"capabilities":{"twin_socket":{}}}"#,
            br#"{"capabilities":{}}"#,
        ),
        (r#"{"capabilities":{"pgsizes":12288,"other":1}}"#, pgsizes),
    ] {
        let reply = Rig::fresh().raw.ask(1, &version(0, 0, proposed)).ok();
        assert_eq!(reply[4..reply.len() - 1], *answered, "{proposed}");
    }
}

#[test]
fn version_without_data_is_enough() {
    let mut rig = Rig::fresh();
    rig.raw.ask(1, &[0; 4]).ok();
    assert_eq!(rig.calls.recv().unwrap(), Call::Attached);
}

#[test]
fn version_that_is_wrong_is_refused_and_a_right_one_may_follow() {
    let mut rig = Rig::fresh();
    let wrong = [
        version(1, 0, "{}"),
        version(0, 0, "garbage"),
        version(0, 0, "[]"),
        vec![0; 3],
        Vec::new(),
    ];
    for payload in wrong {
        assert_eq!(rig.raw.ask(1, &payload).errno(), EINVAL);
    }
    assert!(rig.calls.try_recv().is_err());
    rig.agree();
}

#[test]
fn version_that_wants_no_reply_agrees_on_nothing() {
    let mut rig = Rig::fresh();
    rig.raw.post(1, &version(0, 0, "{}"));
    assert_eq!(rig.raw.ask(13, &[]).errno(), EINVAL);
    rig.agree();
}

#[test]
fn version_is_refused_the_second_time() {
    let mut rig = Rig::agreed();
    assert_eq!(rig.raw.ask(1, &version(0, 0, "{}")).errno(), EINVAL);
    rig.raw.ask(13, &[]).ok();
}

#[test]
fn nothing_is_done_before_the_version() {
    let mut rig = Rig::fresh();
    for command in (0..=20).filter(|command| *command != 1) {
        assert_eq!(rig.raw.ask(command, &[0; 64]).errno(), EINVAL);
    }
    let (outcome, calls) = rig.hang_up();
    outcome.unwrap();
    assert_eq!(calls, []);
}

#[test]
fn device_get_info_tells_a_resettable_pci_device() {
    let mut rig = Rig::agreed();
    let reply = rig.raw.ask(4, &words(&[16, 0, 0, 0])).ok();
    assert_eq!(reply, words(&[16, 3, 9, 5]));
    assert_eq!(rig.raw.ask(4, &words(&[15, 0, 0, 0])).errno(), EINVAL);
    assert_eq!(rig.raw.ask(4, &words(&[16])).errno(), EINVAL);
}

fn region_info(argsz: u32, index: u32) -> Vec<u8> {
    [words(&[argsz, 0, index, 0]), quads(&[0, 0])].concat()
}

#[test]
fn region_info_of_a_region_that_cannot_be_mapped() {
    let mut rig = Rig::agreed();
    for (index, flags, size) in [(0, 3, 0x1000), (3, 1, 0x100), (4, 2, 0x100), (8, 0, 0)] {
        let reply = rig.raw.ask(5, &region_info(32, index));
        assert!(reply.descriptors.is_empty());
        let expected = [words(&[32, flags, index, 0]), quads(&[size, 0])].concat();
        assert_eq!(reply.ok(), expected);
    }
}

#[test]
fn region_info_of_a_region_that_can_be_mapped_as_a_whole() {
    let mut rig = Rig::agreed();
    let reply = rig.raw.ask(5, &region_info(32, 2));
    assert_eq!(reply.descriptors.len(), 1);
    let memory = rustix::fs::fstat(&reply.descriptors[0]).unwrap();
    assert_eq!(memory.st_size, 0x4000);
    let expected = [words(&[32, 7, 2, 0]), quads(&[0x2000, 0])].concat();
    assert_eq!(reply.ok(), expected);
}

#[test]
fn region_info_with_areas_tells_first_how_much_room_it_needs() {
    let mut rig = Rig::agreed();
    for argsz in [32, 79] {
        let reply = rig.raw.ask(5, &region_info(argsz, 1));
        assert!(reply.descriptors.is_empty());
        let expected = [words(&[80, 7, 1, 0]), quads(&[0x4000, 0])].concat();
        assert_eq!(reply.ok(), expected);
    }
    for argsz in [80, 4096] {
        let reply = rig.raw.ask(5, &region_info(argsz, 1));
        assert_eq!(reply.descriptors.len(), 1);
        let info = [words(&[80, 15, 1, 32]), quads(&[0x4000, 0])].concat();
        // Id 1, version 1, no next; two areas.
        let header = words(&[1 | 1 << 16, 0, 2, 0]);
        let areas = quads(&[0x1000, 0x1000, 0x3000, 0x1000]);
        assert_eq!(reply.ok(), [info, header, areas].concat());
    }
}

#[test]
fn region_info_may_list_no_area() {
    let mut rig = Rig::agreed();
    let reply = rig.raw.ask(5, &region_info(48, 5));
    assert!(reply.descriptors.is_empty());
    let info = [words(&[48, 15, 5, 32]), quads(&[u64::MAX, 0])].concat();
    let header = words(&[1 | 1 << 16, 0, 0, 0]);
    assert_eq!(reply.ok(), [info, header].concat());
}

#[test]
fn region_info_is_refused_without_room_or_region() {
    let mut rig = Rig::agreed();
    assert_eq!(rig.raw.ask(5, &region_info(31, 0)).errno(), EINVAL);
    assert_eq!(rig.raw.ask(5, &region_info(32, 9)).errno(), EINVAL);
    assert_eq!(rig.raw.ask(5, &region_info(32, u32::MAX)).errno(), EINVAL);
    assert_eq!(rig.raw.ask(5, &[0; 31]).errno(), EINVAL);
}

#[test]
fn irq_info_tells_flags_and_count() {
    let mut rig = Rig::agreed();
    for (index, flags, count) in [(0, 7, 1), (1, 1, 4), (2, 1, 8), (3, 1, 1), (4, 1, 1)] {
        let reply = rig.raw.ask(7, &words(&[16, 0, index, 0])).ok();
        assert_eq!(reply, words(&[16, flags, index, count]));
    }
    assert_eq!(rig.raw.ask(7, &words(&[16, 0, 5, 0])).errno(), EINVAL);
    assert_eq!(rig.raw.ask(7, &words(&[15, 0, 0, 0])).errno(), EINVAL);
}

#[test]
fn set_irqs_hands_each_vector_its_event() {
    let mut rig = Rig::agreed();
    let events = [event(), event(), event()];
    let descriptors = [events[0].as_fd(), events[1].as_fd(), events[2].as_fd()];
    let ask = set_irqs(0x24, 2, 5, 3);
    let reply = rig.raw.ask_with(8, &ask, &descriptors).ok();
    assert!(reply.is_empty());
    assert_eq!(
        rig.calls.recv().unwrap(),
        Call::Irqs(2, 5, 3, "3 events".into())
    );
    let counts: Vec<u64> = events.iter().map(count_of).collect();
    assert_eq!(counts, [6, 7, 8]);
}

#[test]
fn set_irqs_without_descriptors_takes_events_away() {
    let mut rig = Rig::agreed();
    rig.raw.ask(8, &set_irqs(0x24, 2, 1, 4)).ok();
    assert_eq!(
        rig.calls.recv().unwrap(),
        Call::Irqs(2, 1, 4, "0 events".into())
    );
}

#[test]
fn set_irqs_serves_every_index() {
    let mut rig = Rig::agreed();
    let event = event();
    for index in 0..5 {
        rig.raw
            .ask_with(8, &set_irqs(0x24, index, 0, 1), &[event.as_fd()])
            .ok();
        let call = rig.calls.recv().unwrap();
        assert_eq!(call, Call::Irqs(index, 0, 1, "1 events".into()));
    }
}

#[test]
fn set_irqs_without_data_acts_on_the_range() {
    let mut rig = Rig::agreed();
    for (flags, action) in [(0x09, "Mask"), (0x11, "Unmask"), (0x21, "Trigger")] {
        rig.raw.ask(8, &set_irqs(flags, 0, 0, 1)).ok();
        let call = rig.calls.recv().unwrap();
        assert_eq!(call, Call::Irqs(0, 0, 1, action.into()));
    }
    rig.raw.ask(8, &set_irqs(0x21, 1, 1, 3)).ok();
    let call = rig.calls.recv().unwrap();
    assert_eq!(call, Call::Irqs(1, 1, 3, "Trigger".into()));
}

#[test]
fn set_irqs_refuses_to_mask_what_is_not_maskable() {
    let mut rig = Rig::agreed();
    let event = event();
    for (index, data, action) in (1..5)
        .flat_map(|index| [1, 2, 4].map(|data| [8, 16].map(|action| (index, data, action))))
        .flatten()
    {
        let ask = set_irqs(data | action, index, 0, 1);
        let ask = if data == 2 {
            [ask, vec![1]].concat()
        } else {
            ask
        };
        let fds = [event.as_fd()];
        let fds = if data == 4 { &fds[..] } else { &[] };
        assert_eq!(rig.raw.ask_with(8, &ask, fds).errno(), EINVAL, "{ask:?}");
    }
    assert!(rig.calls.try_recv().is_err());
}

#[test]
fn set_irqs_of_no_vector_disables_the_index() {
    let mut rig = Rig::agreed();
    rig.raw.ask(8, &set_irqs(0x21, 2, 0, 0)).ok();
    let call = rig.calls.recv().unwrap();
    assert_eq!(call, Call::Irqs(2, 0, 0, "Disable".into()));
    for flags in [0x09, 0x11, 0x22, 0x24] {
        assert_eq!(
            rig.raw.ask(8, &set_irqs(flags, 2, 0, 0)).errno(),
            EINVAL,
            "flags {flags:#x}"
        );
    }
}

#[test]
fn set_irqs_with_flags_acts_on_the_vectors_that_are_set() {
    let mut rig = Rig::agreed();
    let ask = [set_irqs(0x22, 2, 1, 6), vec![0, 1, 1, 0, 0, 255]].concat();
    rig.raw.ask(8, &ask).ok();
    rig.raw
        .ask(8, &[set_irqs(0x22, 2, 0, 1), vec![0]].concat())
        .ok();
    let (outcome, calls) = rig.hang_up();
    outcome.unwrap();
    let expected = [
        Call::Irqs(2, 2, 2, "Trigger".into()),
        Call::Irqs(2, 6, 1, "Trigger".into()),
        Call::Detached,
    ];
    assert_eq!(calls, expected);
}

#[test]
fn set_irqs_refuses_masking_by_eventfd() {
    let mut rig = Rig::agreed();
    let event = event();
    let ask = set_irqs(0x0c, 0, 0, 1);
    assert_eq!(rig.raw.ask_with(8, &ask, &[event.as_fd()]).errno(), ENOTSUP);
}

#[test]
fn set_irqs_takes_an_eventfd_that_unmasks() {
    let signal = |event: &OwnedFd| rustix::io::write(event, &1_u64.to_ne_bytes()).unwrap();
    let unmasked = || Call::Irqs(0, 0, 1, "Unmask".into());
    let mut rig = Rig::agreed();
    let (first, second) = (event(), event());
    let ask = set_irqs(0x14, 0, 0, 1);
    for event in [&first, &second] {
        rig.raw.ask_with(8, &ask, &[event.as_fd()]).ok();
        for _ in 0..3 {
            signal(event);
            assert_eq!(rig.calls.recv().unwrap(), unmasked());
        }
    }
    // Once it is replaced, its signals have no effect. After a removal or a disable, nor do those
    // of the other.
    for last in [&ask, &set_irqs(0x21, 0, 0, 0)] {
        rig.raw.ask_with(8, &ask, &[second.as_fd()]).ok();
        signal(&first);
        rig.raw.ask(8, last).ok();
        signal(&second);
        for _ in 0..3 {
            rig.raw.ask(13, &[]).ok();
        }
        assert_eq!(count_of(&second), 1, "it was not taken");
    }
    let calls: Vec<Call> = rig.hang_up().1;
    assert!(!calls.contains(&unmasked()), "{calls:?}");
}

#[test]
fn set_irqs_gives_up_an_eventfd_whose_signals_have_no_end() {
    let mut rig = Rig::agreed();
    let endless = eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::NONBLOCK).unwrap();
    rustix::io::write(&endless, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    rig.raw
        .ask_with(8, &set_irqs(0x14, 0, 0, 1), &[endless.as_fd()])
        .ok();
    let unmasked = Call::Irqs(0, 0, 1, "Unmask".into());
    assert_eq!(rig.calls.recv().unwrap(), unmasked);
    for _ in 0..3 {
        rig.raw.ask(13, &[]).ok();
    }
    let calls: Vec<Call> = rig.hang_up().1;
    assert!(!calls.contains(&unmasked), "{calls:?}");
}

#[test]
fn set_irqs_refuses_what_is_no_eventfd() {
    let mut rig = Rig::agreed();
    let (read, write) = rustix::pipe::pipe().unwrap();
    let (event, null) = (event(), std::fs::File::open("/dev/null").unwrap());
    for wrong in [read.as_fd(), write.as_fd(), null.as_fd()] {
        for (flags, index) in [(0x24, 0), (0x14, 0), (0x24, 2), (0x24, 3)] {
            let ask = set_irqs(flags, index, 0, 1);
            assert_eq!(rig.raw.ask_with(8, &ask, &[wrong]).errno(), EINVAL);
        }
        let ask = set_irqs(0x24, 2, 0, 2);
        let fds = [event.as_fd(), wrong];
        assert_eq!(rig.raw.ask_with(8, &ask, &fds).errno(), EINVAL);
    }
    assert!(rig.calls.try_recv().is_err());
}

#[test]
fn set_irqs_refuses_flags_that_make_no_sense() {
    let mut rig = Rig::agreed();
    for flags in [0, 0x01, 0x04, 0x20, 0x23, 0x27, 0x39, 0x61, u32::MAX] {
        assert_eq!(
            rig.raw.ask(8, &set_irqs(flags, 2, 0, 1)).errno(),
            EINVAL,
            "flags {flags:#x}"
        );
    }
}

#[test]
fn region_read_repeats_the_access_and_gives_the_data() {
    let mut rig = Rig::agreed();
    for (region, offset, count) in [(0, 0xffc, 4), (7, 0, 1), (3, 0xf0, 16), (5, 1 << 40, 8)] {
        let ask = region_access(region, offset, count);
        let data = (offset..).take(count as usize).map(pattern).collect();
        assert_eq!(rig.raw.ask(9, &ask).ok(), [ask, data].concat());
    }
}

#[test]
fn region_read_of_a_full_transfer() {
    let mut rig = Rig::agreed();
    let reply = rig.raw.ask(9, &region_access(5, 3, 1 << 20)).ok();
    assert_eq!(reply.len(), 16 + (1 << 20));
    assert!(
        reply[16..]
            .iter()
            .zip(3..)
            .all(|(byte, offset)| *byte == pattern(offset))
    );
    let more = region_access(5, 0, (1 << 20) + 1);
    assert_eq!(rig.raw.ask(9, &more).errno(), EINVAL);
}

#[test]
fn region_write_reaches_the_device() {
    let mut rig = Rig::agreed();
    let access = region_access(1, 0x3ffe, 2);
    let reply = rig.raw.ask(10, &[&access[..], &[0xab, 0xcd]].concat()).ok();
    assert_eq!(reply, access);
    let call = rig.calls.recv().unwrap();
    assert_eq!(call, Call::Write(1, 0x3ffe, vec![0xab, 0xcd]));
}

#[test]
fn region_write_of_a_full_transfer() {
    let mut rig = Rig::agreed();
    let data: Vec<u8> = (0..1 << 20).map(pattern).collect();
    let access = region_access(5, 0, 1 << 20);
    rig.raw.ask(10, &[access, data.clone()].concat()).ok();
    assert_eq!(rig.calls.recv().unwrap(), Call::Write(5, 0, data));
}

#[test]
fn region_access_of_no_bytes_succeeds() {
    let mut rig = Rig::agreed();
    for command in [9, 10] {
        let access = region_access(0, 0x1000, 0);
        assert_eq!(rig.raw.ask(command, &access).ok(), access);
    }
    assert!(rig.calls.try_recv().is_err());
}

#[test]
fn region_access_outside_the_region_is_refused() {
    let mut rig = Rig::agreed();
    let outside = [
        (0, 0xffd, 4),
        (0, 0x1000, 1),
        (0, 0x1001, 0),
        (0, u64::MAX, 1),
        (5, u64::MAX - 3, 4),
        (6, 0, 1),
        (9, 0, 1),
        (u32::MAX, 0, 1),
    ];
    for (region, offset, count) in outside {
        let access = region_access(region, offset, count);
        assert_eq!(rig.raw.ask(9, &access).errno(), EINVAL);
        let write = [access, vec![0; count as usize]].concat();
        assert_eq!(rig.raw.ask(10, &write).errno(), EINVAL);
    }
    assert!(rig.calls.try_recv().is_err());
}

#[test]
fn region_access_the_wrong_way_is_refused() {
    let mut rig = Rig::agreed();
    assert_eq!(rig.raw.ask(9, &region_access(4, 0, 4)).errno(), EINVAL);
    let write = [region_access(3, 0, 4), vec![0; 4]].concat();
    assert_eq!(rig.raw.ask(10, &write).errno(), EINVAL);
}

#[test]
fn region_write_whose_data_has_another_length_is_refused() {
    let mut rig = Rig::agreed();
    for length in [0, 3, 5] {
        let write = [region_access(0, 0, 4), vec![0; length]].concat();
        assert_eq!(rig.raw.ask(10, &write).errno(), EINVAL);
    }
    assert_eq!(rig.raw.ask(10, &[0; 15]).errno(), EINVAL);
    assert_eq!(rig.raw.ask(9, &[0; 15]).errno(), EINVAL);
}

#[test]
fn an_error_of_the_device_reaches_the_client() {
    let mut rig = Rig::agreed();
    let write = [region_access(0, BAD_OFFSET, 1), vec![0]].concat();
    assert_eq!(rig.raw.ask(10, &write).errno(), EIO);
    assert_eq!(rig.raw.ask(2, &dma_map(3, 0, BAD_IOVA, 1)).errno(), EEXIST);
}

fn writes(list: &[(u32, u64, u32)]) -> Vec<u8> {
    let one = |(region, offset, count)| [region_access(region, offset, count), vec![9; 8]];
    let list: Vec<u8> = list.iter().copied().flat_map(one).flatten().collect();
    [quads(&[list.len() as u64 / 24]), list].concat()
}

#[test]
fn region_write_multi_writes_in_order() {
    let mut rig = Rig::agreed();
    let ask = writes(&[(0, 8, 4), (1, 0, 8), (0, 0, 0), (7, 4, 1)]);
    assert_eq!(rig.raw.ask(15, &ask).ok(), quads(&[4]));
    let (_, calls) = rig.hang_up();
    let expected = [
        Call::Write(0, 8, vec![9; 4]),
        Call::Write(1, 0, vec![9; 8]),
        Call::Write(7, 4, vec![9]),
        Call::Detached,
    ];
    assert_eq!(calls, expected);
}

#[test]
fn region_write_multi_ends_at_the_first_failure() {
    let mut rig = Rig::agreed();
    let ask = writes(&[(0, 8, 4), (0, BAD_OFFSET, 1), (0, 0, 1)]);
    assert_eq!(rig.raw.ask(15, &ask).ok(), quads(&[1]));
    let ask = writes(&[(0, BAD_OFFSET, 1), (0, 0, 1)]);
    assert_eq!(rig.raw.ask(15, &ask).errno(), EIO);
    let (_, calls) = rig.hang_up();
    assert_eq!(calls, [Call::Write(0, 8, vec![9; 4]), Call::Detached]);
}

#[test]
fn region_write_multi_with_a_wrong_count_is_refused() {
    let mut rig = Rig::agreed();
    let right = writes(&[(0, 0, 4)]);
    for count in [0, 2, u64::MAX, u64::MAX / 24 + 2] {
        let ask = [&quads(&[count]), &right[8..]].concat();
        assert_eq!(rig.raw.ask(15, &ask).errno(), EINVAL);
    }
    assert_eq!(rig.raw.ask(15, &right[..31]).errno(), EINVAL);
    assert_eq!(rig.raw.ask(15, &[0; 7]).errno(), EINVAL);
    for count in [9, u32::MAX] {
        assert_eq!(rig.raw.ask(15, &writes(&[(5, 0, count)])).errno(), EINVAL);
    }
    assert_eq!(rig.raw.ask(15, &writes(&[])).ok(), quads(&[0]));
    let most = [(0, 0, 4); 200];
    assert_eq!(rig.raw.ask(15, &writes(&most)).ok(), quads(&[200]));
    let more = [&most[..], &most[..1]].concat();
    assert_eq!(rig.raw.ask(15, &writes(&more)).errno(), E2BIG);
}

#[test]
fn dma_map_with_and_without_memory() {
    let mut rig = Rig::agreed();
    let memory = memory();
    let ask = dma_map(3, 0x2000, 0x1_0000, 0x4000);
    let reply = rig.raw.ask_with(2, &ask, &[memory.as_fd()]).ok();
    assert!(reply.is_empty());
    rig.raw.ask(2, &dma_map(1, 0, 0xfe00_0000, 0x1000)).ok();
    rig.raw.ask(2, &dma_map(2, 77, 0, 1)).ok();
    let (_, calls) = rig.hang_up();
    let expected = [
        Call::Map(0x1_0000, 0x4000, true, true, Some(0x2000)),
        Call::Map(0xfe00_0000, 0x1000, true, false, None),
        Call::Map(0, 1, false, true, None),
        Call::Detached,
    ];
    assert_eq!(calls, expected);
}

/// A procfs file stands for a FUSE file, whose close(2) may wait indefinitely: neither has a block
/// device, or seals.
#[test]
fn dma_map_of_a_foreign_file_is_one_without_a_descriptor() {
    let mut rig = Rig::agreed();
    let foreign = std::fs::File::open("/proc/self/stat").unwrap();
    let ask = dma_map(3, 0, 0x1000, 0x1000);
    rig.raw.ask_with(2, &ask, &[foreign.as_fd()]).ok();
    let mapped = rig.calls.recv().unwrap();
    assert_eq!(mapped, Call::Map(0x1000, 0x1000, true, true, None));
    let event = event();
    for descriptors in [[foreign.as_fd(); 2], [foreign.as_fd(), event.as_fd()]] {
        let ask = dma_map(3, 0, 0x3000, 0x1000);
        assert_eq!(rig.raw.ask_with(2, &ask, &descriptors).errno(), EINVAL);
    }
    let ask = set_irqs(0x24, 2, 0, 1);
    assert_eq!(
        rig.raw.ask_with(8, &ask, &[foreign.as_fd()]).errno(),
        EINVAL
    );
    assert!(rig.calls.try_recv().is_err());
}

#[test]
fn dma_map_of_what_can_be_no_memory_is_refused() {
    let mut rig = Rig::agreed();
    let (read, write) = rustix::pipe::pipe().unwrap();
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let (event, folder) = (event(), std::fs::File::open("/").unwrap());
    let wrong = [
        read.as_fd(),
        write.as_fd(),
        socket.as_fd(),
        event.as_fd(),
        folder.as_fd(),
    ];
    for fd in wrong {
        let ask = dma_map(3, 0, 0x1000, 0x1000);
        assert_eq!(rig.raw.ask_with(2, &ask, &[fd]).errno(), EINVAL, "{fd:?}");
    }
    assert!(rig.calls.try_recv().is_err());
}

#[test]
fn dma_map_that_makes_no_sense_is_refused() {
    let mut rig = Rig::agreed();
    let wrong = [
        dma_map(3, 0, 0x1000, 0),
        dma_map(3, 0, 0x8000_0000_0000_0000, 0x8000_0000_0000_0000),
        dma_map(3, 0, u64::MAX, 2),
        dma_map(4, 0, 0, 0x1000),
        dma_map(3, 0, 0, 0x1000)[..31].to_vec(),
        [words(&[31, 3]), quads(&[0, 0, 0x1000])].concat(),
    ];
    for payload in wrong {
        assert_eq!(rig.raw.ask(2, &payload).errno(), EINVAL);
    }
    assert!(rig.calls.try_recv().is_err());
}

#[test]
fn dma_unmap_may_reach_the_end_of_the_address_space() {
    let mut rig = Rig::agreed();
    let half = 0x8000_0000_0000_0000;
    let ask = dma_unmap(0, half, half);
    assert_eq!(rig.raw.ask(3, &ask).ok(), ask);
    rig.raw.ask(3, &dma_unmap(0, 0x1000, 0x1000)).ok();
    rig.raw.ask(3, &dma_unmap(2, 0, 0)).ok();
    let (_, calls) = rig.hang_up();
    let span = |iova, last| Call::Unmap(Range::from_bounds(Iova(iova), Iova(last)).unwrap());
    let expected = [
        span(half, u64::MAX),
        span(0x1000, 0x1fff),
        span(0, u64::MAX),
        Call::Detached,
    ];
    assert_eq!(calls, expected);
}

#[test]
fn dma_unmap_that_makes_no_sense_is_refused() {
    let mut rig = Rig::agreed();
    let wrong = [
        dma_unmap(0, 0, 0),
        dma_unmap(0, u64::MAX, 2),
        dma_unmap(2, 0x1000, 0x1000),
        dma_unmap(4, 0, 0x1000),
        dma_unmap(0, 0, 0x1000)[..23].to_vec(),
    ];
    for payload in wrong {
        assert_eq!(rig.raw.ask(3, &payload).errno(), EINVAL);
    }
    assert_eq!(rig.raw.ask(3, &dma_unmap(1, 0, 0x1000)).errno(), ENOTSUP);
    assert!(rig.calls.try_recv().is_err());
}

#[test]
fn reset_reaches_the_device() {
    let mut rig = Rig::agreed();
    assert!(rig.raw.ask(13, &[]).ok().is_empty());
    assert_eq!(rig.calls.recv().unwrap(), Call::Reset);
}

#[test]
fn what_is_not_spoken_is_drained_and_refused() {
    let mut rig = Rig::agreed();
    for command in [0, 6, 11, 12, 14, 16, 17, 18, 255, u16::MAX] {
        let payload = vec![0xee; usize::from(command % 100) * 100];
        assert_eq!(rig.raw.ask(command, &payload).errno(), ENOTSUP);
    }
    rig.raw.ask(13, &[]).ok();
}

#[test]
fn no_reply_is_honoured_for_success_and_failure() {
    let mut rig = Rig::agreed();
    rig.raw
        .post(10, &[region_access(0, 4, 1), vec![5]].concat());
    rig.raw.post(15, &writes(&[(0, 8, 2)]));
    rig.raw.post(10, &region_access(99, 0, 0));
    rig.raw.post(0x77, &[1, 2, 3]);
    rig.raw.post(9, &region_access(0, 0, 4));
    let ask = region_access(0, 0, 1);
    assert_eq!(rig.raw.ask(9, &ask).ok(), [ask, vec![pattern(0)]].concat());
    let (_, calls) = rig.hang_up();
    let expected = [
        Call::Write(0, 4, vec![5]),
        Call::Write(0, 8, vec![9; 2]),
        Call::Detached,
    ];
    assert_eq!(calls, expected);
}

#[test]
fn commands_in_a_row_are_answered_in_order() {
    let mut rig = Rig::agreed();
    let asks = (0..500).map(|id| message(id, 9, 0, &region_access(0, id.into(), 1)));
    rig.raw.send(&asks.flatten().collect::<Vec<u8>>());
    for id in 0..500 {
        let reply = rig.raw.receive();
        assert_eq!(reply.id, id);
        assert_eq!(reply.ok().last(), Some(&pattern(id.into())));
    }
}

#[test]
fn a_hang_up_detaches_the_device() {
    let (outcome, calls) = Rig::agreed().hang_up();
    outcome.unwrap();
    assert_eq!(calls, [Call::Detached]);
}

#[test]
fn stop_ends_the_session_as_a_hang_up() {
    let mut rig = Rig::agreed();
    rig.stop.trigger();
    assert!(rig.raw.is_hung_up_on());
    assert_eq!(rig.calls.recv().unwrap(), Call::Detached);
    rig.wait().unwrap();
}

#[test]
fn device_is_woken_by_its_thread_while_the_client_is_silent() {
    let mut rig = Rig::agreed();
    let client = rig.clients.recv().unwrap();
    client.wake();
    assert_eq!(rig.calls.recv().unwrap(), Call::Woken);
    rig.raw.ask(13, &[]).ok();
    assert_eq!(rig.calls.recv().unwrap(), Call::Reset, "woken once");
}
