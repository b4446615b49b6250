//! The kernel's log and taint: a check that dirties either has failed.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};

use anyhow::Context;
use peerbar_report::KnownWarnings;
use rustix::fs::{Mode, OFlags};

/// The kernel has warned (Linux, Documentation/admin-guide/tainted-kernels.rst: bit 9).
const TAINT_WARN: u64 = 1 << 9;

/// Number of lines shown from the first bad one on.
const SHOWN: usize = 40;

/// Number of lines shown that belong to no check.
const SHOWN_OUTSIDE: usize = 200;
/// Limit of the messages searched for them: a program may log faster than they are read.
const SEARCHED: usize = 1 << 16;

/// The console's level, and the lowest one that shows warnings: the console shows messages of lower
/// levels (proc_sys_kernel(5), `printk`).
const CONSOLE_LEVEL: &str = "/proc/sys/kernel/printk";
const WITH_WARNINGS: u32 = 5;

/// The kernel's log, read once from its start to its end.
#[derive(Debug)]
pub struct KernelLog {
    file: File,
    taint: String,
    /// `true` if messages were overwritten before they were read, since the last call of
    /// [`KernelLog::complaints`].
    has_lost: bool,
    /// Texts that identify a line about a fault of an IOMMU.
    iommu_faults: Vec<String>,
}

impl KernelLog {
    /// Opens the log from the kernel's start on. The taint counts from now on: loading a module
    /// that is not part of the kernel sets it. A line with one of `iommu_faults` reports a fault of
    /// an IOMMU.
    pub fn open(iommu_faults: &[String]) -> anyhow::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file =
            rustix::fs::open("/dev/kmsg", flags, Mode::empty()).context("cannot open /dev/kmsg")?;
        Ok(KernelLog {
            file: file.into(),
            taint: taint(),
            has_lost: false,
            iommu_faults: iommu_faults.to_vec(),
        })
    }

    /// Opens the log from now on. No line counts as a fault of an IOMMU.
    pub fn from_now_on() -> anyhow::Result<Self> {
        let mut log = KernelLog::open(&[])?;
        log.file
            .seek(SeekFrom::End(0))
            .context("cannot go to the end of /dev/kmsg")?;
        Ok(log)
    }

    /// Returns the kernel's complaints since the last call, without the `expected` ones.
    pub(crate) fn complaints(&mut self, expected: &Expected<'_>) -> Complaints {
        let mut known = KnownWarnings::of(expected.warnings);
        let messages = messages(&mut self.file, &mut self.has_lost);
        let mut complaints = sift(messages, &self.iommu_faults, expected, &mut known);
        let taint = taint();
        let is_known = known.were_seen() && only_warned(&self.taint, &taint);
        if taint != self.taint && !is_known {
            complaints.lines.push(format!(
                "the kernel's taint went from {} to {taint} (/proc/sys/kernel/tainted)",
                self.taint
            ));
        }
        self.taint = taint;
        if std::mem::take(&mut self.has_lost) {
            let lost = "the kernel has logged more than its buffer holds, so some was not read (log_buf_len= of --append enlarges it)";
            complaints.lines.push(lost.to_owned());
        }
        complaints
    }

    /// Returns the bad lines since the last call that a console with warnings shows, without faults
    /// of an IOMMU, which a program of the host may cause on purpose.
    pub(crate) fn complaints_outside_of_checks(&mut self) -> Vec<String> {
        bad_lines(records(&mut self.file, &mut self.has_lost))
    }

    /// Returns the lines that the kernel has logged since the last call, or since the start.
    pub fn new_messages(&mut self) -> impl Iterator<Item = String> {
        messages(&mut self.file, &mut self.has_lost)
    }
}

/// Makes the console show warnings from now on, if it does not.
pub(crate) fn let_warnings_through() -> anyhow::Result<()> {
    let levels = fs::read_to_string(CONSOLE_LEVEL)
        .with_context(|| format!("cannot read {CONSOLE_LEVEL}"))?;
    if hides_warnings(&levels) {
        fs::write(CONSOLE_LEVEL, WITH_WARNINGS.to_string())
            .with_context(|| format!("cannot write {CONSOLE_LEVEL}"))?;
    }
    Ok(())
}

/// Returns `true` if a console with these levels hides warnings. The first level is the console's.
fn hides_warnings(levels: &str) -> bool {
    let level = levels.split_whitespace().next().map(str::parse::<u32>);
    matches!(level, Some(Ok(level)) if level < WITH_WARNINGS)
}

fn bad_lines(records: impl Iterator<Item = Vec<u8>>) -> Vec<String> {
    let warnings = records.take(SEARCHED).filter(|record| is_warning(record));
    let lines = warnings.map(|record| message(&record));
    lines
        .filter(|line| is_bad(line))
        .take(SHOWN_OUTSIDE)
        .collect()
}

/// Returns `true` if a record is a warning or worse. Its first number has the facility above the
/// level.
fn is_warning(record: &[u8]) -> bool {
    let end = record.iter().position(|byte| *byte == b',');
    let priority = end.and_then(|end| std::str::from_utf8(record.get(..end)?).ok());
    let priority = priority.and_then(|priority| priority.parse::<u32>().ok());
    priority.is_some_and(|priority| priority % 8 < WITH_WARNINGS)
}

/// Returns the messages of a log up to its end. Sets `has_lost` if some were overwritten.
fn messages(log: &mut impl Read, has_lost: &mut bool) -> impl Iterator<Item = String> {
    records(log, has_lost).map(|record| message(&record))
}

/// Returns the records of a log up to its end, one for each read, as /dev/kmsg provides them.
fn records(log: &mut impl Read, has_lost: &mut bool) -> impl Iterator<Item = Vec<u8>> {
    let mut record = [0; 8192];
    std::iter::from_fn(move || {
        loop {
            match log.read(&mut record) {
                Ok(0) => return None,
                Ok(count) => return Some(record.get(..count).unwrap_or_default().to_vec()),
                // The next record was overwritten. The read after that returns the oldest one left.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => *has_lost = true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
    })
}

/// The kernel messages that do not count against a check.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Expected<'a> {
    /// Required texts.
    pub(crate) texts: &'a [String],
    /// `true` if faults of an IOMMU are normal results.
    pub(crate) faults: bool,
    /// Functions of its own that may warn.
    pub(crate) warnings: &'static [&'static str],
}

impl Expected<'_> {
    /// Allows faults of an IOMMU, and no text.
    pub(crate) const FAULTS: Self = Self {
        texts: &[],
        faults: true,
        warnings: &[],
    };
}

/// The kernel's messages against a check, and the missing ones.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Complaints {
    /// Lines of its log from the first bad one on, and a change of its taint. Empty if nothing has
    /// gone wrong.
    pub(crate) lines: Vec<String>,
    /// Expected texts that did not appear.
    pub(crate) missing: Vec<String>,
    /// Number of lines that report a fault of an IOMMU.
    pub(crate) faults: u64,
    /// The first of those lines.
    pub(crate) fault: Option<String>,
    /// Lines about the route of peer-to-peer DMA. They are not complaints.
    pub(crate) peer_to_peer: Vec<String>,
}

fn sift(
    messages: impl Iterator<Item = String>,
    iommu_faults: &[String],
    expected: &Expected<'_>,
    known: &mut KnownWarnings,
) -> Complaints {
    let mut complaints = Complaints {
        missing: expected.texts.to_vec(),
        ..Complaints::default()
    };
    for line in messages {
        complaints.missing.retain(|text| !line.contains(text));
        let mut is_expected = expected.texts.iter().any(|text| line.contains(text));
        is_expected |= known.has(&line);
        let is_fault = iommu_faults.iter().any(|text| line.contains(text));
        if is_fault {
            complaints.faults = complaints.faults.saturating_add(1);
            complaints.fault.get_or_insert_with(|| line.clone());
            is_expected |= expected.faults;
        }
        if is_on_peer_to_peer(&line) && complaints.peer_to_peer.len() < SHOWN {
            complaints.peer_to_peer.push(line.clone());
        }
        let begun = !complaints.lines.is_empty();
        if (begun || (is_fault || is_bad(&line)) && !is_expected) && complaints.lines.len() < SHOWN
        {
            complaints.lines.push(line);
        }
    }
    complaints
}

/// Returns `true` if two readings of the taint differ only by a kernel warning.
fn only_warned(before: &str, after: &str) -> bool {
    let numbers = before.parse::<u64>().ok().zip(after.parse::<u64>().ok());
    numbers.is_some_and(|(before, after)| before | TAINT_WARN == after)
}

fn taint() -> String {
    fs::read_to_string("/proc/sys/kernel/tainted")
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// Returns `true` if a message gives the reason for a decision on peer-to-peer DMA
/// (drivers/pci/p2pdma.c).
fn is_on_peer_to_peer(message: &str) -> bool {
    const PARTS: [&str; 5] = [
        "P2PDMA whitelist",
        "ACS redirect is set",
        "ACS blocks the direct P2P path",
        "add the kernel parameter: pci=disable_acs_redir",
        "cannot be used for peer-to-peer DMA",
    ];
    PARTS.iter().any(|part| message.contains(part))
}

/// Returns the text of a record (Linux, Documentation/ABI/testing/dev-kmsg): after the prefix,
/// without the dictionary.
fn message(record: &[u8]) -> String {
    let text = String::from_utf8_lossy(record);
    let first = text.lines().next().unwrap_or_default();
    first
        .split_once(';')
        .map_or(first, |(_, message)| message)
        .to_owned()
}

/// Returns `true` if the kernel complains about itself, about a hang, or about memory.
fn is_bad(message: &str) -> bool {
    const STARTS: [&str; 5] = [
        "WARNING: ",
        "BUG: ",
        "Oops",
        "Kernel panic",
        "general protection fault",
    ];
    const PARTS: [&str; 12] = [
        "------------[ cut here ]------------",
        "Call Trace:",
        "kernel BUG at ",
        "BUG: soft lockup",
        "BUG: kernel NULL pointer",
        " blocked for more than ",
        "self-detected stall",
        "detected stalls on CPUs",
        "page allocation failure",
        "controller is down; will reset",
        // A search for mistakes that finds none because it is off.
        "DMA-API: debugging out of memory",
        "turning off the locking correctness validator",
    ];
    let lost_command = message.starts_with("nvme ") && message.contains(" timeout, ");
    lost_command
        || STARTS.iter().any(|start| message.starts_with(start))
        || PARTS.iter().any(|part| message.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sifted_of(log: impl Iterator<Item = String>, expected: &Expected<'_>) -> Complaints {
        let mut known = KnownWarnings::of(expected.warnings);
        sift(log, &["DMAR: [DMA ".to_owned()], expected, &mut known)
    }

    /// The results of reading a log, the last one first.
    struct Reads(Vec<io::Result<&'static str>>);

    impl Read for Reads {
        fn read(&mut self, record: &mut [u8]) -> io::Result<usize> {
            let text = self.0.pop().unwrap_or(Ok(""))?;
            record[..text.len()].copy_from_slice(text.as_bytes());
            Ok(text.len())
        }
    }

    #[test]
    fn overwritten_messages_are_noted_and_the_rest_is_read() {
        let of = |lost: Option<io::ErrorKind>| {
            let mut reads = vec![Ok("6,2,9,-;second"), Ok("6,1,8,-;first")];
            reads.extend(lost.map(|kind| Err(kind.into())));
            let mut has_lost = false;
            let read: Vec<_> = messages(&mut Reads(reads), &mut has_lost).collect();
            assert_eq!(read, ["first", "second"]);
            has_lost
        };
        assert!(of(Some(io::ErrorKind::BrokenPipe)));
        assert!(!of(Some(io::ErrorKind::Interrupted)) && !of(None));
    }

    #[test]
    fn warning_of_an_expected_function_is_no_complaint() {
        let log = || {
            ["WARNING: a.c:1 at known+0x1/0x2 [b], CPU#0", "Call Trace:"]
                .map(str::to_owned)
                .into_iter()
        };
        let warnings = |warnings| Expected {
            warnings,
            ..Expected::default()
        };
        assert_eq!(sifted_of(log(), &warnings(&["known"])).lines.len(), 0);
        assert_eq!(sifted_of(log(), &warnings(&["other"])).lines.len(), 2);
        assert!(only_warned("12288", "12800"));
        // With another bit set as well: the kernel has died.
        assert!(!only_warned("12288", "12928"));
    }

    #[test]
    fn expected_complaint_passes_and_its_absence_fails() {
        let log = || {
            ["news", "BUG: a", "news", "BUG: b"]
                .map(str::to_owned)
                .into_iter()
        };
        let texts = |texts: &[&str]| {
            texts
                .iter()
                .map(|&text| text.to_owned())
                .collect::<Vec<_>>()
        };
        let sifted = |expected: &[&str]| {
            let texts = texts(expected);
            let expected = Expected {
                texts: &texts,
                ..Expected::default()
            };
            let Complaints { lines, missing, .. } = sifted_of(log(), &expected);
            (lines, missing)
        };
        assert_eq!(
            sifted(&[]),
            (texts(&["BUG: a", "news", "BUG: b"]), texts(&[]))
        );
        assert_eq!(sifted(&["BUG: a"]), (texts(&["BUG: b"]), texts(&[])));
        assert_eq!(sifted(&["BUG: "]), (texts(&[]), texts(&[])));
        let (lines, missing) = sifted(&["DMAR: ", "news"]);
        assert_eq!((lines.len(), missing), (3, texts(&["DMAR: "])));
    }

    #[test]
    fn faults_are_counted_and_may_be_no_complaint() {
        let log = || {
            ["news", "DMAR: [DMA Read] a", "DMAR: [DMA Read] b"]
                .map(str::to_owned)
                .into_iter()
        };
        let complaints = sifted_of(log(), &Expected::default());
        assert_eq!((complaints.lines.len(), complaints.faults), (2, 2));
        let expected = Expected::FAULTS;
        let results = sifted_of(log(), &expected);
        assert_eq!((results.lines.len(), results.faults), (0, 2));
        assert_eq!(results.fault.as_deref(), Some("DMAR: [DMA Read] a"));
    }

    #[test]
    fn warnings_are_found_in_a_log_without_end() {
        let records = |texts: &[&str]| {
            let records = texts.iter().map(|text| text.as_bytes().to_vec());
            records.collect::<Vec<_>>().into_iter()
        };
        let log = records(&[
            "6,1,8,-;news",
            "4,2,9,-;WARNING: a",
            "12,3,9,-;BUG: of a program",
            "6,4,9,-;Call Trace:",
            "3,5,9,-;DMAR: [DMA Read] a",
            "no record",
        ]);
        assert_eq!(bad_lines(log.clone()), ["WARNING: a", "BUG: of a program"]);
        assert_eq!(bad_lines(log.cycle()).len(), SHOWN_OUTSIDE);
        assert!(bad_lines(records(&["4,1,8,-;news"]).cycle()).is_empty());
    }

    #[test]
    fn quiet_console_hides_warnings() {
        assert!(hides_warnings("4\t4\t1\t7\n") && hides_warnings("1 4 1 7"));
        assert!(!hides_warnings("5\t4\t1\t7\n") && !hides_warnings(""));
    }

    #[test]
    fn reasons_for_p2p_routes_are_kept_as_no_complaints() {
        let refusal = "nvme 0000:02:00.0: cannot be used for peer-to-peer DMA as the client and provider (0000:01:00.0) do not \
                       share an upstream bridge or whitelisted host bridge";
        let log = [
            "nvme 0000:01:00.0: added peer-to-peer DMA memory 0x0-0x1",
            refusal,
        ];
        let complaints = sifted_of(log.map(str::to_owned).into_iter(), &Expected::default());
        assert_eq!(
            (complaints.peer_to_peer, complaints.lines),
            (vec![refusal.to_owned()], Vec::new())
        );
    }

    #[test]
    fn a_record_is_its_first_line_without_the_prefix() {
        let record =
            b"4,1234,5678901,-;nvme nvme0: pci function 0000:02:00.0; ready\n SUBSYSTEM=pci\n";
        assert_eq!(
            message(record),
            "nvme nvme0: pci function 0000:02:00.0; ready"
        );
        assert_eq!(message(b"\xff"), "\u{fffd}");
    }

    #[test]
    fn complaints_are_distinguished_from_other_messages() {
        let bad = [
            "WARNING: CPU: 0 PID: 1 at mm/memory.c:42 foo+0x1/0x2",
            "INFO: task peerbar-agent:1 blocked for more than 120 seconds.",
            "watchdog: BUG: soft lockup - CPU#0 stuck for 26s!",
            "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
            "BUG: KASAN: slab-use-after-free in pb_job_free+0x1b/0x40 [peerbar_gpu]",
            "WARNING: possible circular locking dependency detected",
            "DMA-API: debugging out of memory - disabling",
            "turning off the locking correctness validator.",
            "nvme nvme0: I/O tag 3 (1003) opcode 0x2 (I/O Cmd) QID 1 timeout, completion polled",
        ];
        for message in bad {
            assert!(is_bad(message), "{message}");
        }
        let good = [
            "nvme nvme0: 2/0/0 default/read/poll queues",
            "Spectre V2 : WARNING: Unprivileged eBPF is enabled with eIBRS on",
            "pci 0000:02:00.0: added peer-to-peer DMA memory 0xfe000000-0xfeffffff",
            "DMAR: Host address width 39",
        ];
        for message in good {
            assert!(!is_bad(message), "{message}");
        }
    }
}
