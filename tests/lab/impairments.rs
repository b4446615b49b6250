//! Impairments of packets by the fabric between two adapters of a guest, while rules come and go.

use std::fs;
use std::path::Path;

use peerbar_lab::Lab;
use peerbar_lab::Verdict;
use peerbar_lab::exit::RunOutcome;
use peerbar_lab::injecting::{Impairment, clear_impairments, impair};
use peerbar_lab::report::Row;
use peerbar_lab::scenario::Scenario;

use crate::start;

/// A rule is in force from the start, so the adapters share no memory: all payload goes in packets
/// of 31 KiB.
const SCENARIO: &str = r#"
name = "lab-fabric"
timeout = "5m"
tools = true

[fabric]
impair = ["nic0<->nic1 delay=20ms"]
seed = 5

[[switch]]
name = "switch0"

[[gpu]]
name = "gpu0"
below = "switch0"
vram = "16M"

[[nic]]
name = "nic0"
below = "switch0"

[[switch]]
name = "switch1"

[[gpu]]
name = "gpu1"
below = "switch1"
vram = "16M"

[[nic]]
name = "nic1"
below = "switch1"

[[check]]
name = "by a rule of the scenario's own"
kind = "rdma"
nic = "nic0"
peer = "nic1"
from = { vram = "gpu0" }
to = { vram = "gpu1" }
sizes = [64, "4K"]
"#;

/// The record's text of a packet from one adapter to the other.
const THERE: &str = " nic0->nic1 #";
const BACK: &str = " nic1->nic0 #";
/// Transfers of a check, for a size that fits in a message, and for a larger one.
const WAYS: usize = 5;
const WAYS_OF_RDMA: usize = 3;

/// A guest, and its fabric's record.
struct Impaired {
    lab: Lab,
    /// Lines of the record before the rule that is in force.
    before: usize,
}

impl Impaired {
    /// Puts a rule in force between the two adapters.
    fn rule(&mut self, effect: &str) {
        let rule: Impairment = format!("nic0<->nic1 {effect}").parse().unwrap();
        let said = impair(self.lab.folder(), &rule).unwrap();
        assert!(said.ends_with(effect), "{said}");
        let in_force = format!(" rule {rule}");
        let record = self.record();
        let line = record.iter().rposition(|line| line.ends_with(&in_force));
        self.before = line.expect(&in_force) + 1;
    }

    /// Moves data of these sizes from the memory of one GPU to that of the other.
    fn transfer(&mut self, sizes: &str) -> Row {
        let lines = format!(
            "kind = \"rdma\"\nnic = \"nic0\"\npeer = \"nic1\"\nfrom = {{ vram = \"gpu0\" }}\nto = {{ vram = \"gpu1\" }}\nsizes = {sizes}"
        );
        self.lab.check_table(&lines).unwrap()
    }

    /// Calls [`Self::transfer`], which must succeed.
    fn moves(&mut self, sizes: &str) -> Row {
        let row = self.transfer(sizes);
        assert_eq!(row.verdict, Verdict::Pass, "{:?}", row.diagnostics);
        row
    }

    fn record(&self) -> Vec<String> {
        let text = fs::read_to_string(self.lab.folder().join("fabric.txt")).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// Returns the fates of the packets since the rule came into force, without their times and
    /// numbers, in both directions.
    fn fates(&self) -> Vec<String> {
        [THERE, BACK].map(|pair| self.fates_of(pair)).concat()
    }

    /// Returns [`Self::fates`] in one direction, which must have some.
    fn fates_of(&self, pair: &str) -> Vec<String> {
        let lines = self.record().split_off(self.before);
        let of_pair = lines.iter().filter(|line| line.contains(pair));
        let fates = of_pair.map(|line| line.split_once(") ").unwrap().1.to_owned());
        let fates: Vec<String> = fates.collect();
        assert!(!fates.is_empty(), "{pair}: {lines:?}");
        fates
    }
}

/// Returns the microseconds of each `delayed N us`.
fn delays(fates: &[String]) -> Vec<u64> {
    let delay = |fate: &String| {
        let microseconds = fate.strip_prefix("delayed ")?.strip_suffix(" us")?;
        microseconds.parse().ok()
    };
    let delays = fates.iter().map(|fate| delay(fate).expect(fate));
    delays.collect()
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn each_impairment_is_in_the_record_and_data_is_right() {
    let scenario = Scenario::parse_interactive(Path::new("lab-fabric.toml"), SCENARIO).unwrap();
    let mut it = Impaired {
        lab: start(scenario),
        before: 0,
    };
    packets_are_late(&mut it);
    packets_come_twice(&mut it);
    packets_queue_for_bandwidth(&mut it);
    partition_ends_requests_until_it_is_over(&mut it);
    let finished = it.lab.shut_down().unwrap();
    // It was kept to the end.
    let record = fs::read_to_string(finished.folder.join("fabric.txt")).unwrap();
    assert_eq!(record.matches(" left fe80").count(), 2, "{record}");
    assert_eq!(finished.verdict.outcome, RunOutcome::Failed);
    assert!(
        finished.verdict.reason.starts_with("1 of "),
        "{}",
        finished.verdict
    );
}

fn packets_are_late(it: &mut Impaired) {
    let row = it.lab.rows().first().unwrap();
    assert_eq!(row.verdict, Verdict::Pass, "{:?}", row.diagnostics);
    assert!(delays(&it.fates()).iter().all(|delay| *delay == 20_000));
    // Each request and its answer.
    let least = 0.040 * (2 * WAYS) as f64;
    assert!(row.measure.seconds >= least, "{:?}", row.measure);

    it.rule("delay=10ms jitter=5ms");
    it.moves("[64, \"4K\"]");
    let delays = delays(&it.fates());
    let range = 10_000..=15_000;
    assert!(
        delays.iter().all(|delay| range.contains(delay)),
        "{delays:?}"
    );
    assert_ne!(delays.iter().min(), delays.iter().max(), "{delays:?}");
}

/// A check fails if a message comes twice, or a request completes twice.
fn packets_come_twice(it: &mut Impaired) {
    it.rule("duplicate=100%");
    it.moves("[64, \"4K\", \"64K\"]");
    let fates = it.fates();
    let is_twice = |fate: &String| fate == "delayed 0 us, again after 1000 us";
    assert!(fates.iter().all(is_twice), "{fates:?}");
}

fn packets_queue_for_bandwidth(it: &mut Impaired) {
    it.rule("bandwidth=4MiB/s");
    let row = it.moves("[\"1M\"]");
    let least = 0.25 * WAYS_OF_RDMA as f64;
    assert!(row.measure.seconds >= least, "{:?}", row.measure);
    let fates = it.fates();
    let longest = delays(&fates).into_iter().max();
    assert!(longest >= Some(7_000), "32 KiB take 7.8 ms: {fates:?}");
}

fn partition_ends_requests_until_it_is_over(it: &mut Impaired) {
    it.rule("partition");
    let row = it.transfer("[64]");
    assert_eq!(row.verdict, Verdict::Fail);
    assert_eq!(row.subtests.len(), WAYS);
    let said = row.diagnostics.join("\n");
    let times = said.matches("ended with a response time-out").count();
    assert_eq!(times, WAYS, "{said}");
    // The other adapter has nothing to answer.
    let fates = it.fates_of(THERE);
    assert!(
        fates.iter().all(|fate| fate == "lost: partition"),
        "{fates:?}"
    );

    it.before = it.record().len();
    clear_impairments(it.lab.folder()).unwrap();
    it.moves("[64, \"4K\", \"1M\"]");
    let since = it.record().split_off(it.before);
    assert!(since.iter().all(|line| !line.contains('#')), "{since:?}");
}
