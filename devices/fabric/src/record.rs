//! The record of the fate of packets in a fabric, which explains a run: a text file, one line for
//! each event.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

use crate::gid::Gid;
use crate::impairment::Impairment;
use crate::impairments::{Lost, PacketOutcome};
use crate::message::Summary;

/// The longest record in bytes.
const LONGEST: usize = 64 << 20;

/// A recorded event.
#[derive(Clone, Debug)]
pub(crate) enum Happened {
    Attached(String, Gid),
    Left(String, Gid),
    /// A rule was added.
    Rule(Impairment),
    /// All rules were removed.
    Cleared,
    /// A packet was lost, or will not arrive once and without delay.
    Impaired {
        names: (String, String),
        outcome: PacketOutcome,
        what: Summary,
    },
    /// A packet is dropped: too many wait.
    Overflowed {
        names: (String, String),
        what: Summary,
    },
}

impl fmt::Display for Happened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attached(name, gid) => write!(f, "{name} attached {gid}"),
            Self::Left(name, gid) => write!(f, "{name} left {gid}"),
            Self::Rule(rule) => write!(f, "rule {rule}"),
            Self::Cleared => f.write_str("rules cleared"),
            Self::Overflowed {
                names: (from, to),
                what,
            } => write!(f, "{from}->{to} ({what}) dropped: too many wait"),
            Self::Impaired {
                names: (from, to),
                outcome,
                what,
            } => {
                write!(f, "{from}->{to} #{} ({what}) ", outcome.number)?;
                impaired(f, outcome)
            }
        }
    }
}

fn impaired(f: &mut fmt::Formatter<'_>, outcome: &PacketOutcome) -> fmt::Result {
    let copies = match &outcome.copies {
        Ok(copies) => copies,
        Err(Lost::Partition) => return f.write_str("lost: partition"),
        Err(Lost::Loss) => return f.write_str("lost: loss"),
        Err(Lost::Bandwidth) => return f.write_str("lost: bandwidth"),
    };
    let later = if outcome.is_overtaken {
        "overtaken"
    } else {
        "delayed"
    };
    for (index, delay) in copies.iter().enumerate() {
        let word = if index == 0 { later } else { ", again after" };
        write!(f, "{word} {} us", delay.as_micros())?;
    }
    Ok(())
}

/// The record; without a file, nothing is recorded. All clones write to the same file.
#[derive(Clone, Debug, Default)]
pub struct Record(Option<Arc<Mutex<RecordFile>>>);

#[derive(Debug)]
struct RecordFile {
    file: File,
    /// Bytes that it still takes, or `None` once it has ended.
    left: Option<usize>,
}

impl Record {
    /// Makes a record in a new file.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = File::create(path)?;
        let left = Some(LONGEST);
        Ok(Self(Some(Arc::new(Mutex::new(RecordFile { file, left })))))
    }

    /// Records an event, by the clock of the flight records (CLOCK_MONOTONIC, in nanoseconds).
    pub(crate) fn note(&self, happened: impl FnOnce() -> Happened) {
        let Some(record) = &self.0 else {
            return;
        };
        let time = clock_gettime(ClockId::Monotonic);
        let line = format!("{}.{:09} {}\n", time.tv_sec, time.tv_nsec, happened());
        record.lock().write(&line);
    }
}

impl RecordFile {
    fn write(&mut self, line: &str) {
        let Some(left) = self.left else {
            return;
        };
        self.left = left.checked_sub(line.len());
        let written = match self.left {
            Some(_) => self.file.write_all(line.as_bytes()),
            None => self.file.write_all(b"the record is full\n"),
        };
        if let Err(error) = written {
            log::warn!("the record ends here: {error}");
            self.left = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::message::Body;

    fn lines(record: impl FnOnce(&Record)) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record");
        record(&Record::create(&path).unwrap());
        let text = std::fs::read_to_string(path).unwrap();
        let words = text.lines().map(|line| line.split_once(' ').unwrap().1);
        words.map(str::to_owned).collect()
    }

    #[test]
    fn record_says_what_happened_to_a_packet() {
        let what = Body::Working { tag: 5 }.summary();
        let impaired = |copies: Result<Vec<u64>, Lost>, is_overtaken| Happened::Impaired {
            names: ("a".to_owned(), "b".to_owned()),
            outcome: PacketOutcome {
                number: 7,
                copies: copies.map(|all| all.into_iter().map(Duration::from_micros).collect()),
                is_overtaken,
            },
            what,
        };
        let lines = lines(|record| {
            record.note(|| Happened::Attached("a".to_owned(), Gid([0; 16])));
            record.note(|| impaired(Err(Lost::Loss), false));
            record.note(|| impaired(Ok(vec![20, 1020]), false));
            record.note(|| impaired(Ok(vec![3000]), true));
        });
        assert_eq!(
            lines,
            [
                "a attached ::",
                "a->b #7 (working 5, 64 bytes) lost: loss",
                "a->b #7 (working 5, 64 bytes) delayed 20 us, again after 1020 us",
                "a->b #7 (working 5, 64 bytes) overtaken 3000 us",
            ]
        );
    }

    #[test]
    fn record_ends_when_it_is_full() {
        let lines = lines(|record| {
            record.0.as_ref().unwrap().lock().left = Some(60);
            for _ in 0..9 {
                record.note(|| Happened::Cleared);
            }
        });
        assert_eq!(lines.last().unwrap(), "record is full");
        assert!(lines.len() < 4, "{lines:?}");
    }
}
