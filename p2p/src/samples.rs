//! Machines for tests.

use std::fmt::Write;

use crate::address::Address;
use crate::machine::Machine;

/// Two sockets of Intel's Sky Lake-E, as `sudo lspci -vvv -nn` shows them. `acs` is the control
/// register of the switch's downstream ports.
///
/// - 0000:17: a switch at 18:00.0 with a GPU at 1a:00.0 and a disk at 1b:00.0
/// - 0000:17: a disk at 1c:00.0 below a root port
/// - 0000:85: a network adapter at 86:00.0 below a root port
pub(crate) fn two_sockets(acs: &str) -> String {
    let mut text = String::new();
    let mut add = |address: &str, device: &str, details: &[&str]| {
        let _ = writeln!(text, "{address} {device}");
        for detail in details {
            let _ = writeln!(text, "\t{detail}");
        }
        text.push('\n');
    };
    let root_port = "PCI bridge [0604]: Intel Corporation Sky Lake-E PCI Express Root Port A [8086:2030] (rev 07)";
    let switch = "PCI bridge [0604]: PLX Technology, Inc. PEX 8747 [10b5:8747] (rev ca)";
    let disk = "Non-Volatile memory controller [0108]: Samsung Electronics Co Ltd NVMe SSD [144d:a808] (prog-if 02 [NVM Express])";
    let control =
        format!("ACSCtl:\tSrcValid+ TransBlk- {acs} UpstreamFwd+ EgressCtrl- DirectTrans-");
    let redirecting =
        "ACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-";
    let root = "Capabilities: [90] Express (v2) Root Port (Slot+), MSI 00";
    let down = "Capabilities: [68] Express (v2) Downstream Port (Slot+), MSI 00";
    let end = "Capabilities: [60] Express (v2) Endpoint, MSI 00";
    let cap = "Capabilities: [148 v1] Access Control Services";
    let node0 = ["NUMA node: 0", "Control: I/O- Mem+ BusMaster+"];
    let dmi =
        "Host bridge [0600]: Intel Corporation Sky Lake-E DMI3 Registers [8086:2020] (rev 07)";
    add("00:00.0", dmi, &["NUMA node: 0"]);
    add(
        "17:00.0",
        root_port,
        &[
            "NUMA node: 0",
            "Bus: primary=17, secondary=18, subordinate=1b, sec-latency=0",
            root,
            cap,
            redirecting,
        ],
    );
    add(
        "17:01.0",
        root_port,
        &[
            "NUMA node: 0",
            "Bus: primary=17, secondary=1c, subordinate=1c, sec-latency=0",
            root,
            cap,
            redirecting,
        ],
    );
    add(
        "18:00.0",
        switch,
        &[
            node0[1],
            "Status: Cap+ 66MHz- UDF- FastB2B- ParErr- DEVSEL=fast",
            node0[0],
            "Bus: primary=18, secondary=19, subordinate=1b, sec-latency=0",
            "Capabilities: [68] Express (v2) Upstream Port, MSI 00",
            "Capabilities: [100 v1] Device Serial Number",
        ],
    );
    for (address, bus) in [("19:08.0", "1a"), ("19:09.0", "1b")] {
        let buses = format!("Bus: primary=19, secondary={bus}, subordinate={bus}, sec-latency=0");
        add(
            address,
            switch,
            &["NUMA node: 0", &buses, down, cap, &control],
        );
    }
    add(
        "1a:00.0",
        "3D controller [0302]: NVIDIA Corporation GV100GL [10de:1db6] (rev a1)",
        &[
            node0[0],
            node0[1],
            "IOMMU group: 31",
            "Region 1: Memory at 383800000000 (64-bit, prefetchable) [size=32G]",
            end,
            "Kernel driver in use: nvidia",
        ],
    );
    add(
        "1b:00.0",
        disk,
        &[
            node0[0],
            node0[1],
            "IOMMU group: 32",
            "Region 0: Memory at b8600000 (64-bit, non-prefetchable) [size=16K]",
            end,
            "Kernel driver in use: nvme",
        ],
    );
    add(
        "1c:00.0",
        disk,
        &[
            node0[0],
            node0[1],
            "IOMMU group: 33",
            end,
            "Kernel driver in use: nvme",
        ],
    );
    add(
        "85:00.0",
        root_port,
        &[
            "NUMA node: 1",
            "Bus: primary=85, secondary=86, subordinate=86, sec-latency=0",
            root,
            cap,
            redirecting,
        ],
    );
    add(
        "86:00.0",
        "Infiniband controller [0207]: Mellanox Technologies MT27800 Family [ConnectX-5] [15b3:1017]",
        &[
            "NUMA node: 1",
            "IOMMU group: 60",
            end,
            "Kernel driver in use: mlx5_core",
        ],
    );
    text
}

/// The bits of a port that Linux set on a machine with an IOMMU.
pub(crate) const REDIRECTS: &str = "ReqRedir+ CmpltRedir+";
/// The bits of a port that redirects nothing.
pub(crate) const DIRECT: &str = "ReqRedir- CmpltRedir-";

/// Returns the machine that `text` shows.
pub(crate) fn machine(text: &str) -> Machine {
    Machine::read(text).unwrap()
}

/// Parses an address.
pub(crate) fn at(text: &str) -> Address {
    text.parse().unwrap()
}
