//! The device servers: one process for each device.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};

use crate::artifacts::beside;
use crate::child::{Child, last_words};
use crate::exit::Failure;
use crate::folder::Folder;
use crate::inbox::{Event, Inbox, Voice};
use crate::leash;
use crate::qemu::Sockets;
use crate::scenario::{Device, Gpu, Namespace, Nvme, Scenario};
use crate::size::Size;

/// How long a server may take to bind its socket and fill its memory.
const START: Duration = Duration::from_secs(20);
/// How long a server may take to write back and go.
const END: Duration = Duration::from_secs(5);

/// A running server.
pub(crate) struct Server {
    /// The device's name in the scenario.
    pub name: String,
    /// Its log file.
    pub log: PathBuf,
    /// The process.
    pub child: Child,
}

/// Words of a server's command line, its program aside.
pub(crate) fn arguments(device: Device<'_>, socket: &Path) -> Vec<String> {
    let mut words = vec!["--socket-path".to_owned(), socket.display().to_string()];
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
    for namespace in &nvme.namespaces {
        let value = match namespace {
            Namespace::Ram(bytes) => format!("ram={}", Size(*bytes)),
            Namespace::File { path, .. } => format!("file={}", path.display()),
        };
        words.extend(["--namespace".to_owned(), value]);
    }
    words
}

/// Starts the servers of `scenario` and returns once all of them listen.
pub(crate) fn start(
    scenario: &Scenario,
    sockets: &Sockets,
    folder: &Folder,
    inbox: &mut Inbox,
) -> Result<Vec<Server>, Failure> {
    let mut servers = Vec::new();
    for (index, device) in scenario.devices().enumerate() {
        if let Device::Nvme(nvme) = device {
            create_images(nvme)?;
        }
        let mut command = Command::new(beside(device.program())?);
        command.args(arguments(device, &sockets.server(device)));
        let mut server = spawn(&command, device, folder)?;
        let stdout = server
            .child
            .take_stdout()
            .context("a server without standard output")?;
        inbox.add_bytes(Voice::Server(index), stdout);
        servers.push(server);
    }
    wait_until_ready(inbox, &mut servers)?;
    Ok(servers)
}

/// Asks each server to go, and waits until it has. A server that does not end well may have lost data; what there is
/// to say about the first such is returned.
pub(crate) fn stop(servers: &mut [Server]) -> anyhow::Result<Option<String>> {
    let mut complaint = None;
    for server in servers {
        let status = server.child.end(END)?;
        if !status.success() {
            complaint.get_or_insert_with(|| epitaph(server, status));
        }
    }
    Ok(complaint)
}

/// What to tell about a server that ended with `status`.
pub(crate) fn epitaph(server: &Server, status: ExitStatus) -> String {
    let words = last_words(&server.log);
    format!("server {} ended ({status}): {words}", server.name)
}

fn spawn(command: &Command, device: Device<'_>, folder: &Folder) -> anyhow::Result<Server> {
    let name = format!("{}-{}.log", device.kind(), device.name());
    let stderr = folder.file(&name)?;
    let mut held = leash::held(command);
    held.stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(stderr);
    let child = Child::spawn(held)?;
    Ok(Server {
        name: device.name().to_owned(),
        log: folder.path().join(name),
        child,
    })
}

/// A server says `ready` on its standard output when its socket is bound, and closes it when it fails.
fn wait_until_ready(inbox: &mut Inbox, servers: &mut [Server]) -> Result<(), Failure> {
    let deadline = Instant::now() + START;
    let mut said: Vec<Vec<u8>> = vec![Vec::new(); servers.len()];
    while said.iter().any(|bytes| !bytes.starts_with(b"ready\n")) {
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
            Ok(file) => extend(&file, *bytes)
                .with_context(|| format!("cannot create {}", path.display()))?,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(anyhow!(error).context(format!("cannot create {}", path.display())));
            }
        }
    }
    Ok(())
}

fn extend(file: &File, bytes: u64) -> anyhow::Result<()> {
    Ok(file.set_len(bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_told_all_that_the_scenario_says() {
        let mut nvme = Scenario::demo().unwrap().nvmes[0].clone();
        nvme.mdts = Some(5);
        nvme.namespaces.push(Namespace::File {
            path: "/d.img".into(),
            create: Some(1),
        });
        let words = arguments(Device::Nvme(&nvme), Path::new("/s/disk0.sock")).join(" ");
        assert_eq!(
            words,
            "--socket-path /s/disk0.sock --serial disk0 --cmb 64M --cmb-queues --block-size 512 --mdts 5 \
             --namespace ram=64M --namespace file=/d.img"
        );
    }

    #[test]
    fn a_gpu_s_server_is_told_its_sizes_and_its_mode() {
        let gpu = Gpu {
            name: "gpu0".to_owned(),
            below: None,
            vram: 4 << 30,
            aperture: 256 << 20,
            window: true,
        };
        let words = arguments(Device::Gpu(&gpu, 1), Path::new("/s/gpu0.sock")).join(" ");
        assert_eq!(
            words,
            "--socket-path /s/gpu0.sock --vram 4G --aperture 256M --mode window"
        );
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
}
