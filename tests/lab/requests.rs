//! Requests to a running guest: commands, checks that pass and checks that fail.

use std::path::Path;

use peerbar_lab::LabError;
use peerbar_lab::ProgramRequest;
use peerbar_lab::exit::RunOutcome;
use peerbar_lab::guest_access::GuestAccess;
use peerbar_lab::injecting::{Rule, clear_faults, inject, rules_in_force};
use peerbar_lab::scenario::Scenario;
use peerbar_lab::{HostFolder, Verdict};

use crate::options;

const SCENARIO: &str = r#"
name = "lab-requests"
timeout = "2m"
tools = true

[machine]
cpu = "Haswell"

[[nvme]]
name = "disk0"
cmb = "16M"
namespaces = [{ ram = "16M" }]

[[nvme]]
name = "disk1"
namespaces = [{ ram = "16M" }]
"#;

fn scenario() -> Scenario {
    Scenario::parse_interactive(Path::new("lab-requests.toml"), SCENARIO).unwrap()
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn command_in_a_guest_has_output_and_status() {
    let access = GuestAccess {
        folder: env!("CARGO_MANIFEST_DIR").into(),
        permission: HostFolder::ReadOnly,
    };
    let mut lab = options().access(access).start(scenario()).unwrap();
    let sort = ProgramRequest::new(["sh", "-c", "sort; ls /host/Cargo.toml >&2; exit 4"]);
    let sorted = lab.program(&sort, b"b\na\n").unwrap();
    assert_eq!((sorted.status, sorted.output), (4, b"a\nb\n".to_vec()));
    assert_eq!(sorted.errors, b"/host/Cargo.toml\n");
    let none = lab.program(&ProgramRequest::new(["none"]), b"");
    assert!(none.unwrap_err().to_string().contains("cannot start none"));
    let output = lab.command("echo one; echo two >&2; exit 3").unwrap();
    assert_eq!((output.status, output.text.as_str()), (3, "one\ntwo"));
    let output = lab
        .command("cat /sys/class/block/$(basename {disk1:disk})/size")
        .unwrap();
    assert_eq!((output.status, output.text.as_str()), (0, "32768"));
    let reset = lab
        .check_table("kind = \"controller-reset\"\ndevice = \"disk1\"")
        .unwrap();
    assert_eq!(reset.verdict, Verdict::Pass, "{:?}", reset.diagnostics);
    assert!(matches!(lab.flight_record("disk9"), Err(LabError::NoDevice(name)) if name == "disk9"));
    let mistake = lab
        .check_table("kind = \"provider\"\ndevice = \"disk1\"")
        .unwrap_err();
    let message = "check:2: `disk1` has no p2pmem: give [[nvme]] disk1 a `cmb`";
    assert_eq!(mistake.to_string(), message);
    let finished = lab.shut_down().unwrap();
    assert!(finished.is_passed(), "{}", finished.verdict);
    assert_eq!(finished.checks.len(), 3);
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn faults_reach_a_program_and_a_failed_check_fails_the_lab() {
    let mut lab = options().start(scenario()).unwrap();
    let read = "dd if={disk1:disk} of=/dev/null bs=4k count=1 skip=125 iflag=direct";
    assert_eq!(lab.command(read).unwrap().status, 0);
    let rule: Rule = "fail command read lba=1000..1008".parse().unwrap();
    inject(lab.folder(), "disk1", &rule).unwrap();
    let failed = lab.command(read).unwrap();
    assert!(failed.text.contains("Input/output error"), "{failed:?}");
    let rules = rules_in_force(lab.folder(), "disk1").unwrap();
    assert!(
        matches!(rules.as_slice(), [only] if only.starts_with("fail command read lba=1000..1008 (injected ")),
        "{rules:?}"
    );
    let cleared = clear_faults(lab.folder(), "disk1").unwrap();
    assert!(cleared.contains('1'), "{cleared}");
    assert_eq!(lab.command(read).unwrap().status, 0);
    let flight = lab.flight_record("disk1").unwrap();
    assert_eq!(flight.header.rules, [rule.to_string()]);
    let other = inject(lab.folder(), "disk9", &rule).unwrap_err();
    assert!(other.to_string().contains("no device disk9"), "{other}");

    // No list of Linux contains Haswell's host bridge, so the kernel refuses transfers through it.
    let copy = "kind = \"copy\"\nfrom = \"disk1\"\nto = \"disk0\"\nthrough = { p2pmem = \"disk0\" }\nsizes = [\"4K\"]\noffsets = [0]";
    let row = lab.check_table(copy).unwrap();
    assert_eq!(row.verdict, Verdict::Fail);
    assert!(!row.diagnostics.is_empty());
    assert_eq!(lab.command("true").unwrap().status, 0);
    let finished = lab.shut_down().unwrap();
    assert_eq!(finished.verdict.outcome, RunOutcome::Failed);
    let reason = &finished.verdict.reason;
    assert!(
        reason.starts_with("1 of 5 checks did not pass: "),
        "{reason}"
    );
}
