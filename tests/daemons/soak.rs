//! Servers that work for long: descriptors, threads, mappings and memory stay as they are.

use std::thread;
use std::time::{Duration, Instant};

use crate::environment::number;
use crate::machine::{Action, Machine, Moment};
use crate::server::Usage;
use crate::shared::Part;

/// What may be added to the anonymous memory of the start: pages of the allocator's. Of 10,000 sessions, one may leave 104 bytes.
const SLACK: u64 = 1 << 20;
/// What may be added to the mappings.
const MAPPINGS: usize = 4;
/// How often a client leaves and another comes, whereupon the switch announces windows that close and open.
const SESSION: Duration = Duration::from_secs(2);
const DEVICES: [Part; 3] = [Part::Disk0, Part::Disk1, Part::Gpu0];

/// Has the client of a device go and another one come.
fn reconnect(machine: &mut Machine, number: u64) {
    let part = DEVICES[usize::try_from(number % 3).unwrap()];
    let action = Action::Leave;
    machine.inject(Moment { part, action }).unwrap();
}

#[track_caller]
fn check_flat(part: Part, before: &Usage, after: &Usage) {
    println!("{part:?}\nbefore: {before:?}\nafter:  {after:?}");
    let counts = |usage: &Usage| (usage.descriptors, usage.threads);
    assert_eq!(counts(after), counts(before), "{part:?}");
    assert!(after.mappings <= before.mappings + MAPPINGS, "{part:?}");
    assert!(
        after.anonymous_bytes <= before.anonymous_bytes + SLACK,
        "{part:?}: anonymous_bytes"
    );
}

#[test]
#[ignore = "takes minutes; scripts/test --only soak runs it"]
fn usage_of_disks_gpu_and_switch_stays_flat() {
    let sessions = number("PEERBAR_SOAK_CONNECTIONS").unwrap_or(10_000);
    let minutes = number("PEERBAR_SOAK_MINUTES").unwrap_or(30);
    let mut machine = Machine::start(1).unwrap();
    // Until the allocators have what they need.
    (0..99).for_each(|number| reconnect(&mut machine, number));
    let before = machine.usage().unwrap();
    (0..sessions).for_each(|number| reconnect(&mut machine, number));
    let end = Instant::now() + Duration::from_secs(60 * minutes);
    let mut longer = 0;
    while Instant::now() < end {
        thread::sleep(SESSION);
        reconnect(&mut machine, longer);
        longer += 1;
    }
    let after = machine.usage().unwrap();
    let passes = machine.passes();
    println!("{sessions} sessions, then {minutes} minutes with {longer} more; {passes} passes");
    for ((part, before), after) in before.iter().zip(after.values()) {
        check_flat(*part, before, after);
    }
    machine.end().unwrap();
}

#[test]
#[should_panic(expected = "anonymous_bytes")]
fn leak_of_200_bytes_a_session_is_found() {
    let before = Usage {
        descriptors: 24,
        threads: 6,
        mappings: 66,
        anonymous_bytes: 8 << 20,
    };
    let anonymous_bytes = before.anonymous_bytes + 10_099 * 200;
    let after = Usage {
        anonymous_bytes,
        ..before
    };
    check_flat(Part::Disk0, &before, &after);
}
