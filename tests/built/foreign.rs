//! Devices with servers of other projects: a copy engine that the crate `vfio_user` serves, and a
//! GPU below the same switch.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use peerbar_lab::programs::program;
use serde_json::Value;
use tempfile::TempDir;

use crate::launched::Launched;
use crate::peerbar;

/// A machine whose IOMMU makes the port above `dev1` redirect.
const ROUTES: &str = r#"
name = "routes"
timeout = "4m"
tools = true
machine.iommu = "intel"

[[switch]]
name = "switch0"
acs = ["dev1"]

[[gpu]]
name = "gpu0"
below = "switch0"
vram = "64M"

[[device]]
name = "dev0"
below = "switch0"
command = ["SERVER", "--socket-path", "{socket}"]

[[device]]
name = "dev1"
below = "switch0"
command = ["SERVER", "--socket-path={socket}"]
ready = "socket"
kind = "other"

[[device]]
name = "slow0"
below = "switch0"
command = ["SERVER", "--slow=10", "--socket-path={socket}"]

[[check]]
name = "peer"
kind = "program"
path = "{peerbar}/peerbar-foreign-guest"
arguments = ["{dev0:pci}", "{gpu0:pci}"]
expect = ["2097152 bytes to the peer and back"]

[[check]]
name = "redirected"
kind = "program"
path = "{peerbar}/peerbar-foreign-guest"
arguments = ["--refused", "{dev1:pci}", "{gpu0:pci}"]
expect = ["2097152 bytes refused"]

[[check]]
name = "slow"
kind = "program"
path = "{peerbar}/peerbar-foreign-guest"
arguments = ["{slow0:pci}", "{gpu0:pci}"]
expect = ["2097152 bytes to the peer and back"]
"#;

/// A device that dies at the second order.
const DEATH: &str = r#"
name = "death"
timeout = "4m"
tools = true

[[switch]]
name = "switch0"

[[gpu]]
name = "gpu0"
below = "switch0"
vram = "64M"

[[device]]
name = "dev0"
below = "switch0"
command = ["SERVER", "--socket-path", "{socket}", "--die-after", "1"]

[[check]]
name = "death"
kind = "program"
path = "{peerbar}/peerbar-foreign-guest"
arguments = ["--dies-after", "1", "{dev0:pci}", "{gpu0:pci}"]
expect = ["the engine is dead, its peer is not"]
"#;

/// A server that tries to write the folder of all sockets, that of the run, and the folder of its own
/// socket.
const WRITER: &str = r#"
name = "writer"

[[device]]
name = "dev0"
command = ["sh", "-c", 'cd "$(dirname $0)"; for at in .. $1/runs/latest/ .; do touch $at/x && echo wrote $at; done; exit 1', "{socket}", "FOLDER"]
"#;

/// Two disks whose server is peerbar's, behind a proxy as if it were not. The DMA of the second
/// comes by messages.
const DISKS: &str = r#"
name = "disks"
timeout = "4m"
tools = true

[[switch]]
name = "switch0"

[[gpu]]
name = "gpu0"
below = "switch0"
vram = "64M"

[[device]]
name = "disk0"
below = "switch0"
command = ["DISK", "--socket-path", "{socket}", "--serial", "a", "--namespace", "ram=64M"]

[[device]]
name = "disk1"
below = "switch0"
command = ["DISK", "--socket-path", "{socket}", "--serial", "b", "--namespace", "ram=64M"]
kind = "nvme"
count = "all"

[[check]]
name = "mapped"
kind = "gpu-file"
gpu = "gpu0"
disks = ["disk0"]
sizes = ["4K", "1M"]
offsets = [0, "4K"]

[[check]]
name = "counted"
kind = "gpu-file"
gpu = "gpu0"
disks = ["disk1"]
sizes = ["4K", "1M"]
offsets = [0, "4K"]

[[check]]
name = "probe"
kind = "probe"
provider = "gpu0"
client = "disk1"
expect = "peer"

[[check]]
name = "names"
kind = "command"
run = "nvme id-ctrl {disk0} | grep -w sn; nvme id-ctrl {disk1} | grep -w sn; head -c 1 {disk1:ns1} > /dev/null"
matches = ["^sn .*: a *$", "^sn .*: b *$"]
"#;

/// Makes a folder with `scenario` as `x.toml`, whose devices the built server of the tests serves.
fn folder_with(scenario: &str) -> anyhow::Result<TempDir> {
    let folder = tempfile::tempdir()?;
    let server = built("peerbar-foreign")?.display().to_string();
    let disk = built("peerbar-nvme")?.display().to_string();
    let scenario = scenario.replace("SERVER", &server).replace("DISK", &disk);
    let scenario = scenario.replace("FOLDER", &folder.path().display().to_string());
    fs::write(folder.path().join("x.toml"), scenario)?;
    Ok(folder)
}

fn built(name: &str) -> anyhow::Result<PathBuf> {
    program(name).map_err(|failure| anyhow!("{failure:?}"))
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn foreign_device_reaches_its_peer_unless_acs_redirects() {
    let mut run = Launched::start(folder_with(ROUTES).unwrap(), &["run", "x.toml"]).unwrap();
    let (code, results, progress) = run.end().unwrap();
    assert_eq!(code, Some(0), "{results}{progress}");
    // Nobody counts what the server copies in memory that it maps.
    let rows = results
        .lines()
        .filter(|row| row.contains(" mapped, not counted "));
    assert_eq!(rows.count(), 3, "{results}");
    let kept: Value = serde_json::from_str(&run.kept("results.json").unwrap()).unwrap();
    let measure = &kept["checks"][0]["measure"];
    assert_eq!(measure["mapped_not_counted"][0], "dev0", "{measure}");
    assert_eq!(measure["peer_bytes"], 0, "{measure}");
    let log = run.kept("foreign-dev0.server.log").unwrap();
    assert_eq!(log, "", "the server complains");
    assert_eq!(run.sockets_left().unwrap(), 0);
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn foreign_disk_is_a_disk_to_the_checks() {
    let mut run = Launched::start(folder_with(DISKS).unwrap(), &["run", "x.toml"]).unwrap();
    let (code, results, progress) = run.end().unwrap();
    assert_eq!(code, Some(0), "{results}{progress}");
    let kept: Value = serde_json::from_str(&run.kept("results.json").unwrap()).unwrap();
    let measure = |check: usize| &kept["checks"][check]["measure"];
    let moved = measure(0)["bytes"].as_u64().unwrap();
    assert_eq!(measure(0)["peer_bytes"], 0, "nobody counted these bytes");
    assert_eq!(measure(1)["mapped_not_counted"], Value::Null);
    // To VRAM and back.
    assert_eq!(measure(1)["peer_bytes"], moved, "{}", measure(1));
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn death_of_a_foreign_server_costs_its_device() {
    let expected = format!("{DEATH}loses = \"dev0\"\n");
    let mut run = Launched::start(folder_with(&expected).unwrap(), &["run", "x.toml"]).unwrap();
    let (code, results, progress) = run.end().unwrap();
    assert_eq!(code, Some(0), "{results}{progress}");
    let log = run.kept("foreign-dev0.server.log").unwrap();
    assert!(log.contains("dies as told, after 1 copies"), "{log}");
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn unexpected_death_of_a_foreign_server_fails_the_run() {
    let mut run = Launched::start(folder_with(DEATH).unwrap(), &["run", "x.toml"]).unwrap();
    let (code, results, progress) = run.end().unwrap();
    assert_eq!(code, Some(1), "{results}{progress}");
    assert!(results.contains("server dev0"), "{results}");
    let log = run.kept("foreign-dev0.server.log").unwrap();
    assert!(log.contains("dies as told"), "{log}");
}

#[test]
#[ignore = "needs the built programs; scripts/test runs it"]
fn foreign_server_writes_only_its_own_folder() {
    let folder = folder_with(WRITER).unwrap();
    let output = peerbar(&["devices", "x.toml"], folder.path()).unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("server dev0.server ended before it was ready (exit status: 1): wrote .; "),
        "{said}"
    );
    let log = folder.path().join("runs/latest/foreign-dev0.server.log");
    let log = fs::read_to_string(log).unwrap();
    let denied = log
        .lines()
        .filter(|line| line.ends_with("Permission denied"));
    assert_eq!(denied.count(), 2, "{log}");
}

/// A server that is started by hand, and ends with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the server at `socket`, and waits until the doctor finds it.
fn start(socket: &Path, folder: &Path) -> anyhow::Result<(Running, String)> {
    let server = Command::new(built("peerbar-foreign")?)
        .arg("--socket-path")
        .arg(socket)
        .spawn();
    let server = Running(server.context("the server does not start")?);
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let socket = socket.to_str().context("a path that is not UTF-8")?;
        let output = peerbar(&["doctor", "--device", socket], folder)?;
        let found = String::from_utf8(output.stdout)?;
        if output.status.success() {
            return Ok((server, found));
        }
        ensure!(
            Instant::now() < deadline,
            "the doctor finds no server: {found}"
        );
        thread::yield_now();
    }
}

#[test]
#[ignore = "needs the built programs; scripts/test runs it"]
fn doctor_says_what_a_foreign_server_is() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let (_server, found) = start(&socket, folder.path()).unwrap();
    for expected in [
        "device         1234:c0cc, class 120000 (processing accelerator)",
        "BAR0           8K of 32-bit memory: peers reach it by messages",
        "BAR2           2M of 64-bit prefetchable memory: peers map it",
        "interrupts     MSI-X with 1 vector",
        "socket can be a [[device]]",
    ] {
        assert!(found.contains(expected), "{expected}: {found}");
    }
    let nothing = peerbar(&["doctor", "--device", "nothing"], folder.path()).unwrap();
    let said = String::from_utf8(nothing.stdout).unwrap();
    assert_eq!(nothing.status.code(), Some(1), "{said}");
    assert!(said.contains("no vfio-user server at nothing"), "{said}");
    fs::write(folder.path().join("file"), "").unwrap();
    let file = peerbar(&["doctor", "--device", "file"], folder.path()).unwrap();
    let said = String::from_utf8(file.stdout).unwrap();
    assert!(
        said.contains("file is not a socket: correct the path"),
        "{said}"
    );
}
