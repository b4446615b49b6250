//! The plan of a boot: the launcher's requests to the agent.

use serde::{Deserialize, Serialize};

use crate::Check;

/// Everything that the agent must do in one boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Modules to load before the first check, in order. Their dependencies are loaded
    /// automatically.
    pub modules: Vec<Module>,
    /// The devices under test; the agent waits until the guest's kernel shows all of them.
    pub devices: Vec<NvmeDevice>,
    /// The GPUs under test, waited for like the devices.
    #[serde(default)]
    pub gpus: Vec<Gpu>,
    /// The RDMA network adapters under test, waited for like the devices.
    #[serde(default)]
    pub nics: Vec<Nic>,
    /// The devices with servers of other projects, waited for like the devices.
    #[serde(default)]
    pub foreign: Vec<ForeignDevice>,
    /// `true` if all devices are below one switch, which routes between them: a transfer between
    /// them never goes up to the root.
    #[serde(default)]
    pub one_switch: bool,
    /// `true` if a read-only tools root is exported over 9p under the tag [`Plan::TOOLS_TAG`].
    pub tools: bool,
    /// 9p mount tags of folders that are stacked on the tools root, the topmost first.
    #[serde(default)]
    pub layers: Vec<String>,
    /// `true` if udevd must run in the tools root.
    #[serde(default)]
    pub udev: bool,
    /// `true` if the guest has QEMU's user network.
    #[serde(default)]
    pub network: bool,
    /// Folders of the host that are mounted in the tools root.
    #[serde(default)]
    pub shares: Vec<Mount>,
    /// Seconds after which a check that has not ended counts as hung.
    #[serde(default = "default_check_seconds")]
    pub check_seconds: u32,
    /// `true` if the output of commands and programs must be sent while they run.
    #[serde(default)]
    pub live: bool,
    /// `true` if [`crate::Request`]s follow the checks, in which case the report ends with its plan
    /// line.
    #[serde(default)]
    pub interactive: bool,
    /// `true` if the kernel's trace events are wanted, on the port [`crate::TRACE_PORT`].
    #[serde(default)]
    pub trace: bool,
    /// Set if the agent must start programs for the host. Their access to the host's folder.
    /// Implies a tools root.
    #[serde(default)]
    pub exec: Option<HostFolder>,
    /// Texts that identify a line of the kernel's log about a fault of an IOMMU.
    #[serde(default)]
    pub iommu_faults: Vec<String>,
    /// The checks, in order.
    pub checks: Vec<Check>,
}

/// A folder of the host, exported over 9p, that the guest mounts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// Its 9p mount tag.
    pub tag: String,
    /// The mount point: an absolute path in the tools root.
    pub at: String,
    /// The guest's access to it.
    pub folder: HostFolder,
}

impl Mount {
    /// Returns the mount tag of the share number `index` of a scenario, counted from 0.
    pub fn tag(index: usize) -> String {
        format!("share{index}")
    }
}

/// The access of programs in the guest to the folder that the host shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostFolder {
    /// Read.
    ReadOnly,
    /// Read and write.
    ReadWrite,
}

impl Plan {
    /// 9p mount tag of the tools root.
    pub const TOOLS_TAG: &str = "tools";

    /// 9p mount tag of packages in addition to those of the tools root.
    pub const PACKAGES_TAG: &str = "packages";

    /// 9p mount tag of the modules of a user's kernel.
    pub const MODULES_TAG: &str = "modules";

    /// 9p mount tag of the host's files for this guest.
    pub const FILES_TAG: &str = "files";

    /// Default of [`Plan::check_seconds`].
    pub const CHECK_SECONDS: u32 = 60;
}

fn default_check_seconds() -> u32 {
    Plan::CHECK_SECONDS
}

/// A kernel module and its parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Module {
    /// Name, as in `/proc/modules`.
    pub name: String,
    /// Parameters, as on `insmod`'s command line: `use_cmb_sqes=0`. Placeholders such as
    /// `{disk0:pci}` refer to devices.
    #[serde(default)]
    pub parameters: String,
}

impl Module {
    /// Returns `true` if its parameters are known only once the devices are there.
    pub fn has_placeholders(&self) -> bool {
        self.parameters.contains('{')
    }
}

/// An NVMe controller under test, known to the guest by its serial number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvmeDevice {
    /// Name in the scenario, and serial number of the controller.
    pub name: String,
    /// Size of its Controller Memory Buffer in bytes, or 0.
    pub cmb_bytes: u64,
    /// `true` if it permits queues in the CMB (Linux puts submission queues there).
    #[serde(default)]
    pub cmb_queues: bool,
    /// Size of its Persistent Memory Region in bytes, or 0.
    #[serde(default)]
    pub pmr_bytes: u64,
    /// Size of its first namespace in bytes.
    #[serde(default)]
    pub disk_bytes: u64,
    /// Size of a logical block in bytes.
    #[serde(default)]
    pub block_bytes: u32,
    /// Number of its namespaces, whose NSIDs begin at 1.
    #[serde(default)]
    pub namespaces: u32,
    /// `true` if its DMA is excluded from the traffic of all devices.
    #[serde(default)]
    pub uncounted: bool,
}

/// A GPU under test. The guest identifies the first of a plan by the PCI subsystem ID 1, the second
/// by 2, and so on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// Name in the scenario.
    pub name: String,
    /// Size of its memory in bytes.
    pub vram_bytes: u64,
    /// Size of its aperture, the BAR that exposes its memory, in bytes.
    pub aperture_bytes: u64,
    /// `true` if the aperture is a window, whose pages come and go, and which is therefore not
    /// p2pmem.
    pub window: bool,
}

/// An RDMA network adapter under test. The guest identifies the first of a plan by the PCI
/// subsystem ID 1, the second by 2, and so on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nic {
    /// Name in the scenario.
    pub name: String,
}

/// A device with a server of another project. The guest identifies it by the port above it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForeignDevice {
    /// Name in the scenario.
    pub name: String,
    /// Slot number of the port above it (PCIe Base 6.0, 7.5.3.9).
    pub slot: u32,
    /// Its kind, or `None` if its class code determines that.
    pub kind: Option<ForeignKind>,
    /// `true` if all of its DMA comes by messages, so that it is counted. Otherwise nobody counts
    /// its accesses to memory that is mapped in its server.
    pub counted: bool,
}

/// The kind of a device with a server of another project: how checks may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ForeignKind {
    /// An NVMe controller, driven by Linux' nvme.
    Nvme,
    /// A PCI function that only commands and programs use.
    Other,
}

impl ForeignDevice {
    /// Returns it as a disk. Its capacity is not known before a run, so it has no limit.
    pub fn disk(&self) -> NvmeDevice {
        NvmeDevice {
            name: self.name.clone(),
            disk_bytes: u64::MAX,
            block_bytes: 512,
            namespaces: 1,
            uncounted: !self.counted,
            ..NvmeDevice::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_without_optional_fields_has_their_defaults() {
        let text = r#"{"modules":[{"name":"nvme"}],"devices":[],"tools":false,"checks":[
            {"kind":"copy","from":"a","to":"b","through":{"p2pmem":"a"},"sizes":[4096],"offsets":[0]},
            {"kind":"copy","from":"a","to":"b","through":"guest-ram","sizes":[4096],"offsets":[0]}]}"#;
        let plan: Plan = serde_json::from_str(text).unwrap();
        assert_eq!(plan.check_seconds, Plan::CHECK_SECONDS);
        let names: Vec<String> = plan.checks.iter().map(Check::name).collect();
        assert_eq!(
            names,
            [
                "copy a to b through p2pmem of a",
                "copy a to b through guest RAM"
            ]
        );
    }
}
