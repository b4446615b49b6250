//! The guest's serial console: it is stored in a file and searched for kernel problems.

use std::collections::VecDeque;
use std::fs::File;

use anyhow::Context;
use peerbar_report::KnownWarnings;

use crate::bounded_file::BoundedFile;
use crate::terminal::printable;

/// Lines that are shown when a run fails.
const TAIL: usize = 30;
/// Longest piece of a line that is examined as one.
const LONGEST: usize = 4096;
/// Largest log in bytes.
const LARGEST: usize = 64 << 20;

/// Starts of lines, after the time stamp, by which the kernel reports a problem.
const TROUBLES: [&str; 10] = [
    "BUG: ",
    "WARNING: ",
    "Oops",
    "Kernel panic",
    "general protection fault",
    "INFO: task ",
    "INFO: rcu",
    "rcu: INFO: ",
    "watchdog: BUG",
    "unregister_netdevice: waiting",
];
/// May follow any of them, or stand alone; it is less specific.
const LEAST: &str = "Call Trace:";

/// The console's output until now.
pub struct Console {
    file: BoundedFile,
    partial: Vec<u8>,
    tail: VecDeque<String>,
    known: KnownWarnings,
    trouble: Option<Trouble>,
}

/// A line that shows a kernel in trouble.
struct Trouble {
    line: String,
    weight: Weight,
}

/// Weight of a line: its precision about the problem.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Weight {
    /// It shows that there is a problem.
    Trace,
    /// It shows the kind of problem.
    Cause,
}

impl Console {
    /// Makes a console that is stored in `file`. Warnings that are `known` are no problem.
    pub fn new(file: File, known: KnownWarnings) -> Self {
        Self {
            file: BoundedFile::new(file, LARGEST),
            partial: Vec::new(),
            tail: VecDeque::new(),
            known,
            trouble: None,
        }
    }

    /// Accepts warnings of these functions of the kernel from now on.
    pub fn expect_warnings(&mut self, functions: &[&'static str]) {
        self.known.add(functions);
    }

    /// Takes the next bytes and returns the lines that they complete.
    pub fn take(&mut self, bytes: &[u8]) -> anyhow::Result<Vec<String>> {
        self.file
            .take(bytes)
            .context("cannot write the console's log")?;
        let mut lines = Vec::new();
        for &byte in bytes {
            match byte {
                b'\n' => lines.push(self.end_line()),
                _ if self.partial.len() == LONGEST => {
                    lines.push(self.end_line());
                    self.partial.push(byte);
                }
                _ => self.partial.push(byte),
            }
        }
        Ok(lines)
    }

    /// Returns the first line that shows a kernel problem. A line that only begins a trace counts
    /// if there is no better one.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_ref().map(|trouble| trouble.line.as_str())
    }

    /// Returns the last lines, the unfinished one included.
    pub fn tail(&self) -> Vec<String> {
        let unfinished = Some(printable(&self.partial)).filter(|line| !line.is_empty());
        self.tail.iter().cloned().chain(unfinished).collect()
    }

    fn end_line(&mut self) -> String {
        let line = printable(&std::mem::take(&mut self.partial));
        let worst = self.trouble.as_ref().map(|trouble| trouble.weight);
        let weight = weight(&line).filter(|weight| Some(*weight) > worst);
        if let Some(weight) = weight.filter(|_| !self.known.has(&line)) {
            self.trouble = Some(Trouble {
                line: line.clone(),
                weight,
            });
        }
        if self.tail.len() == TAIL {
            self.tail.pop_front();
        }
        self.tail.push_back(line.clone());
        line
    }
}

/// Returns the weight of a line, or `None` if it shows no problem.
fn weight(line: &str) -> Option<Weight> {
    let text = match line
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("] "))
    {
        Some((_, text)) => text,
        None => line,
    };
    if TROUBLES.iter().any(|trouble| text.starts_with(trouble)) {
        return Some(Weight::Cause);
    }
    text.starts_with(LEAST).then_some(Weight::Trace)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn console() -> Console {
        with(KnownWarnings::default())
    }

    fn with(known: KnownWarnings) -> Console {
        Console::new(tempfile::tempfile().unwrap(), known)
    }

    #[test]
    fn known_warning_is_no_trouble_and_others_are() {
        let log = b"[    1.0] WARNING: a.c:1 at known+0x1/0x2 [b], CPU#0\n[    1.0] Call Trace:\n";
        let other = b"[    1.1] WARNING: a.c:1 at other+0x1/0x2 [b], CPU#0\n";
        let mut console = with(KnownWarnings::of(&["known"]));
        console.take(log).unwrap();
        assert_eq!(console.trouble(), None);
        console.take(other).unwrap();
        assert!(console.trouble().unwrap().contains("at other+0x1"));
    }

    #[test]
    fn lines_come_out_whole_and_harmless() {
        let mut console = console();
        assert_eq!(console.take(b"[    0.1] on").unwrap(), Vec::<String>::new());
        assert_eq!(
            console.take(b"e\r\ntwo\x1b[2J\nthr").unwrap(),
            ["[    0.1] one", "two[2J"]
        );
        assert_eq!(console.tail(), ["[    0.1] one", "two[2J", "thr"]);
        assert_eq!(console.trouble(), None);
    }

    #[test]
    fn the_first_trouble_is_remembered() {
        let mut console = console();
        console
            .take(b"[    1.0] nvme: WARNING: not at the start\n")
            .unwrap();
        assert_eq!(console.trouble(), None);
        console
            .take(b"[    1.1] WARNING: kernel/x.c:1 at f, CPU#0\n[    1.2] BUG: later\n")
            .unwrap();
        assert_eq!(
            console.trouble(),
            Some("[    1.1] WARNING: kernel/x.c:1 at f, CPU#0")
        );
    }

    #[test]
    fn a_trace_is_the_last_choice() {
        let mut console = console();
        console.take(b"[    1.0] Call Trace:\n").unwrap();
        assert_eq!(console.trouble(), Some("[    1.0] Call Trace:"));
        console
            .take(b"[    1.1] Kernel panic - not syncing: x\n[    1.2] Call Trace:\n")
            .unwrap();
        let panic = "[    1.1] Kernel panic - not syncing: x";
        assert_eq!(console.trouble(), Some(panic));
    }

    #[test]
    fn an_endless_line_and_many_lines_stay_bounded() {
        let mut console = console();
        assert_eq!(console.take(&[b'x'; LONGEST * 3 + 1]).unwrap().len(), 3);
        console.take(&b"\n".repeat(1000)).unwrap();
        assert_eq!(console.tail().len(), TAIL);
    }
}
