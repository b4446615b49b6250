//! The guest's trace events as its agent has stored them (`guest/agent/src/trace.rs`): text of
//! tracefs, and lines of the agent that start with `#`. None of it is trusted: unreadable lines are
//! counted and left out.

use peerbar_report::TraceLine;

/// An event that the guest's kernel traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KernelEvent {
    /// `nvme_setup_cmd`: the driver is about to submit a command.
    Submit(DriverCommand),
    /// `nvme_complete_rq`: the driver has taken its completion.
    Complete(DriverCommand),
    /// `map` of the IOMMU.
    Map,
    /// `unmap` of the IOMMU.
    Unmap,
    /// `io_page_fault` of the IOMMU.
    Fault,
}

/// A command, by the driver's names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct DriverCommand {
    /// `nvme0`.
    pub(super) controller: String,
    /// Queue; 0 is the admin queue.
    pub(super) queue: u16,
    /// Command identifier.
    pub(super) number: u32,
}

/// An event and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TimedKernelEvent {
    /// CLOCK_MONOTONIC of the guest in nanoseconds, rounded to a microsecond.
    pub(super) at: u64,
    /// The event.
    pub(super) event: KernelEvent,
    /// Its fields, as the kernel prints them.
    pub(super) text: String,
}

/// All that the guest's agent has kept.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct KernelTrace {
    /// The events, the oldest first.
    pub(super) events: Vec<TimedKernelEvent>,
    /// Lines of the agent: clocks, names, missing parts.
    pub(super) notes: Vec<TraceLine>,
    /// Number of other lines.
    pub(super) unreadable: usize,
    /// Events that the kernel had no room for.
    pub(super) lost: u64,
}

impl KernelTrace {
    /// Reads the text that the agent has kept.
    pub(super) fn parse(text: &str) -> Self {
        let mut trace = Self::default();
        for line in text.lines() {
            if let Some(note) = TraceLine::parse(line) {
                trace.notes.push(note);
            } else if let Some(lost) = lost(line) {
                trace.lost = trace.lost.saturating_add(lost);
            } else if let Some(event) = event(line) {
                trace.events.push(event);
            } else {
                trace.unreadable += 1;
            }
        }
        trace.events.sort_by_key(|event| event.at);
        trace
    }
}

/// Returns a line such as `CPU:0 [LOST 12 EVENTS]`.
fn lost(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once("[LOST ")?;
    rest.split_once(" EVENTS]")?.0.parse().ok()
}

/// Returns a line such as `  fio-119  [000] .....  6.487846: nvme_setup_cmd: nvme0: qid=1, …`
/// (Linux, Documentation/trace/ftrace.rst).
fn event(line: &str) -> Option<TimedKernelEvent> {
    let (_, rest) = line.split_once("] ")?;
    let (head, rest) = rest.split_once(": ")?;
    let at = nanos(head.split_whitespace().last()?)?;
    let (name, text) = rest.split_once(": ")?;
    let event = match name.trim() {
        "nvme_setup_cmd" => KernelEvent::Submit(command(text)?),
        "nvme_complete_rq" => KernelEvent::Complete(command(text)?),
        "map" => KernelEvent::Map,
        "unmap" => KernelEvent::Unmap,
        "io_page_fault" => KernelEvent::Fault,
        _ => return None,
    };
    let text = text.trim().to_owned();
    Some(TimedKernelEvent { at, event, text })
}

/// Nanoseconds of `6.487846`.
fn nanos(seconds: &str) -> Option<u64> {
    let (whole, part) = seconds.split_once('.')?;
    let micros: u64 = (part.len() == 6).then(|| part.parse().ok()).flatten()?;
    let whole: u64 = whole.parse().ok()?;
    whole.checked_mul(1_000_000_000)?.checked_add(micros * 1000)
}

/// Returns the names in `nvme0: disk=nvme0n1, qid=1, cmdid=4105, …`.
fn command(text: &str) -> Option<DriverCommand> {
    let (controller, fields) = text.split_once(": ")?;
    let field = |key: &str| {
        let mut fields = fields.split(", ");
        fields.find_map(|field| field.trim().strip_prefix(key)?.strip_prefix('='))
    };
    Some(DriverCommand {
        controller: controller.trim().to_owned(),
        queue: field("qid")?.parse().ok()?,
        number: field("cmdid")?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SUBMIT: &str = "   kworker/0:1H-30      [000] .....     6.487846: nvme_setup_cmd: nvme0: disk=nvme0n1, qid=1, cmdid=4105, \
        nsid=1, flags=0x0, meta=0x0, cmd=(nvme_cmd_read slba=0, len=7, ctrl=0x0, dsmgmt=0, reftag=0)";
    const ADMIN: &str = "    nvme-121     [001] .....    12.000001: nvme_complete_rq: nvme1: qid=0, cmdid=16384, res=0x0, retries=0, flags=0x2, status=0x0";

    #[test]
    fn commands_are_read_with_queue_and_number() {
        let trace = KernelTrace::parse(&format!("{ADMIN}\n{SUBMIT}\n"));
        let command = |controller: &str, queue, number| DriverCommand {
            controller: controller.to_owned(),
            queue,
            number,
        };
        let events: Vec<_> = trace
            .events
            .iter()
            .map(|event| (event.at, event.event.clone()))
            .collect();
        let expected = [
            (
                6_487_846_000,
                KernelEvent::Submit(command("nvme0", 1, 4105)),
            ),
            (
                12_000_001_000,
                KernelEvent::Complete(command("nvme1", 0, 16384)),
            ),
        ];
        assert_eq!(events, expected);
        assert!(trace.events[0].text.contains("nvme_cmd_read slba=0"));
    }

    #[test]
    fn lost_unknown_and_broken_lines_are_counted() {
        let cut = SUBMIT.get(..80).unwrap();
        let text =
            format!("CPU:0 [LOST 12 EVENTS]\n{cut}\n# cut\nx [0] y 1.000000: sched_switch: z\n");
        let trace = KernelTrace::parse(&text);
        assert_eq!(
            (trace.lost, trace.unreadable, trace.events.len()),
            (12, 2, 0)
        );
        assert_eq!(trace.notes, [TraceLine::Cut]);
    }

    #[test]
    fn iommu_events_keep_their_fields() {
        let text = "  x-1  [000] d.h1.  1.000000: map: IOMMU: iova=0x1000 - 0x2000 paddr=0x3000 size=4096\n\
                    \x20 x-1  [000] d.h1.  1.000001: io_page_fault: IOMMU:nvme 0000:01:00.0 iova=0x5 flags=0x1\n";
        let trace = KernelTrace::parse(text);
        let [map, fault] = trace.events.as_slice() else {
            panic!("{trace:?}")
        };
        assert_eq!(
            (map.event.clone(), map.at),
            (KernelEvent::Map, 1_000_000_000)
        );
        assert!(
            map.text.starts_with("IOMMU: iova=0x1000 - 0x2000"),
            "{}",
            map.text
        );
        assert_eq!(fault.event, KernelEvent::Fault);
    }

    proptest! {
        #[test]
        fn every_text_is_read_without_a_panic(text in "[ -~\n]{0,400}") {
            let trace = KernelTrace::parse(&text);
            prop_assert!(trace.events.len() + trace.unreadable <= text.lines().count());
        }

        #[test]
        fn every_event_line_is_read_without_a_panic(time in "[0-9.]{0,30}", fields in "[a-z0-9=:, ]{0,60}") {
            let line = format!("x-1 [000] ..... {time}: nvme_setup_cmd: {fields}");
            prop_assert!(KernelTrace::parse(&line).events.len() <= 1);
        }
    }
}
