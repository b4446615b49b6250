//! Makes seeds from the folders of runs: `cargo run -p peerbar-fuzz --example seeds -- RUN...`
//!
//! It takes reports, flight records and scenarios, makes them small, and puts them into
//! `tests/fuzz/corpus`.
#![allow(clippy::indexing_slicing, reason = "a tool that may panic")]

use std::path::Path;

use anyhow::{Context, Result, ensure};
use peerbar_fault::Rule;
use peerbar_lab::scenario::Scenario;

/// Of a flight record (`devices/flight/src/layout.rs`): its header, the part of the header that a
/// seed has, and a record.
const HEADER: usize = 4096;
const START: usize = 192;
const RECORD: usize = 64;
/// Records of the table and of the ring in a seed.
const MAPPINGS: usize = 2;
const EVENTS: usize = 3;
/// Bytes of a report. A fuzzer executes short inputs more often, and makes longer ones by itself.
const REPORT: usize = 400;

fn main() -> Result<()> {
    let runs: Vec<_> = std::env::args_os().skip(1).collect();
    ensure!(!runs.is_empty(), "name the folders of runs");
    for run in &runs {
        let run = Path::new(run);
        for entry in std::fs::read_dir(run).with_context(|| run.display().to_string())? {
            let path = entry?.path();
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("flight") => flight(&name, &std::fs::read(&path)?)?,
                Some("ktap") => report(&std::fs::read_to_string(&path)?)?,
                Some("toml") => scenario(&std::fs::read_to_string(&path)?)?,
                _ => {}
            }
        }
    }
    Ok(())
}

/// Writes a seed of a target.
fn seed(target: &str, name: &str, bytes: &[u8]) -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target);
    std::fs::create_dir_all(&folder)?;
    let path = folder.join(name);
    std::fs::write(&path, bytes).with_context(|| path.display().to_string())
}

/// Makes a seed with a few of the record's mappings, and one with a few of its newest events, with
/// new sequence numbers.
fn flight(name: &str, file: &[u8]) -> Result<()> {
    let slots = |at: usize| -> Result<usize> {
        let bytes = file.get(at..at + 8).context("no flight record")?;
        Ok(usize::try_from(u64::from_le_bytes(bytes.try_into()?))?)
    };
    let (table, ring) = (slots(16)?, slots(24)?);
    let records = |from: usize, count: usize| {
        let bytes = file.get(from..from + count * RECORD).unwrap_or_default();
        let used = bytes.chunks_exact(RECORD).filter(|raw| raw[..8] != [0; 8]);
        used.map(<[u8]>::to_vec).collect::<Vec<_>>()
    };
    let mappings = records(HEADER, table);
    let mut mappings = mappings[..mappings.len().min(MAPPINGS)].to_vec();
    if mappings.is_empty() {
        // A free slot: a table without slots is invalid.
        mappings.push(vec![0; RECORD]);
    }
    let mut events = records(HEADER + table * RECORD, ring);
    events.sort_by_key(|raw| raw[..8].iter().rev().copied().collect::<Vec<u8>>());
    // Similar events add nothing: one of each kind, then the newest.
    let mut kinds = std::collections::BTreeSet::new();
    let (mut chosen, rest): (Vec<_>, Vec<_>) =
        events.into_iter().partition(|raw| kinds.insert(raw[16]));
    chosen.extend(rest.into_iter().rev().take(EVENTS).rev());
    for (number, raw) in (1_u64..).zip(&mut chosen) {
        raw[..8].copy_from_slice(&number.to_le_bytes());
    }
    let mut start = file[..START].to_vec();
    for (at, value) in [(16, mappings.len()), (24, chosen.len()), (32, chosen.len())] {
        start[at..at + 8].copy_from_slice(&(value as u64).to_le_bytes());
    }
    let whole = [start, mappings.concat(), chosen.concat()].concat();
    seed("flight_record", name, &whole)
}

/// Makes seeds of the first lines and the last ones of a report, and of the output of programs in
/// it.
fn report(report: &str) -> Result<()> {
    let lines = report.lines().filter(|line| line.len() < REPORT / 2);
    let part = |lines: &mut dyn Iterator<Item = &str>| {
        let mut text = String::new();
        for line in lines {
            if text.len() + line.len() > REPORT {
                break;
            }
            text.push_str(line);
            text.push('\n');
        }
        text
    };
    let start = part(&mut lines.clone());
    let results = part(&mut lines.clone().filter(|line| !line.starts_with('#')));
    seed("ktap_report", "start", format!("\x20{start}").as_bytes())?;
    seed(
        "ktap_report",
        "results",
        format!("\x21{results}").as_bytes(),
    )?;
    seed("program_report", "results", results.as_bytes())?;
    if let Some(evidence) = report.lines().find(|line| line.starts_with("# evidence ")) {
        let evidence: String = evidence.chars().take(2 * REPORT).collect();
        seed(
            "ktap_report",
            "evidence",
            format!("\x20{evidence}\n").as_bytes(),
        )?;
    }
    Ok(())
}

/// Makes seeds of the scenario without comments, with one check of each kind in a separate seed,
/// and of its fault rules.
fn scenario(text: &str) -> Result<()> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let lines: Vec<&str> = lines.filter(|line| !line.trim().is_empty()).collect();
    let name = lines.iter().find_map(|line| line.strip_prefix("name = "));
    let name = name.unwrap_or("run").trim_matches('"');
    let start = lines.iter().position(|line| *line == "[[check]]");
    let (devices, checks) = lines.split_at(start.unwrap_or(lines.len()));
    let mut kinds = std::collections::BTreeSet::new();
    for check in checks.split(|line| *line == "[[check]]").skip(1) {
        let kind = check.iter().find_map(|line| line.strip_prefix("kind = "));
        let kind = kind.unwrap_or("check").trim_matches('"');
        let text = [devices, &["[[check]]"], check].concat().join("\n");
        // A check may need another one, or a table after the checks.
        let is_whole = Scenario::parse(Path::new("seed.toml"), text.clone()).is_ok();
        if is_whole && kinds.insert(kind) {
            seed("scenario", &format!("{name}-{kind}"), text.as_bytes())?;
        }
    }
    for (number, word) in text.split('"').enumerate() {
        if word.parse::<Rule>().is_ok() {
            seed("fault_rule", &format!("{name}-{number}"), word.as_bytes())?;
        }
    }
    Ok(())
}
