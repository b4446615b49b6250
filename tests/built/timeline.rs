//! The scenario of `peerbar init`, run and traced. Perfetto's own trace processor opens its time
//! line.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::peerbar;

const PROJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Returns the output of a command, which must succeed.
fn printed(words: &[&str], folder: &Path) -> anyhow::Result<String> {
    let output = peerbar(words, folder)?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{words:?}: {errors}");
    Ok(String::from_utf8(output.stdout)?)
}

/// Returns the rows of Perfetto's trace processor for each query.
fn queried(trace: &Path, queries: &[&str]) -> anyhow::Result<Vec<Vec<Value>>> {
    let processor = Path::new(PROJECT).join("target/perfetto");
    let fetched = Command::new(Path::new(PROJECT).join("tests/perfetto/fetch")).status();
    ensure!(
        fetched?.success(),
        "tests/perfetto/fetch has not got Perfetto's trace processor"
    );
    let mut node = Command::new("node")
        .arg(Path::new(PROJECT).join("tests/perfetto/query.mjs"))
        .arg(processor)
        .arg(trace)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("node is missing")?;
    let mut stdin = node.stdin.take().context("no stdin")?;
    stdin.write_all(queries.join("\n").as_bytes())?;
    drop(stdin);
    let output = node.wait_with_output()?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{errors}");
    let text = String::from_utf8(output.stdout)?;
    let rows: Result<Vec<_>, _> = text.lines().map(serde_json::from_str).collect();
    let rows: Vec<Vec<Value>> = rows?;
    ensure!(rows.len() == queries.len(), "{text}");
    Ok(rows)
}

/// Returns a query of the number of flows from a track with a name like `from` to one with a name
/// like `to`.
fn flows(from: &str, to: &str) -> String {
    format!(
        "select count(*) as n from flow f join slice a on f.slice_out = a.id join slice b on f.slice_in = b.id \
         join track ta on a.track_id = ta.id join track tb on b.track_id = tb.id \
         where ta.name glob '{from}' and tb.name glob '{to}'"
    )
}

/// The number of flows from a doorbell by a command to the interrupt that reports its completion,
/// which end where the guest takes the completion.
const FROM_DOORBELL_TO_GUEST: &str = "select count(*) as n from (select 1 from (\
    select f.trace_id as flow, f.slice_out as slice from flow f union select f.trace_id, f.slice_in from flow f) e \
    join slice s on e.slice = s.id join track t on s.track_id = t.id group by e.flow having \
    min(iif(t.name glob 'nvme* queue ? (*)', s.ts, null)) <= min(iif(t.name glob 'queue ?: doorbells', s.ts, null)) and \
    min(iif(t.name glob 'queue ?: doorbells', s.ts, null)) < min(iif(t.name glob 'queue ?', s.ts, null)) and \
    min(iif(t.name glob 'queue ?', s.ts, null)) < min(iif(t.name glob 'queue ?: completions', s.ts, null)) and \
    min(iif(t.name glob 'queue ?: completions', s.ts, null)) < min(iif(t.name = 'interrupts', s.ts, null)) and \
    max(iif(t.name glob 'nvme*: completions', s.ts, null)) is not null)";

/// Tracks of a guest's command, except that of interrupts: the driver may take a completion while
/// it handles the interrupt before.
const TRACKS: [&str; 5] = [
    "nvme* queue ? (*)",
    "queue ?: doorbells",
    "queue ?",
    "queue ?: completions",
    "nvme*: completions",
];

/// Returns a query of the number of flows on tracks with names like all of these, in any order of
/// time.
fn joined(names: &[&str]) -> String {
    let on = names
        .iter()
        .map(|name| format!("max(t.name glob '{name}')"));
    let on = on.collect::<Vec<_>>().join(" and ");
    format!(
        "select count(*) as n from (select e.flow from (\
         select f.trace_id as flow, f.slice_out as slice from flow f union select f.trace_id, f.slice_in from flow f) e \
         join slice s on e.slice = s.id join track t on s.track_id = t.id group by e.flow having {on})"
    )
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn initial_scenario_runs_and_perfetto_opens_its_time_line() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    printed(&["init", "x.toml"], folder).unwrap();
    printed(&["run", "x.toml", "--trace"], folder).unwrap();
    let contents = printed(&["trace", "--json"], folder).unwrap();
    let contents: Value = serde_json::from_str(&contents).unwrap();
    assert_eq!(
        contents["missing"].as_array().unwrap().len(),
        0,
        "{contents}"
    );
    let commands = contents["guest"]["commands"].as_u64().unwrap();
    assert!(commands > 10, "{contents}");
    assert_eq!(
        contents["guest"]["commands_found"].as_u64(),
        Some(commands),
        "{contents}"
    );
    let of_devices = contents["devices"].as_array().unwrap().iter();
    let interrupts = of_devices.map(|device| device["interrupts"].as_u64().unwrap());
    let interrupts: u64 = interrupts.sum();
    let (submitted, announced) = (
        flows("nvme* queue ? (*)", "queue ?: doorbells"),
        flows("queue ?: doorbells", "queue ?"),
    );
    let rows = queried(
        &folder.join("runs/latest/trace.pftrace"),
        &[
            "select name from stats where severity in ('error', 'data_loss') and value > 0",
            "select count(*) as n from slice where dur < 0",
            "select s.name from slice s join track t on s.track_id = t.id where t.name = 'checks' order by s.ts",
            &submitted,
            &announced,
            "select count(*) as n from slice s join track t on s.track_id = t.id where t.name = 'DMA' and s.name glob '* peer'",
            "select max(c.value) as n from counter c join track t on c.track_id = t.id join track p on t.parent_id = p.id \
             where t.name = 'payload by peer' and p.name = 'disk1'",
            FROM_DOORBELL_TO_GUEST,
            "select count(*) as n from slice s join track t on s.track_id = t.id where t.name glob 'queue ?'",
            "select count(*) as n from slice s join track t on s.track_id = t.id where t.name = 'interrupts'",
            &joined(&TRACKS),
            &joined(&["queue ?: doorbells", "queue ?"]),
        ],
    )
    .unwrap();
    let number = |query: usize| rows[query][0]["n"].as_f64().unwrap();
    assert_eq!(rows[0], Vec::<Value>::new());
    assert_eq!(number(1), 0.0);
    let checks: Vec<&str> = rows[2]
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    let expected = [
        "disk0 gives its memory to others",
        "disk0 to disk1 through disk0's memory",
    ];
    assert_eq!(checks, expected);
    let commands = commands as f64;
    assert_eq!(
        number(10),
        commands,
        "each command is followed on every track"
    );
    assert_eq!(number(11), number(8), "each command has a doorbell");
    // A loaded host stops the guest now and then, and then the guest's clock is not linear in the
    // host's: some commands seem to be later than their doorbells, and their flows take another
    // order.
    let most = |count: f64, of: f64| 2.0 * count > of && count <= of;
    assert!(
        most(number(3), commands) && most(number(7), commands),
        "{} and {} of {commands}",
        number(3),
        number(7)
    );
    assert!(most(number(4), number(8)), "{} of {}", number(4), number(8));
    assert!(interrupts > 0 && number(9) == interrupts as f64);
    assert!(number(5) > 0.0);
    let results = fs::read(folder.join("runs/latest/results.json")).unwrap();
    let results: Value = serde_json::from_slice(&results).unwrap();
    let counted = results.pointer("/checks/1/measure/routes/peer").unwrap();
    assert_eq!(Some(number(6)), counted.as_f64(), "{results}");

    let record = File::options()
        .write(true)
        .open(folder.join("runs/latest/disk0.flight"))
        .unwrap();
    record
        .set_len(record.metadata().unwrap().len() / 2)
        .unwrap();
    let output = peerbar(&["trace"], folder).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(
        errors.contains("disk0.flight") && errors.contains("it was cut short"),
        "{errors}"
    );
}
