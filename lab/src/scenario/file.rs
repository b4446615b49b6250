//! The shape of a scenario file, before it is checked.

use std::collections::BTreeMap;
use std::path::PathBuf;

use peerbar_report::Timeout;
use serde::Deserialize;
use serde::de::IgnoredAny;
use toml::Spanned;
use toml::de::{DeTable, Deserializer};

use super::acs::AcsPorts;
use super::error::Problem;
use super::foreign::Count;
use super::sanitize::{self, Sanitize};
use super::settings::Settings;
use super::twin::Twin;
use crate::firmware::Firmware;
use crate::iommu::Iommu;
use crate::size::Size;

/// A model of an NVMe controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Model {
    /// Ours, served by a `peerbar-nvme`.
    #[default]
    Peerbar,
    /// QEMU's own, to compare with: it routes nothing below a switch, and keeps no record of its
    /// DMA.
    Qemu,
}

/// A scenario file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) name: Spanned<String>,
    pub(super) timeout: Option<Timeout>,
    #[serde(default)]
    pub(super) tools: bool,
    #[serde(default)]
    pub(super) packages: Vec<Spanned<String>>,
    #[serde(default)]
    pub(super) files: BTreeMap<Spanned<String>, Spanned<PathBuf>>,
    #[serde(default)]
    pub(super) udev: bool,
    #[serde(default)]
    pub(super) machine: MachineTable,
    #[serde(default, rename = "host-bridge")]
    pub(super) host_bridge: Vec<HostBridgeTable>,
    #[serde(default)]
    pub(super) switch: Vec<SwitchTable>,
    #[serde(default)]
    pub(super) nvme: Vec<NvmeTable>,
    /// The other keys of those tables.
    #[serde(skip)]
    pub(super) nvme_settings: Vec<Settings<peerbar_nvme::Config>>,
    #[serde(default)]
    pub(super) gpu: Vec<GpuTable>,
    /// The other keys of those tables.
    #[serde(skip)]
    pub(super) gpu_settings: Vec<Settings<peerbar_gpu::Config>>,
    #[serde(default)]
    pub(super) nic: Vec<NicTable>,
    #[serde(default)]
    pub(super) device: Vec<DeviceTable>,
    pub(super) fabric: Option<Spanned<FabricTable>>,
    #[serde(default)]
    pub(super) module: Vec<Spanned<ModuleTable>>,
    #[serde(default)]
    pub(super) share: Vec<ShareTable>,
    pub(super) twin: Option<Twin>,
    /// Read by [`peerbar_report::CheckTable`], which keeps the span of each value.
    #[serde(default)]
    pub(super) check: Vec<IgnoredAny>,
}

impl File {
    /// Reads `document`.
    ///
    /// # Errors
    /// A key or value that its table does not have.
    pub(super) fn read(document: &Spanned<DeTable<'_>>) -> Result<Self, Problem> {
        let mut rest = document.clone();
        let nvme_settings = Settings::take::<NvmeTable>(rest.get_mut(), "nvme")?;
        let gpu_settings = Settings::take::<GpuTable>(rest.get_mut(), "gpu")?;
        let file = Self::deserialize(Deserializer::from(rest));
        let file = file.map_err(|error| Problem::of_toml(&error, document.get_ref()))?;
        Ok(Self {
            nvme_settings,
            gpu_settings,
            ..file
        })
    }
}

/// A guest of several. The keys of `machine` are those of [`MachineTable`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GuestTable {
    pub(super) name: Spanned<String>,
    #[serde(default, rename = "machine")]
    _machine: Option<IgnoredAny>,
}

/// The virtual machine around the devices.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct MachineTable {
    pub(super) cpu: Option<String>,
    pub(super) memory: Option<Spanned<Size>>,
    pub(super) cpus: Option<Spanned<u32>>,
    pub(super) hugepages: Option<Spanned<Size>>,
    pub(super) firmware: Option<Spanned<Firmware>>,
    #[serde(default)]
    pub(super) iommu: Iommu,
    #[serde(default)]
    pub(super) kernel_parameters: String,
    #[serde(default, deserialize_with = "sanitize::read")]
    pub(super) sanitize: Option<Spanned<Sanitize>>,
    #[serde(default)]
    pub(super) virtio_gpu: bool,
    #[serde(default)]
    pub(super) network: bool,
}

/// A host bridge in addition to the machine's own.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HostBridgeTable {
    pub(super) name: Spanned<String>,
}

/// A PCIe switch below a separate root port.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SwitchTable {
    pub(super) name: Spanned<String>,
    pub(super) below: Option<Spanned<String>>,
    pub(super) acs: Option<Spanned<AcsPorts>>,
}

/// An NVMe controller, served by a separate process. Its [`Settings`] are further keys.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct NvmeTable {
    pub(super) name: Spanned<String>,
    #[serde(default)]
    pub(super) model: Model,
    pub(super) below: Option<Spanned<String>>,
    pub(super) link: Option<Spanned<String>>,
    pub(super) link_latency: Option<Spanned<String>>,
    pub(super) link_bandwidth: Option<Spanned<String>>,
    pub(super) ats: Option<Spanned<bool>>,
    pub(super) pmr: Option<Spanned<PmrTable>>,
    #[serde(default)]
    pub(super) faults: Vec<Spanned<String>>,
    pub(super) counted: Option<bool>,
    pub(super) namespaces: Spanned<Vec<Spanned<NamespaceTable>>>,
}

/// Size and storage of a Persistent Memory Region.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PmrTable {
    pub(super) size: Size,
    pub(super) file: Option<PathBuf>,
}

/// Storage of a namespace.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NamespaceTable {
    pub(super) ram: Option<Size>,
    pub(super) null: Option<Size>,
    pub(super) image: Option<Size>,
    pub(super) file: Option<PathBuf>,
    pub(super) size: Option<Size>,
}

/// A GPU, served by a separate process. Its [`Settings`] are further keys.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct GpuTable {
    pub(super) name: Spanned<String>,
    pub(super) below: Option<Spanned<String>>,
    pub(super) link: Option<Spanned<String>>,
    pub(super) link_latency: Option<Spanned<String>>,
    pub(super) link_bandwidth: Option<Spanned<String>>,
    pub(super) ats: Option<Spanned<bool>>,
    #[serde(default)]
    pub(super) faults: Vec<Spanned<String>>,
}

/// An RDMA network adapter, served by a separate process.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct NicTable {
    pub(super) name: Spanned<String>,
    pub(super) below: Option<Spanned<String>>,
    pub(super) link: Option<Spanned<String>>,
    pub(super) link_latency: Option<Spanned<String>>,
    pub(super) link_bandwidth: Option<Spanned<String>>,
    pub(super) ats: Option<Spanned<bool>>,
    pub(super) seed: Option<u64>,
    #[serde(default)]
    pub(super) faults: Vec<Spanned<String>>,
}

/// A device with a server of another project.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct DeviceTable {
    pub(super) name: Spanned<String>,
    pub(super) below: Option<Spanned<String>>,
    pub(super) link: Option<Spanned<String>>,
    pub(super) link_latency: Option<Spanned<String>>,
    pub(super) link_bandwidth: Option<Spanned<String>>,
    pub(super) socket: Option<Spanned<PathBuf>>,
    pub(super) command: Option<Spanned<Vec<String>>>,
    pub(super) ready: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) writable: Vec<Spanned<PathBuf>>,
    pub(super) kind: Option<Spanned<String>>,
    pub(super) count: Option<Count>,
    #[serde(default)]
    pub(super) read_write: bool,
    #[serde(default)]
    pub(super) faults: Vec<Spanned<String>>,
}

/// The fabric that joins the RDMA network adapters.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct FabricTable {
    #[serde(default)]
    pub(super) impair: Vec<Spanned<String>>,
    pub(super) seed: Option<u64>,
}

/// A kernel module that is loaded before the first check.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ModuleTable {
    pub(super) name: Option<Spanned<String>>,
    pub(super) path: Option<Spanned<PathBuf>>,
    #[serde(default)]
    pub(super) parameters: String,
}

/// A folder of the host that the guest mounts.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ShareTable {
    pub(super) path: Spanned<PathBuf>,
    pub(super) at: Spanned<String>,
    #[serde(default)]
    pub(super) writable: bool,
}
