use peerbar_lab::scenario::{AcsPorts, AttachPoint};
use peerbar_p2p::Acs;
use peerbar_rule::{AcsControl, Cpu, Way};

use super::*;

/// A function of `lspci -vvv -nn`: its address, class, class code, ID and further lines.
type Listed<'a> = (&'a str, &'a str, &'a str, &'a str, String);

fn port(first: u8, last: u8, kind: &str, acs: &str) -> String {
    let acs = match acs {
        "" => String::new(),
        bits => format!("\tCapabilities: [110 v1] Access Control Services\n\t\tACSCtl:\t{bits}\n"),
    };
    format!(
        "\tBus: primary=00, secondary={first:02x}, subordinate={last:02x}, sec-latency=0\n\
         \tCapabilities: [70] Express (v2) {kind}, MSI 00\n{acs}"
    )
}

const ON: &str = "SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl-";
const OFF: &str = "SrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl-";

fn machine(functions: &[Listed<'_>]) -> Machine {
    let text = functions.iter().map(|(address, class, code, id, lines)| {
        format!("{address} {class} [{code}]: Vendor Device [{id}]\n{lines}\n")
    });
    Machine::read(&text.collect::<String>()).unwrap()
}

fn bridge<'a>(address: &'a str, id: &'a str, lines: String) -> Listed<'a> {
    (address, "PCI bridge", "0604", id, lines)
}

fn gpu(address: &str) -> Listed<'_> {
    let bar = "\tRegion 0: Memory at 2000000000 (64-bit, prefetchable) [size=32G]\n";
    (
        address,
        "3D controller",
        "0302",
        "10de:2330",
        bar.to_owned(),
    )
}

fn disk(address: &str) -> Listed<'_> {
    (
        address,
        "Non-Volatile memory controller",
        "0108",
        "144d:a80a",
        String::new(),
    )
}

/// A switch at 02:00.0 below root port 00:01.0, with ports at 03:00.0 and 03:01.0, and a disk below
/// root port 40:01.0. The host bridges have the ID `bridge`.
fn server(bridge_id: &str, acs: [&str; 2]) -> Machine {
    machine(&[
        ("00:00.0", "Host bridge", "0600", bridge_id, String::new()),
        bridge("00:01.0", "8086:352a", port(2, 5, "Root Port (Slot+)", OFF)),
        bridge("02:00.0", "1000:c030", port(3, 5, "Upstream Port", "")),
        bridge(
            "03:00.0",
            "1000:c030",
            port(4, 4, "Downstream Port (Slot+)", acs[0]),
        ),
        bridge(
            "03:01.0",
            "1000:c030",
            port(5, 5, "Downstream Port (Slot+)", acs[1]),
        ),
        gpu("04:00.0"),
        disk("05:00.0"),
        ("40:00.0", "Host bridge", "0600", bridge_id, String::new()),
        bridge(
            "40:01.0",
            "8086:352a",
            port(0x41, 0x41, "Root Port (Slot+)", OFF),
        ),
        disk("41:00.0"),
    ])
}

/// An Intel host bridge that Linux does not know, one that it knows, and one of AMD's Zen.
const UNKNOWN: &str = "8086:6f00";
const LISTED: &str = "8086:09a2";
const ZEN: &str = "1022:1480";

fn twin(machine: &Machine) -> Scenario {
    let text = scenario(machine, "server.txt", &[]).unwrap();
    Scenario::parse(Path::new("twin.toml"), text).unwrap()
}

fn switch_of(scenario: &Scenario, device: &str) -> Option<String> {
    let mut devices = scenario.devices();
    let found = devices.find(|found| found.name() == device);
    found.and_then(|device| device.attach().switch().map(str::to_owned))
}

#[test]
fn devices_have_the_places_of_the_machine() {
    let twin = twin(&server(UNKNOWN, [OFF, OFF]));
    assert_eq!(twin.host_bridges, ["pci0000-40"]);
    assert_eq!(switch_of(&twin, "gpu0").as_deref(), Some("switch-02"));
    assert_eq!(switch_of(&twin, "nvme0").as_deref(), Some("switch-02"));
    let below = AttachPoint::HostBridge("pci0000-40".to_owned());
    assert_eq!(twin.nvmes[1].attach, below);
    assert_eq!(
        (twin.machine.cpu.as_str(), twin.machine.iommu),
        ("Haswell", Iommu::None)
    );
    let checks = twin
        .checks
        .iter()
        .map(|check| serde_json::to_value(check).unwrap());
    let expected: Vec<_> = checks.map(|check| check["expect"].clone()).collect();
    assert_eq!(expected, ["peer", "refused"]);
    let verdict = |client| twin.twin.as_ref().unwrap().verdict("gpu0", client);
    assert_eq!(verdict("nvme0"), Some(Way::BusAddress));
    assert_eq!(verdict("nvme1"), Some(Way::NotSupported));
}

#[test]
fn conditional_verdicts_are_marked() {
    let is_conditional = |machine: &Machine| {
        let twin = twin(machine).twin.unwrap();
        twin.is_conditional("gpu0", "nvme0")
    };
    // The source does not show the ACS of the switch's upstream port.
    let mut machine = server(UNKNOWN, [OFF, OFF]);
    assert!(is_conditional(&machine));
    let upstream = machine.functions.get_mut(&"02:00.0".parse().unwrap());
    upstream.unwrap().acs = Acs::Absent;
    assert!(!is_conditional(&machine));
}

#[test]
fn virtual_function_with_another_device_number_is_of_the_same_device() {
    let mut machine = server(UNKNOWN, [OFF, OFF]);
    let first = machine.function("05:00.0".parse().unwrap()).cloned();
    let address = "05:01.0".parse().unwrap();
    machine.functions.insert(address, first.unwrap());
    let twin = twin(&machine);
    assert_eq!(twin.nvmes.len(), 2);
    let differences = twin.twin.unwrap().differences;
    let left_out = "Left out, as another function of the device is there: nvme1.";
    assert!(
        differences.contains(&left_out.to_owned()),
        "{differences:?}"
    );
}

#[test]
fn switch_whose_upper_port_redirects_is_split_and_named() {
    let mut machine = server(UNKNOWN, [OFF, OFF]);
    let is_split = |text: &String| text.starts_with("A bridge that redirects is above");
    let differences = |machine: &Machine| twin(machine).twin.unwrap().differences;
    assert!(!differences(&machine).iter().any(is_split));
    let upstream = machine
        .functions
        .get_mut(&"02:00.0".parse().unwrap())
        .unwrap();
    upstream.acs = Acs::Control(AcsControl::REQUEST_REDIRECT);
    let scenario = twin(&machine);
    assert_ne!(switch_of(&scenario, "gpu0"), switch_of(&scenario, "nvme0"));
    let differences = differences(&machine);
    let split = differences.iter().find(|text| is_split(text)).unwrap();
    assert!(split.ends_with(": gpu0, nvme0."), "{split}");
    let text = super::scenario(&machine, "server.txt", &[]).unwrap();
    assert!(
        text.contains("# a port of a switch: 0000:03:00.0"),
        "{text}"
    );
}

#[test]
fn processor_of_another_family_is_a_difference() {
    let mut machine = server(UNKNOWN, [OFF, OFF]);
    let differences = |machine: &Machine| twin(machine).twin.unwrap().differences;
    let says = |machine: &Machine, text: &str| {
        differences(machine).iter().any(|one| one.starts_with(text))
    };
    assert!(
        !says(&machine, "The machine's processor")
            && !says(&machine, "The source does not show the machine's processor")
    );
    machine.host.cpu = None;
    assert!(says(
        &machine,
        "The source does not show the machine's processor"
    ));
    machine.host.cpu = Some(Cpu {
        vendor: Vendor::Other,
        family: 0,
    });
    assert!(says(
        &machine,
        "The machine's processor is neither Intel's nor AMD's"
    ));
}

#[test]
fn host_bridge_that_is_not_shown_is_named_by_its_node() {
    let text = "<system version=\"1\">\n\
        <cpu numaid=\"0\" arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\" modelid=\"143\">\n\
        <pci busid=\"0000:18:00.0\" class=\"0x030200\"/>\n</cpu>\n\
        <cpu numaid=\"1\" arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\" modelid=\"143\">\n\
        <pci busid=\"0000:98:00.0\" class=\"0x030200\"/>\n</cpu>\n</system>\n";
    let twin = twin(&Machine::read(text).unwrap());
    assert_eq!(twin.host_bridges, ["node-1"]);
}

#[test]
fn ports_that_redirect_have_acs_and_an_iommu() {
    let twin = twin(&server(ZEN, [ON, ON]));
    assert_eq!(switch_of(&twin, "gpu0").as_deref(), Some("switch-02"));
    assert_eq!(twin.switches[0].acs, AcsPorts::All(true));
    assert_eq!(
        (twin.machine.cpu.as_str(), twin.machine.iommu),
        ("EPYC", Iommu::IntelPassthrough)
    );
    let verdict = twin.twin.unwrap().verdict("gpu0", "nvme0");
    assert_eq!(verdict, Some(Way::ThroughHostBridge));
}

#[test]
fn one_port_that_redirects_has_acs() {
    let twin = twin(&server(UNKNOWN, [ON, OFF]));
    assert_eq!(switch_of(&twin, "gpu0").as_deref(), Some("switch-02"));
    assert_eq!(switch_of(&twin, "nvme0").as_deref(), Some("switch-02"));
    assert_eq!(
        twin.switches[0].acs,
        AcsPorts::Above(vec!["gpu0".to_owned()])
    );
    let verdict = twin.twin.unwrap().verdict("gpu0", "nvme0");
    assert_eq!(verdict, Some(Way::NotSupported));
}

#[test]
fn listed_host_bridges_get_a_processor_that_linux_trusts() {
    let twin = twin(&server(LISTED, [OFF, OFF]));
    assert_eq!(twin.machine.cpu, "EPYC");
    let differences = twin.twin.unwrap().differences;
    assert!(
        differences.iter().any(|text| text.contains("`EPYC`")),
        "{differences:?}"
    );
}

/// A switch at 03 and another at 06 below a switch at 01, with a GPU below the first and disks below
/// both; the port above the first has `acs`.
fn nested(acs: &str) -> Machine {
    machine(&[
        ("00:00.0", "Host bridge", "0600", UNKNOWN, String::new()),
        bridge("00:01.0", "8086:352a", port(1, 9, "Root Port (Slot+)", OFF)),
        bridge("01:00.0", "1000:c030", port(2, 9, "Upstream Port", "")),
        bridge(
            "02:00.0",
            "1000:c030",
            port(3, 5, "Downstream Port (Slot+)", acs),
        ),
        bridge("03:00.0", "1000:c030", port(4, 5, "Upstream Port", "")),
        bridge(
            "04:00.0",
            "1000:c030",
            port(5, 5, "Downstream Port (Slot+)", OFF),
        ),
        bridge(
            "04:01.0",
            "1000:c030",
            port(0x10, 0x10, "Downstream Port (Slot+)", OFF),
        ),
        gpu("05:00.0"),
        disk("10:00.0"),
        bridge(
            "02:01.0",
            "1000:c030",
            port(6, 9, "Downstream Port (Slot+)", OFF),
        ),
        bridge("06:00.0", "1000:c030", port(7, 9, "Upstream Port", "")),
        bridge(
            "07:00.0",
            "1000:c030",
            port(8, 8, "Downstream Port (Slot+)", OFF),
        ),
        disk("08:00.0"),
    ])
}

#[test]
fn nested_switches_are_one_unless_a_port_between_them_redirects() {
    let flat = twin(&nested(OFF));
    for device in ["gpu0", "nvme0", "nvme1"] {
        assert_eq!(
            switch_of(&flat, device).as_deref(),
            Some("switch-01"),
            "{device}"
        );
    }
    let divided = twin(&nested(ON));
    let [gpu, near, far] =
        ["gpu0", "nvme1", "nvme0"].map(|device| switch_of(&divided, device).unwrap());
    assert_eq!(
        (gpu.as_str(), near.as_str(), far.as_str()),
        ("switch-03", "switch-03", "switch-01")
    );
    let twin = divided.twin.unwrap();
    assert_eq!(twin.verdict("gpu0", "nvme1"), Some(Way::BusAddress));
    assert_eq!(twin.verdict("gpu0", "nvme0"), Some(Way::NotSupported));
    assert!(
        twin.differences
            .iter()
            .all(|text| !text.contains("cannot imitate"))
    );
}

#[test]
fn devices_are_chosen_by_name_and_address() {
    let machine = server(UNKNOWN, [OFF, OFF]);
    let only = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        scenario(&machine, "server.txt", &words).map_err(|error| format!("{error:#}"))
    };
    let chosen = only(&["gpu0", "41:00.0"]).unwrap();
    assert!(chosen.contains("name = \"nvme1\"") && !chosen.contains("name = \"nvme0\""));
    assert!(only(&["gpu7"]).unwrap_err().starts_with("no device `gpu7`"));
    let no_pair = only(&["nvme0", "nvme1"]).unwrap_err();
    assert!(
        no_pair.contains("a pair requires a GPU or a disk"),
        "{no_pair}"
    );
}

#[test]
fn machine_beyond_qemus_limits_keeps_two_disks_of_each_place() {
    let mut functions = vec![
        ("00:00.0", "Host bridge", "0600", UNKNOWN, String::new()),
        bridge(
            "00:01.0",
            "8086:352a",
            port(1, 0x60, "Root Port (Slot+)", OFF),
        ),
        bridge("01:00.0", "1000:c030", port(2, 0x60, "Upstream Port", "")),
    ];
    let names: Vec<[String; 2]> = (0..64_u8)
        .map(|number| {
            [
                format!("02:{:02x}.{}", number / 8, number % 8),
                format!("{:02x}:00.0", number + 3),
            ]
        })
        .collect();
    for (number, [above, below]) in (3..).zip(&names) {
        functions.push(bridge(
            above,
            "1000:c030",
            port(number, number, "Downstream Port (Slot+)", OFF),
        ));
        functions.push(if number == 3 { gpu(below) } else { disk(below) });
    }
    let twin = twin(&machine(&functions));
    // Two disks, so that a disk's pair with another remains.
    assert_eq!((twin.gpus.len(), twin.nvmes.len()), (1, 2));
    let differences = twin.twin.unwrap().differences;
    assert!(
        differences[0].starts_with("Left out, as QEMU has no room")
            && differences[0].ends_with(": nvme2-62."),
        "{differences:?}"
    );
}

#[test]
fn switches_of_a_matrix_of_distances_are_named_by_a_device() {
    let paste = "\
     GPU0 GPU1 NIC0 NIC1 NIC2
GPU0 X    SYS  PIX  PXB  SYS
GPU1 SYS  X    SYS  SYS  PIX
NIC0 PIX  SYS  X    PXB  SYS
NIC1 PXB  SYS  PXB  X    SYS
NIC2 SYS  PIX  SYS  SYS  X
  NIC0: mlx5_0
";
    let twin = twin(&Machine::read(paste).unwrap());
    let names = twin.switches.iter().map(|switch| switch.name.as_str());
    let names: Vec<&str> = names.collect();
    assert_eq!(names, ["switch-above-GPU1", "upper-above-GPU0"]);
    let nics = twin.nics.iter().map(|nic| nic.name.as_str());
    assert_eq!(nics.collect::<Vec<_>>(), ["mlx5_0", "NIC1", "NIC2"]);
}

#[test]
fn text_of_the_machine_stays_in_comments() {
    let mut machine = server(UNKNOWN, [OFF, OFF]);
    for function in machine.functions.values_mut() {
        function.description = "a\n[machine]\u{85}\"".to_owned();
        function.names = vec!["../x \"y\"\n".to_owned()];
    }
    machine.host.release = Some("6.8\n[x]".to_owned());
    let text = scenario(&machine, "a \"b\"\n.txt", &[]).unwrap();
    assert!(Scenario::parse(Path::new("twin.toml"), text).is_ok());
}

/// A machine with `count` root buses, each with a GPU and a disk below root ports.
fn many_root_buses(count: u8) -> Machine {
    let names: Vec<[String; 5]> = (0..count)
        .map(|number| {
            let bus = number * 4;
            let on_root_bus = |device| format!("{bus:02x}:{device:02x}.0");
            let below = |port| format!("{:02x}:00.0", bus + port);
            [
                on_root_bus(0),
                on_root_bus(1),
                on_root_bus(2),
                below(1),
                below(2),
            ]
        })
        .collect();
    let functions = (0..count).zip(&names).flat_map(|(number, names)| {
        let [host, gpu_port, disk_port, gpu_below, disk_below] = names;
        let bus = number * 4;
        let root_port = |below| port(bus + below, bus + below, "Root Port (Slot+)", OFF);
        [
            (host.as_str(), "Host bridge", "0600", UNKNOWN, String::new()),
            bridge(gpu_port, "8086:352a", root_port(1)),
            bridge(disk_port, "8086:352a", root_port(2)),
            gpu(gpu_below),
            disk(disk_below),
        ]
    });
    machine(&functions.collect::<Vec<_>>())
}

#[test]
fn number_of_checks_is_bounded_at_many_root_buses() {
    let twin = twin(&many_root_buses(16));
    assert_eq!((twin.gpus.len(), twin.nvmes.len()), (16, 16));
    // GPU and disk at one place, GPU and disk apart, two GPUs.
    assert_eq!(twin.checks.len(), 3);
    let verdicts = twin.twin.unwrap();
    assert_eq!(verdicts.verdict("gpu0", "nvme0"), Some(Way::NotSupported));
    let few = super::scenario(&many_root_buses(2), "server.txt", &[]).unwrap();
    assert!(!few.contains("have one check"));
}
