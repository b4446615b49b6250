//! Guests of two machines: two launchers on one host, whose fabrics know each other by QUIC alone.

#![allow(clippy::unwrap_used, reason = "a test that goes wrong shall panic")]

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use peerbar_dma_log::counter_file::Reader;
use peerbar_dma_log::{Completer, Direction, Purpose};
use serde_json::Value;
use tempfile::TempDir;

use crate::launched::Launched;
use crate::{PEERBAR, peerbar};

/// Bytes that a program has of memory for transfers of 1 MiB.
const MEMORY: &str = "1056768";

/// How long a run may take until its guest takes programs: the first one on a machine installs packages before.
const START: Duration = Duration::from_secs(600);

/// Bytes that the end that asks sends or writes in transfers of 1, 4096 and 1048576 bytes: writes without and with immediate data, and two sends of
/// what a message may have.
const GIVEN: u64 = 2 * (1 + 4096 + 1_048_576) + 2 * (1 + 4096);

/// Bytes that it reads.
const TAKEN: u64 = 1 + 4096 + 1_048_576;

/// Results of transfers of three sizes: three ways for each, two sends of the sizes that a message may have, and the two ends.
const TRANSFERS: usize = 3 * 3 + 2 * 2 + 2;

/// Transfers of a size that a message may have.
const WAYS: usize = 5;

/// A program beside `peerbar`.
fn program(name: &str) -> PathBuf {
    Path::new(PEERBAR).with_file_name(name)
}

/// Runs `command`; its output, and what it says of an error.
fn run(command: &mut Command) -> (Output, String) {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, said)
}

/// A folder with certificates of the machines `alpha` and `beta`.
fn certificates() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut certificates = Command::new(program("peerbar-fabric"));
    certificates.args(["certificates", "certs", "alpha", "beta"]);
    let (made, said) = run(certificates.current_dir(folder.path()));
    assert!(made.status.success(), "{said}");
    folder
}

/// A port of this machine that was free a moment ago.
fn free_address() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.local_addr().unwrap()
}

/// A scenario of each of two machines, beside their certificates. That of `alpha` has its devices in one of two guests.
fn machines() -> TempDir {
    let folder = certificates();
    let address = free_address();
    let devices = |guest: &str| {
        format!(
            "[[switch]]\n{guest}name = \"switch0\"\n[[gpu]]\n{guest}name = \"gpu0\"\nbelow = \"switch0\"\nvram = \"16M\"\n\
             [[nic]]\n{guest}name = \"nic0\"\nbelow = \"switch0\"\n"
        )
    };
    let scenario = |machine: u8, name: &str, side: &str| {
        format!(
            "name = \"{name}\"\ntimeout = \"4m\"\ntools = true\n[fabric]\nimpair = [\"*->* loss=2% reorder=5%\"]\nseed = {machine}\n[fabric.tunnels]\nmachine = {machine}\ncertificates = \"certs/{name}\"\n{side}\n"
        )
    };
    let alpha = scenario(1, "alpha", &format!("listen = \"{address}\""));
    let guests = "[[guest]]\nname = \"left\"\n[[guest]]\nname = \"other\"\n[[nic]]\nguest = \"other\"\nname = \"nic1\"\n";
    let alpha = [&alpha, guests, &devices("guest = \"left\"\n")].concat();
    let beta = scenario(2, "beta", &format!("connect = [\"{address}\"]"));
    fs::write(folder.path().join("alpha.toml"), alpha).unwrap();
    fs::write(
        folder.path().join("beta.toml"),
        [beta, devices("")].concat(),
    )
    .unwrap();
    folder
}

/// Payload that the adapter `nic0` has read and written, in bytes, all of it memory of a GPU, by the counters of its run.
fn payload(run: &Path) -> [u64; 2] {
    let counters = Reader::open(&run.join("nic0.counters")).unwrap();
    let entries = counters.read().unwrap().entries;
    let payload = entries
        .iter()
        .filter(|entry| entry.purpose == Purpose::Payload);
    [Direction::Read, Direction::Write].map(|direction| {
        let moved = payload.clone().filter(|entry| entry.direction == direction);
        moved
            .map(|entry| {
                let is_of_gpu = entry.completer == Completer::PeerBar;
                assert!(is_of_gpu && entry.failures == 0, "{entry:?}");
                entry.bytes
            })
            .sum()
    })
}

#[test]
#[ignore = "boots three guests; scripts/test runs it"]
fn vram_goes_to_a_guest_of_another_machine() {
    let folder = machines();
    let end = |scenario: &str| {
        format!(
            "{PEERBAR} exec {scenario} -- /opt/peerbar/peerbar-verbs end --nic '{{nic0}}' --memory '{{gpu0}}' --size {MEMORY}"
        )
    };
    let mut between = Command::new(program("peerbar-verbs"));
    between.args(["between", "--sizes", "1,4096,1048576"]);
    between.args([
        end("alpha.toml --guest left --runs a"),
        end("beta.toml --runs b"),
    ]);
    let (done, said) = run(between.current_dir(folder.path()));
    let report = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{report}{said}");
    assert_eq!(report.matches("\nok ").count(), TRANSFERS, "{report}");
    // Each side's fabric impairs what goes to the other. What is lost is read and sent again, and written once.
    for (runs, [read, written]) in [("a", [GIVEN, TAKEN]), ("b", [TAKEN, GIVEN])] {
        let run = folder.path().join(runs).join("latest");
        let impaired = fs::read_to_string(run.join("fabric.txt")).unwrap();
        assert!(impaired.contains("nic0->nic0 #"), "{runs}: {impaired}");
        let counted = payload(&run);
        assert!(
            counted[0] >= read && counted[1] == written,
            "{runs}: {counted:?} of [{read}, {written}]"
        );
        let verdict = fs::read_to_string(run.join("verdict")).unwrap();
        assert!(verdict.starts_with("passed"), "{runs}: {verdict}");
    }
}

/// A group of two guests: the first waits for what comes from the other machine, then each machine's own transfer is made.
fn group(machine: u8, name: &str, tunnels: &str, certificates: &Path) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let certificates = certificates.display();
    let devices = |guest: &str, number: u8| {
        format!(
            r#"
[[guest]]
name = "{guest}"
[[switch]]
guest = "{guest}"
name = "switch{number}"
[[gpu]]
guest = "{guest}"
name = "gpu{number}"
below = "switch{number}"
vram = "16M"
[[nic]]
guest = "{guest}"
name = "nic{number}"
below = "switch{number}"
"#
        )
    };
    let (left, right) = (devices("left", 0), devices("right", 1));
    let scenario = format!(
        r#"
name = "{name}"
timeout = "6m"
tools = true
[fabric.tunnels]
machine = {machine}
certificates = "{certificates}"
{tunnels}
{left}{right}
[[check]]
guest = "left"
name = "transfers with the other machine"
kind = "command"
timeout = "4m"
run = "until [ -e /host/transferred ]; do sleep 0.1; done"
[[check]]
name = "VRAM to VRAM of the other guest"
kind = "rdma"
nic = "nic0"
peer = "nic1"
from = {{ vram = "gpu0" }}
to = {{ vram = "gpu1" }}
sizes = ["4K", "1M"]
"#
    );
    fs::write(folder.path().join("group.toml"), scenario).unwrap();
    folder
}

/// Waits until programs can be started in a guest of the run, which must not have ended.
fn wait_for_guest(run: &mut Launched, guest: &str) {
    let words = [
        "exec",
        "--attach",
        "runs/latest",
        "--guest",
        guest,
        "--",
        "true",
    ];
    let deadline = Instant::now() + START;
    loop {
        let tried = peerbar(&words, run.folder.path()).unwrap();
        if tried.status.success() {
            return;
        }
        let said = String::from_utf8_lossy(&tried.stderr);
        assert!(
            run.launcher.try_wait().unwrap().is_none(),
            "the run ended: {:?}",
            run.end()
        );
        assert!(Instant::now() < deadline, "{said}");
    }
}

/// Transfers from a program in the first guest of one run to one of the other.
fn between(runs: &[Launched; 2], sizes: &str) -> Output {
    let end = |run: &Launched| {
        let latest = run.folder.path().join("runs/latest");
        format!(
            "{PEERBAR} exec --attach {} --guest left -- /opt/peerbar/peerbar-verbs end --nic '{{nic0}}' --memory '{{gpu0}}' --size {MEMORY}",
            latest.display()
        )
    };
    let mut between = Command::new(program("peerbar-verbs"));
    between.args(["between", "--sizes", sizes]);
    between.args(runs.each_ref().map(end)).output().unwrap()
}

/// No packet of the first machine's adapter comes through the tunnel, so that no request of it is answered.
fn a_partition_ends_requests_until_it_is_over(runs: &[Launched; 2]) {
    let folder = runs[0].folder.path();
    for (rule, passes) in [("*->* partition", false), ("--clear", true)] {
        let injected = peerbar(&["inject", "fabric", rule], folder).unwrap();
        assert!(injected.status.success(), "{injected:?}");
        let transfers = between(runs, "64");
        assert_eq!(transfers.status.success(), passes, "{transfers:?}");
        let report = String::from_utf8_lossy(&transfers.stdout);
        let times = report.matches("ended with a response time-out").count();
        assert_eq!(times, if passes { 0 } else { WAYS }, "{report}");
    }
}

#[test]
#[ignore = "boots four guests; scripts/test runs it"]
fn groups_of_two_machines_are_joined_and_pass_as_runs() {
    let certificates = certificates();
    let address = free_address();
    let sides = [
        (1, "alpha", format!("listen = \"{address}\"")),
        (2, "beta", format!("connect = [\"{address}\"]")),
    ];
    let mut runs = sides.map(|(machine, name, tunnels)| {
        let folder = group(
            machine,
            name,
            &tunnels,
            &certificates.path().join("certs").join(name),
        );
        Launched::start(folder, &["run", "group.toml"]).unwrap()
    });
    for run in &mut runs {
        wait_for_guest(run, "left");
    }
    let transfers = between(&runs, "1,4096,1048576");
    assert!(transfers.status.success(), "{transfers:?}");
    let report = String::from_utf8_lossy(&transfers.stdout);
    assert_eq!(report.matches("\nok ").count(), TRANSFERS, "{report}");
    a_partition_ends_requests_until_it_is_over(&runs);
    for run in &mut runs {
        let latest = run.folder.path().join("runs/latest");
        fs::write(latest.join("left/host/transferred"), "").unwrap();
    }
    for (run, [read, written]) in runs.iter_mut().zip([[GIVEN, TAKEN], [TAKEN, GIVEN]]) {
        let (code, results, progress) = run.end().unwrap();
        assert_eq!(code, Some(0), "{results}{progress}");
        let verdict = run.kept("verdict").unwrap();
        assert!(verdict.starts_with("passed"), "{verdict}");
        // Each machine's own transfer comes on top.
        let counted = payload(&run.folder.path().join("runs/latest/left"));
        assert!(
            counted[0] >= read && counted[1] >= written,
            "{counted:?} of [{read}, {written}]"
        );
        let results: Value = serde_json::from_str(&run.kept("results.json").unwrap()).unwrap();
        let checks = results.pointer("/checks").and_then(Value::as_array);
        let checks = checks.unwrap().iter();
        let verdicts: Vec<_> = checks.map(|check| check["verdict"].as_str()).collect();
        assert_eq!(verdicts, [Some("pass"); 2], "{results}");
    }
}
