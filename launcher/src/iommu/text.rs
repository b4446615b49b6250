//! The report for people.

use peerbar_flight::{Command, Fault, Finding, FindingKind, Level, Mapping, MappingLife};
use peerbar_pci::Iova;

use super::behind::Behind;
use super::data::busiest_second;
use super::device_kind::DeviceKind;
use super::injected;
use super::line::{access, direction, range, span};
use super::recorded::{Recorded, RecordedDevice, Sanitized};
use super::register_writes;
use crate::cli;
use peerbar_lab::count::counted;
use peerbar_lab::size::human;

/// Mappings and faults that are shown of a device unless all are wanted.
pub(super) const FEW: usize = 16;
/// Most changes to bus mastering off that are shown.
const LAST: usize = 3;

/// Returns everything that is requested, device after device, then the findings of the sanitizer.
pub(super) fn all(
    recorded: &Recorded,
    options: &cli::Debugger,
    sanitized: Option<&Sanitized<'_>>,
    unjudged: &[String],
) -> String {
    let most = if options.all { usize::MAX } else { FEW };
    let parts = recorded.shown();
    let mut text: String = parts.map(|each| device(recorded, each, most)).collect();
    if let Some(sanitized) = sanitized {
        text += &findings(recorded, sanitized, unjudged, most);
    }
    text
}

fn device(recorded: &Recorded, device: &RecordedDevice, most: usize) -> String {
    let mut text = summary(device);
    let idle = injected::idle_lines(&device.flight);
    let register_writes = [
        register_writes::made(recorded, device),
        register_writes::met(recorded, device),
        register_writes::ignored(device),
    ];
    let injected = injected::lines(&device.flight).into_iter().chain(idle);
    for line in injected.chain(register_writes.concat()) {
        text += &format!("  {line}\n");
    }
    let teardowns = &device.history.teardowns;
    for teardown in teardowns.iter().skip(teardowns.len().saturating_sub(LAST)) {
        let when = device.seconds(teardown.at.nanos);
        let what = amount(teardown.mappings, teardown.bytes);
        text +=
            &format!("  turned off, or all unmapped at once, at {when:.6} s: {what} still there\n");
    }
    let mappings = device.mappings();
    let sizes = mappings.iter().map(|mapping| mapping.range.size());
    let bytes = sizes.fold(0, u64::saturating_add);
    text += &format!("  mapped now: {}\n", amount(mappings.len(), bytes));
    for mapping in mappings.iter().take(most) {
        let behind = Behind::of(mapping, recorded).text();
        text += &format!("    {:<26} {}  {behind}\n", range(mapping), access(mapping));
    }
    text += &rest(mappings.len(), most);
    text + &faults(recorded, device, most)
}

/// Returns the reasons why DMA of `device` failed, `most` of them; an empty text without failures.
pub(super) fn faults(recorded: &Recorded, device: &RecordedDevice, most: usize) -> String {
    let faults = &device.history.faults;
    let shown = faults.iter().take(most);
    let lines: String = shown.map(|each| fault(recorded, device, each)).collect();
    lines + &rest(faults.len(), most)
}

fn amount(mappings: usize, bytes: u64) -> String {
    format!("{}, {}", counted(mappings, "mapping"), human(bytes))
}

fn rest(count: usize, most: usize) -> String {
    match count.saturating_sub(most) {
        0 => String::new(),
        more => format!("    and {more} more (--all)\n"),
    }
}

fn summary(device: &RecordedDevice) -> String {
    let (header, history) = (&device.flight.header, &device.history);
    let state = match (device.live, header.ended) {
        (true, _) => "runs",
        (false, true) => "has ended",
        (false, false) => "was killed",
    };
    let level = match (header.level, device.kind) {
        // Its server accesses memory that it maps without a record, and signals interrupts itself.
        (Level::Maps, DeviceKind::Foreign) => "mappings, and failures of DMA by messages,",
        (Level::All, DeviceKind::Foreign) => "mappings and DMA by messages",
        (Level::Maps, _) => "mappings and failures",
        (Level::All, _) => "everything",
    };
    let last = device.flight.records.last();
    let seconds = last.map_or(0.0, |last| device.seconds(last.nanos));
    let mut text = format!(
        "{}: {state}; {level} recorded over {seconds:.3} s\n  {}, {}; at most {} at once, {} in the busiest second; \
         {}{}\n",
        device.name,
        counted(history.maps, "map"),
        counted(history.unmaps, "unmap"),
        history.peak,
        busiest_second(&device.flight),
        counted(history.failed, "failed DMA"),
        match history.injected {
            0 => String::new(),
            injected => format!(", {injected} of them by injected faults"),
        },
    );
    if device.lost() > 0 {
        text += &format!(
            "  it has lost {}: events of that time are not counted here\n",
            counted(device.lost(), "older record")
        );
    }
    if header.untracked > 0 {
        let untracked = counted(header.untracked, "mapping");
        text += &format!("  {untracked} had no room in the table\n");
    }
    text
}

/// Returns the reason why a DMA failed: its command, the present and past of its address, and the
/// guest kernel's message.
pub(super) fn fault(recorded: &Recorded, device: &RecordedDevice, fault: &Fault) -> String {
    let dma = &fault.dma;
    let mut text = format!(
        "  FAULT at {:.6} s: {} ({}) of {}: {}\n",
        device.seconds(fault.at.nanos),
        direction(dma.direction),
        format!("{:?}", dma.purpose).to_lowercase(),
        span(dma.address, dma.len).trim_start(),
        dma.outcome,
    );
    text += &format!("    by {}\n", requester(device, fault.command, dma.origin));
    let around = &fault.around;
    let life = |number: Option<usize>| number.and_then(|number| device.history.mapping(number));
    match (life(around.at), around.was) {
        (Some(life), _) => {
            text += &format!(
                "    the address is in {} {}, mapped {} before\n",
                range(&life.mapping),
                access(&life.mapping),
                ago(fault.at.nanos, life.mapped.nanos),
            );
        }
        (None, Some(unmapped)) => {
            if let Some(life) = device.history.mapping(unmapped.life) {
                let when = ago(fault.at.nanos, unmapped.unmapped.nanos);
                text += &format!(
                    "    unmapped {when} before: {}\n",
                    what_it_was(device, unmapped.life, life, dma.address)
                );
            }
        }
        (None, None) if device.lost() > 0 => {
            text += "    not mapped since the oldest record that is left\n";
        }
        (None, None) => text += "    never mapped\n",
    }
    for (word, near) in [("below", life(around.below)), ("above", life(around.above))] {
        if let Some(life) = near {
            let behind = Behind::of(&life.mapping, recorded).text();
            let gap = gap(dma.address, &life.mapping);
            text += &format!(
                "    nearest {word}: {}, {gap} away, {behind}\n",
                range(&life.mapping)
            );
        }
    }
    for line in recorded.kernel.lines(&device.name, dma.address.0, dma.len) {
        text += &format!("    the guest's kernel: {}\n", line.trim());
    }
    text
}

fn requester(
    device: &RecordedDevice,
    command: Option<Command>,
    origin: peerbar_flight::Origin,
) -> String {
    match command {
        Some(command) => format!(
            "{origin}: {}, taken up at {:.6} s",
            device.kind.operation(origin, command.operation),
            device.seconds(command.begun.nanos)
        ),
        None => origin.to_string(),
    }
}

/// Describes a mapping, as in `4 KiB before the end of a mapping of 64 KiB made for queue 1,
/// command 17`.
fn what_it_was(
    device: &RecordedDevice,
    number: usize,
    life: &MappingLife,
    address: Iova,
) -> String {
    let whole = device.history.contiguous_range(number);
    let whole = whole.unwrap_or(life.mapping.range);
    let offset = whole.offset_of(address).unwrap_or_default();
    let left = whole.size().saturating_sub(offset);
    let position = match offset {
        0 => "the start".to_owned(),
        _ => format!("{} before the end", human(left)),
    };
    let made_for = life.first_user.map_or(String::new(), |user| {
        format!(", made for {}", requester(device, Some(user), user.origin))
    });
    format!(
        "{position} of a mapping of {}{made_for}",
        human(whole.size())
    )
}

fn gap(address: Iova, mapping: &Mapping) -> String {
    let above = mapping.range.first().offset_from(address);
    let below = address.offset_from(mapping.range.last().saturating_add(1));
    human(above.or(below).unwrap_or_default())
}

/// Returns the time between two moments, as in `1.2 ms`.
pub(crate) fn ago(now: u64, then: u64) -> String {
    let nanos = now.saturating_sub(then) as f64;
    match nanos {
        n if n < 1e3 => format!("{n:.0} ns"),
        n if n < 1e6 => format!("{:.1} us", n / 1e3),
        n if n < 1e9 => format!("{:.1} ms", n / 1e6),
        n => format!("{:.3} s", n / 1e9),
    }
}

fn findings(
    recorded: &Recorded,
    sanitized: &Sanitized<'_>,
    unjudged: &[String],
    most: usize,
) -> String {
    let findings = &sanitized.findings;
    let mut text = match findings.len() {
        0 => "sanitizer: no findings\n".to_owned(),
        count => format!("sanitizer: {}\n", counted(count, "finding")),
    };
    for (device, each) in findings.iter().take(most) {
        text += &format!("  {}\n", finding(recorded, device, each));
    }
    text += &rest(findings.len(), most);
    if !unjudged.is_empty() {
        text += "sanitizer: not all was judged\n";
    }
    for line in unjudged {
        text += &format!("  {line}\n");
    }
    text
}

/// Returns a finding in a line.
pub(super) fn finding(recorded: &Recorded, device: &RecordedDevice, finding: &Finding) -> String {
    let at = device.seconds(finding.at.nanos);
    let requester = self::requester(device, finding.command, finding.origin);
    let addresses = span(finding.address, finding.len);
    let about = finding.mapping.map(|(mapping, then)| {
        let behind = Behind::of(&mapping, recorded).text();
        (
            format!("{} ({behind})", range(&mapping)),
            device.seconds(then.nanos),
        )
    });
    let (mapping, then) = about.unwrap_or_default();
    let what = match finding.kind {
        FindingKind::AfterUnmap => {
            format!("DMA after unmap: {addresses} was unmapped at {then:.6} s with {mapping}")
        }
        FindingKind::Remapped => format!(
            "DMA by a stale address: {addresses} is in {mapping}, mapped at {then:.6} s, after the command had begun"
        ),
        FindingKind::PastEnd => {
            format!("DMA past the end: {addresses} is behind {mapping}, mapped at {then:.6} s")
        }
        FindingKind::NeverMapped => format!("DMA by an address that was never mapped: {addresses}"),
        FindingKind::WriteReadOnly => {
            format!("write to a read-only mapping: {addresses} in {mapping}, mapped at {then:.6} s")
        }
        FindingKind::LeftBehind => format!(
            "mapping left behind: {mapping} was only used by a command that was complete at {then:.6} s"
        ),
        FindingKind::Shared => format!(
            "page of two devices at once: {addresses}, and {mapping} of {}, mapped at {then:.6} s",
            other(recorded, finding)
        ),
    };
    format!("{} at {at:.6} s: {what}; {requester}", device.name)
}

/// Describes the other device, as in `disk1 for queue 1, command 17`.
fn other(recorded: &Recorded, finding: &Finding) -> String {
    let Some((device, command)) = recorded.other(finding) else {
        return "another device".to_owned();
    };
    let made_for = command.map(|command| requester(device, Some(command), command.origin));
    let made_for = made_for.map(|requester| format!(" for {requester}"));
    format!("{}{}", device.name, made_for.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use peerbar_pci::Range;

    use super::*;

    #[test]
    fn times_are_printed_in_the_unit_that_fits() {
        let times = [999, 1_200_000, 2_500_000_000].map(|nanos| ago(nanos, 0));
        assert_eq!(times, ["999 ns", "1.2 ms", "2.500 s"]);
    }

    #[test]
    fn a_gap_is_the_bytes_between() {
        let mapping = Mapping {
            range: Range::new(Iova(0x4000), 0x1000).unwrap(),
            readable: true,
            writable: true,
            backing: peerbar_flight::Backing::Device,
        };
        assert_eq!(gap(Iova(0x5000), &mapping), "0 B");
        assert_eq!(gap(Iova(0x3000), &mapping), "4 KiB");
        assert_eq!(gap(Iova(0x6000), &mapping), "4 KiB");
    }
}
