//! The command lines of servers, rendered from a [`Topology`]. Pure: nothing is started here.

use std::net::Ipv6Addr;
use std::path::PathBuf;

use peerbar_dma::Latency;
use peerbar_flight::Level;
use peerbar_nvme::{Config, Source};
use peerbar_switch::LinkMode;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::pci_holes::pci_holes;
use crate::qemu::Sockets;
use crate::scenario::foreign::SOCKET;
use crate::scenario::{Count, DeviceSpec, Foreign, Namespace, Nic, Nvme, RdmaNetwork};
use crate::topology::Topology;

/// A server to be started.
pub struct ServerCommand {
    /// Kind of the served device, which is part of its log's name.
    pub kind: &'static str,
    /// Name of the device in the scenario.
    pub name: String,
    /// Its program.
    pub program: ServerProgram,
    /// Its arguments, without those of the flight recorder.
    pub arguments: Vec<String>,
    /// Amount that its flight recorder records, if it has one.
    pub recording: Option<Level>,
    /// The device with a server of another project, if it is that server or its proxy.
    pub foreign: Option<String>,
}

/// The program of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerProgram {
    /// One of peerbar's, by its name. It prints `ready` once it serves.
    Own(&'static str),
    /// One of another project.
    Foreign(ForeignProgram),
}

/// A program of another project that serves a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignProgram {
    /// The program's file, or its name if it is searched in PATH.
    pub file: PathBuf,
    /// The folder in which it is started.
    pub folder: PathBuf,
    /// Its socket.
    pub socket: PathBuf,
    /// The file that it makes or changes once it serves.
    pub ready: PathBuf,
    /// Files and folders that it may write, in addition to the folder of its socket.
    pub writable: Vec<PathBuf>,
}

/// Returns the servers of a topology: first the switches, the fabric, the vsock device and the
/// servers of other projects if there are such, then the devices, which must find those.
pub fn server_commands(
    topology: &Topology<'_>,
    recording: Level,
    sockets: &Sockets,
) -> [Vec<ServerCommand>; 2] {
    let switches = topology.switches().map(|switch| ServerCommand {
        kind: "switch",
        name: switch.to_owned(),
        program: ServerProgram::Own("peerbar-switch"),
        arguments: switch_arguments(switch, topology, sockets),
        recording: None,
        foreign: None,
    });
    let devices = topology.devices().filter(|device| device.is_ours());
    let devices = devices.map(|device| ServerCommand {
        kind: device.kind(),
        name: device.name().to_owned(),
        program: ServerProgram::Own(device.program()),
        arguments: device_arguments(device, topology, sockets),
        recording: Some(recording),
        foreign: match device {
            DeviceSpec::Foreign(device) => Some(device.name.clone()),
            _ => None,
        },
    });
    let vsock = topology.access.map(|_| vsock_command(sockets));
    let foreign = topology
        .devices()
        .filter_map(|device| foreign_command(device, sockets));
    let fabric = topology.fabric.filter(|_| !sockets.has_shared_fabric());
    let fabric = fabric.map(|fabric| fabric_command(fabric, sockets));
    [
        switches.chain(fabric).chain(vsock).chain(foreign).collect(),
        devices.collect(),
    ]
}

/// Returns the server of a fabric.
pub fn fabric_command(fabric: &RdmaNetwork, sockets: &Sockets) -> ServerCommand {
    let rules = fabric.impairments.iter();
    let rules = rules.map(|rule| ("--impair", rule.clone()));
    let seed = fabric.seed.map(|seed| ("--seed", seed.to_string()));
    let options = [
        ("--socket-path", sockets.fabric().display().to_string()),
        ("--control", sockets.fabric_control().display().to_string()),
    ];
    let options = options.into_iter().chain(seed).chain(rules);
    let words = options.flat_map(|(option, value)| [option.to_owned(), value]);
    ServerCommand {
        kind: "fabric",
        name: "fabric".to_owned(),
        program: ServerProgram::Own("peerbar-fabric"),
        arguments: words.collect(),
        recording: None,
        foreign: None,
    }
}

/// Returns the server behind the proxy of `device`, if a run starts that server.
fn foreign_command(device: DeviceSpec<'_>, sockets: &Sockets) -> Option<ServerCommand> {
    let DeviceSpec::Foreign(device) = device else {
        return None;
    };
    let command = device.command.as_ref()?;
    let socket = sockets.foreign(device);
    let (program, arguments) = command.words.split_first()?;
    let text = socket.display().to_string();
    let arguments = arguments.iter();
    Some(ServerCommand {
        kind: "foreign",
        name: foreign_server(&device.name),
        program: ServerProgram::Foreign(ForeignProgram {
            // A path is relative to the scenario, a name is searched in PATH.
            file: match program.contains('/') {
                true => command.folder.join(program),
                false => PathBuf::from(program),
            },
            folder: command.folder.clone(),
            ready: command.ready.clone().unwrap_or_else(|| socket.clone()),
            socket: socket.clone(),
            writable: command.writable.clone(),
        }),
        arguments: arguments.map(|word| word.replace(SOCKET, &text)).collect(),
        recording: None,
        foreign: Some(device.name.clone()),
    })
}

/// Returns the name of the server behind the proxy of the device `name`. A dot keeps it apart from
/// all names of a scenario.
pub(crate) fn foreign_server(name: &str) -> String {
    format!("{name}.server")
}

fn vsock_command(sockets: &Sockets) -> ServerCommand {
    let options = [
        ("--socket-path", sockets.vsock_device()),
        ("--uds-path", sockets.vsock_programs()),
    ];
    let words = options.into_iter();
    let words = words.flat_map(|(option, path)| [option.to_owned(), path.display().to_string()]);
    ServerCommand {
        kind: "vsock",
        name: "vsock".to_owned(),
        program: ServerProgram::Own("peerbar-vsock"),
        arguments: words.collect(),
        recording: None,
        foreign: None,
    }
}

fn switch_arguments(switch: &str, topology: &Topology<'_>, sockets: &Sockets) -> Vec<String> {
    let socket = sockets.switch(switch).display().to_string();
    let mut words = vec!["--socket-path".to_owned(), socket];
    let below = topology.below(switch);
    for device in below.filter(|device| topology.link(*device) != LinkMode::Route) {
        let link = format!("{}={}", device.name(), topology.link(device));
        words.extend(["--link".to_owned(), link]);
    }
    for hole in pci_holes(topology.memory) {
        words.extend(["--pci-hole".to_owned(), hole.to_string()]);
    }
    if sockets.has_monitor() {
        words.push("--bridge-windows".to_owned());
    }
    words
}

fn device_arguments(
    device: DeviceSpec<'_>,
    topology: &Topology<'_>,
    sockets: &Sockets,
) -> Vec<String> {
    let socket = sockets.server(device);
    let control = sockets.control(device);
    let mut words = vec!["--socket-path".to_owned(), socket.display().to_string()];
    words.extend(["--control".to_owned(), control.display().to_string()]);
    if let Some(switch) = device.attach().switch() {
        let switch = sockets.switch(switch).display().to_string();
        words.extend(["--switch".to_owned(), switch]);
        words.extend(["--port-name".to_owned(), device.name().to_owned()]);
    }
    let speed = device.link_speed();
    if speed.latency != Latency::default() {
        words.extend(["--link-latency".to_owned(), speed.latency.to_string()]);
    }
    if let Some(bandwidth) = speed.bandwidth {
        words.extend(["--link-bandwidth".to_owned(), bandwidth.to_string()]);
    }
    if device.ats() {
        words.push("--ats".to_owned());
    }
    for rule in device.faults() {
        words.extend(["--fault".to_owned(), rule.to_string()]);
    }
    words.extend(match device {
        DeviceSpec::Nvme(nvme) => nvme_arguments(nvme, sockets),
        DeviceSpec::Gpu(gpu, _) => options(&gpu.config),
        DeviceSpec::Nic(nic, _) => nic_arguments(nic, topology.fabric.map(|_| sockets)),
        DeviceSpec::Foreign(device) => foreign_arguments(device, sockets),
    });
    words
}

/// The GID is a link-local address, as a real adapter's is.
fn nic_arguments(nic: &Nic, sockets: Option<&Sockets>) -> Vec<String> {
    let link_local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0);
    let gid = Ipv6Addr::from(link_local.to_bits() | u128::from(nic.gid));
    let mut words = vec!["--gid".to_owned(), gid.to_string()];
    if let Some(seed) = nic.seed {
        words.extend(["--seed".to_owned(), seed.to_string()]);
    }
    if let Some(sockets) = sockets {
        let socket = sockets.fabric().display().to_string();
        words.extend(["--fabric".to_owned(), socket]);
        words.extend(["--fabric-name".to_owned(), nic.name.clone()]);
    }
    words
}

fn foreign_arguments(device: &Foreign, sockets: &Sockets) -> Vec<String> {
    let socket = sockets.foreign(device).display().to_string();
    let mut words = vec!["--server".to_owned(), socket];
    if device.count == Count::All {
        words.push("--count-all".to_owned());
    }
    if device.read_write {
        words.push("--read-write".to_owned());
    }
    words
}

fn nvme_arguments(nvme: &Nvme, sockets: &Sockets) -> Vec<String> {
    let namespaces = (1..).zip(&nvme.namespaces);
    let sources = namespaces.map(|(nsid, namespace)| match namespace {
        Namespace::Ram(bytes) => Source::Ram(*bytes),
        Namespace::Null(bytes) => Source::Null(*bytes),
        Namespace::Image(_) => Source::File(sockets.scratch(&nvme.name, nsid)),
        Namespace::File { path, .. } => Source::File(path.clone()),
    });
    options(&Config {
        pmr: nvme.pmr.as_ref().map(|_| sockets.pmr(nvme)),
        namespaces: sources.collect(),
        ..nvme.config.clone()
    })
}

/// The options of a server for the settings that differ from their defaults.
fn options<C: Default + Serialize>(config: &C) -> Vec<String> {
    let settings = |config: &C| match serde_json::to_value(config) {
        Ok(Value::Object(settings)) => settings,
        other => {
            log::error!("settings without keys: {other:?}");
            Map::new()
        }
    };
    let defaults = settings(&C::default());
    let mut words = Vec::new();
    let mut add = |option: &str, value: &Value| match value {
        Value::Bool(_) | Value::Null => words.push(option.to_owned()),
        Value::String(text) => words.extend([option.to_owned(), text.clone()]),
        other => words.extend([option.to_owned(), other.to_string()]),
    };
    for (key, value) in &settings(config) {
        let option = format!("--{key}");
        match value {
            value if defaults.get(key) == Some(value) => {}
            Value::Array(values) => values.iter().for_each(|value| add(&option, value)),
            value => add(&option, value),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::scenario::{AttachPoint, Pmr, Scenario};
    use peerbar_nvme::PollPolicy;

    /// Returns the command lines of a scenario's servers, without their programs.
    fn lines(scenario: &Scenario) -> Vec<String> {
        let topology = Topology::of(scenario);
        let sockets = Sockets::in_folder(Path::new("/s"));
        let commands = server_commands(&topology, Level::Maps, &sockets);
        let commands = commands.into_iter().flatten();
        commands
            .map(|command| command.arguments.join(" "))
            .collect()
    }

    #[test]
    fn nvme_server_gets_all_settings_of_the_scenario() {
        let mut scenario = Scenario::demo().unwrap();
        scenario.switches.clear();
        scenario.nvmes.truncate(1);
        scenario.gpus.clear();
        let nvme = &mut scenario.nvmes[0];
        nvme.attach = AttachPoint::Root;
        nvme.pmr = Some(Pmr {
            bytes: 2 << 20,
            file: None,
        });
        nvme.config.cmb_legacy = true;
        nvme.config.mdts = 5;
        nvme.config.spare_queues = 3;
        nvme.config.workers = 2;
        nvme.config.poll = PollPolicy::Always;
        nvme.config.block_bytes = 4096;
        nvme.namespaces.push(Namespace::Null(1 << 30));
        nvme.ats = true;
        nvme.link_speed.latency = "2us".parse().unwrap();
        nvme.link_speed.bandwidth = Some("4GiB/s".parse().unwrap());
        nvme.config.seeded_faults = vec!["wraps:9".parse().unwrap()];
        nvme.faults = vec!["drop completion nth=2".parse().unwrap()];
        nvme.namespaces.push(Namespace::File {
            path: "/d.img".into(),
            create: Some(1),
        });
        assert_eq!(
            lines(&scenario),
            [
                "--socket-path /s/nvme-disk0.sock --control /s/nvme-disk0.control --link-latency 2us --link-bandwidth 4GiB/s --ats --fault drop completion nth=2 \
                 --block-size 4096 --cmb 64M --cmb-legacy --cmb-queues --mdts 5 --namespace ram=320M --namespace null=1G --namespace file=/d.img \
                 --pmr /s/disk0-pmr.img --poll always --seed-fault wraps:9 --serial disk0 --spare-queues 3 --workers 2"
            ]
        );
    }

    #[test]
    fn switch_server_starts_first_with_its_links() {
        let mut scenario = Scenario::demo().unwrap();
        scenario.nvmes[1].link = LinkMode::UnsupportedRequest;
        let lines = lines(&scenario);
        assert_eq!(
            lines[0],
            "--socket-path /s/switch-switch0.sock --link disk1=unsupported-request \
             --pci-hole 0x20000000-0xfebfffff --pci-hole 0x100000000-0xffffffffffffffff --bridge-windows"
        );
        let below = "--socket-path /s/nvme-disk1.sock --control /s/nvme-disk1.control --switch /s/switch-switch0.sock --port-name disk1 ";
        assert!(lines[2].starts_with(below), "{}", lines[2]);
    }

    #[test]
    fn adapters_find_the_fabric_that_starts_before_them() {
        let text = "name = \"x\"\ntools = true\n[fabric]\nimpair = [\"a->b loss=1%\"]\nseed = 7\n[[nic]]\nname = \"a\"\n\
             [[nic]]\nname = \"b\"\nseed = 8\n[[check]]\nkind = \"command\"\nrun = \"true\"\n";
        let scenario = Scenario::parse(Path::new("x.toml"), text.to_owned()).unwrap();
        assert_eq!(
            lines(&scenario),
            [
                "--socket-path /s/fabric.sock --control /s/fabric.control --seed 7 --impair a->b loss=1%",
                "--socket-path /s/nic-a.sock --control /s/nic-a.control --gid fe80::1 --fabric /s/fabric.sock --fabric-name a",
                "--socket-path /s/nic-b.sock --control /s/nic-b.control --gid fe80::2 --seed 8 --fabric /s/fabric.sock --fabric-name b",
            ]
        );
    }

    #[test]
    fn server_of_another_project_starts_before_its_proxy() {
        let text = "name = \"x\"\n[[switch]]\nname = \"s0\"\n[[device]]\nname = \"a\"\nbelow = \"s0\"\n\
             command = [\"bin/server\", \"-s\", \"{socket}\"]\ncount = \"all\"\nlink-latency = \"2us\"\n\
             [[device]]\nname = \"b\"\nsocket = \"/run/b\"\nread-write = true\n";
        let scenario = Scenario::parse_interactive(Path::new("/lab/x.toml"), text).unwrap();
        let lines = lines(&scenario);
        let expected = [
            "-s /s/foreign-a/socket",
            "--socket-path /s/device-a.sock --control /s/device-a.control --switch /s/switch-s0.sock --port-name a \
             --link-latency 2us --server /s/foreign-a/socket --count-all",
            "--socket-path /s/device-b.sock --control /s/device-b.control --server /run/b --read-write",
        ];
        assert_eq!(lines[1..], expected);
        let topology = Topology::of(&scenario);
        let sockets = Sockets::in_folder(Path::new("/s"));
        let [first, _] = server_commands(&topology, Level::Maps, &sockets);
        let program = ServerProgram::Foreign(ForeignProgram {
            file: "/lab/bin/server".into(),
            folder: "/lab".into(),
            socket: "/s/foreign-a/socket".into(),
            ready: "/s/foreign-a/socket".into(),
            writable: Vec::new(),
        });
        assert_eq!(
            (first[1].name.as_str(), &first[1].program),
            ("a.server", &program)
        );
    }

    #[test]
    fn gpu_server_gets_the_settings_that_differ_from_its_defaults() {
        let config = peerbar_gpu::Config {
            vram: "4G".parse().unwrap(),
            mode: peerbar_gpu::Mode::Window,
            job_timeout: Duration::from_secs(120),
            ..peerbar_gpu::Config::default()
        };
        let words = options(&config).join(" ");
        assert_eq!(words, "--job-timeout 2m --mode window --vram 4G");
    }
}
