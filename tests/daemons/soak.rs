//! Servers that run for long: descriptors, threads, mappings and memory must not grow.

use std::thread;
use std::time::{Duration, Instant};

use crate::environment::number;
use crate::machine::{Action, Machine, Moment};
use crate::server::Usage;
use crate::shared::Part;

/// Permitted growth of anonymous memory: pages of the allocator. With 10,000 sessions, that is 104
/// bytes for each.
const SLACK: u64 = 1 << 20;
/// Permitted growth of mappings.
const MAPPINGS: usize = 4;
/// Time from one change of clients to the next. Each makes the switch announce windows that close
/// and open.
const SESSION: Duration = Duration::from_secs(2);
const DEVICES: [Part; 3] = [Part::Disk0, Part::Disk1, Part::Gpu0];

/// Makes the client of a device leave and another one come.
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
    // Until the allocators have reached their size.
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
