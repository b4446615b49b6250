//! QEMU's arguments. Pure: the input is paths and a scenario, the output a list of words.

use std::ffi::OsString;
use std::iter;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure};
use peerbar_images::SANDBOX;
use peerbar_report::exec::HOST_TAG;
use peerbar_report::{HostFolder, Mount, PORT, TRACE_PORT};
use serde_json::json;

use crate::accel::Accel;
use crate::firmware::Firmware;
use crate::guest_access::GuestAccess;
use crate::scenario::{DeviceSpec, Foreign, Machine, Model, Namespace, Nvme};
use crate::survivors::Survivors;
use crate::topology::{Function, FunctionKind, ROOT_BUS, Topology};

/// Extension of images that are gone with the run.
pub(crate) const SCRATCH: &str = "img";
/// First characters of the names of the folders of other projects' servers.
pub(crate) const FOREIGN: &str = "foreign-";
/// QEMU ends the whole vfio-user stream when a server answers later than this, in ms. A server may
/// be slow under a debugger, or on a loaded machine.
const SERVER_TIMEOUT_MS: u32 = 600_000;

/// The machine, without hardware that would slow the guest's boot: the guest need not look for it.
const MACHINE: &str = "q35,hpet=off,vmport=off,smm=off,sata=off,memory-backend=ram";

/// Kernel parameters of every boot. `quiet` hides the messages of a healthy boot, and `loglevel=5`
/// lets warnings through again because the console is searched for them. With `iomem=relaxed` our
/// agent can read a GPU's counters from its registers, and programs such as `nvme show-regs` those
/// of a disk with a driver. The rest skips work that no scenario needs.
const KERNEL_PARAMETERS: &str = "console=ttyS0 quiet loglevel=5 panic=-1 oops=panic nokaslr mitigations=off \
    tsc=reliable no_timer_check nowatchdog audit=0 apparmor=0 cryptomgr.notests random.trust_cpu=on \
    iomem=relaxed rcupdate.rcu_expedited=1";

/// A machine with its kernel, without our devices.
pub struct Boot<'a> {
    /// The accelerator.
    pub accel: Accel,
    /// CPU, memory and extra kernel parameters.
    pub machine: &'a Machine,
    /// The user's parameters for the kernel, after all others.
    pub append: &'a str,
    /// Port of the gdb stub, on which a halted guest waits.
    pub gdb: Option<u16>,
    /// The firmware, which starts the kernel.
    pub firmware: Firmware,
    /// Kernel image.
    pub kernel: &'a Path,
    /// Initial RAM file system.
    pub initramfs: &'a Path,
    /// The user's own words, after all others.
    pub qemu_arguments: &'a [String],
    /// Set if QEMU can confine itself.
    pub sandbox: bool,
}

impl Boot<'_> {
    /// Returns `true` if QEMU must confine itself, unless the user's words specify that.
    fn is_confined(&self) -> bool {
        let own = self.qemu_arguments.iter();
        self.sandbox
            && !own
                .map(String::as_str)
                .any(|word| ["-sandbox", "--sandbox"].contains(&word))
    }
}

/// A folder of the host that the guest may mount over 9p, read-only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedFolder<'a> {
    /// Its mount tag, and its identifier in QEMU.
    pub tag: &'static str,
    /// The folder.
    pub folder: &'a Path,
}

/// Arguments of a bare machine whose console is QEMU's standard output.
pub fn bare(boot: &Boot<'_>) -> Vec<OsString> {
    let machine = boot.machine;
    let memory = format!(
        "memory-backend-memfd,id=ram,size={},share=on",
        machine.memory
    );
    let of_accel = boot.accel.kernel_parameters();
    let parameters = [
        KERNEL_PARAMETERS,
        &of_accel,
        machine.iommu.kernel_parameters(),
        &machine.kernel_parameters,
        boot.append,
    ];
    let parameters = parameters.iter().filter(|words| !words.is_empty());
    let parameters: Vec<&str> = parameters.copied().collect();
    let mut words = QemuArguments::default();
    words
        .flag("-nodefaults")
        .flag("-no-user-config")
        .flag("-no-reboot");
    if boot.is_confined() {
        words.option("-sandbox", SANDBOX);
    }
    words.option("-display", "none");
    words.option("-M", MACHINE.to_owned() + machine.iommu.machine());
    words.option("-accel", boot.accel.argument());
    words.option("-cpu", &machine.cpu);
    words.option("-smp", machine.cpus.to_string());
    words.option("-m", format!("{}B", machine.memory));
    words.option("-object", memory);
    if let Some(file) = boot.firmware.file() {
        words.option("-bios", file);
    }
    words.option("-chardev", "stdio,id=console,signal=off");
    words.option("-serial", "chardev:console");
    words.option("-kernel", boot.kernel);
    words.option("-initrd", boot.initramfs);
    words.option("-append", parameters.join(" "));
    if let Some(port) = boot.gdb {
        words.option("-gdb", format!("tcp:127.0.0.1:{port}"));
        words.flag("-S");
    }
    if let Some(iommu) = machine.iommu.device(machine.ats) {
        words.option("-device", iommu);
    }
    words.0
}

/// Arguments of a topology: the bare machine, the report's port, the shared folders, the ports and
/// the devices below them.
pub fn arguments(
    boot: &Boot<'_>,
    topology: &Topology<'_>,
    sockets: &Sockets,
    shared: &[SharedFolder<'_>],
) -> Vec<OsString> {
    let mut words = QemuArguments(bare(boot));
    words.option(
        "-chardev",
        with_path("socket,id=report,path=", &sockets.report(), ""),
    );
    for monitor in [sockets.monitor(), sockets.launcher_monitor()] {
        words.option("-qmp", with_path("unix:", &monitor, ",server=on,wait=off"));
    }
    words.option("-device", "virtio-serial-pci");
    words.option(
        "-device",
        format!("virtserialport,chardev=report,name={PORT}"),
    );
    if boot.machine.trace {
        let trace = with_path("socket,id=trace,path=", &sockets.trace(), "");
        words.option("-chardev", trace);
        words.option(
            "-device",
            format!("virtserialport,chardev=trace,name={TRACE_PORT}"),
        );
    }
    if boot.machine.virtio_gpu {
        words.option("-device", "virtio-gpu-pci");
    }
    for SharedFolder { tag, folder } in shared {
        let before = format!("local,id={tag},path=");
        let after = ",security_model=none,readonly=on";
        words.option("-fsdev", with_path(&before, folder, after));
        words.option(
            "-device",
            format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
        );
    }
    for (index, share) in topology.shares.iter().enumerate() {
        host_folder(
            &mut words,
            &Mount::tag(index),
            &share.folder,
            share.writable,
        );
    }
    if let Some(access) = topology.access {
        guest_access(&mut words, access, sockets);
    }
    if boot.machine.network {
        words.option("-netdev", "user,id=network,ipv6=off");
        // Without a ROM there is nothing that a firmware could boot from.
        words.option("-device", "virtio-net-pci,netdev=network,romfile=");
    }
    if let Some(window) = boot.firmware.window(topology.bar_bytes()) {
        words.option("-global", format!("q35-pcihost.pci-hole64-size={window}"));
    }
    let functions = functions(topology, sockets, Numbering::default());
    words.0.extend(functions.into_iter().map(OsString::from));
    words
        .0
        .extend(boot.qemu_arguments.iter().map(OsString::from));
    words.0
}

/// The vsock device, and the folder that the guest sees as `/host`.
fn guest_access(words: &mut QemuArguments<OsString>, access: &GuestAccess, sockets: &Sockets) {
    let socket = with_path("socket,id=vsock,path=", &sockets.vsock_device(), "");
    words.option("-chardev", socket);
    words.option("-device", "vhost-user-vsock-pci,chardev=vsock");
    let is_writable = access.permission == HostFolder::ReadWrite;
    host_folder(words, HOST_TAG, &access.folder, is_writable);
}

/// A folder of the user's, which changes while the guest runs.
fn host_folder(words: &mut QemuArguments<OsString>, tag: &str, folder: &Path, is_writable: bool) {
    let read_only = if is_writable { "" } else { ",readonly=on" };
    // Inode numbers of another file system below the folder must not look like the folder's own.
    let before = format!("local,id={tag},path=");
    let after = format!(",security_model=none,multidevs=remap{read_only}");
    words.option("-fsdev", with_path(&before, folder, &after));
    words.option(
        "-device",
        format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
    );
}

/// Numbering of host bridges and ports.
#[derive(Default)]
pub(crate) struct Numbering {
    /// The numbers of chassis and slots begin after this one.
    pub(crate) chassis: u32,
    /// Device numbers on the machine's root bus, in order of use. QEMU chooses further ones.
    pub(crate) devices: Vec<u8>,
}

/// Host bridges, switches, ports, and the devices below them.
pub(crate) fn functions(
    topology: &Topology<'_>,
    sockets: &Sockets,
    numbering: Numbering,
) -> Vec<String> {
    let mut words = QemuArguments::default();
    let mut devices = numbering.devices.into_iter();
    let mut address = |bus: &str| {
        let number = (bus == ROOT_BUS).then(|| devices.next()).flatten();
        number.map_or_else(String::new, |number| format!(",addr={number:#x}"))
    };
    for bridge in topology.host_bridges.iter().skip(1) {
        let (id, bus, address) = (bridge.id, bridge.bus_number, address(ROOT_BUS));
        words.option(
            "-device",
            format!("pxb-pcie,id={id},bus={ROOT_BUS}{address},bus_nr={bus}"),
        );
    }
    for Function { id, bus, kind } in &topology.functions {
        let mut port = |model: &str, slot: &u32| {
            let number = slot.saturating_add(numbering.chassis);
            let address = address(bus);
            format!("{model},id={id},bus={bus}{address},chassis={number},slot={number}")
        };
        let device = match kind {
            FunctionKind::RootPort(slot) => port("pcie-root-port", slot),
            FunctionKind::DownstreamPort(slot) => port("xio3130-downstream", slot),
            // None of QEMU's models of downstream ports has ACS. Linux looks at a port's ACS
            // independently of the port's type.
            FunctionKind::AcsPort(slot) => port("pcie-root-port", slot),
            FunctionKind::UpstreamPort => format!("x3130-upstream,id={id},bus={bus}"),
            FunctionKind::Device(DeviceSpec::Nvme(nvme)) if nvme.model == Model::Qemu => {
                words.option("-blockdev", image(nvme, sockets));
                qemu_nvme(nvme, bus)
            }
            FunctionKind::Device(device) => vfio_user(*device, bus, &sockets.server(*device)),
        };
        words.option("-device", device);
    }
    words.0
}

/// Name of the socket of the guest's vsock ports, and of the link to it in a run's folder.
pub const VSOCK: &str = "vsock.sock";

/// The paths of the sockets of one run.
pub struct Sockets {
    folder: PathBuf,
    survivors: Survivors,
    shared_fabric: Option<PathBuf>,
    has_monitor: bool,
}

impl Sockets {
    /// Longest path that fits a socket address, without its end (unix(7), `sun_path`).
    pub const LONGEST: usize = 107;

    /// Returns the sockets of the folder `folder`.
    pub fn in_folder(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            survivors: Survivors::default(),
            shared_fabric: None,
            has_monitor: true,
        }
    }

    /// Marks the sockets for devices of a user's QEMU, whose monitor this process does not know.
    pub fn without_monitor(self) -> Self {
        Self {
            has_monitor: false,
            ..self
        }
    }

    /// Returns `true` if this process has a monitor of QEMU.
    pub(crate) fn has_monitor(&self) -> bool {
        self.has_monitor
    }

    /// With the socket of a fabric that serves several guests, if there is one.
    pub fn with_shared_fabric(self, shared_fabric: Option<PathBuf>) -> Self {
        Self {
            shared_fabric,
            ..self
        }
    }

    /// Returns `true` if the fabric serves other guests, too, and need not be started.
    pub fn has_shared_fabric(&self) -> bool {
        self.shared_fabric.is_some()
    }

    /// With the sockets of servers of another run.
    pub fn with_survivors(self, survivors: Survivors) -> Self {
        Self { survivors, ..self }
    }

    /// Servers of another run, which need not be started.
    pub fn survivors(&self) -> &Survivors {
        &self.survivors
    }

    /// Returns the folder of the sockets, except those of survivors and of a shared fabric.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the folder of the sockets of a server.
    fn folder_of(&self, name: &str) -> &Path {
        self.survivors.sockets_of(name).unwrap_or(&self.folder)
    }

    /// Returns the report's socket: the launcher listens, QEMU connects.
    pub fn report(&self) -> PathBuf {
        self.folder.join("report.sock")
    }

    /// Returns the socket of QEMU's monitor: QEMU listens, `peerbar inject` connects.
    pub fn monitor(&self) -> PathBuf {
        self.folder.join("monitor.sock")
    }

    /// Returns the socket of a monitor that only this process uses: QEMU listens.
    pub(crate) fn launcher_monitor(&self) -> PathBuf {
        self.folder.join("launcher.sock")
    }

    /// Returns the socket of the guest's trace events: the launcher listens, QEMU connects.
    pub fn trace(&self) -> PathBuf {
        self.folder.join("trace.sock")
    }

    /// Returns the socket of the switch `name`: it listens, the servers of devices below it
    /// connect.
    pub fn switch(&self, name: &str) -> PathBuf {
        let folder = self.folder_of(name);
        folder.join(format!("switch-{name}.sock"))
    }

    /// Returns the socket of the fabric: it listens, the servers of adapters connect.
    pub fn fabric(&self) -> PathBuf {
        let own = || self.folder.join("fabric.sock");
        self.shared_fabric.clone().unwrap_or_else(own)
    }

    /// Returns the control socket of the fabric: it listens, programs of the host connect.
    pub fn fabric_control(&self) -> PathBuf {
        self.folder.join("fabric.control")
    }

    /// Returns the socket of the server of `device`: it listens, QEMU connects.
    pub fn server(&self, device: DeviceSpec<'_>) -> PathBuf {
        let name = format!("{}-{}.sock", device.kind(), device.name());
        self.folder_of(device.name()).join(name)
    }

    /// Returns the control socket of `device`: its server listens, `peerbar inject` connects.
    pub fn control(&self, device: DeviceSpec<'_>) -> PathBuf {
        let name = format!("{}-{}.control", device.kind(), device.name());
        self.folder_of(device.name()).join(name)
    }

    /// Returns the socket of the server behind the proxy of `device`: the server listens, the proxy
    /// connects. Without a path of the user, it is alone in a folder that its server may write.
    pub fn foreign(&self, device: &Foreign) -> PathBuf {
        let own = || {
            let folder = self.folder_of(&device.name);
            let own = folder.join(format!("{FOREIGN}{}", device.name));
            own.join("socket")
        };
        device.socket.clone().unwrap_or_else(own)
    }

    /// Returns the socket of the vsock device: its server listens, QEMU connects.
    pub fn vsock_device(&self) -> PathBuf {
        self.folder.join("vhost-vsock.sock")
    }

    /// Returns the socket of the guest's vsock ports: the same server listens, programs of the host
    /// connect.
    pub fn vsock_programs(&self) -> PathBuf {
        self.folder.join(VSOCK)
    }

    /// Returns the image behind the namespace `nsid` of the disk `name`, which is gone with the
    /// run.
    pub fn scratch(&self, name: &str, nsid: usize) -> PathBuf {
        self.folder.join(format!("{name}-{nsid}.{SCRATCH}"))
    }

    /// Returns the file that the Persistent Memory Region of this controller is kept in: the
    /// user's, or one that is gone with the run.
    pub fn pmr(&self, nvme: &Nvme) -> PathBuf {
        let kept = nvme.pmr.as_ref().and_then(|pmr| pmr.file.clone());
        kept.unwrap_or_else(|| self.folder.join(format!("{}-pmr.{SCRATCH}", nvme.name)))
    }

    /// Checks that QEMU and the servers can have sockets in `folder`: they take the paths of most
    /// as text.
    ///
    /// # Errors
    /// Its path is not UTF-8.
    pub(crate) fn check_folder(folder: &Path) -> anyhow::Result<()> {
        ensure!(
            folder.to_str().is_some(),
            "{} is not UTF-8, and sockets cannot be in such a folder; choose another one (TMPDIR, or --sockets)",
            folder.display()
        );
        Ok(())
    }

    /// Checks that QEMU and the servers take the paths of all sockets of `topology`, and that these
    /// fit an address.
    ///
    /// # Errors
    /// The first that does not, and the way out.
    pub fn check(&self, topology: &Topology<'_>) -> anyhow::Result<()> {
        Self::check_folder(&self.folder)?;
        let devices = || topology.devices();
        let servers = devices().map(|device| self.server(device));
        let servers = servers.chain(devices().map(|device| self.control(device)));
        let switches = topology.switches().map(|switch| self.switch(switch));
        let foreign = devices().filter_map(|device| match device {
            DeviceSpec::Foreign(device) => Some(self.foreign(device)),
            _ => None,
        });
        let servers = servers.chain(foreign);
        let mut paths = servers.chain(switches).chain([
            self.report(),
            self.monitor(),
            self.launcher_monitor(),
            self.vsock_device(),
            self.vsock_programs(),
            self.fabric(),
            self.fabric_control(),
        ]);
        if let Some(path) = paths.find(|path| path.as_os_str().len() > Self::LONGEST) {
            bail!(
                "{} is longer than the {} bytes of a socket address; choose a shorter folder (TMPDIR, or --sockets)",
                path.display(),
                Self::LONGEST
            );
        }
        Ok(())
    }
}

/// The arguments of QEMU's command line: words of the system's if one may have a path, else
/// strings.
#[derive(Default)]
pub(crate) struct QemuArguments<Word>(pub(crate) Vec<Word>);

impl<Word: From<&'static str>> QemuArguments<Word> {
    fn flag(&mut self, flag: &'static str) -> &mut Self {
        self.0.push(flag.into());
        self
    }

    pub(crate) fn option(&mut self, flag: &'static str, value: impl Into<Word>) {
        self.0.extend([flag.into(), value.into()]);
    }
}

/// Returns the identifier of the image behind the namespace of QEMU's own NVMe controller.
fn image_node(nvme: &Nvme) -> String {
    format!("image.{}", nvme.name)
}

/// Returns the image behind the namespace of QEMU's own NVMe controller.
fn image(nvme: &Nvme, sockets: &Sockets) -> String {
    let node = image_node(nvme);
    let image = |path: &Path| {
        let file = json!({"driver": "file", "filename": path.display().to_string()});
        json!({"driver": "raw", "node-name": node, "file": file})
    };
    let blockdev = match nvme.namespaces.first() {
        Some(Namespace::File { path, .. }) => image(path),
        Some(Namespace::Null(bytes)) => {
            json!({"driver": "null-co", "node-name": node, "size": bytes})
        }
        Some(Namespace::Ram(_) | Namespace::Image(_)) | None => {
            image(&sockets.scratch(&nvme.name, 1))
        }
    };
    blockdev.to_string()
}

fn qemu_nvme(nvme: &Nvme, bus: &str) -> String {
    let device = json!({
        "driver": "nvme",
        "id": nvme.name,
        "serial": nvme.name,
        "bus": bus,
        "drive": image_node(nvme),
        "cmb_size_mb": nvme.config.cmb.unwrap_or_default().0 >> 20,
    });
    device.to_string()
}

fn vfio_user(device: DeviceSpec<'_>, bus: &str, socket: &Path) -> String {
    let socket = socket.display().to_string();
    let mut properties = json!({
        "driver": "vfio-user-pci",
        "id": device.name(),
        "bus": bus,
        "socket": {"type": "unix", "path": socket},
        "x-msg-timeout": SERVER_TIMEOUT_MS,
    });
    let number = match device {
        DeviceSpec::Gpu(_, number) | DeviceSpec::Nic(_, number) => Some(number),
        DeviceSpec::Nvme(_) | DeviceSpec::Foreign(_) => None,
    };
    if let (Some(number), Some(properties)) = (number, properties.as_object_mut()) {
        // It has no serial number, so the guest identifies it by this.
        properties.insert("x-pci-sub-device-id".to_owned(), number.into());
    }
    properties.to_string()
}

/// Returns a value of QEMU's `key=value,…` form with a path, whose commas are written twice. The
/// path may have any bytes.
fn with_path(before: &str, path: &Path, after: &str) -> OsString {
    let mut value = before.as_bytes().to_vec();
    for byte in path.as_os_str().as_bytes() {
        value.extend(iter::repeat_n(*byte, if *byte == b',' { 2 } else { 1 }));
    }
    value.extend(after.as_bytes());
    OsString::from_vec(value)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;
    use crate::iommu::Iommu;
    use crate::scenario::{AcsPorts, AttachPoint, Scenario};
    use crate::size::Size;

    fn arguments(scenario: &Scenario, shared: &[SharedFolder<'_>]) -> String {
        words(scenario, shared).into_string().unwrap()
    }

    /// Returns the words of the command line, one a line.
    fn words(scenario: &Scenario, shared: &[SharedFolder<'_>]) -> OsString {
        let boot = Boot {
            accel: Accel::Tcg {
                threads: false,
                tsc_khz: None,
            },
            machine: &scenario.machine,
            append: "",
            gdb: None,
            firmware: scenario.machine.firmware,
            kernel: Path::new("/k"),
            initramfs: Path::new("/i"),
            qemu_arguments: &[],
            sandbox: true,
        };
        let sockets = Sockets::in_folder(Path::new("/s"));
        let words = super::arguments(&boot, &Topology::of(scenario), &sockets, shared);
        words.join(OsStr::new("\n"))
    }

    #[test]
    fn demo_renders_two_controllers_and_a_gpu() {
        let expected = r#"-nodefaults
-no-user-config
-no-reboot
-sandbox
on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny
-display
none
-M
q35,hpet=off,vmport=off,smm=off,sata=off,memory-backend=ram,kernel-irqchip=split
-accel
tcg,thread=single
-cpu
EPYC
-smp
2
-m
536870912B
-object
memory-backend-memfd,id=ram,size=536870912,share=on
-bios
qboot.rom
-chardev
stdio,id=console,signal=off
-serial
chardev:console
-kernel
/k
-initrd
/i
-append
console=ttyS0 quiet loglevel=5 panic=-1 oops=panic nokaslr mitigations=off tsc=reliable no_timer_check nowatchdog audit=0 apparmor=0 cryptomgr.notests random.trust_cpu=on iomem=relaxed rcupdate.rcu_expedited=1 intel_iommu=on iommu=pt vfio_iommu_type1.allow_unsafe_interrupts=1 iommufd.allow_unsafe_interrupts=1
-device
intel-iommu,caching-mode=on,intremap=off
-chardev
socket,id=report,path=/s/report.sock
-qmp
unix:/s/monitor.sock,server=on,wait=off
-qmp
unix:/s/launcher.sock,server=on,wait=off
-device
virtio-serial-pci
-device
virtserialport,chardev=report,name=org.peerbar.report
-device
pcie-root-port,id=root.switch0,bus=pcie.0,chassis=1,slot=1
-device
x3130-upstream,id=switch0,bus=root.switch0
-device
xio3130-downstream,id=switch0.disk0,bus=switch0,chassis=2,slot=2
-device
{"bus":"switch0.disk0","driver":"vfio-user-pci","id":"disk0","socket":{"path":"/s/nvme-disk0.sock","type":"unix"},"x-msg-timeout":600000}
-device
xio3130-downstream,id=switch0.disk1,bus=switch0,chassis=3,slot=3
-device
{"bus":"switch0.disk1","driver":"vfio-user-pci","id":"disk1","socket":{"path":"/s/nvme-disk1.sock","type":"unix"},"x-msg-timeout":600000}
-device
xio3130-downstream,id=switch0.gpu0,bus=switch0,chassis=4,slot=4
-device
{"bus":"switch0.gpu0","driver":"vfio-user-pci","id":"gpu0","socket":{"path":"/s/gpu-gpu0.sock","type":"unix"},"x-msg-timeout":600000,"x-pci-sub-device-id":1}"#;
        assert_eq!(arguments(&Scenario::demo().unwrap(), &[]), expected);
    }

    #[test]
    fn controller_outside_switch_gets_root_port() {
        let mut scenario = Scenario::demo().unwrap();
        scenario.machine.iommu = Iommu::None;
        scenario.switches.clear();
        scenario.nvmes.truncate(1);
        scenario.gpus.clear();
        scenario.nvmes[0].attach = AttachPoint::Root;
        scenario.machine.kernel_parameters = "iommu=pt".to_owned();
        let text = arguments(
            &scenario,
            &[SharedFolder {
                tag: "tools",
                folder: Path::new("/a,b"),
            }],
        );
        let tail = r#"-fsdev
local,id=tools,path=/a,,b,security_model=none,readonly=on
-device
virtio-9p-pci,fsdev=tools,mount_tag=tools
-device
pcie-root-port,id=root.disk0,bus=pcie.0,chassis=1,slot=1
-device
{"bus":"root.disk0","driver":"vfio-user-pci","id":"disk0","socket":{"path":"/s/nvme-disk0.sock","type":"unix"},"x-msg-timeout":600000}"#;
        assert!(text.ends_with(tail), "{text}");
        assert!(
            text.contains("rcupdate.rcu_expedited=1 iommu=pt\n"),
            "{text}"
        );
    }

    #[test]
    fn devices_below_further_host_bridge_use_its_bus() {
        let mut scenario = Scenario::demo().unwrap();
        scenario.host_bridges = vec!["b0".to_owned()];
        scenario.switches[0].attach = AttachPoint::HostBridge("b0".to_owned());
        scenario.nvmes[1].attach = AttachPoint::HostBridge("b0".to_owned());
        let text = arguments(&scenario, &[]);
        let bridge = "-device\npxb-pcie,id=b0,bus=pcie.0,bus_nr=128\n\
            -device\npcie-root-port,id=root.switch0,bus=b0,chassis=1,slot=1\n\
            -device\nx3130-upstream,id=switch0,bus=root.switch0\n";
        assert!(text.contains(bridge), "{text}");
        let disk = "pcie-root-port,id=root.disk1,bus=b0,chassis=3,slot=3\n-device\n{\"bus\":\"root.disk1\"";
        assert!(text.contains(disk), "{text}");
    }

    #[test]
    fn switch_ports_with_acs_are_root_ports() {
        let mut scenario = Scenario::demo().unwrap();
        scenario.switches[0].acs = AcsPorts::All(true);
        let text = arguments(&scenario, &[]);
        let port = "\npcie-root-port,id=switch0.disk0,bus=switch0,chassis=2,slot=2\n";
        assert!(text.contains(port), "{text}");
    }

    #[test]
    fn large_bars_without_firmware_assignment_get_a_window() {
        let mut scenario = Scenario::demo().unwrap();
        scenario.gpus[0].config.aperture = Some(Size(16 << 30));
        let window = "-global\nq35-pcihost.pci-hole64-size=34493956096\n-device\npcie-root-port";
        let text = arguments(&scenario, &[]);
        assert!(text.contains(window), "{text}");
        scenario.machine.firmware = Firmware::Seabios;
        let text = arguments(&scenario, &[]);
        assert!(
            !text.contains("-global") && !text.contains("-bios"),
            "{text}"
        );
    }

    #[test]
    fn a_controller_of_qemu_s_own_has_an_image() {
        let mut scenario = Scenario::demo().unwrap();
        scenario.nvmes[0].model = Model::Qemu;
        let text = arguments(&scenario, &[]);
        let expected = r#"-blockdev
{"driver":"raw","file":{"driver":"file","filename":"/s/disk0-1.img"},"node-name":"image.disk0"}
-device
{"bus":"switch0.disk0","cmb_size_mb":64,"drive":"image.disk0","driver":"nvme","id":"disk0","serial":"disk0"}
"#;
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn iommu_precedes_devices_and_sets_kernel_parameters() {
        let mut scenario = Scenario::demo().unwrap();
        scenario.machine.kernel_parameters = "iomem=relaxed".to_owned();
        scenario.machine.iommu = Iommu::Intel;
        let text = arguments(&scenario, &[]);
        let machine = "memory-backend=ram,kernel-irqchip=split\n-accel";
        assert!(text.contains(machine), "{text}");
        let kernel = "rcu_expedited=1 intel_iommu=on iommu=nopt iomem=relaxed\n\
            -device\nintel-iommu,caching-mode=on,intremap=off\n-chardev";
        assert!(text.contains(kernel), "{text}");
        scenario.machine.iommu = Iommu::Virtio;
        let text = arguments(&scenario, &[]);
        assert!(text.contains("memory-backend=ram\n-accel"), "{text}");
        assert!(
            text.contains(
                "iommu=nopt deferred_probe_timeout=0 iomem=relaxed\n-device\nvirtio-iommu-pci\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn socket_paths_must_fit_an_address() {
        let scenario = Scenario::demo().unwrap();
        let longest =
            "/".to_owned() + &"x".repeat(Sockets::LONGEST - "//switch-switch0.sock".len());
        let topology = Topology::of(&scenario);
        let check = |folder: &str| Sockets::in_folder(Path::new(folder)).check(&topology);
        assert!(check(&longest).is_ok());
        let error = check(&(longest + "x")).unwrap_err().to_string();
        let expected = "/switch-switch0.sock is longer than the 107 bytes of a socket address; choose a shorter folder (TMPDIR, or --sockets)";
        assert!(error.ends_with(expected), "{error}");
    }

    #[test]
    fn shared_folders_may_have_any_bytes() {
        let mut scenario = Scenario::demo().unwrap();
        let folder = |bytes| Path::new(OsStr::from_bytes(bytes));
        scenario.access = Some(GuestAccess {
            folder: folder(b"/here,\xff").into(),
            permission: HostFolder::ReadOnly,
        });
        let files = SharedFolder {
            tag: "files",
            folder: folder(b"/runs\xfe"),
        };
        let words = words(&scenario, &[files]);
        for part in [
            &b"path=/here,,\xff,security_model"[..],
            b"path=/runs\xfe,security_model",
        ] {
            let mut found = words.as_bytes().windows(part.len());
            assert!(found.any(|window| window == part), "{words:?}");
        }
    }

    #[test]
    fn sockets_are_in_a_folder_that_is_utf8() {
        let folder = Path::new(OsStr::from_bytes(b"/t\xff"));
        let scenario = Scenario::demo().unwrap();
        let checked = Sockets::in_folder(folder).check(&Topology::of(&scenario));
        let error = checked.unwrap_err().to_string();
        assert!(error.starts_with("/t\u{fffd} is not UTF-8, "), "{error}");
    }
}
