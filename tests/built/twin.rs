//! The twin of a real machine: the kernel of its guest decides as the machine's would.

use std::fs;

use serde_json::Value;

use crate::peerbar;

/// Ports as `lspci` shows them: address, first and last bus below, type, and the sign of the ACS
/// bits.
const PORTS: [(&str, &str, &str, char); 8] = [
    ("00:01.0", "01, subordinate=04", "Root Port (Slot+)", '+'),
    ("01:00.0", "02, subordinate=04", "Upstream Port", '-'),
    (
        "02:00.0",
        "03, subordinate=03",
        "Downstream Port (Slot+)",
        '-',
    ),
    (
        "02:01.0",
        "04, subordinate=04",
        "Downstream Port (Slot+)",
        '-',
    ),
    ("00:02.0", "11, subordinate=14", "Root Port (Slot+)", '+'),
    ("11:00.0", "12, subordinate=14", "Upstream Port", '-'),
    (
        "12:00.0",
        "13, subordinate=13",
        "Downstream Port (Slot+)",
        '+',
    ),
    (
        "12:01.0",
        "14, subordinate=14",
        "Downstream Port (Slot+)",
        '+',
    ),
];

/// A GPU and a disk below a switch, and another two below a switch whose ports redirect.
const DEVICES: &str = "\
00:00.0 Host bridge [0600]: Intel Corporation Device [8086:6f00]
03:00.0 3D controller [0302]: NVIDIA Corporation Device [10de:20b5]
\tRegion 1: Memory at 2000000000 (64-bit, prefetchable) [size=128G]
04:00.0 Non-Volatile memory controller [0108]: Samsung Electronics Co Ltd Device [144d:a80a]
13:00.0 3D controller [0302]: NVIDIA Corporation Device [10de:20b5]
\tRegion 1: Memory at 4000000000 (64-bit, prefetchable) [size=128G]
14:00.0 Non-Volatile memory controller [0108]: Samsung Electronics Co Ltd Device [144d:a80a]
";

/// Returns the output of `lspci -nn -vvv` on a machine whose host bridge Linux does not know.
fn machine() -> String {
    let ports = PORTS.map(|(address, buses, kind, sign)| {
        format!(
            "{address} PCI bridge [0604]: PLX Technology, Inc. Device [10b5:8747]\n\
             \tBus: primary=00, secondary={buses}, sec-latency=0\n\
             \tCapabilities: [68] Express (v2) {kind}, MSI 00\n\
             \tCapabilities: [110 v1] Access Control Services\n\
             \t\tACSCtl:\tSrcValid{sign} TransBlk- ReqRedir{sign} CmpltRedir{sign} UpstreamFwd{sign} EgressCtrl- \
             DirectTrans-\n"
        )
    });
    DEVICES.to_owned() + &ports.concat()
}

/// Returns client and provider of a pair, the rule's verdict, the kernel's map type, and the
/// agreement of machine and kernel with the rule.
fn decided(pair: &Value) -> ([Option<&str>; 3], Option<u64>, [bool; 2]) {
    let text = |pointer| pair.pointer(pointer).and_then(Value::as_str);
    let is_true = |pointer| pair.pointer(pointer) == Some(&Value::Bool(true));
    (
        ["/client", "/provider", "/rule/verdict"].map(text),
        pair.pointer("/kernel/map_type").and_then(Value::as_u64),
        ["/machine/agrees", "/kernel/agrees"].map(is_true),
    )
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn twin_runs_and_agrees_with_its_machine() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("machine.txt"), machine()).unwrap();
    for words in [
        &["init", "--like", "machine.txt", "twin.toml"][..],
        &["run", "twin.toml"],
    ] {
        let output = peerbar(words, folder.path()).unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{words:?}: {message}");
    }
    let output = peerbar(&["explain", "--json"], folder.path()).unwrap();
    let explanation: Value = serde_json::from_slice(&output.stdout).unwrap();
    let pairs = explanation["pairs"].as_array().unwrap();
    let direct = ("bus-address", Some(3));
    let refused = ("not-supported", Some(2));
    let expected = [
        ("nvme0", "gpu0", direct),
        ("nvme1", "gpu0", refused),
        ("gpu1", "gpu0", refused),
        ("nvme0", "gpu1", refused),
        ("nvme1", "gpu1", refused),
        ("gpu0", "gpu1", refused),
    ];
    let expected = expected.map(|(client, provider, (rule, map_type))| {
        ([client, provider, rule].map(Some), map_type, [true; 2])
    });
    let found: Vec<_> = pairs.iter().map(decided).collect();
    assert_eq!(found, expected, "{explanation}");
    let said = pairs[4]["kernel"]["messages"][0].as_str().unwrap();
    assert!(said.contains("ACS redirect is set"), "{said}");
    let output = peerbar(&["explain"], folder.path()).unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.starts_with("the twin of machine.txt:\n"), "{text}");
    assert!(!text.contains("DIFFERS"), "{text}");
}
