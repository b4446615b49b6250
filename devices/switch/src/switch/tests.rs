//! Each message of an endpoint, and what the switch does about it.

use std::time::{Duration, Instant};

use serde_bytes::ByteBuf;

use super::output::Output;
use super::*;
use crate::limits::{
    ACKNOWLEDGE_TIME_OUT, ANNOUNCEMENT_TIME_OUT, CLOSING_TIME_OUT, ENDPOINT_TIME_OUT, MAX_PORTS,
    NAME_TIME_OUT, PROTOCOL,
};
use crate::link_mode::LinkMode;
use crate::message::LinkTiming;
use crate::pci_hole::PciHole;
use crate::window::{BarBacking, BarWindow, Descriptor};

fn window(address: u64) -> BarWindow {
    BarWindow {
        bar: 0,
        address,
        size: 0x1000,
        claim: 0,
        backing: BarBacking::ByMessage,
    }
}

fn hello(name: &str) -> Message {
    Message::Hello {
        protocol: PROTOCOL,
        name: name.to_owned(),
    }
}

fn announce(sequence: u64, addresses: &[u64]) -> Message {
    Message::Announce {
        sequence,
        windows: addresses.iter().copied().map(window).collect(),
        leases: Descriptor::default(),
    }
}

fn read(peer: PortId, tag: u64) -> Message {
    Message::Read {
        peer,
        tag,
        address: 0x1000,
        length: 8,
    }
}

/// The switch's outputs, abbreviated.
fn outputs(switch: &mut Switch) -> Vec<String> {
    let short = |output: Output| match output {
        Output::Send(to, Message::Welcome { .. }) => format!("{to}: welcome"),
        Output::Send(to, Message::Refused(refusal)) => format!("{to}: {refusal:?}"),
        Output::Send(to, Message::Announced { sequence }) => {
            format!("{to}: announced {sequence}")
        }
        Output::Send(to, Message::Peer { peer, windows, .. }) => {
            let windows: Vec<String> = windows
                .iter()
                .map(|window| match window.backing {
                    BarBacking::Gone => format!(" !{:x}", window.address),
                    _ => format!(" {:x}#{}", window.address, window.claim),
                })
                .collect();
            format!("{to}: {peer} has{}", windows.concat())
        }
        Output::Send(to, Message::Read { peer, tag, .. }) => {
            format!("{to}: read {tag} of {peer}")
        }
        Output::Send(to, Message::Reply { peer, tag, outcome }) => match outcome {
            Ok(_) => format!("{to}: done {tag} of {peer}"),
            Err(error) => format!("{to}: {error:?} {tag} of {peer}"),
        },
        Output::Send(to, Message::Link { peer, timing }) => {
            format!("{to}: {peer} takes {} ns", timing.latency)
        }
        Output::Send(_, other) => panic!("{other:?}"),
        Output::Withdraw(from, (_, tag)) => format!("{from}: not {tag}"),
        Output::CutOff(port, reason) => format!("{port} cut off: {reason:?}"),
    };
    switch.take_outputs().into_iter().map(short).collect()
}

/// A switch that lets windows be anywhere.
fn anywhere() -> Switch {
    Switch::new(
        Config {
            holes: PciHole::new(0, u64::MAX).into_iter().collect(),
            ..Config::default()
        },
        std::convert::identity,
        Instant::now(),
    )
}

/// Acknowledges all that an endpoint is sent.
fn acknowledge(switch: &mut Switch, port: PortId) {
    while let Some(sent) = switch.ports[&port].updates.sent {
        let ticket = sent.ticket;
        switch.receive(port, Message::Ack { ticket }, Instant::now());
    }
}

/// A switch with endpoints a, b, c at ports 1, 2, 3.
fn three(now: Instant) -> (Switch, [PortId; 3]) {
    let mut switch = anywhere();
    let ports = ["a", "b", "c"].map(|name| {
        let port = switch.connect(now);
        switch.receive(port, hello(name), now);
        port
    });
    switch.take_outputs();
    (switch, ports)
}

#[test]
fn link_reaches_present_and_later_peers_before_windows() {
    let now = Instant::now();
    let (mut switch, [a, b, _]) = three(now);
    let timing = |latency| Message::Link {
        peer: PortId(0),
        timing: LinkTiming {
            latency,
            bandwidth: 0,
            meter: Descriptor::new(std::fs::File::open("/dev/null").unwrap()),
        },
    };
    switch.receive(b, timing(7), now);
    assert!(outputs(&mut switch).is_empty());
    switch.receive(b, announce(1, &[0x1000]), now);
    let windows = "2 has 1000#1";
    assert_eq!(
        outputs(&mut switch),
        [
            "1: 2 takes 7 ns".to_owned(),
            format!("1: {windows}"),
            "3: 2 takes 7 ns".to_owned(),
            format!("3: {windows}"),
        ]
    );
    let late = switch.connect(now);
    switch.receive(late, hello("late"), now);
    assert_eq!(
        outputs(&mut switch),
        ["4: welcome", "4: 2 takes 7 ns", "4: 2 has 1000#1"]
    );
    switch.receive(a, timing(1), now);
    switch.take_outputs();
    for (twice, or_late) in [(a, 1), (late, 4)] {
        switch.receive(twice, announce(1, &[0x5000]), now);
        switch.take_outputs();
        switch.receive(twice, timing(2), now);
        let said = outputs(&mut switch).concat();
        assert!(
            said.contains(&format!("{or_late} cut off: Violation")),
            "{said}"
        );
    }
}

#[test]
fn announcement_ends_when_all_others_have_acknowledged() {
    let now = Instant::now();
    let (mut switch, [a, b, c]) = three(now);
    switch.receive(a, announce(7, &[0x1000]), now);
    assert_eq!(outputs(&mut switch), ["2: 1 has 1000#1", "3: 1 has 1000#1"]);
    acknowledge(&mut switch, b);
    assert!(outputs(&mut switch).is_empty());
    acknowledge(&mut switch, c);
    assert_eq!(outputs(&mut switch), ["1: announced 7"]);
    switch.receive(a, announce(8, &[]), now);
    assert_eq!(outputs(&mut switch), ["2: 1 has", "3: 1 has"]);
    switch.leave(c, now);
    acknowledge(&mut switch, b);
    assert_eq!(
        outputs(&mut switch),
        ["1: announced 8"],
        "an endpoint that has left need not acknowledge"
    );
}

#[test]
fn own_announcement_acknowledges_none_of_a_peer() {
    let now = Instant::now();
    let (mut switch, [a, b, c]) = three(now);
    switch.receive(a, announce(1, &[0x1000]), now);
    switch.receive(b, announce(1, &[0x2000]), now);
    for port in [a, c] {
        acknowledge(&mut switch, port);
    }
    let words = outputs(&mut switch);
    assert!(words.contains(&"2: announced 1".to_owned()), "{words:?}");
    assert!(!words.contains(&"1: announced 1".to_owned()), "{words:?}");
    acknowledge(&mut switch, b);
    assert_eq!(outputs(&mut switch), ["1: announced 1"]);
}

#[test]
fn peers_that_come_and_go_do_not_fill_a_queue() {
    let now = Instant::now();
    let (mut switch, [a, b, _]) = three(now);
    switch.receive(b, announce(1, &[0x2000]), now);
    for number in 0..1000 {
        let port = switch.connect(now);
        switch.receive(port, hello(&format!("d{number}")), now);
        switch.receive(port, announce(1, &[0x1000]), now);
        switch.leave(port, now);
    }
    let words = outputs(&mut switch);
    let sent = words.iter().filter(|word| word.starts_with("1: "));
    assert_eq!(sent.collect::<Vec<_>>(), ["1: 2 has 2000#1"]);
    assert_eq!(switch.ports[&a].updates.pending.len(), MAX_PORTS);
    acknowledge(&mut switch, a);
    let words = outputs(&mut switch);
    let is_gone = |word: &&String| word.ends_with("has !1000");
    assert_eq!(words.iter().filter(is_gone).count(), MAX_PORTS);
}

#[test]
fn missing_acknowledgement_cuts_off_and_keeps_claims() {
    let now = Instant::now();
    let (mut switch, [a, b, c]) = three(now);
    switch.receive(c, announce(1, &[0x3000]), now);
    for port in [a, b] {
        acknowledge(&mut switch, port);
    }
    switch.receive(a, announce(1, &[0x1000]), now);
    acknowledge(&mut switch, b);
    outputs(&mut switch);
    assert_eq!(switch.deadline(), Some(now + ACKNOWLEDGE_TIME_OUT));
    switch.expire(now + ACKNOWLEDGE_TIME_OUT - Duration::from_millis(1));
    assert!(outputs(&mut switch).is_empty());
    switch.expire(now + ACKNOWLEDGE_TIME_OUT);
    assert_eq!(
        outputs(&mut switch),
        [
            "3 cut off: NoAck",
            "1: 3 has !3000",
            "2: 3 has !3000",
            "1: announced 1"
        ]
    );
    assert_eq!(switch.deadline(), None);
}

/// Has an endpoint acknowledge the one change that it was sent.
fn acknowledge_one(switch: &mut Switch, port: PortId, now: Instant) {
    let ticket = switch.ports[&port].updates.sent.unwrap().ticket;
    switch.receive(port, Message::Ack { ticket }, now);
}

#[test]
fn slow_but_steady_acknowledgements_are_waited_for() {
    let now = Instant::now();
    let (mut switch, [a, b, slow]) = three(now);
    for (port, other) in [(a, b), (b, a)] {
        switch.receive(port, announce(1, &[0x1000]), now);
        acknowledge(&mut switch, other);
    }
    outputs(&mut switch);
    let pause = ACKNOWLEDGE_TIME_OUT * 3 / 4;
    for (moment, announced) in [(pause, "1: announced 1"), (2 * pause, "2: announced 1")] {
        switch.expire(now + moment);
        acknowledge_one(&mut switch, slow, now + moment);
        let words = outputs(&mut switch);
        assert!(words.contains(&announced.to_owned()), "{words:?}");
    }
    assert_eq!(switch.deadline(), None);
}

/// A switch whose port 1 has closed its window, which 3 has not acknowledged.
fn closed_with_a_late_peer(now: Instant) -> (Switch, [PortId; 3]) {
    let (mut switch, ports) = three(now);
    let [a, b, late] = ports;
    switch.receive(a, announce(1, &[0x1000, 0x2000]), now);
    for port in [b, late] {
        acknowledge(&mut switch, port);
    }
    switch.receive(a, announce(2, &[0x2000]), now);
    acknowledge(&mut switch, b);
    switch.take_outputs();
    (switch, ports)
}

#[test]
fn closing_waits_a_moment_only_for_a_late_peer() {
    let now = Instant::now();
    let (mut switch, [a, ..]) = closed_with_a_late_peer(now);
    assert_eq!(switch.deadline(), Some(now + CLOSING_TIME_OUT));
    switch.expire(now + CLOSING_TIME_OUT - Duration::from_millis(1));
    assert!(outputs(&mut switch).is_empty());
    switch.expire(now + CLOSING_TIME_OUT);
    assert_eq!(outputs(&mut switch), ["1: announced 2"]);
    assert_eq!(switch.deadline(), Some(now + ACKNOWLEDGE_TIME_OUT));
    switch.expire(now + ACKNOWLEDGE_TIME_OUT);
    assert_eq!(outputs(&mut switch), ["3 cut off: NoAck"]);
    assert!(switch.ports[&a].announcing.is_none());
}

#[test]
fn late_acknowledgement_of_a_closing_is_in_time() {
    let now = Instant::now();
    let (mut switch, [_, _, late]) = closed_with_a_late_peer(now);
    switch.expire(now + CLOSING_TIME_OUT);
    switch.take_outputs();
    acknowledge(&mut switch, late);
    assert!(outputs(&mut switch).is_empty(), "it was answered");
    assert_eq!(switch.deadline(), None);
}

#[test]
fn opening_after_a_closing_waits_for_a_late_peer() {
    let now = Instant::now();
    for addresses in [[0x2000, 0x3000].as_slice(), &[0x3000], &[0x1000, 0x2000]] {
        let (mut switch, [a, b, late]) = closed_with_a_late_peer(now);
        let answered = now + CLOSING_TIME_OUT;
        switch.expire(answered);
        switch.take_outputs();
        switch.receive(a, announce(3, addresses), answered);
        acknowledge(&mut switch, b);
        switch.expire(answered + 2 * CLOSING_TIME_OUT);
        // Of the closing, then of the opening.
        acknowledge_one(&mut switch, late, answered + 2 * CLOSING_TIME_OUT);
        let announced = "1: announced 3".to_owned();
        assert!(!outputs(&mut switch).contains(&announced), "{addresses:x?}");
        acknowledge(&mut switch, late);
        assert_eq!(outputs(&mut switch), [announced], "{addresses:x?}");
    }
}

#[test]
fn window_with_other_memory_is_an_opening() {
    let now = Instant::now();
    let lent = |offset, lease| BarWindow {
        backing: BarBacking::Lent(Descriptor::default(), offset, lease),
        ..window(0x1000)
    };
    for next in [lent(0, 2), lent(0x1000, 1), window(0x1000)] {
        let (mut switch, [a, b, late]) = three(now);
        for (sequence, window) in [(1, lent(0, 1)), (2, next)] {
            let message = Message::Announce {
                sequence,
                windows: vec![window],
                leases: Descriptor::default(),
            };
            switch.receive(a, message, now);
            acknowledge(&mut switch, b);
            if sequence == 1 {
                acknowledge(&mut switch, late);
            }
        }
        switch.take_outputs();
        assert_eq!(switch.deadline(), Some(now + ACKNOWLEDGE_TIME_OUT));
        switch.expire(now + CLOSING_TIME_OUT);
        assert!(outputs(&mut switch).is_empty());
    }
}

#[test]
fn announcement_waits_for_no_endpoint_without_end() {
    let now = Instant::now();
    let (mut switch, [a, b, slow]) = three(now);
    let others = (0..9).map(|number| {
        let port = switch.connect(now);
        switch.receive(port, hello(&format!("d{number}")), now);
        port
    });
    for port in [a, b].into_iter().chain(others.collect::<Vec<_>>()) {
        switch.receive(port, announce(1, &[0x1000]), now);
    }
    for port in switch.ports.keys().copied().collect::<Vec<_>>() {
        if port != slow {
            acknowledge(&mut switch, port);
        }
    }
    outputs(&mut switch);
    let mut moment = now;
    while switch.deadline().is_some() {
        moment += Duration::from_millis(500);
        assert!(moment <= now + ANNOUNCEMENT_TIME_OUT);
        switch.expire(moment);
        if switch.ports.contains_key(&slow) {
            acknowledge_one(&mut switch, slow, moment);
        }
    }
    let words = outputs(&mut switch);
    assert!(words.contains(&"3 cut off: NoAck".to_owned()), "{words:?}");
    let announced = words.iter().filter(|word| word.ends_with("announced 1"));
    assert_eq!(announced.count(), 11);
}

#[test]
fn former_windows_are_gone_before_a_newcomer_is_announced() {
    let now = Instant::now();
    let (mut switch, [a, b, c]) = three(now);
    switch.receive(a, announce(1, &[0x1000]), now);
    for port in [b, c] {
        acknowledge(&mut switch, port);
    }
    outputs(&mut switch);
    switch.receive(c, announce(1, &[0x3000]), now);
    switch.leave(a, now);
    let back = switch.connect(now);
    switch.receive(back, hello("a"), now);
    switch.receive(back, announce(1, &[0x1000]), now);
    for port in [c, back] {
        acknowledge(&mut switch, port);
    }
    acknowledge_one(&mut switch, b, now);
    acknowledge_one(&mut switch, b, now);
    let words = outputs(&mut switch);
    let to_b = words.iter().filter(|word| word.starts_with("2: "));
    let expected = ["2: 3 has 3000#2", "2: 1 has", "2: 4 has 1000#3"];
    assert_eq!(to_b.collect::<Vec<_>>(), expected);
    let announced = "4: announced 1".to_owned();
    assert!(!words.contains(&announced), "{words:?}");
    acknowledge_one(&mut switch, b, now);
    assert_eq!(outputs(&mut switch), [announced]);
}

#[test]
fn newcomer_gets_all_peers_and_owes_no_acknowledgement() {
    let now = Instant::now();
    let (mut switch, [a, b, c]) = three(now);
    switch.receive(a, announce(1, &[0x1000]), now);
    outputs(&mut switch);
    let d = switch.connect(now);
    switch.receive(d, hello("d"), now);
    assert_eq!(outputs(&mut switch), ["4: welcome", "4: 1 has 1000#1"]);
    for port in [b, c] {
        acknowledge(&mut switch, port);
    }
    assert_eq!(outputs(&mut switch), ["1: announced 1"]);
}

#[test]
fn unmoved_window_keeps_its_claim_and_moved_one_does_not() {
    let now = Instant::now();
    let (mut switch, [a, b, _]) = three(now);
    switch.leave(PortId(3), now);
    switch.receive(a, announce(1, &[0x1000]), now);
    switch.receive(b, announce(1, &[0x1000]), now);
    acknowledge(&mut switch, b);
    acknowledge(&mut switch, a);
    outputs(&mut switch);
    switch.receive(a, announce(2, &[0x1000, 0x5000]), now);
    acknowledge(&mut switch, b);
    switch.receive(a, announce(3, &[0x2000, 0x5000]), now);
    let words = outputs(&mut switch);
    assert_eq!(words[0], "2: 1 has 1000#1 5000#3");
    assert_eq!(words[2], "2: 1 has 2000#4 5000#3");
}

#[test]
fn window_outside_of_the_pci_holes_is_passed_on_to_nobody() {
    let now = Instant::now();
    let (mut switch, [a, b, c]) = three(now);
    switch.config = Config::default();
    let over_ram = [0x1000, 0x7fff_f800, 0xfebf_f800, 0xfee0_0000];
    let hole = 0xc000_0000;
    for addresses in [&over_ram[..2], &over_ram[2..]] {
        let windows = [addresses, &[hole]].concat();
        switch.receive(a, announce(1, &windows), now);
        let words = outputs(&mut switch);
        assert!(words[0].contains("1 has c0000000#"), "{words:?}");
        for port in [b, c] {
            acknowledge(&mut switch, port);
        }
        assert_eq!(outputs(&mut switch), ["1: announced 1"]);
    }
    switch.leave(a, now);
    assert!(outputs(&mut switch)[0].ends_with("1 has !c0000000"));
}

#[test]
fn endpoint_that_comes_back_frees_its_former_windows() {
    let now = Instant::now();
    let (mut switch, [a, b, c]) = three(now);
    switch.receive(a, announce(1, &[0x1000]), now);
    switch.leave(a, now);
    outputs(&mut switch);
    let other = switch.connect(now);
    switch.receive(other, hello("d"), now);
    assert_eq!(outputs(&mut switch), ["4: welcome", "4: 1 has !1000"]);
    let back = switch.connect(now);
    switch.receive(back, hello("a"), now);
    assert_eq!(outputs(&mut switch), ["5: welcome"]);
    for port in [b, c, other] {
        acknowledge(&mut switch, port);
    }
    assert_eq!(outputs(&mut switch), ["2: 1 has", "3: 1 has", "4: 1 has"]);
}

#[test]
fn mark_comes_after_all_introductions() {
    let now = Instant::now();
    let (mut switch, [a, b, _]) = three(now);
    switch.receive(a, announce(1, &[0x1000]), now);
    switch.receive(b, announce(1, &[0x2000]), now);
    let back = switch.connect(now);
    switch.receive(back, hello("d"), now);
    switch.receive(back, Message::Mark, now);
    acknowledge(&mut switch, back);
    let words = outputs(&mut switch);
    let to_it: Vec<_> = words
        .iter()
        .filter(|word| word.starts_with("4: "))
        .collect();
    assert_eq!(
        to_it,
        [
            "4: welcome",
            "4: 1 has 1000#1",
            "4: 2 has 2000#2",
            "4: 0 has"
        ]
    );
}

#[test]
fn last_leave_frees_all_vanished_windows() {
    let now = Instant::now();
    let (mut switch, ports) = three(now);
    switch.receive(ports[0], announce(1, &[0x1000]), now);
    for port in ports {
        switch.leave(port, now);
    }
    outputs(&mut switch);
    let next = switch.connect(now);
    switch.receive(next, hello("b"), now);
    assert_eq!(outputs(&mut switch), ["4: welcome"]);
}

#[test]
fn request_is_relayed_and_only_its_own_reply_returned() {
    let now = Instant::now();
    let (mut switch, [a, b, c]) = three(now);
    let reply = |outcome| Message::Reply {
        peer: a,
        tag: 5,
        outcome,
    };
    let done = || Ok(ByteBuf::new());
    switch.receive(a, read(b, 5), now);
    assert_eq!(outputs(&mut switch), ["2: read 5 of 1"]);
    switch.receive(c, reply(done()), now);
    assert!(outputs(&mut switch).is_empty(), "c was not asked");
    switch.receive(b, reply(Err(RequestError::Unsupported)), now);
    switch.receive(b, reply(done()), now);
    assert_eq!(outputs(&mut switch), ["1: Unsupported 5 of 2"]);
}

#[test]
fn request_without_a_completer_fails() {
    let now = Instant::now();
    let (mut switch, [a, b, c]) = three(now);
    for (tag, peer) in [(1, a), (2, PortId(9)), (3, b), (4, c)] {
        switch.receive(a, read(peer, tag), now);
    }
    assert_eq!(
        outputs(&mut switch),
        [
            "1: Gone 1 of 1",
            "1: Gone 2 of 9",
            "2: read 3 of 1",
            "3: read 4 of 1"
        ]
    );
    switch.leave(b, now);
    assert_eq!(outputs(&mut switch), ["1: Gone 3 of 2"]);
    switch.expire(now + ENDPOINT_TIME_OUT);
    assert_eq!(outputs(&mut switch), ["3: not 4", "1: TimedOut 4 of 3"]);
    switch.receive(a, read(c, 5), now);
    switch.take_outputs();
    switch.leave(a, now);
    assert_eq!(outputs(&mut switch), ["3: not 5"]);
}

#[test]
fn request_of_a_refusing_or_losing_link_is_not_relayed() {
    let now = Instant::now();
    for (mode, expected) in [
        (LinkMode::Route, "2: read 1 of 1"),
        (LinkMode::Redirect, "2: read 1 of 1"),
        (LinkMode::UnsupportedRequest, "1: Unsupported 1 of 2"),
        (LinkMode::Drop, "1: Unsupported 1 of 2"),
    ] {
        let (mut switch, [a, b, _]) = three(now);
        switch.config.modes = [("a".to_owned(), mode)].into();
        switch.receive(a, read(b, 1), now);
        assert_eq!(outputs(&mut switch), [expected], "{mode}");
        switch.receive(b, read(a, 1), now);
        assert_eq!(outputs(&mut switch), ["1: read 1 of 2"], "{mode}");
    }
}

#[test]
fn memory_is_lent_to_no_refusing_or_losing_link() {
    let now = Instant::now();
    for (mode, is_lent) in [
        (LinkMode::Route, true),
        (LinkMode::Redirect, true),
        (LinkMode::UnsupportedRequest, false),
        (LinkMode::Drop, false),
    ] {
        let (mut switch, [a, b, _]) = three(now);
        switch.config.modes = [("b".to_owned(), mode)].into();
        let lent = BarWindow {
            backing: BarBacking::Lent(Descriptor::default(), 0, 1),
            ..window(0x1000)
        };
        let announcement = Message::Announce {
            sequence: 1,
            windows: vec![lent],
            leases: Descriptor::default(),
        };
        switch.receive(a, announcement, now);
        let to_b = switch
            .take_outputs()
            .into_iter()
            .find_map(|output| match output {
                Output::Send(to, Message::Peer { windows, .. }) if to == b => Some(windows),
                _ => None,
            });
        let has_memory = |window: &BarWindow| matches!(window.backing, BarBacking::Lent(..));
        assert_eq!(
            to_b.unwrap().iter().map(has_memory).collect::<Vec<_>>(),
            [is_lent]
        );
    }
}

#[test]
fn violation_cuts_off_the_endpoint_and_no_other() {
    let gone = Message::Announce {
        sequence: 1,
        windows: vec![BarWindow {
            backing: BarBacking::Gone,
            ..window(0x1000)
        }],
        leases: Descriptor::default(),
    };
    let odd: [Vec<Message>; 6] = [
        vec![hello("z")],
        vec![announce(1, &[]), announce(2, &[])],
        vec![gone],
        vec![Message::Ack { ticket: 1 }],
        vec![Message::Announced { sequence: 1 }],
        vec![read(PortId(2), 1), read(PortId(2), 1)],
    ];
    for messages in odd {
        let now = Instant::now();
        let (mut switch, [a, b, c]) = three(now);
        for message in &messages {
            switch.receive(a, message.clone(), now);
        }
        let words = outputs(&mut switch);
        assert!(
            words
                .iter()
                .any(|word| word.starts_with("1 cut off: Violation")),
            "{messages:?}"
        );
        acknowledge(&mut switch, c);
        switch.take_outputs();
        switch.receive(b, announce(1, &[0x2000]), now);
        let words = outputs(&mut switch).concat();
        assert!(words.ends_with("2 has 2000#1"), "{words}");
    }
}

#[test]
fn invalid_first_message_is_refused_or_cut_off() {
    let now = Instant::now();
    let (mut switch, _) = three(now);
    let old = Message::Hello {
        protocol: PROTOCOL + 1,
        name: "d".to_owned(),
    };
    let port = switch.connect(now);
    switch.receive(port, old, now);
    let expected = ["4: Protocol", "4 cut off: Refused(Protocol)"];
    assert_eq!(outputs(&mut switch), expected);
    let silent = switch.connect(now);
    let rude = switch.connect(now);
    switch.receive(rude, announce(1, &[]), now);
    assert!(outputs(&mut switch)[0].starts_with("6 cut off: Violation"));
    switch.expire(now + ENDPOINT_TIME_OUT);
    assert_eq!(outputs(&mut switch), [format!("{silent} cut off: Silent")]);
}

#[test]
fn name_that_becomes_free_is_given_to_the_first_that_waits() {
    let now = Instant::now();
    let (mut switch, [a, ..]) = three(now);
    for _ in 0..2 {
        let port = switch.connect(now);
        switch.receive(port, hello("a"), now);
    }
    assert!(outputs(&mut switch).is_empty());
    switch.leave(a, now);
    assert_eq!(outputs(&mut switch), ["4: welcome"]);
    switch.leave(PortId(4), now);
    assert_eq!(outputs(&mut switch), ["5: welcome"]);
    assert_eq!(switch.deadline(), None);
}

#[test]
fn name_that_stays_taken_is_refused_in_time() {
    let now = Instant::now();
    let (mut switch, [a, ..]) = three(now);
    let (namesake, hasty) = (switch.connect(now), switch.connect(now));
    switch.receive(namesake, hello("a"), now);
    switch.receive(hasty, hello("a"), now);
    switch.receive(hasty, announce(1, &[]), now);
    assert!(outputs(&mut switch)[0].starts_with("5 cut off: Violation"));
    assert_eq!(switch.deadline(), Some(now + NAME_TIME_OUT));
    switch.expire(now + NAME_TIME_OUT - Duration::from_millis(1));
    assert!(outputs(&mut switch).is_empty());
    switch.expire(now + NAME_TIME_OUT);
    let refused = ["4: NameTaken", "4 cut off: Refused(NameTaken)"];
    assert_eq!(outputs(&mut switch), refused);
    switch.leave(a, now);
    assert!(outputs(&mut switch).is_empty(), "nobody waits any more");
}

#[test]
fn port_beyond_the_limit_is_refused() {
    let now = Instant::now();
    let mut switch = anywhere();
    for number in 0..=MAX_PORTS {
        let port = switch.connect(now);
        switch.receive(port, hello(&format!("d{number}")), now);
    }
    let words = outputs(&mut switch);
    assert_eq!(words[MAX_PORTS - 1], "64: welcome");
    assert_eq!(
        words[MAX_PORTS..],
        ["65: Full", "65 cut off: Refused(Full)"]
    );
}

#[test]
fn vanished_endpoint_beyond_the_limit_is_forgotten() {
    let now = Instant::now();
    let (mut switch, [a, ..]) = three(now);
    for number in 0..=MAX_PORTS {
        let port = switch.connect(now);
        switch.receive(port, hello(&format!("d{number}")), now);
        switch.receive(port, announce(1, &[0x1000]), now);
        switch.leave(port, now);
        acknowledge(&mut switch, a);
    }
    assert_eq!(switch.vanished.len(), MAX_PORTS);
    let words = outputs(&mut switch);
    assert!(
        words.contains(&"1: 4 has".to_owned()),
        "the oldest is forgotten"
    );
}

#[test]
fn link_has_the_mode_of_its_name() {
    let now = Instant::now();
    let mut switch = anywhere();
    switch.config.modes = [("b".to_owned(), LinkMode::Drop)].into();
    for (name, expected) in [("a", LinkMode::Route), ("b", LinkMode::Drop)] {
        let port = switch.connect(now);
        switch.receive(port, hello(name), now);
        let [Output::Send(_, Message::Welcome { mode, .. })] = switch.take_outputs()[..] else {
            panic!("no welcome")
        };
        assert_eq!(mode, expected);
    }
}

#[test]
fn windows_overlap_where_they_share_an_address() {
    let at = |address| window(address);
    assert!(at(0x1000).overlaps(&at(0x1fff)));
    assert!(at(0x1fff).overlaps(&at(0x1000)));
    assert!(!at(0x1000).overlaps(&at(0x2000)));
    let last = BarWindow {
        address: u64::MAX,
        size: 1,
        ..window(0)
    };
    assert!(last.overlaps(&last));
}

#[test]
fn storm_of_announcements_by_all_at_once_is_worked_off() {
    const ROUNDS: u64 = 5;
    let now = Instant::now();
    let mut switch = Switch::new(Config::default(), |number| number, now);
    let address = |port: PortId, round| (u64::from(port.0) << 32) + 0x1000 * round;
    let ports = (0..32).map(|number| {
        let port = switch.connect(now);
        switch.receive(port, hello(&format!("d{number}")), now);
        port
    });
    let ports: Vec<PortId> = ports.collect();
    for port in &ports {
        switch.receive(*port, announce(1, &[address(*port, 1)]), now);
    }
    let (mut announced, mut acknowledged) = (BTreeMap::new(), 0);
    loop {
        let outputs = switch.take_outputs();
        if outputs.is_empty() {
            break;
        }
        for output in outputs {
            match output {
                Output::Send(to, Message::Peer { ticket, .. }) => {
                    acknowledged += 1;
                    switch.receive(to, Message::Ack { ticket }, now);
                }
                Output::Send(to, Message::Announced { sequence }) => {
                    announced.insert(to, sequence);
                    if sequence < ROUNDS {
                        let next = announce(sequence + 1, &[address(to, sequence + 1)]);
                        switch.receive(to, next, now);
                    }
                }
                Output::Send(_, Message::Welcome { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(
        announced,
        ports.iter().map(|port| (*port, ROUNDS)).collect()
    );
    let others = ports.len() as u64 - 1;
    assert_eq!(acknowledged, ports.len() as u64 * others * ROUNDS);
}

#[test]
fn numbers_that_wrap_leave_out_nobody_and_the_ports_that_are_there() {
    let mut switch = anywhere();
    let now = Instant::now();
    let first = switch.connect(now);
    switch.last_port = u32::MAX - 1;
    let next: Vec<PortId> = (0..2).map(|_| switch.connect(now)).collect();
    assert_eq!(
        (first, next),
        (PortId(1), vec![PortId(u32::MAX), PortId(2)])
    );
}
