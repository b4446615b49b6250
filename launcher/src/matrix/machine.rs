//! The one machine that holds all topologies at once, as a scenario file for each boot.
//!
//! ```text
//! pcie.0 ─┬─ root port ─ switch0 ─┬─ sw0-cmb
//!         │                       ├─ sw0-disk
//!         │                       └─ sw0-gpu
//!         ├─ root port ─ switch1 ─── sw1-cmb
//!         ├─ root port ─ root-cmb
//!         ├─ root port ─ root-disk
//!         └─ root port ─ root-gpu
//! bridge0 ── root port ─ bridge-cmb
//! ```
//!
//! GPUs, and one adapter each below switch0, switch1, a root port and bridge0, are there only if a pair has them: a
//! kernel before 6.13 cannot have the GPU's driver.

use peerbar_lab::iommu::Iommu;
use peerbar_report::ProbeDriver;

use super::TestedDevices;
use super::placement::Pair;

/// Name, name of the switch or bridge above it, and a flag that is set if it has a CMB.
const DISKS: [(&str, Option<&str>, bool); 6] = [
    ("sw0-cmb", Some("switch0"), true),
    ("sw0-disk", Some("switch0"), false),
    ("sw1-cmb", Some("switch1"), true),
    ("root-cmb", None, true),
    ("root-disk", None, false),
    ("bridge-cmb", Some("bridge0"), true),
];

/// Name, and name of the switch above it. Each is in the machine only if a pair has it.
const GPUS: [(&str, Option<&str>); 2] = [("sw0-gpu", Some("switch0")), ("root-gpu", None)];

/// Name, and name of the switch or bridge above it. Each is in the machine only if a pair has it.
const NICS: [(&str, Option<&str>); 4] = [
    ("sw0-nic", Some("switch0")),
    ("sw1-nic", Some("switch1")),
    ("root-nic", None),
    ("bridge-nic", Some("bridge0")),
];

/// The common part of all boots. Queues stay out of CMBs, so that all traffic to those is data. The
/// time limit is many times the need of a single machine, because others may run at the same time.
const HEAD: &str = r#"timeout = "4m"

[[host-bridge]]
name = "bridge0"

[[switch]]
name = "switch0"

[[switch]]
name = "switch1"

[[module]]
name = "nvme"
parameters = "use_cmb_sqes=0"

"#;

/// The permission is necessary because QEMU's IOMMUs do not remap interrupts here, on which vfio
/// would insist.
const VFIO: &str = r#"[[module]]
name = "vfio_iommu_type1"
parameters = "allow_unsafe_interrupts=1"

"#;

/// Returns the scenario file of one boot: one processor, so that as many boots as the host has
/// processors run at once.
pub(super) fn scenario(
    name: &str,
    device: TestedDevices,
    iommu: Iommu,
    cpu: &str,
    pairs: &[Pair],
) -> String {
    let asks = |by| pairs.iter().any(|pair| pair.by == by);
    let is_tried = |name: &str| {
        let mut ends = pairs.iter().flat_map(|pair| [pair.provider, pair.client]);
        ends.any(|end| end == name)
    };
    let mut text = format!("name = {name:?}\n");
    if asks(ProbeDriver::Verbs) {
        text += "tools = true\n";
    }
    text += HEAD;
    text += &format!(
        "[machine]\ncpu = {cpu:?}\ncpus = 1\nmemory = \"256M\"\niommu = {:?}\n\n",
        iommu.word()
    );
    for (name, below, has_cmb) in DISKS {
        text += &format!("[[nvme]]\nname = {name:?}\n");
        text += &line("below", below);
        text += &line(
            "model",
            (device == TestedDevices::QemuNvme).then_some("qemu"),
        );
        text += &line("cmb", has_cmb.then_some("16M"));
        text += "namespaces = [{ ram = \"16M\" }]\n\n";
    }
    for (name, below) in GPUS.into_iter().filter(|(name, _)| is_tried(name)) {
        text += &format!("[[gpu]]\nname = {name:?}\n");
        text += &line("below", below);
        text += "vram = \"16M\"\n\n";
    }
    for (name, below) in NICS.into_iter().filter(|(name, _)| is_tried(name)) {
        text += &format!("[[nic]]\nname = {name:?}\n");
        text += &line("below", below);
        text += "\n";
    }
    if asks(ProbeDriver::Vfio) {
        text += VFIO;
    }
    for pair in pairs {
        text += &check(pair);
    }
    text
}

fn check(pair: &Pair) -> String {
    let Pair {
        provider,
        client,
        by,
    } = pair;
    let by = match by {
        ProbeDriver::Kernel => "",
        ProbeDriver::Vfio => "by = \"vfio\"\n",
        ProbeDriver::Verbs => "by = \"verbs\"\n",
    };
    format!("[[check]]\nkind = \"probe\"\nprovider = {provider:?}\nclient = {client:?}\n{by}\n")
}

fn line(key: &str, value: Option<&str>) -> String {
    value.map_or(String::new(), |value| format!("{key} = {value:?}\n"))
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::super::placement::{Flow, Placement};
    use super::*;
    use peerbar_lab::scenario::Scenario;

    #[test]
    fn the_machine_makes_sense_with_every_pair() {
        for device in [TestedDevices::Peerbar, TestedDevices::QemuNvme] {
            let pairs: Vec<Pair> = Placement::value_variants()
                .iter()
                .flat_map(|topology| {
                    let flows = Flow::value_variants().iter();
                    flows.filter_map(move |flow| topology.pair(*flow, device))
                })
                .collect();
            let text = scenario("x", device, Iommu::IntelPassthrough, "EPYC", &pairs);
            let parsed = Scenario::parse("x.toml".as_ref(), text).unwrap();
            assert_eq!(parsed.checks.len(), pairs.len());
            assert_eq!(parsed.machine.iommu, Iommu::IntelPassthrough);
        }
    }

    #[test]
    fn only_gpus_and_adapters_of_a_pair_are_there() {
        let devices = |flow| {
            let pair = Placement::RootPorts.pair(flow, TestedDevices::Peerbar);
            let pairs = [pair.unwrap()];
            let text = scenario("x", TestedDevices::Peerbar, Iommu::None, "EPYC", &pairs);
            let parsed = Scenario::parse("x.toml".as_ref(), text).unwrap();
            (parsed.gpus.len(), parsed.nics.len())
        };
        assert_eq!(devices(Flow::NvmeCmbNvme), (0, 0));
        assert_eq!(devices(Flow::GpuCmb), (1, 0));
        assert_eq!(devices(Flow::NicVram), (1, 1));
    }
}
