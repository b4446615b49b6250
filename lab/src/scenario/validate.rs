//! Turns the shape of a scenario into a valid scenario.

use std::mem::take;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use peerbar_fabric::MAX_ADAPTERS;
use peerbar_flight::Level;
use peerbar_report::{Check, CheckTable, Inventory};
use toml::Spanned;

use super::acs;
use super::attach::{AttachPoint, AttachPoints};
use super::bus_numbers;
use super::check::{Endpoints, inventory};
use super::contents::{Machine, Nvme, Scenario, Switch};
use super::error::Problem;
use super::file::{DeviceTable, File, GpuTable, HostBridgeTable, NicTable, NvmeTable, SwitchTable};
use super::files;
use super::foreign::{Foreign, foreign};
use super::gpu::Gpu;
use super::gpu::gpu;
use super::lost;
use super::machine::{self, machine};
use super::modules;
use super::names::{self, LONGEST_SCENARIO, LONGEST_SERIAL, fitting, unique};
use super::nic::Nic;
use super::nic::{self, nic};
use super::nvme::nvme;
use super::packages;
use super::program::{self, HostProgram};
use super::rdma_network::RdmaNetwork;
use super::rdma_network::fabric;
use super::root_ports;
use super::settings::Settings;
use super::share;
use super::share::Share;
use super::together;
use super::user_drivers;
use crate::guest_files::GuestFile;
use crate::module_sources::ModuleSources;
use peerbar_report::Module;

pub(super) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// Checks the file as a whole; images are relative to `folder`.
pub(super) fn scenario(
    mut file: File,
    checks: Vec<CheckTable<'_>>,
    folder: &Path,
    interactive: bool,
) -> Result<Scenario, Problem> {
    let at = file.name.span();
    let name = fitting(file.name.clone(), LONGEST_SCENARIO)?;
    complete(&file, interactive)?;
    let hardware = Hardware::read(&mut file, folder)?;
    let timeout = file.timeout.map_or(DEFAULT_TIMEOUT, |timeout| timeout.0);
    let udev = file.udev;
    let twin = file.twin.take();
    let mut software = Software::read(file, checks, &hardware, timeout, folder)?;
    let (mut machine, devices) = (hardware.machine, hardware.devices);
    machine.add_modules(&mut software.modules);
    let scenario = Scenario {
        name,
        path: PathBuf::new(),
        text: String::new(),
        timeout,
        slowness: 1,
        recording: machine.recording(),
        machine,
        host_bridges: hardware.host_bridges,
        switches: devices.switches,
        nvmes: devices.nvmes,
        gpus: devices.gpus,
        nics: devices.nics,
        foreign: devices.foreign,
        fabric: devices.fabric,
        modules: software.modules,
        module_sources: software.module_sources,
        tools: software.tools,
        packages: software.packages,
        udev,
        files: software.files,
        shares: software.shares,
        rdma_ends: false,
        interactive,
        live: false,
        access: None,
        twin,
        checks: software.checks,
        programs: software.programs,
        labels: software.labels,
    };
    root_ports::fit(&scenario, &at)?;
    Ok(scenario)
}

/// The machine and its devices.
struct Hardware {
    host_bridges: Vec<String>,
    devices: AttachedDevices,
    machine: Machine,
}

impl Hardware {
    /// Takes its tables out of the file.
    fn read(file: &mut File, folder: &Path) -> Result<Self, Problem> {
        let points = attach_points(&file.host_bridge, &file.switch)?;
        together::ports(file)?;
        bus_numbers::fit(file)?;
        together::images(file, folder)?;
        together::sockets(file, folder)?;
        let p2pmem = together::P2pmem::of(file);
        let devices = AttachedDevices::read(file, &points, folder)?;
        let Endpoints { nvmes, gpus, .. } = devices.endpoints();
        let machine = machine(take(&mut file.machine), &points, devices.endpoints())?;
        p2pmem.fits(&machine, nvmes, gpus)?;
        Ok(Self {
            host_bridges: points.host_bridges,
            devices,
            machine,
        })
    }
}

/// The software of the guest.
struct Software {
    tools: bool,
    packages: Vec<String>,
    files: Vec<GuestFile>,
    shares: Vec<Share>,
    checks: Vec<Check>,
    programs: Vec<HostProgram>,
    labels: Vec<Option<String>>,
    modules: Vec<Module>,
    module_sources: Vec<ModuleSources>,
}

impl Software {
    fn read(
        file: File,
        checks: Vec<CheckTable<'_>>,
        hardware: &Hardware,
        timeout: Duration,
        folder: &Path,
    ) -> Result<Self, Problem> {
        let (machine, devices) = (&hardware.machine, hardware.devices.endpoints());
        let files = files::files(file.files, folder)?;
        let shares = share::shares(file.share, folder)?;
        let mut packages = packages::packages(file.packages)?;
        let brings = !packages.is_empty() || !files.is_empty() || !shares.is_empty();
        let tools = file.tools || file.udev || machine.network || brings;
        let inventory = inventory(devices, machine, tools, timeout);
        let labels = labels(&checks)?;
        let mut checks = read_checks(checks, &inventory, machine, devices)?;
        let labels = distinct_labels(labels, &checks)?;
        packages::add_needed(&mut packages, &checks);
        let programs = program::assign_paths(&mut checks, &labels, folder)
            .map_err(|error| Problem::new(file.name.span(), error.to_string()))?;
        let needed = needed_modules(machine, devices, &checks);
        let (modules, module_sources) = modules::modules(file.module, needed, folder, &inventory)?;
        Ok(Self {
            tools,
            packages,
            files,
            shares,
            checks,
            programs,
            labels,
            modules,
            module_sources,
        })
    }
}

/// All devices attached to the machine, and the fabric that connects them.
struct AttachedDevices {
    switches: Vec<Switch>,
    nvmes: Vec<Nvme>,
    gpus: Vec<Gpu>,
    nics: Vec<Nic>,
    foreign: Vec<Foreign>,
    fabric: Option<RdmaNetwork>,
}

impl AttachedDevices {
    /// Takes its tables out of the file.
    fn read(file: &mut File, points: &AttachPoints, folder: &Path) -> Result<Self, Problem> {
        let nvmes = take(&mut file.nvme).into_iter();
        let nvmes = nvmes.zip(take(&mut file.nvme_settings)).collect();
        let gpus = take(&mut file.gpu).into_iter();
        let gpus = gpus.zip(take(&mut file.gpu_settings)).collect();
        let (nvmes, gpus) = endpoints(nvmes, gpus, points, folder)?;
        let mut nics = nics(take(&mut file.nic), points, &nvmes, &gpus)?;
        nic::number(nics.iter_mut());
        let taken = names_of(points, &nvmes, &gpus);
        let taken = [taken, nics.iter().map(|nic| nic.name.clone()).collect()].concat();
        let foreign = foreign_devices(take(&mut file.device), points, &taken, folder)?;
        let fabric = fabric(file.fabric.take(), &nics)?;
        let devices = nvmes
            .iter()
            .map(|nvme| (nvme.name.as_str(), &nvme.attach))
            .chain(gpus.iter().map(|gpu| (gpu.name.as_str(), &gpu.attach)))
            .chain(nics.iter().map(|nic| (nic.name.as_str(), &nic.attach)))
            .chain(
                foreign
                    .iter()
                    .map(|other| (other.name.as_str(), &other.attach)),
            );
        let switches = switches(take(&mut file.switch), points, devices)?;
        Ok(Self {
            switches,
            nvmes,
            gpus,
            nics,
            foreign,
            fabric,
        })
    }

    fn endpoints(&self) -> Endpoints<'_> {
        Endpoints {
            nvmes: &self.nvmes,
            gpus: &self.gpus,
            nics: &self.nics,
            foreign: &self.foreign,
        }
    }
}

/// Returns the checks. Each can do its work in this machine with these devices, also after those
/// before it.
fn read_checks(
    tables: Vec<CheckTable<'_>>,
    inventory: &Inventory,
    machine: &Machine,
    endpoints: Endpoints<'_>,
) -> Result<Vec<Check>, Problem> {
    let spans: Vec<Range<usize>> = tables.iter().map(CheckTable::span).collect();
    let checks = tables.into_iter().map(|table| table.read(inventory));
    let checks: Vec<Check> = checks.collect::<Result<_, _>>()?;
    lost::refuse(&checks, &spans)?;
    for (check, at) in checks.iter().zip(spans) {
        user_drivers::fit(check, at, machine, endpoints)?;
    }
    Ok(checks)
}

impl Machine {
    /// Puts the IOMMU's driver before the other `modules`, and passes the parameters of all to the
    /// kernel.
    fn add_modules(&mut self, modules: &mut [Module]) {
        // A driver that comes before it would work without the IOMMU permanently.
        modules.sort_by_key(|module| Some(module.name.as_str()) != self.iommu.module());
        let hugepages = match self.hugepages {
            0 => String::new(),
            bytes => format!("hugepages={}", bytes / machine::HUGE_PAGE),
        };
        let for_iommu = match self.iommu.is_present() {
            true => modules::for_iommu(modules),
            false => String::new(),
        };
        let parameters = [
            hugepages,
            for_iommu,
            modules::on_command_line(modules),
            self.kernel_parameters.clone(),
        ];
        let parameters = parameters.iter().filter(|words| !words.is_empty());
        let parameters: Vec<&str> = parameters.map(String::as_str).collect();
        self.kernel_parameters = parameters.join(" ");
    }

    /// Returns the amount that the devices record.
    fn recording(&self) -> Level {
        match self.sanitize {
            Some(_) => Level::All,
            None => Level::Maps,
        }
    }
}

/// Returns the names that the user gives to checks.
fn labels(checks: &[CheckTable<'_>]) -> Result<Vec<Option<Spanned<String>>>, Problem> {
    checks
        .iter()
        .filter_map(CheckTable::label)
        .try_for_each(names::label)?;
    Ok(checks.iter().map(|table| table.label().cloned()).collect())
}

/// Returns the `labels` of `checks`, if each check with one is the only one of that name.
fn distinct_labels(
    labels: Vec<Option<Spanned<String>>>,
    checks: &[Check],
) -> Result<Vec<Option<String>>, Problem> {
    let unnamed = checks.iter().zip(&labels);
    let unnamed = unnamed.filter(|(_, label)| label.is_none());
    let unnamed: Vec<String> = unnamed.map(|(check, _)| check.name()).collect();
    names::distinct_labels(labels.iter().flatten(), &unnamed)?;
    let labels = labels.into_iter();
    Ok(labels.map(|label| label.map(Spanned::into_inner)).collect())
}

/// Checks that there is a device, and a check or a person to use it.
fn complete(file: &File, interactive: bool) -> Result<(), Problem> {
    let has_ours = !(file.nvme.is_empty() && file.gpu.is_empty() && file.nic.is_empty());
    let lacking = if !has_ours && file.device.is_empty() {
        "no device: add an [[nvme]], a [[gpu]], a [[nic]] or a [[device]]"
    } else if file.check.is_empty() && !interactive {
        "no [[check]]: add one, or enter the guest by `peerbar shell`"
    } else {
        return Ok(());
    };
    Err(Problem::new(file.name.span(), lacking))
}

fn attach_points(
    bridges: &[HostBridgeTable],
    switches: &[SwitchTable],
) -> Result<AttachPoints, Problem> {
    let names = bridges.iter().map(|bridge| bridge.name.clone());
    let host_bridges = unique(names, &[], LONGEST_SERIAL)?;
    let names = switches.iter().map(|switch| switch.name.clone());
    let switches = unique(names, &host_bridges, LONGEST_SERIAL)?;
    Ok(AttachPoints {
        host_bridges,
        switches,
    })
}

fn switches<'a>(
    tables: Vec<SwitchTable>,
    attach_points: &AttachPoints,
    devices: impl Iterator<Item = (&'a str, &'a AttachPoint)> + Clone,
) -> Result<Vec<Switch>, Problem> {
    let switches = tables.into_iter().map(|table| {
        let name = table.name.into_inner();
        Ok(Switch {
            acs: acs::ports(table.acs, &name, devices.clone())?,
            attach: attach_points.of_switch(table.below)?,
            name,
        })
    });
    switches.collect()
}

fn endpoints(
    nvmes: Vec<(NvmeTable, Settings<peerbar_nvme::Config>)>,
    gpus: Vec<(GpuTable, Settings<peerbar_gpu::Config>)>,
    attach_points: &AttachPoints,
    folder: &Path,
) -> Result<(Vec<Nvme>, Vec<Gpu>), Problem> {
    let names = nvmes.iter().map(|(nvme, _)| nvme.name.clone());
    let taken = unique(names, &attach_points.names(), LONGEST_SERIAL)?;
    let nvmes = nvmes
        .into_iter()
        .map(|(table, settings)| nvme(table, settings, attach_points, folder))
        .collect::<Result<_, _>>()?;
    let names = gpus.iter().map(|(gpu, _)| gpu.name.clone());
    unique(
        names,
        &[attach_points.names(), taken].concat(),
        LONGEST_SERIAL,
    )?;
    let gpus = gpus
        .into_iter()
        .map(|(table, settings)| gpu(table, settings, attach_points));
    Ok((nvmes, gpus.collect::<Result<_, _>>()?))
}

/// Checks that the names of all bridges, switches and devices of a file with several guests are
/// different, and that one fabric takes all adapters.
pub(super) fn unique_devices(file: &File) -> Result<(), Problem> {
    let bridges = file.host_bridge.iter().map(|bridge| &bridge.name);
    let switches = file.switch.iter().map(|switch| &switch.name);
    let nvmes = file.nvme.iter().map(|nvme| &nvme.name);
    let gpus = file.gpu.iter().map(|gpu| &gpu.name);
    let nics = file.nic.iter().map(|nic| &nic.name);
    let foreign = file.device.iter().map(|device| &device.name);
    let names = bridges.chain(switches).chain(nvmes).chain(gpus).chain(nics);
    let names = names.chain(foreign);
    unique(names.cloned(), &[], LONGEST_SERIAL)?;
    limit_adapters(&file.nic)
}

/// Rejects more adapters than a fabric takes.
fn limit_adapters(tables: &[NicTable]) -> Result<(), Problem> {
    tables.get(MAX_ADAPTERS).map_or(Ok(()), |extra| {
        let message = format!(
            "`{}` is one adapter too many: a fabric has at most {MAX_ADAPTERS}",
            extra.name.get_ref()
        );
        Err(Problem::new(extra.name.span(), message))
    })
}

/// Returns the adapters, whose names neither attach points nor the other devices have.
fn nics(
    tables: Vec<NicTable>,
    attach_points: &AttachPoints,
    nvmes: &[Nvme],
    gpus: &[Gpu],
) -> Result<Vec<Nic>, Problem> {
    limit_adapters(&tables)?;
    let names = tables.iter().map(|table| table.name.clone());
    let taken = names_of(attach_points, nvmes, gpus);
    unique(names, &taken, LONGEST_SERIAL)?;
    let nics = tables.into_iter().map(|table| nic(table, attach_points));
    nics.collect()
}

/// Returns the names of these attach points and devices.
fn names_of(attach_points: &AttachPoints, nvmes: &[Nvme], gpus: &[Gpu]) -> Vec<String> {
    let mut names = attach_points.names();
    names.extend(nvmes.iter().map(|nvme| nvme.name.clone()));
    names.extend(gpus.iter().map(|gpu| gpu.name.clone()));
    names
}

/// Returns the devices with servers of other projects, whose names are not among those that are
/// `taken`.
fn foreign_devices(
    tables: Vec<DeviceTable>,
    attach_points: &AttachPoints,
    taken: &[String],
    folder: &Path,
) -> Result<Vec<Foreign>, Problem> {
    let names = tables.iter().map(|table| table.name.clone());
    unique(names, taken, LONGEST_SERIAL)?;
    let tables = tables.into_iter();
    tables
        .map(|table| foreign(table, attach_points, folder))
        .collect()
}

/// Returns the IOMMU's driver, the drivers under test, and further modules for the checks.
fn needed_modules(
    machine: &Machine,
    devices: Endpoints<'_>,
    checks: &[Check],
) -> Vec<&'static str> {
    let drivers = [
        ("nvme", true),
        ("peerbar_gpu", !devices.gpus.is_empty()),
        ("ib_uverbs", !devices.nics.is_empty()),
        ("efa", !devices.nics.is_empty()),
        ("virtio_gpu", machine.virtio_gpu),
        ("virtio_net", machine.network),
    ];
    let drivers = drivers.into_iter().filter(|(_, needed)| *needed);
    let drivers = drivers.map(|(name, _)| name);
    let of_checks = checks.iter();
    let of_checks = of_checks.flat_map(|check| check.modules().iter().copied());
    let iommu = machine.iommu.module().into_iter();
    iommu.chain(drivers).chain(of_checks).collect()
}
