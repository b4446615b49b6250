//! The output of `peerbar iommu` for records that the test makes in the same way as devices.

#![allow(clippy::unwrap_used, reason = "a test panics if it fails")]

use std::fs;
use std::io;
use std::process::{Command, Output};

use peerbar_flight::{
    Backing, Completer, Direction, Dma, DmaOutcome, Event, FileSpan, Level, Mapping, Origin,
    Purpose, Recorder, Route,
};
use peerbar_pci::{Iova, Range};
use tempfile::TempDir;

const READ: u8 = 0x02;
const CONSOLE: &str = "\
[    4.1] DMAR: [DMA Write NO_PASID] Request device [0000:02:00.0] fault addr 0xffff000 [fault reason 0x05] not ours
[    4.2] DMAR: [DMA Write NO_PASID] Request device [0000:01:00.0] fault addr 0x4000f000 [fault reason 0x05] not set
";

/// Returns a run's folder in which two devices have shared a page, and the first has used one that
/// was taken from it.
fn run() -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("nvme-disk0.log"), "").unwrap();
    fs::write(folder.path().join("console.log"), CONSOLE).unwrap();
    let device = |name: &str| {
        let path = folder.path().join(name).with_extension("flight");
        Recorder::create(&path, name, Level::All).unwrap()
    };
    let (disk0, disk1) = (device("disk0"), device("disk1"));
    disk0.record(map(0x4000_0000));
    command(&disk0, 17, 0x4000_0000, DmaOutcome::Done);
    disk1.record(map(0x5000_0000));
    command(&disk1, 3, 0x5000_0000, DmaOutcome::Done);
    for (device, iova) in [(&disk0, 0x4000_0000), (&disk1, 0x5000_0000)] {
        let range = Range::new(Iova(iova), 0x1_0000).unwrap();
        device.record(Event::Unmap(range));
    }
    command(&disk0, 18, 0x4000_f000, DmaOutcome::ClientRefused(19));
    folder
}

/// Maps 64 KiB of guest RAM, the same in each record.
fn map(iova: u64) -> Event {
    Event::Map(Mapping {
        range: Range::new(Iova(iova), 0x1_0000).unwrap(),
        readable: true,
        writable: true,
        backing: Backing::Ram(FileSpan {
            device: 1,
            inode: 2,
            offset: 0x10_0000,
        }),
    })
}

/// A Read of a page to `address`.
fn command(device: &Recorder, number: u32, address: u64, outcome: DmaOutcome) {
    let origin = Origin::command(1, number);
    device.record(Event::Begin {
        origin,
        operation: READ.into(),
    });
    let dma = Dma {
        origin,
        purpose: Purpose::Payload,
        direction: Direction::Write,
        address: Iova(address),
        len: 0x1000,
        route: Route::GuestRam,
        completer: Completer::GuestRam,
        outcome,
        took: 0,
    };
    device.dma(dma, device.clock());
    device.record(Event::End { origin, status: 0 });
}

fn iommu(folder: &TempDir, options: &[&str]) -> io::Result<Output> {
    Command::new(env!("CARGO_BIN_EXE_peerbar"))
        .arg("iommu")
        .arg(folder.path())
        .args(options)
        .output()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn fault_names_command_address_and_kernel_line() {
    let message = stdout(&iommu(&run(), &[]).unwrap());
    for expected in [
        "write (payload) of 0x00004000f000 4 KiB: QEMU refused it (errno 19)\n",
        "by queue 1, command 18: Read, taken up at ",
        " before: 4 KiB before the end of a mapping of 64 KiB, made for queue 1, command 17: Read, taken up at ",
        "the guest's kernel: [    4.2] DMAR: [DMA Write NO_PASID] Request device [0000:01:00.0]",
    ] {
        assert!(
            message.contains(expected),
            "{expected:?} is not in:\n{message}"
        );
    }
    assert!(!message.contains("not ours"), "{message}");
}

#[test]
fn finding_of_two_devices_is_shown_for_either() {
    let folder = run();
    let output = iommu(&folder, &["--sanitize", "--device", "disk1"]).unwrap();
    let message = stdout(&output);
    assert!(message.contains("sanitizer: 1 finding\n"), "{message}");
    assert!(
        message.contains(": page of two devices at once: "),
        "{message}"
    );
    assert!(
        message.contains(" of disk0 for queue 1, command 17: "),
        "{message}"
    );
    assert!(!message.contains("disk0: "), "{message}");
    assert_eq!(output.status.code(), Some(1));
    let both = stdout(&iommu(&folder, &["--sanitize"]).unwrap());
    assert!(both.contains("disk0 at ") && both.contains("DMA after unmap"));
}

#[test]
fn sanitizer_does_not_pass_what_it_could_not_judge() {
    let folder = TempDir::new().unwrap();
    let record = |name: &str, level: Level| {
        let path = folder.path().join(name).with_extension("flight");
        drop(Recorder::create(&path, name, level).unwrap());
    };
    record("disk0", Level::All);
    let clean = iommu(&folder, &["--sanitize"]).unwrap();
    assert!(stdout(&clean).ends_with("sanitizer: no findings\n"));
    assert_eq!(clean.status.code(), Some(0));
    let disk =
        |name: &str| format!("[[nvme]]\nname = \"{name}\"\nnamespaces = [{{ ram = \"1M\" }}]\n");
    let scenario = format!("name = \"x\"\n{}{}", disk("disk0"), disk("disk1"));
    fs::write(folder.path().join("scenario.toml"), scenario).unwrap();
    let unjudged = |end: &str| {
        let output = iommu(&folder, &["--sanitize"]).unwrap();
        assert_eq!(output.status.code(), Some(1));
        let message = stdout(&output);
        let line = "sanitizer: not all was judged\n  disk1: ";
        assert!(message.contains(&format!("{line}{end}")), "{message}");
        let json = stdout(&iommu(&folder, &["--sanitize", "--json"]).unwrap());
        assert!(json.contains("\"unjudged\": [\n    \"disk1: "), "{json}");
    };
    unjudged("no flight record");
    record("disk1", Level::Maps);
    unjudged("only failures were recorded");
}

#[test]
fn history_has_every_record_and_excludes_sanitize() {
    let folder = run();
    let message = stdout(&iommu(&folder, &["--history", "--device", "disk0"]).unwrap());
    let lines: Vec<&str> = message.lines().collect();
    assert_eq!(lines.len(), 8, "{message}");
    assert!(lines[0].contains("disk0    map    0x000040000000 64 KiB rw "));
    assert!(lines[6].contains("FAILED: QEMU refused it (errno 19)"));
    let both = iommu(&folder, &["--history", "--sanitize"]).unwrap();
    assert_eq!(both.status.code(), Some(2));
}

#[test]
fn record_of_another_project_s_device_promises_no_more_than_it_has() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("device-dev0.log"), "").unwrap();
    let path = folder.path().join("dev0.flight");
    drop(Recorder::create(&path, "dev0", Level::All).unwrap());
    let begins = |words: &str| {
        let message = stdout(&iommu(&folder, &[]).unwrap());
        assert!(message.contains(words), "{message}");
    };
    begins("; mappings and DMA by messages recorded over ");
    let mut trace = Command::new(env!("CARGO_BIN_EXE_peerbar"));
    let trace = trace.args(["trace", "--run"]).arg(folder.path());
    let text = stdout(&trace.current_dir(&folder).output().unwrap());
    let missing = "missing: dev0: its server reports no commands, doorbells and interrupts\n";
    assert!(text.contains(missing), "{text}");
    fs::remove_file(&path).unwrap();
    drop(Recorder::create(&path, "dev0", Level::Maps).unwrap());
    begins("; mappings, and failures of DMA by messages, recorded over ");
}

#[test]
fn run_without_records_is_named() {
    let output = iommu(&run(), &["--device", "disk9"]).unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2));
    assert!(message.contains("no record of disk9; recorded devices: disk0, disk1"));
    let over = iommu(&run(), &["--follow"]).unwrap();
    let message = String::from_utf8_lossy(&over.stderr).into_owned();
    assert_eq!(over.status.code(), Some(2));
    assert!(message.contains("so no events will come"), "{message}");
    let empty = iommu(&TempDir::new().unwrap(), &[]).unwrap();
    assert_eq!(empty.status.code(), Some(2));
}
