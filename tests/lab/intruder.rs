//! A device server that claims another device's addresses.

use std::time::{Duration, Instant};

use peerbar_lab::Lab;
use peerbar_lab::Verdict;
use peerbar_lab::scenario::{NvmeBuilder, ScenarioBuilder};
use peerbar_rig::Peer;

use crate::start;

/// Size of the CMB, and of the memory that claims its addresses.
const BYTES: u64 = 16 << 20;

/// Runs a line in the guest, which must succeed. Returns its output.
fn run(lab: &mut Lab, line: &str) -> String {
    let output = lab.command(line).unwrap();
    assert_eq!(output.status, 0, "{line}: {}", output.text);
    output.text
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn server_cannot_attach_as_another_device() {
    let disk = |name: &str| NvmeBuilder::new(name).below("switch0").ram("32M");
    let scenario = ScenarioBuilder::new("lab-intruder")
        .key("timeout", "2m")
        .key("tools", true)
        .switch("switch0")
        .nvme(disk("disk0").cmb("16M"))
        .nvme(disk("disk1"))
        .build()
        .unwrap();
    let mut lab = start(scenario);
    let copy = "kind = \"copy\"\nfrom = \"disk1\"\nto = \"disk0\"\nthrough = { p2pmem = \"disk0\" }\n\
                sizes = [\"4K\", \"1M\"]\noffsets = [0]";

    // The disk stops answering at its addresses, so that no device claims them.
    let find = "d=$(basename {disk0}) && readlink -f /sys/class/nvme/$d/device";
    let function = run(&mut lab, find);
    let cmb = run(&mut lab, &format!("sed -n 3p {function}/resource"));
    let address = cmb.split_whitespace().next().unwrap();
    let address = u64::from_str_radix(address.trim_start_matches("0x"), 16).unwrap();
    let name = function.rsplit('/').next().unwrap();
    run(
        &mut lab,
        &format!("echo {name} > /sys/bus/pci/drivers/nvme/unbind"),
    );
    let off = format!("printf '\\0\\0' | dd of={function}/config bs=1 seek=4 conv=notrunc");
    run(&mut lab, &off);

    let sockets = lab.socket();
    let switch = sockets.with_file_name("switch-switch0.sock");
    let _intruder = Peer::attach(&switch, "intruder", address, BYTES);
    run(
        &mut lab,
        &format!("echo {name} > /sys/bus/pci/drivers/nvme/bind"),
    );
    let row = lab.check_table(copy).unwrap();
    assert_eq!(row.verdict, Verdict::Pass, "{:?}", row.diagnostics);

    // The switch logs it once its port has not forwarded that for a while.
    let line = format!(
        "(intruder), BAR2 at {address:#x}+0x1000000 is outside of the range that the bridge"
    );
    let log = lab.folder().join("switch-switch0.log");
    let deadline = Instant::now() + Duration::from_secs(30);
    while !std::fs::read_to_string(&log).unwrap().contains(&line) {
        assert!(Instant::now() < deadline, "{log:?} has no {line}");
        run(&mut lab, "true");
    }
    let finished = lab.shut_down().unwrap();
    assert!(finished.is_passed(), "{}", finished.verdict);
}
