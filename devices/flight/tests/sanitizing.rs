//! The history of a fault, and the findings of the sanitizer, including errors that it cannot find.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test panics if it fails"
)]

use peerbar_flight::{
    Backing, Completer, Direction, Dma, DmaOutcome, Event, FileSpan, Finding, FindingKind, History,
    Mapping, Origin, Purpose, Record, Route, Sanitizer, SharedPages, shared,
};
use peerbar_pci::{Iova, Range};
use proptest::prelude::*;

const MILLISECOND: u64 = 1_000_000;
const REFUSED: DmaOutcome = DmaOutcome::ClientRefused(19);

/// A device's records, built step by step: a millisecond between any two.
#[derive(Default)]
struct Story(Vec<Record>);

impl Story {
    fn then(mut self, event: Event) -> Self {
        let sequence = self.0.len() as u64 + 1;
        let nanos = self.0.last().map_or(0, |last| last.nanos) + MILLISECOND;
        self.0.push(Record {
            sequence,
            nanos,
            event,
        });
        self
    }

    fn later(mut self, milliseconds: u64) -> Self {
        self.0.last_mut().unwrap().nanos += milliseconds * MILLISECOND;
        self
    }

    fn map(self, iova: u64, size: u64, writable: bool) -> Self {
        self.map_at(iova, size, writable, 0x10_0000 + iova)
    }

    fn map_at(self, iova: u64, size: u64, writable: bool, offset: u64) -> Self {
        let backing = Backing::Ram(FileSpan {
            device: 1,
            inode: 2,
            offset,
        });
        self.then(Event::Map(Mapping {
            range: Range::new(Iova(iova), size).unwrap(),
            readable: true,
            writable,
            backing,
        }))
    }

    fn unmap(self, iova: u64, size: u64) -> Self {
        self.then(Event::Unmap(Range::new(Iova(iova), size).unwrap()))
    }

    fn begin(self, command: u32) -> Self {
        self.then(Event::Begin {
            origin: origin(command),
            operation: 2.into(),
        })
    }

    fn end(self, command: u32) -> Self {
        self.then(Event::End {
            origin: origin(command),
            status: 0,
        })
    }

    fn write(self, command: u32, address: u64, len: u64, outcome: DmaOutcome) -> Self {
        self.dma(Purpose::Payload, command, (address, len), outcome)
    }

    fn dma(
        self,
        purpose: Purpose,
        command: u32,
        (address, len): (u64, u64),
        outcome: DmaOutcome,
    ) -> Self {
        self.then(Event::Dma(Dma {
            origin: origin(command),
            purpose,
            direction: Direction::Write,
            address: Iova(address),
            len,
            route: Route::GuestRam,
            completer: Completer::GuestRam,
            outcome,
            took: 0,
        }))
    }

    /// Adds a correct command.
    fn command(self, command: u32, iova: u64) -> Self {
        let story = self.map(iova, 0x2000, true).begin(command);
        let story = story
            .write(command, iova, 0x2000, DmaOutcome::Done)
            .end(command);
        story.unmap(iova, 0x2000)
    }

    fn history(&self) -> History {
        let mut history = History::default();
        self.0.iter().for_each(|record| history.follow(record));
        history
    }

    fn findings(&self) -> Vec<Finding> {
        let mut sanitizer = Sanitizer::default();
        self.0.iter().for_each(|record| sanitizer.watch(record));
        sanitizer.findings().to_vec()
    }

    /// Returns the only finding.
    fn finding(&self) -> Finding {
        let mut findings = self.findings();
        assert_eq!(findings.len(), 1, "{findings:?}");
        findings.pop().unwrap()
    }
}

fn origin(command: u32) -> Origin {
    Origin::command(1, command)
}

fn milliseconds(finding: &Finding) -> (u64, u64) {
    let (_, then) = finding.mapping.unwrap();
    (finding.at.nanos / MILLISECOND, then.nanos / MILLISECOND)
}

#[test]
fn honest_commands_are_no_findings() {
    let mut story = Story::default().map(0xf_0000, 0x1000, true);
    for command in 0..20 {
        story = story.command(command % 3, 0x1000 * u64::from(command % 4));
        story = story.dma(
            Purpose::Completion,
            command % 3,
            (0xf_0000, 16),
            DmaOutcome::Done,
        );
    }
    let story = story.later(5000).then(Event::Client(false));
    assert_eq!(story.findings(), []);
    let history = story.history();
    assert_eq!(
        (
            history.maps,
            history.unmaps,
            history.peak,
            history.current_count()
        ),
        (21, 20, 2, 1)
    );
}

#[test]
fn fault_is_reported_with_the_history_of_its_address() {
    let story = Story::default()
        .map(0x1000, 0x1000, true)
        .map(0x9000, 0x1000, true)
        .command(17, 0x4000)
        .begin(18)
        .write(18, 0x5000, 0x1000, REFUSED);
    let history = story.history();
    let fault = &history.faults[0];
    assert_eq!(fault.command.unwrap().origin, origin(18));
    let near = fault.around;
    let iova = |number: Option<usize>| {
        history
            .mapping(number.unwrap())
            .unwrap()
            .mapping
            .range
            .first()
            .0
    };
    assert_eq!(
        (near.at, iova(near.below), iova(near.above)),
        (None, 0x1000, 0x9000)
    );
    let unmapped = near.was.unwrap();
    let was = history.mapping(unmapped.life).unwrap();
    assert_eq!(Some(was.mapping.range), Range::new(Iova(0x4000), 0x2000));
    assert_eq!(was.first_user.unwrap().origin, origin(17));
    assert_eq!(fault.at.nanos - unmapped.unmapped.nanos, 2 * MILLISECOND);
}

#[test]
fn split_mapping_stays_as_its_parts() {
    let story = Story::default()
        .map(0x1000, 0x3000, true)
        .unmap(0x2000, 0x1000);
    let history = story.history();
    let current: Vec<_> = history.current().map(|(m, _)| m.range).collect();
    let parts = [0x1000, 0x3000].map(|iova| Range::new(Iova(iova), 0x1000).unwrap());
    assert_eq!(current, parts);
    assert_eq!(history.current_count(), 1);
    assert!(history.around(Iova(0x2000)).was.is_some());
    let history = story.unmap(0, 0x10_0000).history();
    assert_eq!((history.current_count(), history.unmaps), (0, 2));
}

#[test]
fn a_dma_after_its_unmap_is_found_with_both_times() {
    let story = Story::default().command(7, 0x4000).begin(8);
    let finding = story.write(8, 0x4000, 0x1000, REFUSED).finding();
    assert_eq!(finding.kind, FindingKind::AfterUnmap);
    assert_eq!(finding.origin, origin(8));
    assert_eq!(milliseconds(&finding), (7, 5));
}

#[test]
fn a_dma_by_an_address_that_has_got_another_owner_is_found() {
    let story = Story::default().map(0x4000, 0x1000, true).begin(7);
    let story = story.unmap(0x4000, 0x1000).map(0x4000, 0x1000, true);
    let finding = story.write(7, 0x4000, 0x1000, DmaOutcome::Done).finding();
    assert_eq!(finding.kind, FindingKind::Remapped);
    assert_eq!(milliseconds(&finding), (5, 4));
}

#[test]
fn dma_past_the_end_is_found_for_its_own_command_only() {
    let story = Story::default().command(7, 0x5000);
    let over = story.map(0x4000, 0x1000, true).begin(7);
    let over = over.write(7, 0x4000, 0x1000, DmaOutcome::Done);
    let finding = over.write(7, 0x5000, 0x1000, REFUSED).finding();
    assert_eq!(finding.kind, FindingKind::PastEnd);
    assert_eq!(finding.mapping.unwrap().0.range.last(), Iova(0x4fff));
    let story = Story::default()
        .command(7, 0x3000)
        .command(9, 0x5000)
        .begin(7);
    let finding = story.write(7, 0x5000, 0x1000, REFUSED).finding();
    assert_eq!(finding.kind, FindingKind::AfterUnmap);
}

#[test]
fn unmapped_address_and_write_to_read_only_are_found() {
    let finding = Story::default()
        .begin(1)
        .write(1, 0x9000, 8, REFUSED)
        .finding();
    assert_eq!(
        (finding.kind, finding.mapping),
        (FindingKind::NeverMapped, None)
    );
    let story = Story::default().map(0x4000, 0x1000, false).begin(1);
    let finding = story.write(1, 0x4000, 8, DmaOutcome::Forbidden).finding();
    assert_eq!(finding.kind, FindingKind::WriteReadOnly);
    let story = Story::default().map(0x4000, 0x1000, false).begin(1);
    let refused = story.write(1, 0x4000, 8, REFUSED).finding();
    assert_eq!(refused.kind, FindingKind::WriteReadOnly);
    assert_eq!((finding.at.sequence, milliseconds(&finding)), (3, (3, 1)));
}

#[test]
fn ram_that_was_mapped_before_the_iommu_was_on_is_no_driver_s_mapping() {
    let boot = || {
        let story = Story::default().then(Event::Client(true));
        let story = story.map(0, 0x2000_0000, true);
        story.then(Event::BusMaster(true)).unmap(0, 0x2000_0000)
    };
    let kind = |story: Story| story.finding().kind;
    let stray = |story: Story, outcome| kind(story.begin(1).write(1, 0x1000, 8, outcome));
    assert_eq!(stray(boot(), REFUSED), FindingKind::NeverMapped);
    assert_eq!(stray(boot(), DmaOutcome::Done), FindingKind::NeverMapped);
    let used = || boot().command(7, 0x1000);
    assert_eq!(stray(used(), REFUSED), FindingKind::AfterUnmap);
    assert_eq!(
        kind(used().begin(1).write(1, 0x9000, 8, REFUSED)),
        FindingKind::NeverMapped
    );
}

#[test]
fn a_dma_that_should_have_failed_is_found_though_it_was_done() {
    let stale = Story::default().command(7, 0x4000).begin(8);
    let finding = stale.write(8, 0x4000, 0x1000, DmaOutcome::Done).finding();
    assert_eq!(finding.kind, FindingKind::AfterUnmap);
    assert_eq!(milliseconds(&finding), (7, 5));
    let read_only = Story::default().map(0x4000, 0x1000, false).begin(1);
    let finding = read_only.write(1, 0x4000, 8, DmaOutcome::Done).finding();
    assert_eq!(finding.kind, FindingKind::WriteReadOnly);
    let short = Story::default().map(0x4000, 0x1000, true).begin(1);
    let finding = short.write(1, 0x4800, 0x1000, DmaOutcome::Done).finding();
    assert_eq!(finding.kind, FindingKind::PastEnd);
    assert_eq!(finding.mapping.unwrap().0.range.last(), Iova(0x4fff));
}

#[test]
fn what_lies_in_a_peer_s_window_is_no_business_of_mappings() {
    let story = Story::default()
        .map(0x4000, 0x1000, false)
        .command(7, 0x8000);
    let to_peer = |story: Story, address| {
        story.then(Event::Dma(Dma {
            origin: origin(8),
            purpose: Purpose::Payload,
            direction: Direction::Write,
            address: Iova(address),
            len: 0x2000,
            route: Route::Peer,
            completer: Completer::PeerBar,
            outcome: DmaOutcome::Done,
            took: 0,
        }))
    };
    let story = to_peer(to_peer(story.begin(8), 0x4000), 0x8000);
    assert_eq!(story.findings(), []);
}

#[test]
fn dma_that_a_reset_forbids_is_no_finding() {
    let story = Story::default().command(1, 0x4000).then(Event::Reset(true));
    assert_eq!(
        story.write(1, 0x4000, 8, DmaOutcome::NotMaster).findings(),
        []
    );
}

#[test]
fn mapping_used_by_one_command_only_is_left_behind() {
    let used = |purpose| {
        let story = Story::default().map(0x4000, 0x1000, true).begin(1);
        story
            .dma(purpose, 1, (0x4000, 0x1000), DmaOutcome::Done)
            .end(1)
    };
    let left = used(Purpose::Payload)
        .then(Event::BusMaster(true))
        .later(2000);
    let finding = left.then(Event::Client(false)).finding();
    assert_eq!(finding.kind, FindingKind::LeftBehind);
    let left = used(Purpose::Payload)
        .then(Event::BusMaster(true))
        .later(2000);
    let off = left.unmap(0, 1 << 63);
    assert_eq!(off.finding().kind, FindingKind::LeftBehind);
    let teardown = off.history().teardowns[0];
    assert_eq!((teardown.mappings, teardown.bytes), (1, 0x1000));
    assert_eq!(
        (finding.origin, milliseconds(&finding)),
        (origin(1), (2006, 4))
    );
    let just_now = used(Purpose::Payload).then(Event::Client(false));
    assert_eq!(just_now.findings(), []);
    let list = used(Purpose::List).then(Event::BusMaster(true)).later(2000);
    assert_eq!(list.then(Event::Client(false)).findings(), []);
    let again = used(Purpose::Payload)
        .begin(2)
        .write(2, 0x4000, 8, DmaOutcome::Done)
        .end(2);
    let again = again.then(Event::BusMaster(true)).later(2000);
    assert_eq!(again.then(Event::Client(false)).findings(), []);
}

#[test]
fn a_page_of_two_devices_at_once_is_found_if_one_may_write() {
    // Device 0 has the page from 1 ms to 5 ms.
    let one = |writable| {
        let story = Story::default()
            .map_at(0x4000, 0x2000, writable, 0x8000)
            .begin(1);
        story
            .write(1, 0x4000, 8, DmaOutcome::Done)
            .end(1)
            .unmap(0x4000, 0x2000)
            .history()
    };
    let other = |wait, writable| {
        let story = Story::default().then(Event::Client(true)).later(wait);
        let story = story.map_at(0x7000, 0x1000, writable, 0x9000).begin(3);
        story.write(3, 0x7000, 8, DmaOutcome::Done).history()
    };
    let shared = |histories: &[&History]| shared(histories, 3).findings;
    let found = shared(&[&one(true), &other(1, false)]);
    let [(1, finding)] = &found[..] else {
        panic!("{found:?}");
    };
    assert_eq!(
        (finding.kind, finding.address),
        (FindingKind::Shared, Iova(0x7000))
    );
    assert_eq!((finding.origin, milliseconds(finding)), (origin(3), (3, 1)));
    let (first, command) = finding.other.unwrap();
    assert_eq!((first, command.unwrap().origin), (0, origin(1)));
    assert_eq!(shared(&[&one(false), &other(1, false)]), []);
    assert_eq!(shared(&[&one(true), &other(9, true)]), []);
    assert_eq!(shared(&[&one(true), &Story::default().history()]), []);
}

/// Returns a device with two pages for a command's data, at this address.
fn two_pages(address: u64, backing: Backing) -> History {
    let story = Story::default().then(Event::Map(Mapping {
        range: Range::new(Iova(address), 0x2000).unwrap(),
        readable: true,
        writable: true,
        backing,
    }));
    let story = story.begin(1).write(1, address, 8, DmaOutcome::Done);
    story.history()
}

#[test]
fn shared_pages_beyond_the_limit_are_counted() {
    let ram = Backing::Ram(FileSpan {
        device: 1,
        inode: 2,
        offset: 0x8000,
    });
    let histories = [&two_pages(0x4000, ram), &two_pages(0x6000, ram)];
    let compared = shared(&histories, 4);
    assert_eq!((compared.findings.len(), compared.uncompared), (1, 0));
    let cut = shared(&histories, 3);
    assert_eq!((cut.findings.len(), cut.uncompared), (0, 2));
    // There is nothing to compare with the pages of one device, or with those without a file.
    assert_eq!(shared(&histories[..1], 0), SharedPages::default());
    let window = two_pages(0x4000, Backing::Device);
    let beside = shared(&[&window, histories[0], histories[1]], 4);
    assert_eq!((beside.findings.len(), beside.uncompared), (1, 0));
    assert_eq!(shared(&[&window, histories[0]], 0), SharedPages::default());
}

#[test]
fn page_that_a_device_has_twice_is_shared_until_the_later_unmap() {
    let twice = Story::default()
        .map_at(0x4000, 0x1000, true, 0x8000)
        .map_at(0x5000, 0x1000, true, 0x8000)
        .begin(1);
    let twice = twice
        .write(1, 0x4000, 8, DmaOutcome::Done)
        .write(1, 0x5000, 8, DmaOutcome::Done)
        .end(1)
        .unmap(0x4000, 0x1000)
        .unmap(0x5000, 0x1000)
        .later(10)
        .history();
    let other = |wait| {
        let story = Story::default().map_at(0x7000, 0x1000, false, 0x8000);
        let story = story.later(wait);
        story
            .begin(3)
            .write(3, 0x7000, 8, DmaOutcome::Done)
            .history()
    };
    let count = |wait| shared(&[&twice, &other(wait)], 8).findings.len();
    assert_eq!((count(10), count(30)), (1, 0));
}

#[test]
fn pages_of_one_command_are_one_contiguous_range() {
    let pages = [0x4000, 0x5000, 0x6000];
    let story = pages.iter().fold(Story::default(), |story, page| {
        story.map(*page, 0x1000, true)
    });
    let story = story.map(0x7000, 0x1000, true).begin(1);
    let story = pages
        .iter()
        .fold(story, |s, page| s.write(1, *page, 0x1000, DmaOutcome::Done));
    let history = story
        .end(1)
        .begin(2)
        .write(2, 0x7000, 8, DmaOutcome::Done)
        .history();
    for number in 0..3 {
        let range = Range::new(Iova(0x4000), 0x3000);
        assert_eq!(history.contiguous_range(number), range);
    }
    let range = Range::new(Iova(0x7000), 0x1000);
    assert_eq!(history.contiguous_range(3), range);
    assert_eq!(history.contiguous_range(4), None);
}

/// A step of a hostile record: its kind, an address and a size.
type Step = (u8, u64, u64);

fn strange(story: Story, (kind, address, size): Step) -> Story {
    let last = address.saturating_add(size - 1);
    let size = (last - address).saturating_add(1);
    match kind {
        0 | 1 => story.map(address, size, kind == 0),
        2 => story.unmap(address, size),
        3 => story.write(1, address, size, DmaOutcome::Done),
        4 => story.write(1, address, u64::MAX, REFUSED),
        5 => story.begin(1),
        6 => story.end(1),
        _ => story.then(Event::Client(false)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn current_mappings_are_those_mapped_last(
        steps in prop::collection::vec((0u8..8, 0u64..64, 1u64..16), 0..40),
    ) {
        let mut model = [false; 80];
        for (kind, address, size) in &steps {
            let range = usize::try_from(*address).unwrap()..usize::try_from(address + size).unwrap();
            match kind {
                0 | 1 => model[range].fill(true),
                2 => model[range].fill(false),
                _ => {}
            }
        }
        let story = steps.into_iter().fold(Story::default(), strange);
        let history = story.history();
        let lives = |address: &u64| history.around(Iova(*address)).at.is_some();
        let current: Vec<bool> = (0..80).map(|address| lives(&address)).collect();
        prop_assert_eq!(current, model);
        let sum: u64 = history.current().map(|(mapping, _)| mapping.range.size()).sum();
        prop_assert_eq!(sum, model.iter().filter(|mapped| **mapped).count() as u64);
        let ended = history.mappings.iter().filter(|life| life.unmapped.is_some()).count();
        prop_assert_eq!(history.current_count() + ended, history.mappings.len());
        story.findings();
    }

    #[test]
    fn no_record_is_too_strange(
        steps in prop::collection::vec((0u8..8, any::<u64>(), 1u64..), 0..40),
    ) {
        // Offsets in a file are made from addresses by adding to them.
        let low = |(kind, address, size): Step| (kind, address >> 1, size);
        let story = steps.into_iter().map(low).fold(Story::default(), strange);
        let history = story.history();
        prop_assert!(history.peak <= history.mappings.len());
        let found = shared(&[&history, &history], 1 << 16).findings;
        prop_assert!(found.iter().all(|(device, _)| *device < 2));
        story.findings();
    }
}
