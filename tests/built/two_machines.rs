//! Guests of two machines: two launchers on one host, whose fabrics know each other by QUIC alone.

#![allow(clippy::unwrap_used, reason = "a test that goes wrong shall panic")]

use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::PEERBAR;

/// Bytes that a program has of memory for transfers of 1 MiB.
const MEMORY: &str = "1056768";

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

/// A folder with certificates of two machines, and a scenario of each. That of `alpha` has its devices in one of two guests.
fn machines() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut certificates = Command::new(program("peerbar-fabric"));
    certificates.args(["certificates", "certs", "alpha", "beta"]);
    let (made, said) = run(certificates.current_dir(folder.path()));
    assert!(made.status.success(), "{said}");
    // A port that was free a moment ago.
    let address = UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let devices = |guest: &str| {
        format!(
            "[[switch]]\n{guest}name = \"switch0\"\n[[gpu]]\n{guest}name = \"gpu0\"\nbelow = \"switch0\"\nvram = \"16M\"\n\
             [[nic]]\n{guest}name = \"nic0\"\nbelow = \"switch0\"\n"
        )
    };
    let scenario = |machine: u8, name: &str, side: &str| {
        format!(
            "name = \"{name}\"\ntimeout = \"4m\"\ntools = true\n[fabric.tunnels]\nmachine = {machine}\ncertificates = \"certs/{name}\"\n{side}\n"
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
    // Three ways for each size, two sends of the sizes that a message may have, and the two ends.
    assert_eq!(
        report.matches("\nok ").count(),
        3 * 3 + 2 * 2 + 2,
        "{report}"
    );
    for runs in ["a", "b"] {
        let run = folder.path().join(runs).join("latest");
        let verdict = fs::read_to_string(run.join("verdict")).unwrap();
        assert!(verdict.starts_with("passed"), "{runs}: {verdict}");
    }
}
