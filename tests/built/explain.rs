//! `peerbar explain` explains why the kernel of a real guest refuses, and its advice works.

use std::fs;

use anyhow::Context;
use serde_json::Value;

use crate::peerbar;

/// Two controllers below separate root ports, and a processor whose root complex the kernel does
/// not trust.
const REFUSED: &str = r#"
name = "refused"
timeout = "5m"

[machine]
cpu = "Haswell"

[[nvme]]
name = "provider"
cmb = "32M"
namespaces = [{ ram = "16M" }]

[[nvme]]
name = "client"
namespaces = [{ ram = "16M" }]

[[check]]
kind = "copy"
from = "client"
to = "provider"
through = { p2pmem = "provider" }
sizes = ["4K", "1M"]
offsets = [0]
"#;

/// Runs `scenario`, and explains the run. Returns the run's exit code, and the explanation of the
/// client's DMA.
fn explained(scenario: &str) -> anyhow::Result<(Option<i32>, Value)> {
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("x.toml"), scenario)?;
    let run = peerbar(&["run", "x.toml"], folder.path())?;
    let output = peerbar(&["explain", "provider", "client", "--json"], folder.path())?;
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    anyhow::ensure!(output.status.success(), "{message}");
    let explanation: Value = serde_json::from_slice(&output.stdout)?;
    let pair = explanation.pointer("/pairs/0").context("no pair")?;
    Ok((run.status.code(), pair.clone()))
}

/// Returns the verdict of the rule, the map type that the kernel chose, and whether they agree.
fn decided(pair: &Value) -> (Option<&str>, Option<u64>, Option<bool>) {
    let at = |pointer| pair.pointer(pointer);
    (
        at("/rule/verdict").and_then(Value::as_str),
        at("/kernel/map_type").and_then(Value::as_u64),
        at("/kernel/agrees").and_then(Value::as_bool),
    )
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn refusal_is_explained_by_host_bridge_and_kernel_log() {
    let (code, pair) = explained(REFUSED).unwrap();
    assert_eq!(code, Some(1), "{pair}");
    assert_eq!(
        decided(&pair),
        (Some("not-supported"), Some(2), Some(true)),
        "{pair}"
    );
    let why = pair["rule"]["why"].as_str().unwrap();
    assert!(
        why.contains("(8086:29c0) is not on the kernel's list"),
        "{why}"
    );
    let path = pair["rule"]["path"].as_array().unwrap();
    let deciding: Vec<&Value> = path.iter().filter(|hop| hop["decides"] == true).collect();
    assert_eq!(deciding.len(), 1, "{pair}");
    assert_eq!(deciding[0]["kind"], "host bridge");
    let said = pair["kernel"]["messages"][0].as_str().unwrap();
    assert!(
        said.contains("cannot be used for peer-to-peer DMA"),
        "{said}"
    );
    assert_eq!(pair["checks"][0]["direct_bytes"], 0);
    let advised = |number: usize| {
        let change = &pair["changes"][number];
        (
            change["change"].as_str().unwrap(),
            change["verdict"].as_str().unwrap(),
        )
    };
    let cpu = (
        "in [machine]: cpu = \"EPYC\"",
        "through-host-bridge-physical",
    );
    assert_eq!(advised(0), cpu);
    let switch = "[[switch]] name = \"switch0\", in [[nvme]] provider and [[nvme]] client: below = \"switch0\"";
    assert_eq!(advised(1), (switch, "bus-address"));
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn advised_processor_permits_the_host_bridge() {
    let (code, pair) = explained(&REFUSED.replace("Haswell", "EPYC")).unwrap();
    assert_eq!(code, Some(0), "{pair}");
    let decided = decided(&pair);
    assert_eq!(
        decided,
        (Some("through-host-bridge-physical"), Some(4), Some(true))
    );
    assert!(
        pair["checks"][0]["routes"]["upstream"].as_u64() > Some(0),
        "{pair}"
    );
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn the_advised_switch_makes_it_the_bus_address() {
    let below = REFUSED.replace("namespaces", "below = \"switch0\"\nnamespaces");
    let scenario = below.replace("[machine]", "[[switch]]\nname = \"switch0\"\n\n[machine]");
    let (code, pair) = explained(&scenario).unwrap();
    assert_eq!(code, Some(0), "{pair}");
    assert_eq!(decided(&pair), (Some("bus-address"), Some(3), Some(true)));
    assert_eq!(pair["rule"]["path"][2]["name"], "switch0");
    assert!(
        pair["checks"][0]["routes"]["peer"].as_u64() > Some(0),
        "{pair}"
    );
}
