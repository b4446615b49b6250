//! The servers: one process for each switch and for each device.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use peerbar_dma::Latency;
use peerbar_flight::Level;
use peerbar_switch::LinkMode;

use crate::artifacts::beside;
use crate::child::{Child, last_words};
use crate::exit::Failure;
use crate::folder::Folder;
use crate::inbox::{Event, Inbox, Voice};
use crate::leash;
use crate::qemu::Sockets;
use crate::scenario::{Device, Gpu, Model, Namespace, Nvme, Scenario};
use crate::size::Size;

/// How long a server may take to bind its socket and fill its memory.
const START: Duration = Duration::from_secs(20);
/// How long a server may take to write back and go.
const END: Duration = Duration::from_secs(5);

/// A running server.
pub struct Server {
    /// Its switch's or device's name in the scenario.
    pub name: String,
    /// Its log file.
    pub log: PathBuf,
    /// The process.
    pub child: Child,
    /// Whether a check has asked for its death, which is no failure then.
    pub lost: bool,
}

/// A server to be started.
pub struct Order {
    /// What it serves, as its log is named after.
    kind: &'static str,
    /// Name of that in the scenario.
    name: String,
    /// Its program, which lies beside this one.
    pub program: &'static str,
    /// Words of its command line, its program aside.
    pub arguments: Vec<String>,
    /// How much its flight recorder records, if it has one.
    recording: Option<Level>,
}

/// The servers of a scenario: first the switches, then the devices, which must find them.
pub fn orders(scenario: &Scenario, sockets: &Sockets) -> [Vec<Order>; 2] {
    let switches = scenario.switches.iter().map(|switch| Order {
        kind: "switch",
        name: switch.name.clone(),
        program: "peerbar-switch",
        arguments: switch_arguments(&switch.name, scenario, &sockets.switch(&switch.name)),
        recording: None,
    });
    let devices = scenario.devices().filter(|device| device.is_ours());
    let devices = devices.map(|device| Order {
        kind: device.kind(),
        name: device.name().to_owned(),
        program: device.program(),
        arguments: device_arguments(device, sockets),
        recording: Some(scenario.recording),
    });
    [switches.collect(), devices.collect()]
}

fn switch_arguments(name: &str, scenario: &Scenario, socket: &Path) -> Vec<String> {
    let mut words = vec!["--socket-path".to_owned(), socket.display().to_string()];
    for device in scenario.devices() {
        if device.place().switch() == Some(name) && device.link() != LinkMode::Route {
            let link = format!("{}={}", device.name(), device.link());
            words.extend(["--link".to_owned(), link]);
        }
    }
    words
}

fn device_arguments(device: Device<'_>, sockets: &Sockets) -> Vec<String> {
    let socket = sockets.server(device);
    let mut words = vec!["--socket-path".to_owned(), socket.display().to_string()];
    if let Some(switch) = device.place().switch() {
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
    words.extend(match device {
        Device::Nvme(nvme) => nvme_arguments(nvme),
        Device::Gpu(gpu, _) => gpu_arguments(gpu),
    });
    words
}

fn gpu_arguments(gpu: &Gpu) -> Vec<String> {
    let mode = if gpu.window { "window" } else { "static" };
    let options = [
        ("--vram", Size(gpu.vram).to_string()),
        ("--aperture", Size(gpu.aperture).to_string()),
        ("--mode", mode.to_owned()),
    ];
    let words = options.into_iter();
    words
        .flat_map(|(option, value)| [option.to_owned(), value])
        .collect()
}

fn nvme_arguments(nvme: &Nvme) -> Vec<String> {
    let mut words = vec!["--serial".to_owned(), nvme.name.clone()];
    if let Some(bytes) = nvme.cmb {
        words.extend(["--cmb".to_owned(), Size(bytes).to_string()]);
    }
    if nvme.cmb_queues {
        words.push("--cmb-queues".to_owned());
    }
    words.extend(["--block-size".to_owned(), nvme.block_size.to_string()]);
    if let Some(power) = nvme.mdts {
        words.extend(["--mdts".to_owned(), power.to_string()]);
    }
    if let Some(workers) = nvme.workers {
        words.extend(["--workers".to_owned(), workers.to_string()]);
    }
    if let Some(poll) = nvme.poll {
        words.extend(["--poll".to_owned(), poll.to_string()]);
    }
    for fault in &nvme.seeded_faults {
        words.extend(["--seed-fault".to_owned(), fault.to_string()]);
    }
    for namespace in &nvme.namespaces {
        let value = match namespace {
            Namespace::Ram(bytes) => format!("ram={}", Size(*bytes)),
            Namespace::Null(bytes) => format!("null={}", Size(*bytes)),
            Namespace::File { path, .. } => format!("file={}", path.display()),
        };
        words.extend(["--namespace".to_owned(), value]);
    }
    words
}

/// Starts the servers of `scenario` and returns once all of them listen.
pub fn start(
    scenario: &Scenario,
    sockets: &Sockets,
    folder: &Folder,
    inbox: &mut Inbox<'_>,
) -> Result<Vec<Server>, Failure> {
    for nvme in &scenario.nvmes {
        create_images(nvme)?;
        if nvme.model == Model::Qemu {
            create_scratch(nvme, &sockets.scratch(&nvme.name))?;
        }
    }
    let mut servers = Vec::new();
    for orders in orders(scenario, sockets) {
        let first = servers.len();
        for order in orders {
            let mut server = spawn(&order, folder)?;
            let stdout = server
                .child
                .take_stdout()
                .context("a server without standard output")?;
            inbox.add_bytes(Voice::Server(servers.len()), stdout);
            servers.push(server);
        }
        wait_until_ready(inbox, &mut servers, first)?;
    }
    Ok(servers)
}

/// Asks each server to go, and waits until it has, the last first, so that a switch outlives what is below it. A server that
/// does not end well may have lost data, and one that has ended unasked has left its guest; what there is to say about the
/// first such is returned.
pub fn stop(servers: &mut [Server]) -> anyhow::Result<Option<String>> {
    let mut complaint = None;
    for server in servers.iter_mut().rev() {
        let unasked = server.child.ended()?.is_some();
        let status = server.child.end(END)?;
        if (unasked || !status.success()) && !server.lost {
            complaint.get_or_insert_with(|| epitaph(server, status));
        }
    }
    Ok(complaint)
}

/// What to tell about a server that ended with `status`.
pub fn epitaph(server: &Server, status: ExitStatus) -> String {
    let words = last_words(&server.log);
    format!("server {} ended ({status}): {words}", server.name)
}

/// Where in a run's `folder` the device of that name leaves its flight record.
pub fn flight_record(folder: &Path, device: &str) -> PathBuf {
    folder.join(format!("{device}.flight"))
}

fn level_word(level: Level) -> &'static str {
    match level {
        Level::Maps => "maps",
        Level::All => "all",
    }
}

fn spawn(order: &Order, folder: &Folder) -> Result<Server, Failure> {
    let mut command = Command::new(beside(order.program)?);
    command.args(&order.arguments);
    if let Some(recording) = order.recording {
        let file = flight_record(folder.path(), &order.name);
        command.arg("--flight").arg(file);
        command.args(["--record", level_word(recording)]);
    }
    let name = format!("{}-{}.log", order.kind, order.name);
    let stderr = folder.file(&name)?;
    let mut held = leash::held(&command);
    held.stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(stderr);
    let child = Child::spawn(held)?;
    Ok(Server {
        name: order.name.clone(),
        log: folder.path().join(name),
        child,
        lost: false,
    })
}

/// A server says `ready` on its standard output when its socket is bound, and closes it when it fails. Waits for those
/// from number `first` on.
fn wait_until_ready(
    inbox: &mut Inbox<'_>,
    servers: &mut [Server],
    first: usize,
) -> Result<(), Failure> {
    let deadline = Instant::now() + START;
    let mut said: Vec<Vec<u8>> = vec![Vec::new(); servers.len()];
    let silent = |bytes: &Vec<u8>| !bytes.starts_with(b"ready\n");
    while said.iter().skip(first).any(silent) {
        match inbox.next(deadline)? {
            Some(Event::Data(Voice::Server(index), bytes)) => {
                let said = said.get_mut(index).context("words of no server")?;
                said.extend(bytes);
                said.truncate(16);
            }
            Some(Event::Closed(Voice::Server(index))) => {
                let server = servers.get_mut(index).context("an end of no server")?;
                return Err(failed_to_start(server));
            }
            Some(Event::Signal(signal)) => return Err(Failure::Interrupted(signal)),
            Some(_) => {}
            None => {
                return Err(
                    anyhow!("the servers are not ready after {} s", START.as_secs()).into(),
                );
            }
        }
    }
    Ok(())
}

/// Passes on what the server said and how it meant it: 2 is the user's doing, anything else the machine's.
fn failed_to_start(server: &mut Server) -> Failure {
    let status = match server.child.end(END) {
        Ok(status) => status,
        Err(error) => return error.into(),
    };
    let words = anyhow!(epitaph(server, status));
    match status.code() {
        Some(2) => Failure::Usage(words),
        _ => Failure::Environment(words),
    }
}

/// Creates the images that the scenario gives a size and that are not there yet, sparse.
fn create_images(nvme: &Nvme) -> anyhow::Result<()> {
    for namespace in &nvme.namespaces {
        let Namespace::File {
            path,
            create: Some(bytes),
        } = namespace
        else {
            continue;
        };
        match OpenOptions::new().write(true).create_new(true).open(path) {
            Ok(file) => file
                .set_len(*bytes)
                .inspect_err(|_| drop(fs::remove_file(path)))
                .with_context(|| format!("cannot create {} of {} bytes", path.display(), bytes))?,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(anyhow!(error).context(format!("cannot create {}", path.display())));
            }
        }
    }
    Ok(())
}

/// Creates what QEMU keeps a namespace in that is gone with the run.
fn create_scratch(nvme: &Nvme, path: &Path) -> anyhow::Result<()> {
    let Some(Namespace::Ram(bytes)) = nvme.namespaces.first() else {
        return Ok(());
    };
    let sparse = fs::File::create_new(path).and_then(|file| file.set_len(*bytes));
    sparse.with_context(|| format!("cannot create {} of {bytes} bytes", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Place;
    use peerbar_nvme::Poll;

    /// The command lines of a scenario's servers, without their programs.
    fn lines(scenario: &Scenario) -> Vec<String> {
        let orders = orders(scenario, &Sockets::in_folder(Path::new("/s")));
        let lines = orders.into_iter().flatten();
        lines.map(|order| order.arguments.join(" ")).collect()
    }

    #[test]
    fn a_server_is_told_all_that_the_scenario_says() {
        let mut scenario = Scenario::demo().unwrap();
        scenario.switches.clear();
        scenario.nvmes.truncate(1);
        scenario.gpus.clear();
        let nvme = &mut scenario.nvmes[0];
        nvme.place = Place::Root;
        nvme.mdts = Some(5);
        nvme.workers = Some(2);
        nvme.poll = Some(Poll::Always);
        nvme.namespaces.push(Namespace::Null(1 << 30));
        nvme.ats = true;
        nvme.link_speed.latency = "2us".parse().unwrap();
        nvme.link_speed.bandwidth = Some("4GiB/s".parse().unwrap());
        nvme.seeded_faults = vec!["wraps:9".parse().unwrap()];
        nvme.namespaces.push(Namespace::File {
            path: "/d.img".into(),
            create: Some(1),
        });
        assert_eq!(
            lines(&scenario),
            [
                "--socket-path /s/nvme-disk0.sock --link-latency 2us --link-bandwidth 4GiB/s --ats --serial disk0 --cmb 64M --cmb-queues --block-size 512 --mdts 5 --workers 2 --poll always --seed-fault wraps:9 \
              --namespace ram=320M --namespace null=1G --namespace file=/d.img"
            ]
        );
    }

    #[test]
    fn a_switch_comes_before_what_is_below_it_and_knows_the_links() {
        let mut scenario = Scenario::demo().unwrap();
        scenario.nvmes[1].link = LinkMode::UnsupportedRequest;
        let lines = lines(&scenario);
        assert_eq!(
            lines[0],
            "--socket-path /s/switch-switch0.sock --link disk1=unsupported-request"
        );
        let below =
            "--socket-path /s/nvme-disk1.sock --switch /s/switch-switch0.sock --port-name disk1 ";
        assert!(lines[2].starts_with(below), "{}", lines[2]);
    }

    #[test]
    fn a_gpu_s_server_is_told_its_sizes_and_its_mode() {
        let gpu = Gpu {
            name: "gpu0".to_owned(),
            place: Place::Root,
            link: LinkMode::Route,
            link_speed: peerbar_dma::LinkSpeed::default(),
            ats: false,
            vram: 4 << 30,
            aperture: 256 << 20,
            window: true,
        };
        let words = gpu_arguments(&gpu).join(" ");
        assert_eq!(words, "--vram 4G --aperture 256M --mode window");
    }

    #[test]
    fn a_missing_image_is_created_and_an_image_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d.img");
        let mut nvme = Scenario::demo().unwrap().nvmes[0].clone();
        nvme.namespaces = vec![Namespace::File {
            path: path.clone(),
            create: Some(1 << 20),
        }];
        create_images(&nvme).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 1 << 20);
        std::fs::write(&path, "data").unwrap();
        create_images(&nvme).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"data");
    }

    #[test]
    fn an_image_that_cannot_be_that_large_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d.img");
        let mut nvme = Scenario::demo().unwrap().nvmes[0].clone();
        nvme.namespaces = vec![Namespace::File {
            path: path.clone(),
            create: Some(u64::MAX),
        }];
        let error = create_images(&nvme).unwrap_err();
        assert!(error.to_string().starts_with("cannot create "), "{error:#}");
        assert!(!path.exists());
    }
}
