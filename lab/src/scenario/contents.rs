//! The contents of a scenario.

use std::path::PathBuf;
use std::time::Duration;

use peerbar_dma::LinkSpeed;
use peerbar_fault::Rule;
use peerbar_flight::Level;
use peerbar_report::{Check, Module};
use peerbar_switch::LinkMode;

use super::acs::AcsPorts;
use super::attach::AttachPoint;
use super::file::Model;
use super::foreign::Foreign;
use super::gpu::Gpu;
use super::nic::Nic;
use super::program::HostProgram;
use super::rdma_network::RdmaNetwork;
use super::sanitize::Sanitize;
use super::share::Share;
use super::twin::Twin;
use crate::firmware::Firmware;
use crate::guest_access::GuestAccess;
use crate::guest_files::GuestFile;
use crate::iommu::Iommu;
use crate::module_sources::ModuleSources;

/// A valid scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its name, which is suitable for a folder.
    pub name: String,
    /// The file that it was read from; paths in it are relative to that.
    pub path: PathBuf,
    /// The text that it was read from.
    pub text: String,
    /// Time limit of the guest.
    pub timeout: Duration,
    /// Factor for the time limits of checks without an explicit limit.
    pub(super) slowness: u32,
    /// The virtual machine around the devices.
    pub machine: Machine,
    /// Names of the host bridges in addition to the machine's own.
    pub host_bridges: Vec<String>,
    /// Amount that the devices record: everything if the records are examined.
    pub recording: Level,
    /// The PCIe switches.
    pub switches: Vec<Switch>,
    /// The NVMe controllers.
    pub nvmes: Vec<Nvme>,
    /// The GPUs.
    pub gpus: Vec<Gpu>,
    /// The RDMA network adapters.
    pub nics: Vec<Nic>,
    /// The devices with servers of other projects.
    pub foreign: Vec<Foreign>,
    /// The fabric that joins them, if there is one.
    pub fabric: Option<RdmaNetwork>,
    /// Kernel modules that are loaded before the first check.
    pub modules: Vec<Module>,
    /// Folders that modules are built from, which are loaded after those.
    pub module_sources: Vec<ModuleSources>,
    /// Set if the guest gets the tools root.
    pub tools: bool,
    /// Debian packages of the tools root in addition to the default ones.
    pub packages: Vec<String>,
    /// Set if udevd runs in the tools root.
    pub udev: bool,
    /// Files of the host that the guest gets, in the tools root.
    pub files: Vec<GuestFile>,
    /// Folders of the host that the guest mounts in the tools root.
    pub shares: Vec<Share>,
    /// Set if the guest takes requests after the checks.
    pub interactive: bool,
    /// Set if the output of commands and programs is reported while they run.
    pub live: bool,
    /// Access of the host that lets it start programs in the guest; see [`Scenario::give_access`].
    pub access: Option<GuestAccess>,
    /// The real machine that it imitates, if it is a twin.
    pub twin: Option<Twin>,
    /// The checks, in order.
    pub checks: Vec<Check>,
    /// Set if it has the programs for an end of an RDMA check across guests: see
    /// [`super::GuestGroup`].
    pub rdma_ends: bool,
    /// Programs of the host's that checks run.
    pub programs: Vec<HostProgram>,
    /// The scenario's name for each of them, if it has one.
    pub labels: Vec<Option<String>>,
}

/// The virtual machine around the devices.
#[derive(Clone, Debug)]
pub struct Machine {
    /// CPU model, as for `-cpu`.
    pub cpu: String,
    /// Guest RAM in bytes.
    pub memory: u64,
    /// Virtual CPUs.
    pub cpus: u32,
    /// Bytes of the RAM that the kernel sets aside for huge pages.
    pub hugepages: u64,
    /// The firmware, which starts the kernel, if QEMU has it.
    pub firmware: Firmware,
    /// The IOMMU.
    pub iommu: Iommu,
    /// Parameters for the guest's kernel beyond ours.
    pub kernel_parameters: String,
    /// Expected findings of the sanitizer, if that watches all DMA.
    pub sanitize: Option<Sanitize>,
    /// Set if some device offers address translation services, so that the IOMMU must, too.
    pub ats: bool,
    /// Set if it has QEMU's virtio-gpu, whose memory is the guest's.
    pub virtio_gpu: bool,
    /// Set if it has QEMU's user network.
    pub network: bool,
    /// Set if it has a port for the kernel's trace events.
    pub trace: bool,
}

/// A PCIe switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switch {
    /// Its name.
    pub name: String,
    /// Its place: never below another switch.
    pub attach: AttachPoint,
    /// Its ports that have Access Control Services.
    pub acs: AcsPorts,
}

/// An NVMe controller.
#[derive(Clone, Debug)]
pub struct Nvme {
    /// Name in the scenario, serial number in the guest, identifier in QEMU.
    pub name: String,
    /// Ours or QEMU's.
    pub model: Model,
    /// Its place.
    pub attach: AttachPoint,
    /// The switch's treatment of its requests to peers.
    pub link: LinkMode,
    /// Speed of its link.
    pub link_speed: LinkSpeed,
    /// Set if it offers address translation services.
    pub ats: bool,
    /// Its settings, without the files that a run makes.
    pub config: peerbar_nvme::Config,
    /// Its Persistent Memory Region.
    pub pmr: Option<Pmr>,
    /// Size of the first namespace in bytes.
    pub disk_bytes: u64,
    /// Its namespaces.
    pub namespaces: Vec<Namespace>,
    /// The faults that are injected into its operations.
    pub faults: Vec<Rule>,
    /// Set if its DMA counts in the traffic of all devices.
    pub counted: bool,
}

/// A Persistent Memory Region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pmr {
    /// Size in bytes, a power of two.
    pub bytes: u64,
    /// The file for its contents, created if it is missing. Without one they are lost after the
    /// run.
    pub file: Option<PathBuf>,
}

/// Storage of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Namespace {
    /// Zeroed memory of this number of bytes, gone with the run.
    Ram(u64),
    /// No storage, of this number of bytes: reads transfer nothing, writes are dropped.
    Null(u64),
    /// A raw image of this number of bytes, made for the run and gone with it.
    Image(u64),
    /// A raw image of the user's.
    File {
        /// The image.
        path: PathBuf,
        /// Size in bytes with which a missing image is created.
        create: Option<u64>,
    },
}
