//! Faults of a link, as seen by Linux in a guest: its port reports an error, or it is down until
//! the host brings it up.

use std::path::Path;

use peerbar_lab::injecting::inject;
use peerbar_lab::port_error::report_port_error;
use peerbar_lab::scenario::Scenario;
use peerbar_lab::{CommandOutput, Lab};

use crate::options;

const SCENARIO: &str = r#"
name = "lab-faults"
timeout = "2m"
tools = true

[[module]]
name = "nvme_core"
parameters = "io_timeout=3 admin_timeout=3"

[[switch]]
name = "switch0"

[[nvme]]
name = "disk0"
below = "switch0"
namespaces = [{ ram = "16M" }]
"#;

fn lab() -> Lab {
    let scenario = Scenario::parse_interactive(Path::new("lab-faults.toml"), SCENARIO).unwrap();
    options().start(scenario).unwrap()
}

fn report(lab: &Lab, device: &str, error: &str) {
    let done = report_port_error(lab.folder(), device, error.parse().unwrap());
    assert!(done.unwrap().ends_with(error));
}

/// Runs a line that waits until the kernel has logged a text, and then reads a disk.
#[track_caller]
fn read_after(lab: &mut Lab, text: &str, disk: &str) -> CommandOutput {
    let line = format!(
        "until dmesg | grep -F '{text}'; do sleep 0.1; done; dd if={{{disk}:disk}} of=/dev/null bs=64k iflag=direct 2>&1"
    );
    lab.command(&line).unwrap()
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn error_of_a_port_is_recovered_by_linux() {
    let mut lab = lab();
    report(&lab, "disk0", "bad-tlp");
    let corrected = read_after(&mut lab, "severity=Correctable", "disk0");
    assert_eq!(corrected.status, 0, "{corrected:?}");
    report(&lab, "disk0", "surprise-down");
    let recovered = read_after(&mut lab, "device recovery successful", "disk0");
    assert_eq!(recovered.status, 0, "{recovered:?}");
    lab.shut_down().unwrap();
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn disk_is_found_again_once_the_host_takes_its_link_up() {
    let mut lab = lab();
    let rule = |text: &str| text.parse().unwrap();
    inject(lab.folder(), "disk0", &rule("link-down device")).unwrap();
    let read = "dd if={disk0:disk} of=/dev/null bs=64k iflag=direct";
    let failed = lab.command(read).unwrap_err().to_string();
    assert!(failed.contains("Input/output error"), "{failed}");
    inject(lab.folder(), "disk0", &rule("link-up device")).unwrap();
    let rescan = "pci=/sys/bus/pci/devices/{disk0:pci}; echo 1 > $pci/remove; echo 1 > /sys/bus/pci/rescan; \
        until disk=$(ls -d $pci/nvme/nvme*/nvme*n1); do sleep 0.1; done; \
        until dd if=/dev/$(basename $disk) of=/dev/null bs=64k iflag=direct; do sleep 0.1; done";
    assert_eq!(lab.command(rescan).unwrap().status, 0);
    let flight = lab.flight_record("disk0").unwrap();
    assert_eq!(flight.header.rules, ["link-down device", "link-up device"]);
    lab.shut_down().unwrap();
}
