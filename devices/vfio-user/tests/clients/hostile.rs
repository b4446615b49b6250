//! Malicious or broken clients.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use peerbar_rig::wire::*;
use peerbar_vfio_user::{FramingError, SessionError};
use proptest::prelude::*;

use crate::board::{Call, Rig};
use crate::{EINVAL, EMFILE, EMSGSIZE};

/// A header that announces `size` bytes.
fn header(size: u32) -> Vec<u8> {
    let mut header = message(1, 9, 0, &[]);
    header[4..8].copy_from_slice(&size.to_le_bytes());
    header
}

#[test]
fn a_truncated_message_ends_the_session_with_an_error() {
    for cut in [1, 8, 15, 16, 17, 31] {
        let mut rig = Rig::agreed();
        rig.raw
            .send(&message(1, 9, 0, &region_access(0, 0, 4))[..cut]);
        let (outcome, calls) = rig.hang_up();
        let missing = if cut < 16 { 16 - cut } else { 32 - cut };
        assert!(matches!(
            outcome,
            Err(SessionError::Framing(FramingError::CutShort(n))) if n == missing
        ));
        assert_eq!(calls, [Call::Detached]);
    }
}

#[test]
fn a_size_below_that_of_the_header_ends_the_session() {
    for size in [0, 1, 15] {
        let mut rig = Rig::agreed();
        rig.raw.send(&header(size));
        assert!(rig.raw.is_hung_up_on());
        assert!(matches!(
            rig.wait(),
            Err(SessionError::Framing(FramingError::TooShort(n))) if n == size
        ));
    }
}

#[test]
fn a_payload_beyond_the_limit_is_drained_and_refused() {
    let mut rig = Rig::agreed();
    let payload = vec![0xff; 3 << 20];
    assert_eq!(rig.raw.ask(10, &payload).errno(), EMSGSIZE);
    rig.raw.post(10, &payload);
    rig.raw.ask(13, &[]).ok();
}

#[test]
fn a_hang_up_during_the_largest_message_is_noticed() {
    let mut rig = Rig::agreed();
    rig.raw.send(&header(u32::MAX));
    rig.raw.send(&[0; 5000]);
    let (outcome, _) = rig.hang_up();
    let missing = u32::MAX as usize - 16 - 5000;
    assert!(matches!(
        outcome,
        Err(SessionError::Framing(FramingError::CutShort(n))) if n == missing
    ));
}

#[test]
fn a_client_that_sends_byte_by_byte_is_understood() {
    let mut rig = Rig::agreed();
    let access = region_access(0, 5, 3);
    for byte in message(9, 9, 0, &access) {
        rig.raw.send(&[byte]);
    }
    let reply = rig.raw.receive();
    assert_eq!(reply.id, 9);
    assert_eq!(reply.ok(), [&access[..], &[5, 6, 7]].concat());
}

#[test]
fn a_type_that_is_neither_command_nor_reply_is_refused() {
    let mut rig = Rig::agreed();
    rig.raw.send(&message(3, 13, 2, &[]));
    assert_eq!(rig.raw.receive().errno(), EINVAL);
    rig.raw.ask(13, &[]).ok();
    assert_eq!(rig.calls.recv().unwrap(), Call::Reset);
    assert!(rig.calls.try_recv().is_err());
}

#[test]
fn replies_to_nothing_are_ignored() {
    for mut rig in [Rig::fresh(), Rig::agreed()] {
        for id in 0..100 {
            rig.raw.send(&message(id, 11, REPLY, &[0; 48]));
        }
        rig.raw.send(&message(1, 11, REPLY, &vec![0; 2 << 20]));
        rig.raw.ask(1, &[]).errno();
    }
}

#[test]
fn set_irqs_of_vectors_that_do_not_exist_is_refused() {
    let mut rig = Rig::agreed();
    let outside = [
        (2, 0, 9),
        (2, 8, 1),
        (2, 9, 0),
        (2, u32::MAX, 1),
        (2, 1, u32::MAX),
        (2, u32::MAX, u32::MAX),
        (0, 1, 1),
        (5, 0, 1),
        (u32::MAX, 0, 0),
    ];
    for (index, start, count) in outside {
        for flags in [0x21, 0x22, 0x24, 0x09, 0x11] {
            let ask = set_irqs(flags, index, start, count);
            assert_eq!(rig.raw.ask(8, &ask).errno(), EINVAL);
        }
    }
    assert!(rig.calls.try_recv().is_err());
}

#[test]
fn set_irqs_with_too_little_or_too_much_data_is_refused() {
    let mut rig = Rig::agreed();
    for length in [0, 1, 3, 100] {
        let ask = [set_irqs(0x22, 2, 0, 2), vec![1; length]].concat();
        assert_eq!(rig.raw.ask(8, &ask).errno(), EINVAL);
    }
    let null = File::open("/dev/null").unwrap();
    for length in [1, 3] {
        let descriptors = vec![null.as_fd(); length];
        let ask = set_irqs(0x24, 2, 0, 2);
        assert_eq!(rig.raw.ask_with(8, &ask, &descriptors).errno(), EINVAL);
    }
    assert_eq!(rig.raw.ask(8, &[0; 19]).errno(), EINVAL);
    assert_eq!(rig.raw.ask(8, &words(&[19, 0x21, 2, 0, 0])).errno(), EINVAL);
    assert!(rig.calls.try_recv().is_err());
}

#[test]
fn dma_map_with_the_wrong_descriptors_is_refused() {
    let mut rig = Rig::agreed();
    let null = File::open("/dev/null").unwrap();
    let descriptors: Vec<BorrowedFd<'_>> = vec![null.as_fd(); 40];
    let ask = dma_map(3, 0, 0, 0x1000);
    assert_eq!(rig.raw.ask_with(2, &ask, &descriptors[..2]).errno(), EINVAL);
    assert_eq!(rig.raw.ask_with(2, &ask, &descriptors).errno(), EMFILE);
    let far = dma_map(3, u64::MAX, 0, 0x1000);
    assert_eq!(rig.raw.ask_with(2, &far, &descriptors[..1]).errno(), EINVAL);
    assert!(rig.calls.try_recv().is_err());
    rig.raw.ask_with(2, &ask, &descriptors[..1]).ok();
}

#[test]
fn a_client_that_never_reads_loses_its_session() {
    let mut rig = Rig::with(|options| options.send_time_out = Duration::from_millis(20));
    rig.agree();
    let ask = message(1, 9, 0, &region_access(5, 0, 1 << 20));
    // Ends with a broken pipe when the server gives up on the client.
    while rig.raw.stream.write_all(&ask).is_ok() {}
    assert!(matches!(rig.wait(), Err(SessionError::NotReading(_))));
}

#[test]
fn a_client_that_is_gone_before_the_answer_is_no_error() {
    let mut rig = Rig::agreed();
    for id in 0..100 {
        rig.raw.send(&message(id, 9, 0, &region_access(0, 0, 4)));
    }
    let (outcome, calls) = rig.hang_up();
    outcome.unwrap();
    assert_eq!(calls, [Call::Detached]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_is_asked_the_next_command_is_answered(
        asks in prop::collection::vec(
            (0..18_u16, prop::collection::vec(prop_oneof![Just(0_u8), 0..40_u8, any::<u8>()], 0..80)),
            0..20,
        ),
    ) {
        let mut rig = Rig::agreed();
        for (command, payload) in asks {
            rig.raw.post(command, &payload);
        }
        rig.raw.ask(4, &words(&[16, 0, 0, 0])).ok();
        let (outcome, _) = rig.hang_up();
        prop_assert!(outcome.is_ok());
    }

    #[test]
    fn whatever_bytes_come_the_session_ends_with_the_client(
        bytes in prop::collection::vec(any::<u8>(), 0..2000),
    ) {
        let mut rig = Rig::agreed();
        // Fails when the server gives up on the client.
        let _ = rig.raw.stream.write_all(&bytes);
        let (outcome, calls) = rig.hang_up();
        prop_assert!(matches!(outcome, Ok(()) | Err(SessionError::Framing(_))));
        prop_assert_eq!(calls.last(), Some(&Call::Detached));
    }
}
