//! Faults that were injected on purpose, by the texts of their rules.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use peerbar_flight::{Event, Flight, FlightFile, Header, Injection};
use peerbar_lab::folder::flight_record;
use peerbar_lab::scenario::Scenario;

/// Returns the text of a rule, or its number if the record had no room for the text.
pub(super) fn rule(header: &Header, number: u32) -> String {
    let index = usize::try_from(number)
        .ok()
        .and_then(|rule| rule.checked_sub(1));
    let text = index.and_then(|index| header.rules.get(index));
    text.map_or_else(|| format!("rule {number}"), |text| format!("`{text}`"))
}

/// Returns a line for each rule that has injected a fault, with the number of faults and the last
/// one; nothing if no rule has.
pub(super) fn lines(flight: &Flight) -> Vec<String> {
    let mut fired: BTreeMap<u32, (u64, u64, Injection)> = BTreeMap::new();
    for record in &flight.records {
        if let Event::Injected(injection) = record.event {
            let (times, nanos, last) =
                fired
                    .entry(injection.rule)
                    .or_insert((0, record.nanos, injection));
            (*times, *nanos, *last) = (*times + 1, record.nanos, injection);
        }
    }
    let line = |(number, (times, nanos, last)): (u32, (u64, u64, Injection))| {
        let seconds = nanos.saturating_sub(flight.header.monotonic) as f64 / 1e9;
        let times = match times {
            1 => "once".to_owned(),
            times => format!("{times} times"),
        };
        format!(
            "fault injected {times}: {}, last at {seconds:.6} s: match {}, {}",
            rule(&flight.header, number),
            last.matches,
            last.origin
        )
    };
    fired.into_iter().map(line).collect()
}

/// Returns a line for each rule that has injected no fault. Returns nothing if records are lost,
/// because one of those may have had a fault.
pub(super) fn idle_lines(flight: &Flight) -> Vec<String> {
    if flight.overwritten > 0 || flight.torn > 0 {
        return Vec::new();
    }
    let fired = flight
        .records
        .iter()
        .filter_map(|record| match record.event {
            Event::Injected(injection) => Some(injection.rule),
            _ => None,
        });
    let fired: BTreeSet<u32> = fired.collect();
    let idle = (1..)
        .zip(&flight.header.rules)
        .filter(|(number, _)| !fired.contains(number));
    idle.map(|(_, text)| format!("no fault injected: `{text}` had no match, or too few"))
        .collect()
}

/// Returns the faults that the rules of the devices have injected in the run in a folder; an empty
/// text if there were no rules, or nothing is recorded.
pub(crate) fn of_run(run: &Path, scenario: &Scenario) -> String {
    let mut text = String::new();
    for device in scenario.devices() {
        let file = FlightFile::open(&flight_record(run, device.name()));
        let flight = file.and_then(|file| file.read()).ok();
        for line in flight
            .iter()
            .flat_map(|it| [lines(it), idle_lines(it)].concat())
        {
            text += &format!("{}: {line}\n", device.name());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use peerbar_flight::{Level, Origin, Recorder};

    use super::*;

    #[test]
    fn rule_that_injected_nothing_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = flight_record(folder.path(), "disk0");
        let recorder = Recorder::create(&path, "disk0", Level::Maps).unwrap();
        recorder.rule("drop completion nth=1");
        recorder.rule("drop interrupt vector=500");
        recorder.record(Event::Injected(Injection {
            rule: 1,
            matches: 1,
            origin: Origin::command(1, 7u16),
        }));
        let mut flight = FlightFile::open(&path).unwrap().read().unwrap();
        let idle = "no fault injected: `drop interrupt vector=500` had no match, or too few";
        assert_eq!(idle_lines(&flight), [idle]);
        let message = of_run(folder.path(), &Scenario::demo().unwrap());
        assert!(message.ends_with(&format!("disk0: {idle}\n")), "{message}");
        flight.overwritten = 1;
        assert!(idle_lines(&flight).is_empty(), "it may have been recorded");
    }

    #[test]
    fn rule_is_printed_once_with_its_last_fault() {
        let folder = tempfile::tempdir().unwrap();
        let path = flight_record(folder.path(), "disk0");
        let recorder = Recorder::create(&path, "disk0", Level::Maps).unwrap();
        recorder.rule("drop completion every=2");
        for (rule, matches) in [(1, 2), (2, 1), (1, 4)] {
            recorder.record(Event::Injected(Injection {
                rule,
                matches,
                origin: Origin::command(1, 7u16),
            }));
        }
        let scenario = Scenario::demo().unwrap();
        let message = of_run(folder.path(), &scenario);
        let flight = FlightFile::open(&path).unwrap().read().unwrap();
        let [one, two] = lines(&flight).try_into().unwrap();
        let begins = "fault injected 2 times: `drop completion every=2`, last at ";
        assert!(one.starts_with(begins), "{one}");
        assert!(one.ends_with(" s: match 4, queue 1, command 7"), "{one}");
        assert!(two.starts_with("fault injected once: rule 2, "), "{two}");
        assert_eq!(message, format!("disk0: {one}\ndisk0: {two}\n"));
    }
}
