//! Each message of an endpoint, and the switch's reaction.

use std::time::{Duration, Instant};

use peerbar_pci::{BusAddress, Range};
use serde_bytes::ByteBuf;

use super::output::Output;
use super::*;
use crate::limits::{
    BRIDGES_INTERVAL, BRIDGES_MIN_INTERVAL, BRIDGES_TIME_OUT, CLOSING_TIME_OUT, ENDPOINT_TIME_OUT,
    MAX_PORTS, NAME_TIME_OUT, PROTOCOL,
};
use crate::link_mode::LinkMode;
use crate::message::LinkTiming;
use crate::window::{BarBacking, BarWindow, Descriptor};

fn window(address: u64) -> BarWindow {
    BarWindow {
        bar: 0,
        range: Range::new(BusAddress(address), 0x1000).unwrap(),
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
        address: BusAddress(0x1000),
        length: 8,
    }
}

/// The switch's outputs, abbreviated, without counts of changes.
fn outputs(switch: &mut Switch) -> Vec<String> {
    let mut outputs = all_outputs(switch);
    outputs.retain(|output| !output.contains("known"));
    outputs
}

/// The switch's outputs, abbreviated.
fn all_outputs(switch: &mut Switch) -> Vec<String> {
    let short = |output: Output| match output {
        Output::Count(count) => format!("{count} to be known"),
        Output::Send(to, Message::Known { count }) => format!("{to}: {count} known"),
        Output::Send(to, Message::Welcome { .. }) => format!("{to}: welcome"),
        Output::Send(to, Message::Refused(refusal)) => format!("{to}: {refusal:?}"),
        Output::Send(to, Message::Announced { sequence }) => {
            format!("{to}: announced {sequence}")
        }
        Output::Send(
            to,
            Message::Peer {
                peer,
                windows,
                known,
                ..
            },
        ) => {
            let windows: Vec<String> = windows
                .iter()
                .map(|window| match window.backing {
                    BarBacking::Gone => format!(" !{:x}", window.range.first().0),
                    _ => format!(" {:x}#{}", window.range.first().0, window.claim),
                })
                .collect();
            let windows = windows.concat();
            format!("{to}: {peer} has{windows}\n{to}: {known} known")
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
        Output::AskForBridgeWindows(number) => format!("question {number}"),
        Output::CutOff(port, reason) => format!("{port} cut off: {reason:?}"),
    };
    let outputs = switch.take_outputs().into_iter().map(short);
    outputs
        .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

/// Returns a switch that accepts windows anywhere.
fn anywhere() -> Switch {
    with_bridge_windows(false)
}

/// Returns a switch that accepts windows that their ports forward, if it has a bridge socket, or
/// windows anywhere.
fn with_bridge_windows(has_bridge_windows: bool) -> Switch {
    Switch::new(
        Config {
            holes: vec![Range::all()],
            ..Config::default()
        },
        has_bridge_windows,
        Descriptor::default(),
        std::convert::identity,
        Instant::now(),
    )
}

/// Acknowledges all changes that an endpoint is sent.
fn acknowledge(switch: &mut Switch, port: PortId) {
    while let Some(sent) = switch.ports[&port].updates.sent {
        let ticket = sent.ticket;
        switch.receive(port, Message::Ack { ticket }, Instant::now());
    }
}

/// Returns a switch with endpoints a, b, c at ports 1, 2, 3.
fn three(now: Instant) -> (Switch, [PortId; 3]) {
    three_at(anywhere(), now)
}

fn three_at(mut switch: Switch, now: Instant) -> (Switch, [PortId; 3]) {
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
            "2: announced 1".to_owned(),
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

/// Returns a switch as in [`three`], whose port 1 has windows at these addresses, which all others
/// know.
fn with_windows(now: Instant, addresses: &[u64]) -> (Switch, [PortId; 3]) {
    let (mut switch, ports) = three(now);
    switch.receive(ports[0], announce(1, addresses), now);
    for port in ports {
        acknowledge(&mut switch, port);
    }
    switch.take_outputs();
    (switch, ports)
}

#[test]
fn announcement_that_closes_ends_when_all_have_acknowledged() {
    let now = Instant::now();
    let (mut switch, [a, b, c]) = with_windows(now, &[0x1000, 0x5000]);
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
fn announcement_that_only_opens_waits_for_none_but_earlier_ones() {
    let now = Instant::now();
    let (mut switch, [a, b, c]) = three(now);
    switch.receive(a, announce(1, &[0x1000]), now);
    let words = outputs(&mut switch);
    assert_eq!(words.last().unwrap(), "1: announced 1");
    assert_eq!(switch.deadline(), None);
    // Only as fast as its windows are sent to the others.
    switch.receive(a, announce(2, &[0x1000, 0x2000]), now);
    assert!(outputs(&mut switch).is_empty());
    assert_eq!(switch.deadline(), Some(now + CLOSING_TIME_OUT));
    for port in [b, c] {
        acknowledge(&mut switch, port);
    }
    let words = outputs(&mut switch);
    assert_eq!(words.last().unwrap(), "1: announced 2");
}

#[test]
fn announcement_of_the_same_windows_is_no_change() {
    let now = Instant::now();
    let (mut switch, [a, ..]) = with_windows(now, &[0x1000]);
    switch.receive(a, announce(2, &[0x1000]), now);
    assert_eq!(all_outputs(&mut switch), ["1: announced 2"]);
}

#[test]
fn own_announcement_acknowledges_none_of_a_peer() {
    let now = Instant::now();
    let (mut switch, [a, b, c]) = with_windows(now, &[0x1000]);
    switch.receive(a, announce(2, &[]), now);
    switch.receive(b, announce(1, &[0x2000]), now);
    for port in [a, c] {
        acknowledge(&mut switch, port);
    }
    let words = outputs(&mut switch);
    assert!(words.contains(&"2: announced 1".to_owned()), "{words:?}");
    assert!(!words.contains(&"1: announced 2".to_owned()), "{words:?}");
    acknowledge(&mut switch, b);
    assert_eq!(outputs(&mut switch), ["1: announced 2"]);
}

#[test]
fn each_endpoint_is_sent_up_to_which_count_it_knows_all_changes() {
    let now = Instant::now();
    let (mut switch, [a, b, c]) = three(now);
    let of = |switch: &mut Switch, meant: &str| {
        let mut words = all_outputs(switch);
        words.retain(|word| word.starts_with(meant) || word.contains("to be"));
        words
    };
    switch.receive(a, announce(1, &[0x1000]), now);
    let words = of(&mut switch, "2: ");
    assert_eq!(words, ["1 to be known", "2: 1 has 1000#1", "2: 1 known"]);
    let late = now + CLOSING_TIME_OUT;
    // Two more changes, where the second replaces the first, and one of another endpoint.
    switch.receive(a, announce(2, &[0x1000, 0x2000]), late);
    switch.receive(c, announce(1, &[0x3000]), late);
    switch.receive(a, announce(3, &[0x1000, 0x2000, 0x4000]), late);
    let words = of(&mut switch, "2: ");
    assert_eq!(words, ["2 to be known", "3 to be known", "4 to be known"]);
    acknowledge_one(&mut switch, b, late);
    let newest = "2: 1 has 1000#1 2000#2 4000#4";
    assert_eq!(of(&mut switch, "2: "), [newest, "2: 2 known"]);
    acknowledge_one(&mut switch, b, late);
    assert_eq!(of(&mut switch, "2: "), ["2: 3 has 3000#3", "2: 4 known"]);
    // An endpoint knows its own windows.
    switch.receive(b, announce(1, &[0x8000]), late);
    assert!(!of(&mut switch, "2: ").contains(&"2: 5 known".to_owned()));
    acknowledge_one(&mut switch, b, late);
    assert_eq!(of(&mut switch, "2: "), ["2: 5 known"]);
    switch.receive(b, announce(2, &[0x8000, 0x9000]), late);
    assert_eq!(of(&mut switch, "2: "), ["6 to be known", "2: 6 known"]);
}

#[test]
fn newcomer_knows_all_changes_once_it_knows_all_peers() {
    let now = Instant::now();
    let (mut switch, [a, b, _]) = three(now);
    let known = |switch: &mut Switch, to: &str| {
        let mut words = all_outputs(switch);
        words.retain(|word| word.starts_with(to) && word.ends_with("known"));
        words
    };
    switch.take_outputs();
    let first = switch.connect(now);
    switch.receive(first, hello("first"), now);
    assert_eq!(known(&mut switch, "4: "), ["4: 0 known"]);
    switch.receive(a, announce(1, &[0x1000]), now);
    switch.receive(b, announce(1, &[0x2000]), now);
    switch.take_outputs();
    let late = switch.connect(now);
    switch.receive(late, hello("late"), now);
    assert_eq!(known(&mut switch, "5: "), ["5: 1 known"]);
    acknowledge_one(&mut switch, late, now);
    assert_eq!(known(&mut switch, "5: "), ["5: 2 known"]);
}

#[test]
fn change_that_needs_not_be_sent_any_more_is_known() {
    let now = Instant::now();
    let (mut switch, [a, b, c]) = three(now);
    switch.receive(b, announce(1, &[0x2000]), now);
    // It comes and goes while port 1 has not acknowledged the change of port 2. All others forget
    // it.
    let brief = switch.connect(now);
    switch.receive(brief, hello("brief"), now);
    switch.receive(brief, announce(1, &[0x7000]), now);
    switch.leave(brief, now);
    let again = switch.connect(now);
    switch.receive(again, hello("brief"), now);
    for port in [a, b, c, again] {
        acknowledge(&mut switch, port);
    }
    let words = all_outputs(&mut switch);
    let last = words.iter().rfind(|word| word.starts_with("1: "));
    assert_eq!(last.unwrap(), "1: 3 known", "{words:?}");
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

/// Makes an endpoint acknowledge the one change that it was sent.
fn acknowledge_one(switch: &mut Switch, port: PortId, now: Instant) {
    let ticket = switch.ports[&port].updates.sent.unwrap().ticket;
    switch.receive(port, Message::Ack { ticket }, now);
}

/// Returns a switch whose port 1 has closed its window, which port 3 has not acknowledged.
fn closed_with_a_late_peer(now: Instant) -> (Switch, [PortId; 3]) {
    let (mut switch, ports) = with_windows(now, &[0x1000, 0x2000]);
    let [a, b, _] = ports;
    switch.receive(a, announce(2, &[0x2000]), now);
    acknowledge(&mut switch, b);
    switch.take_outputs();
    (switch, ports)
}

#[test]
fn closing_waits_a_moment_only_for_a_late_peer() {
    let now = Instant::now();
    let (mut switch, [a, _, late]) = closed_with_a_late_peer(now);
    assert_eq!(switch.deadline(), Some(now + CLOSING_TIME_OUT));
    switch.expire(now + CLOSING_TIME_OUT - Duration::from_millis(1));
    assert!(outputs(&mut switch).is_empty());
    switch.expire(now + CLOSING_TIME_OUT);
    assert_eq!(outputs(&mut switch), ["1: announced 2"]);
    assert_eq!(switch.deadline(), None);
    assert!(switch.ports[&a].announcing.is_none());
    acknowledge(&mut switch, late);
    assert!(outputs(&mut switch).is_empty(), "it was answered");
}

#[test]
fn endpoint_that_is_late_already_is_not_waited_for() {
    let now = Instant::now();
    let (mut switch, [a, b, late]) = closed_with_a_late_peer(now);
    let later = now + CLOSING_TIME_OUT;
    switch.expire(later);
    switch.take_outputs();
    for (sequence, addresses) in [(3, [].as_slice()), (4, &[0x3000]), (5, &[])] {
        switch.receive(a, announce(sequence, addresses), later);
        acknowledge_one(&mut switch, b, later);
        let announced = format!("1: announced {sequence}");
        assert!(outputs(&mut switch).contains(&announced), "{sequence}");
    }
    assert!(switch.ports.contains_key(&late));
    // Once it keeps up again, announcements wait for it.
    acknowledge(&mut switch, late);
    switch.receive(a, announce(6, &[0x3000]), later);
    for port in [b, late] {
        acknowledge(&mut switch, port);
    }
    switch.take_outputs();
    switch.receive(a, announce(7, &[]), later);
    assert_eq!(switch.deadline(), Some(later + CLOSING_TIME_OUT));
}

#[test]
fn window_with_other_memory_closes_the_former_one() {
    let now = Instant::now();
    let lent = |offset, lease| BarWindow {
        backing: BarBacking::Lent(Descriptor::default(), offset, lease),
        ..window(0x1000)
    };
    for (next, closes) in [
        (lent(0, 2), true),
        (lent(0x1000, 1), true),
        (window(0x1000), true),
        (lent(0, 1), false),
    ] {
        let (mut switch, [a, b, c]) = three(now);
        for (sequence, window) in [(1, lent(0, 1)), (2, next)] {
            let message = Message::Announce {
                sequence,
                windows: vec![window],
                leases: Descriptor::default(),
            };
            switch.receive(a, message, now);
            if sequence == 1 {
                acknowledge(&mut switch, b);
                acknowledge(&mut switch, c);
            }
        }
        let until = closes.then_some(now + CLOSING_TIME_OUT);
        assert_eq!(switch.deadline(), until);
    }
}

#[test]
fn announcement_waits_for_no_endpoint_that_acknowledges_others() {
    let now = Instant::now();
    let (mut switch, [a, _, slow]) = with_windows(now, &[0x1000]);
    let others = (0..9).map(|number| {
        let port = switch.connect(now);
        switch.receive(port, hello(&format!("d{number}")), now);
        switch.receive(port, announce(1, &[0x2000]), now);
        port
    });
    let others: Vec<PortId> = others.collect();
    switch.receive(a, announce(2, &[]), now);
    for port in switch.ports.keys().copied().collect::<Vec<_>>() {
        if port != slow {
            acknowledge(&mut switch, port);
        }
    }
    switch.take_outputs();
    let mut moment = now;
    for _ in &others {
        moment += CLOSING_TIME_OUT / 5;
        switch.expire(moment);
        if moment < now + CLOSING_TIME_OUT {
            assert!(
                outputs(&mut switch)
                    .iter()
                    .all(|word| !word.contains("announced"))
            );
        }
        acknowledge_one(&mut switch, slow, moment);
    }
    let words = outputs(&mut switch);
    assert!(words.contains(&"1: announced 2".to_owned()), "{words:?}");
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
}

#[test]
fn newcomer_gets_all_peers() {
    let now = Instant::now();
    let (mut switch, _) = with_windows(now, &[0x1000]);
    let d = switch.connect(now);
    switch.receive(d, hello("d"), now);
    assert_eq!(outputs(&mut switch), ["4: welcome", "4: 1 has 1000#1"]);
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
fn window_outside_of_the_pci_holes_is_not_passed_on() {
    let now = Instant::now();
    let (mut switch, [a, b, c]) = three(now);
    switch.config = Config::default();
    let over_ram = [0x1000, 0x7fff_f800, 0xfebf_f800, 0xfee0_0000];
    for (addresses, hole) in [(&over_ram[..2], 0xc001_0000), (&over_ram[2..], 0xc000_0000)] {
        let windows = [addresses, &[hole]].concat();
        switch.receive(a, announce(1, &windows), now);
        for port in [b, c] {
            acknowledge(&mut switch, port);
        }
        let words = outputs(&mut switch);
        assert!(words[0].contains(&format!("1 has {hole:x}#")), "{words:?}");
        assert!(words.contains(&"1: announced 1".to_owned()), "{words:?}");
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
    assert_eq!(switch.deadline(), Some(now + ENDPOINT_TIME_OUT));
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
        vec![announce(1, &[0x1000]), announce(2, &[]), announce(3, &[])],
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
        assert!(words.contains("2 has 2000#"), "{words}");
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
    assert_eq!(switch.deadline(), Some(now + ENDPOINT_TIME_OUT));
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
    assert!(outputs(&mut switch).is_empty(), "no announcement waits");
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
        let [Output::Send(_, Message::Welcome { mode, .. }), ..] = switch.take_outputs()[..] else {
            panic!("no welcome")
        };
        assert_eq!(mode, expected);
    }
}

#[test]
fn windows_overlap_where_they_share_an_address() {
    let at = |address| window(address);
    assert!(at(0x1000).range.overlaps(&at(0x1fff).range));
    assert!(at(0x1fff).range.overlaps(&at(0x1000).range));
    assert!(!at(0x1000).range.overlaps(&at(0x2000).range));
    let last = BarWindow {
        range: Range::new(BusAddress(u64::MAX), 1).unwrap(),
        ..window(0)
    };
    assert!(last.range.overlaps(&last.range));
}

#[test]
fn storm_of_announcements_by_all_at_once_is_worked_off() {
    const ROUNDS: u64 = 5;
    let now = Instant::now();
    let mut switch = Switch::new(
        Config::default(),
        false,
        Descriptor::default(),
        |number| number,
        now,
    );
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
    let (mut announced, mut heard) = (BTreeMap::new(), BTreeMap::new());
    loop {
        let outputs = switch.take_outputs();
        if outputs.is_empty() {
            break;
        }
        for output in outputs {
            match output {
                Output::Send(
                    to,
                    Message::Peer {
                        ticket,
                        peer,
                        windows,
                        ..
                    },
                ) => {
                    heard.insert((to, peer), windows[0].range.first().0);
                    switch.receive(to, Message::Ack { ticket }, now);
                }
                Output::Send(to, Message::Announced { sequence }) => {
                    announced.insert(to, sequence);
                    if sequence < ROUNDS {
                        let next = announce(sequence + 1, &[address(to, sequence + 1)]);
                        switch.receive(to, next, now);
                    }
                }
                Output::Count(_)
                | Output::Send(_, Message::Welcome { .. } | Message::Known { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(
        announced,
        ports.iter().map(|port| (*port, ROUNDS)).collect()
    );
    assert_eq!(heard.len(), ports.len() * (ports.len() - 1));
    for ((_, peer), last) in heard {
        assert_eq!(last, address(peer, ROUNDS));
    }
    assert!(
        ports
            .iter()
            .all(|port| switch.ports[port].known == Some(32 * ROUNDS))
    );
}

#[test]
fn numbers_that_wrap_leave_out_port_0_and_ports_in_use() {
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

/// Returns `true` if a window of an endpoint is withheld and has been logged.
fn is_logged(switch: &Switch, port: PortId) -> bool {
    let withheld = &switch.ports[&port].withheld;
    withheld.iter().any(|one| one.is_logged)
}

/// Answers the switch's last question, with `None` if the text is "unknown".
fn forwarded(switch: &mut Switch, number: u64, windows: &str, now: Instant) {
    let windows = (windows != "unknown").then(|| windows.parse().unwrap());
    switch.take_bridge_windows(number, windows, now);
}

#[test]
fn window_is_passed_on_once_its_port_forwards_it() {
    let now = Instant::now();
    let (mut switch, [a, b, c]) = three_at(with_bridge_windows(true), now);
    assert_eq!(switch.deadline(), None);
    switch.receive(a, announce(1, &[0x1000, 0x8000]), now);
    assert_eq!(outputs(&mut switch), ["question 1", "1: announced 1"]);
    // The window is forwarded by b's port, which is of no use to a.
    forwarded(&mut switch, 1, "a=0x1000-0x1fff b=0x8000-0x8fff", now);
    assert_eq!(outputs(&mut switch), ["2: 1 has 1000#1", "3: 1 has 1000#1"]);
    acknowledge(&mut switch, b);
    acknowledge(&mut switch, c);
    // While a window is withheld, the switch asks, less and less often, and logs the window once.
    let mut asked = Vec::new();
    let mut at = now;
    for number in 2..11 {
        let next = switch.deadline().unwrap();
        asked.push((next - at).as_millis());
        at = next;
        switch.expire(at);
        assert_eq!(outputs(&mut switch), [format!("question {number}")]);
        forwarded(&mut switch, number, "a=0x1000-0x1fff b=0x8000-0x8fff", at);
        let is_late = at >= now + BRIDGES_INTERVAL;
        assert_eq!(is_logged(&switch, a), is_late);
    }
    assert_eq!(asked, [50, 50, 100, 200, 400, 800, 1000, 1000, 1000]);
    assert!(outputs(&mut switch).is_empty());
    // The guest changes the bridge.
    switch.expire(switch.deadline().unwrap());
    forwarded(&mut switch, 11, "a=0x8000-0x8fff", at);
    let closed_and_opened = ["question 11", "2: 1 has", "3: 1 has"];
    assert_eq!(outputs(&mut switch), closed_and_opened);
    acknowledge(&mut switch, b);
    assert_eq!(outputs(&mut switch), ["2: 1 has 8000#2"]);
}

#[test]
fn window_that_its_port_is_known_to_forward_is_passed_on() {
    let now = Instant::now();
    let (mut switch, [a, b, c]) = three_at(with_bridge_windows(true), now);
    switch.receive(a, announce(1, &[0x1000]), now);
    forwarded(&mut switch, 1, "a=0x1000-0x2fff b=0x3000-0x3fff", now);
    acknowledge(&mut switch, b);
    switch.take_outputs();
    switch.receive(a, announce(2, &[0x1000, 0x2000]), now);
    let outputs_of = outputs(&mut switch);
    let passed_on = "2: 1 has 1000#1 2000#2".to_owned();
    assert!(outputs_of.contains(&passed_on), "{outputs_of:?}");
    // The known windows may be out of date: it asks every second, regardless of the number of
    // windows that are opened.
    let deadline = now + BRIDGES_INTERVAL;
    switch.receive(b, announce(1, &[0x3000]), now + BRIDGES_MIN_INTERVAL);
    acknowledge(&mut switch, a);
    acknowledge(&mut switch, b);
    acknowledge(&mut switch, c);
    assert_eq!(switch.deadline().unwrap(), deadline);
    switch.take_outputs();
    switch.expire(deadline);
    assert_eq!(outputs(&mut switch), ["question 2"]);
    // The wait for a lost answer ends, and an answer to an earlier question has no effect.
    let late = deadline + BRIDGES_TIME_OUT;
    assert_eq!(switch.deadline().unwrap(), late);
    switch.expire(late);
    assert_eq!(outputs(&mut switch), ["question 3"]);
    forwarded(&mut switch, 2, "", late);
    assert!(outputs(&mut switch).is_empty());
    // The answer is unknown: the known windows stay, and the switch asks again.
    forwarded(&mut switch, 3, "unknown", late);
    assert!(outputs(&mut switch).is_empty());
    let next = late + BRIDGES_INTERVAL;
    assert_eq!(switch.deadline().unwrap(), next);
    switch.expire(next);
    assert_eq!(outputs(&mut switch), ["question 4"]);
    switch.end_bridge_windows();
    assert_eq!(switch.deadline(), None);
}

#[test]
fn answer_from_before_a_window_is_followed_by_a_question_soon() {
    let now = Instant::now();
    let (mut switch, [a, b, _]) = three_at(with_bridge_windows(true), now);
    switch.receive(a, announce(1, &[0x1000]), now);
    switch.receive(b, announce(1, &[0x2000]), now);
    let asked = ["question 1", "1: announced 1", "2: announced 1"];
    assert_eq!(outputs(&mut switch), asked);
    forwarded(&mut switch, 1, "a=0x1000-0x1fff", now);
    assert_eq!(outputs(&mut switch), ["2: 1 has 1000#1", "3: 1 has 1000#1"]);
    assert_eq!(switch.deadline(), Some(now + BRIDGES_MIN_INTERVAL));
    // Once no endpoint has windows, the switch stops asking and forgets the known windows, because
    // another guest may use the switch next.
    switch.expire(now + BRIDGES_MIN_INTERVAL);
    switch.receive(a, announce(2, &[]), now);
    switch.receive(b, announce(2, &[]), now);
    switch.take_outputs();
    forwarded(&mut switch, 2, "a=0x1000-0x1fff", now);
    switch.expire(now + CLOSING_TIME_OUT);
    switch.take_outputs();
    assert_eq!(switch.deadline(), None);
    switch.receive(a, announce(3, &[0x1000]), now + CLOSING_TIME_OUT);
    assert_eq!(outputs(&mut switch), ["question 3", "1: announced 3"]);
    // Once the bridge socket has ended, withheld windows stay withheld, and are logged.
    switch.end_bridge_windows();
    switch.receive(b, announce(3, &[0x2000]), now + CLOSING_TIME_OUT);
    assert!(is_logged(&switch, b) && outputs(&mut switch) == ["2: announced 3"]);
}

#[test]
fn window_that_is_no_longer_forwarded_is_closed() {
    let now = Instant::now();
    let (mut switch, [a, b, c]) = three_at(with_bridge_windows(true), now);
    switch.receive(a, announce(1, &[0x1000]), now);
    switch.receive(b, announce(1, &[0x1000]), now);
    forwarded(&mut switch, 1, "a=0x1000-0x1fff", now);
    acknowledge(&mut switch, c);
    switch.take_outputs();
    // A port has gained addresses that another one has lost: the lost window is closed first.
    switch.expire(now + BRIDGES_MIN_INTERVAL);
    forwarded(&mut switch, 2, "b=0x1000-0x1fff", now);
    let closed_first = ["question 2", "3: 1 has", "1: 2 has 1000#2"];
    assert_eq!(outputs(&mut switch), closed_first);
    acknowledge(&mut switch, c);
    assert_eq!(outputs(&mut switch), ["3: 2 has 1000#2"]);
    acknowledge(&mut switch, b);
    // The window of an endpoint that has vanished is closed, too.
    switch.leave(b, now);
    acknowledge(&mut switch, a);
    acknowledge(&mut switch, c);
    assert!(outputs(&mut switch).contains(&"3: 2 has !1000".to_owned()));
    switch.expire(switch.deadline().unwrap());
    forwarded(&mut switch, 3, "b=0x2000-0x2fff", now);
    let outputs_of = outputs(&mut switch);
    assert!(
        outputs_of.contains(&"3: 2 has".to_owned()),
        "{outputs_of:?}"
    );
    // And a new endpoint is sent neither of them.
    let d = switch.connect(now);
    switch.receive(d, hello("d"), now);
    assert_eq!(outputs(&mut switch), ["4: welcome"]);
}

#[test]
fn window_that_comes_and_goes_is_asked_for_at_a_pace() {
    let now = Instant::now();
    let (mut switch, [a, _, _]) = three_at(with_bridge_windows(true), now);
    let mut questions = 0;
    for step in 0..1000_u64 {
        let at = now + Duration::from_millis(step);
        switch.expire(at);
        let windows: &[u64] = if step % 2 == 0 { &[0x1000] } else { &[] };
        switch.receive(a, announce(step, windows), at);
        let asked = outputs(&mut switch);
        questions += asked
            .iter()
            .filter(|output| output.starts_with("question"))
            .count();
    }
    assert_eq!(questions, 20);
    // A question that could not be sent is asked again a second later.
    let at = now + Duration::from_secs(2);
    switch.receive(a, announce(1000, &[0x1000]), at);
    assert_eq!(outputs(&mut switch), ["question 21", "1: announced 1000"]);
    switch.bridge_question_unsent();
    assert_eq!(switch.deadline(), Some(at + BRIDGES_INTERVAL));
}

#[test]
fn bridges_are_forgotten_without_windows_of_the_vanished() {
    let now = Instant::now();
    let (mut switch, [a, b, c]) = three_at(with_bridge_windows(true), now);
    switch.receive(a, announce(1, &[0x1000]), now);
    forwarded(&mut switch, 1, "a=0x1000-0x1fff", now);
    switch.leave(a, now);
    acknowledge(&mut switch, b);
    acknowledge(&mut switch, c);
    switch.take_outputs();
    // The next guest's bridge has another window.
    switch.expire(now + BRIDGES_INTERVAL);
    forwarded(&mut switch, 2, "", now + BRIDGES_INTERVAL);
    assert_eq!(outputs(&mut switch), ["question 2", "2: 1 has", "3: 1 has"]);
    assert!(switch.vanished.is_empty() && switch.deadline().is_none());
    // An endpoint that attaches again has no windows yet, and the known windows of its port are
    // void.
    let later = now + 2 * BRIDGES_INTERVAL;
    switch.receive(b, announce(1, &[0x2000]), later);
    forwarded(&mut switch, 3, "b=0x2000-0x2fff", later);
    switch.leave(b, later);
    let again = switch.connect(later);
    switch.receive(again, hello("b"), later);
    switch.take_outputs();
    acknowledge(&mut switch, c);
    switch.take_outputs();
    assert_eq!(switch.deadline(), None);
    switch.receive(again, announce(2, &[0x2000]), later + BRIDGES_MIN_INTERVAL);
    assert_eq!(outputs(&mut switch), ["question 4", "4: announced 2"]);
}
