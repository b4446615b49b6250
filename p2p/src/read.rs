//! Reads a machine from any source.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use peerbar_rule::{Cpu, PortType};

use crate::address::Address;
use crate::conflicts;
use crate::gaps;
use crate::hwloc;
use crate::machine::{Acs, Function, Kind, Machine, Place, Statement};
use crate::names;
use crate::nccl;
use crate::paste;
use crate::rdma_topo;
use crate::sysfs;
use crate::xml::Document;

/// Why a machine cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// sysfs cannot be read.
    #[error("cannot read the PCI devices in sysfs")]
    Sysfs(#[from] io::Error),
    /// The text has no PCI device.
    #[error(
        "no PCI device found: expected the output of `lspci -vvv`, best as root, a file of `peerbar p2p --save`, \
         a topology file of NCCL, RCCL or hwloc, a dump of `rdma_topo`, or the output of `nvidia-smi topo -m`"
    )]
    NoDevice,
    /// The file of a tool has no PCI device.
    #[error("{0} shows no PCI device: {1}")]
    NoDeviceIn(&'static str, &'static str),
    /// The text is a JSON object of another kind.
    #[error("this JSON is not a machine that `peerbar p2p --save` wrote")]
    Json(#[from] serde_json::Error),
    /// The text is a JSON list of another kind.
    #[error("this JSON list is not the output of `rdma_topo dump`")]
    Dump(#[source] serde_json::Error),
}

impl Machine {
    /// Reads this machine from sysfs and procfs. Without root, ACS stays unknown.
    ///
    /// # Errors
    ///
    /// sysfs cannot be read, or shows no PCI device.
    pub fn here() -> Result<Self, ReadError> {
        Self::of_root(Path::new("/"))
    }

    /// Reads the machine whose `/` is the folder `root`, which may be a copy of another's `sys` and
    /// `proc`.
    ///
    /// # Errors
    ///
    /// Its sysfs cannot be read, or shows no PCI device.
    pub fn of_root(root: &Path) -> Result<Self, ReadError> {
        Ok(sysfs::read(root)?)
    }

    /// Reads a machine from a text: a file of `--save`, a paste with the output of `lspci` or
    /// `nvidia-smi topo -m` among other lines, a topology file of NCCL, RCCL or hwloc, or a dump of
    /// `rdma_topo`.
    ///
    /// # Errors
    ///
    /// The text has no PCI device.
    pub fn read(text: &str) -> Result<Self, ReadError> {
        let text = text.trim_start_matches('\u{feff}').trim_start();
        let mut machine = Self::default();
        let tool = match text.chars().next() {
            Some('{') => return Ok(serde_json::from_str(text)?),
            Some('[') if is_list(text) => {
                rdma_topo::read(text, &mut machine).map_err(ReadError::Dump)?;
                Some(Tool::RdmaTopo)
            }
            Some('<') => read_xml(text, &mut machine),
            _ => None,
        };
        match tool {
            Some(tool) if machine.functions.is_empty() => {
                return Err(ReadError::NoDeviceIn(tool.file(), tool.way_out()));
            }
            Some(_) => {}
            None => {
                paste::read(text, &mut machine);
                if machine.functions.is_empty() {
                    return Err(ReadError::NoDevice);
                }
            }
        }
        infer_host(&mut machine);
        let conflicts = conflicts::of_command_line(&machine);
        machine.conflicts.extend(conflicts);
        let gaps = match tool {
            Some(tool) => gaps_of_file(&machine, tool),
            None => gaps::of_paste(&machine),
        };
        machine.gaps.extend(gaps);
        Ok(machine)
    }
}

/// Returns `true` if `text` begins as a JSON list of objects does. The kernel's log begins with a
/// bracket, too.
fn is_list(text: &str) -> bool {
    let rest = text.trim_start_matches('[').trim_start();
    rest.starts_with(['{', ']'])
}

/// Reads the file of a tool that writes XML. Returns `None` for other texts: a paste may begin with
/// a tag.
fn read_xml(text: &str, machine: &mut Machine) -> Option<Tool> {
    let document = Document::read(text);
    let tool = match document.root()? {
        "system" => {
            nccl::read(&document, machine);
            Tool::Nccl
        }
        "topology" => {
            hwloc::read(&document, machine);
            Tool::Hwloc
        }
        _ => return None,
    };
    if let Some(broken) = document.broken {
        machine.gaps.push(format!(
            "a part of the file, which is cut or broken at {broken}"
        ));
    }
    Some(tool)
}

/// A tool that writes the shape of a machine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tool {
    Nccl,
    Hwloc,
    RdmaTopo,
}

impl Tool {
    /// Returns the name of its file.
    fn file(self) -> &'static str {
        match self {
            Self::Nccl => "NCCL's topology file",
            Self::Hwloc => "hwloc's file",
            Self::RdmaTopo => "rdma_topo's dump",
        }
    }

    /// Returns the ports that its file does not show.
    fn leaves_out(self) -> &'static str {
        match self {
            Self::Nccl => "root ports, downstream ports and host bridges (so PHB may be NODE)",
            Self::Hwloc | Self::RdmaTopo => "some ports",
        }
    }

    /// Returns how to get a file with devices.
    fn way_out(self) -> &'static str {
        match self {
            Self::Nccl => "NCCL_TOPO_DUMP_FILE=FILE has a run of NCCL or RCCL write one",
            Self::Hwloc => "`lstopo FILE.xml` without --no-io writes one that does",
            Self::RdmaTopo => "`sudo rdma_topo dump` on the machine itself writes one that does",
        }
    }
}

/// Infers processor and hypervisor from the host bridges, which show them. A guest's show no
/// processor: its chipset is made up.
fn infer_host(machine: &mut Machine) {
    let on_root = machine
        .functions
        .values()
        .filter(|function| function.place == Place::RootBus);
    let on_root: Vec<&Function> = on_root.collect();
    let host = &mut machine.host;
    if host.hypervisor.is_none() {
        let mut known = on_root
            .iter()
            .filter_map(|function| names::hypervisor(function.id, &function.description));
        let known = known.next().or_else(|| hyper_v(&machine.functions));
        host.hypervisor = known.map(str::to_owned);
    }
    if host.hypervisor.is_none() && host.cpu.is_none() {
        host.cpu = on_root.into_iter().find_map(processor);
    }
}

/// Returns the processor that a function on a root bus belongs to.
fn processor(function: &Function) -> Option<Cpu> {
    let is_intel = || {
        let vendor = function.id.map(|id| id.vendor);
        vendor == Some(0x8086) || function.description.starts_with("Intel ")
    };
    if names::is_zen(function.id, &function.description) {
        Some(names::ZEN_CPU)
    } else if names::is_arm(function.id) {
        Some(names::OTHER_CPU)
    } else {
        is_intel().then_some(names::INTEL_CPU)
    }
}

/// Recognises a guest of Hyper-V, which Azure's machines are. It gives each device that it passes
/// through a domain of its own, on bus 0 and without a bridge (Linux
/// drivers/pci/controller/pci-hyperv.c).
fn hyper_v(functions: &BTreeMap<Address, Function>) -> Option<&'static str> {
    let is_alone = |(address, function): (&Address, &Function)| {
        let is_there = address.domain != 0 && address.bus == 0 && function.is_of_interest();
        let mut in_domain = functions
            .iter()
            .filter(|(other, _)| other.domain == address.domain);
        is_there
            && function.port_type != Some(PortType::IntegratedEndpoint)
            && in_domain.all(|(_, function)| function.kind() != Kind::Bridge)
    };
    functions.iter().any(is_alone).then_some("Hyper-V")
}

/// Returns what the file of `tool` lacks.
fn gaps_of_file(machine: &Machine, tool: Tool) -> Vec<String> {
    let mut gaps = Vec::new();
    let functions = || machine.functions.values();
    let mut bridges = functions().filter(|function| function.class == Some(0x0604));
    if bridges.any(|bridge| bridge.acs == Acs::Unknown) {
        gaps.push(match tool {
            Tool::Nccl | Tool::Hwloc => {
                format!("ACS: {} shows none, `sudo lspci -vvv` does", tool.file())
            }
            Tool::RdmaTopo => "ACS of some ports: `sudo lspci -vvv` shows it".to_owned(),
        });
    }
    if machine.functions.keys().any(|at| at.is_not_shown()) {
        gaps.push(format!(
            "{}: {} leaves them out",
            tool.leaves_out(),
            tool.file()
        ));
    }
    gaps.push(format!(
        "memory: {} shows no sizes of BARs, so only GPUs and accelerators count as providers",
        tool.file()
    ));
    if functions().any(|function| function.is_of_interest() && function.place == Place::Unknown) {
        gaps.push("the bridges above some devices: paste the output for all devices".to_owned());
    }
    gaps.extend(gaps::of_host_bridges(machine));
    gaps.extend(gaps::of_host(&machine.host));
    gaps
}

impl Machine {
    /// Returns the kernel's statements about pairs that it refused, and host bridges that its list
    /// lacks.
    pub fn refusals(&self) -> impl Iterator<Item = &Statement> {
        let is_refusal = |statement: &&Statement| {
            matches!(
                statement,
                Statement::NotListed { .. } | Statement::Refused { .. }
            )
        };
        self.statements.iter().filter(is_refusal)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Pieces of the texts that are read.
    const PIECES: [&str; 24] = [
        "<system>",
        "</system>",
        "<topology version='2.0'>",
        "<cpu numaid='1' arch='x86_64' vendor='AuthenticAMD' familyid='143'>",
        "</cpu>",
        "<pci busid='0000:41:00.0' class='0x060400' vendor='0x1000' device='0xc010'>",
        "<pci busid='ffff:ff:01.0' class='0x06é400'>",
        "<pci busid='0000:42:00.1' class='0x030200'>",
        "<pci busid='0000:00:00.0' class='0x020000'/>",
        "</pci>",
        "<nic><net name='mlx5_0'/></nic>",
        "<gpu/>",
        "<object type='Bridge' bridge_type='0-1' bridge_pci='0000:[40-45]' nodeset='0x2'>",
        "<object type='Bridge' bridge_type='1-1' bridge_pci='0000:[41-4é]' pci_busid='0000:40:00.0'>",
        "<object type='Bridge' bridge_pci='0000:[40-40]' pci_busid='0000:41:00.0' pci_type='0604 [8'>",
        "<object type='PCIDev' pci_busid='0000:41:00.0' pci_type='0302 [10de:2330]'>",
        "<object type='OSDev' name='nvme'/>",
        "<info name='PCIVendor' value='&#27;&amp;&x;'/>",
        "</object>",
        "<!-- ",
        " -->",
        "[{\"realpath\": \"/0000:40:00.0/0000:40:00.0\", \"config\": \"eJw=\"}]",
        "41:00.0 3D controller: NVIDIA\n",
        "]]>",
    ];

    /// Reads `text`, and judges the machine if it is one.
    fn judge(text: &str) {
        if let Ok(machine) = Machine::read(text) {
            machine.matrix(true);
            let saved = serde_json::to_string(&machine).unwrap();
            assert_eq!(Machine::read(&saved).unwrap(), machine);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(first in "[<{\\[]?", bytes in prop::collection::vec(any::<u8>(), 0..512)) {
            judge(&(first + &String::from_utf8_lossy(&bytes)));
        }

        #[test]
        fn any_order_of_pieces_is_survived(
            root in prop::sample::select(&PIECES[..3]),
            pieces in prop::collection::vec(prop::sample::select(&PIECES[..]), 0..24),
        ) {
            judge(&(root.to_owned() + &pieces.concat()));
        }
    }

    /// Returns hypervisor and processor of the machine that `text` shows.
    fn host(text: &str) -> (Option<String>, Option<Cpu>) {
        let host = Machine::read(text).unwrap().host;
        (host.hypervisor, host.cpu)
    }

    #[test]
    fn chipset_of_a_guest_shows_no_processor() {
        let chipset =
            "00:00.0 Host bridge: Intel Corporation 82G33/G31/P35/P31 Express DRAM Controller\n";
        let port = "00:02.0 PCI bridge: Red Hat, Inc. QEMU PCIe Root port\n";
        assert_eq!(host(chipset), (None, Some(names::INTEL_CPU)));
        let qemu = Some("QEMU".to_owned());
        assert_eq!(host(&format!("{chipset}{port}")), (qemu, None));
    }

    #[test]
    fn device_alone_in_a_domain_is_a_guest_s() {
        let hyper_v = Some("Hyper-V".to_owned());
        let gpu = "0001:00:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB]\n";
        assert_eq!(host(gpu).0, hyper_v);
        let mana =
            "7870:00:00.0 Ethernet controller [0200]: Microsoft Corporation Device [1414:00ba]\n";
        assert_eq!(host(mana).0, hyper_v);
        let port = "0001:00:00.0 PCI bridge: NVIDIA Corporation\n\tBus: primary=00, secondary=01, subordinate=01\n";
        let below = gpu.replace(":00:", ":01:");
        assert_eq!(host(&format!("{port}{below}")).0, None);
        let integrated = "\tCapabilities: [60] Express (v2) Root Complex Integrated Endpoint\n";
        assert_eq!(host(&format!("{gpu}{integrated}")).0, None);
    }

    #[test]
    fn paste_that_begins_with_a_tag_is_read() {
        let text =
            "\u{feff}<details>\n\n0000:41:00.0 3D controller: NVIDIA Corporation\n</details>";
        assert_eq!(Machine::read(text).unwrap().functions.len(), 1);
        let error = Machine::read("<graphs version=\"1\"/>")
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("no PCI device found: expected the output of `lspci -vvv`"));
    }
}
