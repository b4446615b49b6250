//! The servers' processes: one for each switch and one for each device.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use peerbar_flight::Level;
use signal_hook::consts::{SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};

use crate::bridge_watch::SwitchSocket;
use crate::child::{Child, Killer, last_line};
use crate::counters::counter_file;
use crate::events::{Event, EventSource, Events};
use crate::exit::Failure;
use crate::folder::{Folder, SocketLink, flight_record};
use crate::foreign_socket::{self, ReadyFile};
use crate::injecting::{FABRIC, link_name};
use crate::parent_death;
use crate::programs::{check_foreign, program};
use crate::qemu::Sockets;
use crate::scenario::{DeviceSpec, Model, Namespace, Nvme};
use crate::server_arguments::{ForeignProgram, ServerCommand, ServerProgram, server_commands};
use crate::topology::Topology;

/// Longest time until a server has bound its socket and filled its memory.
const START: Duration = Duration::from_secs(20);
/// Time between two looks for a file that a program of another project makes: nothing reports it.
const LOOK: Duration = Duration::from_millis(20);
/// Longest time that a server may take to write back and end.
const END: Duration = Duration::from_secs(5);

/// A running server.
pub struct Server {
    /// Its switch's or device's name in the scenario.
    pub name: String,
    /// Its log file.
    pub log: PathBuf,
    /// The process.
    pub child: Child,
    /// Set if a check has asked for its death: then its end is no failure.
    pub lost: bool,
    /// The file that shows that it serves, if it is a program of another project.
    ready: Option<ReadyFile>,
    /// The device with a server of another project, if it is that server or its proxy.
    foreign: Option<String>,
    /// Its socket for questions about the windows of its ports, if it is a switch with such
    /// questions.
    pub(crate) bridges: Option<SwitchSocket>,
    /// The link to its control socket.
    _control: Option<SocketLink>,
}

impl Server {
    /// Creates a link to its control socket in the run's folder, for as long as it lives.
    pub(crate) fn link(&mut self, control: &Path, folder: &Folder) -> anyhow::Result<()> {
        self._control = Some(folder.link(&link_name(&self.name), control)?);
        Ok(())
    }

    /// Returns an object that kills it, for a check that asks for its death. From now on its end is
    /// no failure.
    pub(crate) fn expect_death(&mut self) -> anyhow::Result<Killer> {
        self.lost = true;
        self.child.killer()
    }
}

/// Starts the servers of `topology`, except those of [`Sockets::survivors`], and returns once all
/// of them listen.
pub fn start(
    topology: &Topology<'_>,
    recording: Level,
    sockets: &Sockets,
    folder: &Folder,
    events: &mut Events<'_>,
) -> Result<Vec<Server>, Failure> {
    let survivors = sockets.survivors();
    for device in topology.devices() {
        let DeviceSpec::Nvme(nvme) = device else {
            continue;
        };
        if !survivors.contains(&nvme.name) {
            create_images(nvme)?;
            create_scratch(nvme, sockets)?;
            create_pmr(nvme, sockets)?;
        }
    }
    let mut servers = Vec::new();
    for device in topology.devices() {
        if survivors.contains(device.name()) {
            survivors.show(device.name(), &sockets.control(device), folder.path())?;
        }
    }
    for commands in server_commands(topology, recording, sockets) {
        let first = servers.len();
        let needed = |command: &ServerCommand| {
            let device = command.foreign.as_ref();
            !survivors.contains(device.unwrap_or(&command.name))
        };
        for command in commands.into_iter().filter(needed) {
            let mut server = match command.kind == "switch" && sockets.has_monitor() {
                true => spawn_switch(&command, folder)?,
                false => spawn(&command, folder)?,
            };
            if let Some(stdout) = server.child.take_stdout() {
                events.add_bytes(EventSource::Server(servers.len()), stdout);
            }
            servers.push(server);
        }
        wait_until_ready(events, &mut servers, first)?;
    }
    for device in topology.devices() {
        let name = device.name();
        if let Some(server) = servers.iter_mut().find(|server| server.name == name) {
            server.link(&sockets.control(device), folder)?;
        }
    }
    if let Some(fabric) = servers.iter_mut().find(|server| server.name == FABRIC) {
        fabric.link(&sockets.fabric_control(), folder)?;
    }
    Ok(servers)
}

/// Lets the servers of other projects that belong to a device of `losable`, and their proxies, end by
/// themselves: nobody but their authors knows how they die.
pub(crate) fn let_foreign_die(servers: &mut [Server], losable: &BTreeSet<String>) {
    for server in servers {
        let device = server.foreign.as_ref();
        server.lost |= device.is_some_and(|device| losable.contains(device));
    }
}

/// Asks each server to end, the last first, so that a switch outlives the devices below it, and
/// waits for it. A server that fails may have lost data, and one that has ended unexpectedly has
/// left its guest. Returns the exit message of the first such server.
pub fn stop(servers: &mut [Server]) -> anyhow::Result<Option<String>> {
    // The server of another project may end with its proxy, which is asked first.
    let unasked = servers.iter_mut().map(|server| server.child.ended());
    let unasked: Vec<_> = unasked.collect::<anyhow::Result<_>>()?;
    let mut complaint = None;
    for (server, unasked) in servers.iter_mut().zip(unasked).rev() {
        let status = server.child.end(END)?;
        // A program of another project may end with any status when it is asked to, but not crash.
        let has_failed = match server.ready {
            None => !status.success(),
            Some(_) => status.signal().is_some_and(is_crash),
        };
        if (unasked.is_some() || has_failed) && !server.lost {
            complaint.get_or_insert_with(|| exit_message(server, status));
        }
    }
    Ok(complaint)
}

/// Returns `true` if this signal reports a fault of the program that it ended.
fn is_crash(signal: i32) -> bool {
    [SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP].contains(&signal)
}

/// Returns a server's status, and the last line of its log.
pub fn exit_message(server: &Server, status: ExitStatus) -> String {
    let last_line = last_line(&server.log);
    format!("server {} ended ({status}): {last_line}", server.name)
}

fn level_word(level: Level) -> &'static str {
    match level {
        Level::Maps => "maps",
        Level::All => "all",
    }
}

pub(crate) fn spawn(server: &ServerCommand, folder: &Folder) -> Result<Server, Failure> {
    spawn_with(server, folder, Stdio::null())
}

/// Starts a switch that asks for the windows of its ports.
fn spawn_switch(server: &ServerCommand, folder: &Folder) -> Result<Server, Failure> {
    let socket = SwitchSocket::new(&server.name);
    let (ours, theirs) = socket.context("cannot make a socket pair")?;
    let mut spawned = spawn_with(server, folder, OwnedFd::from(theirs).into())?;
    spawned.bridges = Some(ours);
    Ok(spawned)
}

fn spawn_with(server: &ServerCommand, folder: &Folder, input: Stdio) -> Result<Server, Failure> {
    let (mut command, foreign) = match &server.program {
        ServerProgram::Own(name) => (Command::new(program(name)?), None),
        ServerProgram::Foreign(foreign) => (Command::new(&foreign.file), Some(foreign)),
    };
    command.args(&server.arguments);
    if server.kind == "fabric" {
        command
            .arg("--record")
            .arg(folder.path().join("fabric.txt"));
    }
    if let Some(recording) = server.recording {
        let file = flight_record(folder.path(), &server.name);
        command.arg("--flight").arg(file);
        command.args(["--record", level_word(recording)]);
        let file = counter_file(folder.path(), &server.name);
        command.arg("--counters").arg(file);
    }
    let name = format!("{}-{}.log", server.kind, server.name);
    let stderr = folder.file(&name)?;
    let mut wrapped = match foreign {
        Some(foreign) => wrap_foreign(&command, foreign)?,
        None => parent_death::confined(&command)?,
    };
    let stdout = match foreign {
        Some(_) => stderr.try_clone().context("cannot share a log")?.into(),
        None => Stdio::piped(),
    };
    wrapped.stdin(input).stdout(stdout).stderr(stderr);
    let ready = foreign.map(|foreign| ReadyFile::before_start(&foreign.ready));
    let child = Child::spawn(wrapped)?;
    Ok(Server {
        name: server.name.clone(),
        log: folder.path().join(name),
        child,
        lost: false,
        ready,
        foreign: server.foreign.clone(),
        bridges: None,
        _control: None,
    })
}

/// Returns `command` confined as a program of another project, in its folder. The path of its socket
/// is free then, and the folder of the socket exists.
fn wrap_foreign(command: &Command, foreign: &ForeignProgram) -> Result<Command, Failure> {
    let program = check_foreign(&foreign.file);
    program.map_err(Failure::Usage)?;
    let own = foreign.socket.parent();
    let own = own.context("the path of a socket without a folder")?;
    let made = DirBuilder::new().recursive(true).mode(0o700).create(own);
    made.with_context(|| format!("cannot make the folder {}", own.display()))?;
    foreign_socket::free(&foreign.socket)?;
    let writable = foreign.writable.iter().map(PathBuf::as_path);
    let writable: Vec<&Path> = [own].into_iter().chain(writable).collect();
    let mut wrapped = parent_death::confined_to(&writable, command)?;
    wrapped.current_dir(&foreign.folder);
    Ok(wrapped)
}

/// A server prints `ready` when its socket is bound, and closes its standard output when it fails. A
/// program of another project makes a file. Waits for the servers from number `first` on.
pub(crate) fn wait_until_ready(
    events: &mut Events<'_>,
    servers: &mut [Server],
    first: usize,
) -> Result<(), Failure> {
    let deadline = Instant::now() + START;
    let mut output: Vec<Vec<u8>> = vec![Vec::new(); servers.len()];
    while let Some(unready) = unready(servers, &output, first)? {
        let until = match unready.ready {
            Some(_) => deadline.min(Instant::now() + LOOK),
            None => deadline,
        };
        let late = late(unready);
        match events.next(until)? {
            Some(Event::Data(EventSource::Server(index), bytes)) => {
                let output = output.get_mut(index).context("output of no server")?;
                output.extend(bytes);
                output.truncate(16);
            }
            Some(Event::Closed(EventSource::Server(index))) => {
                let server = servers.get_mut(index).context("an end of no server")?;
                return Err(failed_to_start(server));
            }
            Some(Event::Signal(signal)) => return Err(Failure::Interrupted(signal)),
            Some(_) => {}
            None if until < deadline => {}
            None => return Err(late.into()),
        }
    }
    Ok(())
}

/// Returns the first server from number `first` on that is not ready, by its `output` or its file.
///
/// # Errors
/// A program of another project that has ended.
fn unready<'a>(
    servers: &'a mut [Server],
    output: &[Vec<u8>],
    first: usize,
) -> Result<Option<&'a Server>, Failure> {
    for (server, output) in servers.iter_mut().zip(output).skip(first) {
        if server.ready.is_some() && server.child.ended()?.is_some() {
            return Err(failed_to_start(server));
        }
        let is_ready = match &server.ready {
            Some(file) => file.lack().is_none(),
            None => output.starts_with(b"ready\n"),
        };
        if is_ready {
            continue;
        }
        return Ok(Some(server));
    }
    Ok(None)
}

fn late(server: &Server) -> anyhow::Error {
    let seconds = START.as_secs();
    let lack = server.ready.as_ref().and_then(ReadyFile::lack);
    match lack {
        Some(lack) => anyhow!(
            "server {} is not ready after {seconds} s: {lack}; its log is {}",
            server.name,
            server.log.display()
        ),
        None => anyhow!("server {} is not ready after {seconds} s", server.name),
    }
}

/// Exit code 2 of a server is the user's mistake, any other the machine's.
fn failed_to_start(server: &mut Server) -> Failure {
    let status = match server.child.end(END) {
        Ok(status) => status,
        Err(error) => return error.into(),
    };
    let message = match server.ready {
        Some(_) => early_end(server, status),
        None => anyhow!(exit_message(server, status)),
    };
    match status.code() {
        Some(2) => Failure::Usage(message),
        _ => Failure::Environment(message),
    }
}

/// Returns the error of a program of another project that has ended before it served.
fn early_end(server: &Server, status: ExitStatus) -> anyhow::Error {
    let last_line = last_line(&server.log);
    anyhow!(
        "server {} ended before it was ready ({status}): {last_line}; its log is {}",
        server.name,
        server.log.display()
    )
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
        create_if_missing(path, *bytes)?;
    }
    Ok(())
}

/// Creates the file of a Persistent Memory Region that is not there yet, empty.
fn create_pmr(nvme: &Nvme, sockets: &Sockets) -> anyhow::Result<()> {
    match &nvme.pmr {
        Some(pmr) => create_if_missing(&sockets.pmr(nvme), pmr.bytes),
        None => Ok(()),
    }
}

fn create_if_missing(path: &Path, bytes: u64) -> anyhow::Result<()> {
    match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(file) => file
            .set_len(bytes)
            .inspect_err(|_| drop(fs::remove_file(path)))
            .with_context(|| format!("cannot create {} of {} bytes", path.display(), bytes)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(anyhow!(error).context(format!("cannot create {}", path.display()))),
    }
}

/// Creates the images that are gone with the run, sparse and empty. QEMU's own controller keeps its
/// RAM in one.
fn create_scratch(nvme: &Nvme, sockets: &Sockets) -> anyhow::Result<()> {
    for (nsid, namespace) in (1..).zip(&nvme.namespaces) {
        let bytes = match (namespace, nvme.model) {
            (Namespace::Image(bytes), _) | (Namespace::Ram(bytes), Model::Qemu) => *bytes,
            _ => continue,
        };
        let path = sockets.scratch(&nvme.name, nsid);
        let sparse = fs::File::create(&path).and_then(|file| file.set_len(bytes));
        sparse.with_context(|| format!("cannot create {} of {bytes} bytes", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::scenario::Scenario;

    /// Starts the server of another project.
    fn foreign(script: &str, stdin: impl Into<Stdio>, stdout: impl Into<Stdio>) -> Server {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(stdin).stdout(stdout);
        Server {
            name: "dev0.server".to_owned(),
            log: PathBuf::new(),
            child: Child::spawn(command).unwrap(),
            lost: false,
            ready: Some(ReadyFile::before_start(Path::new("/none"))),
            foreign: Some("dev0".to_owned()),
            bridges: None,
            _control: None,
        }
    }

    fn connected() -> [OwnedFd; 2] {
        let (one, other) = UnixStream::pair().unwrap();
        [one.into(), other.into()]
    }

    #[test]
    fn foreign_server_that_ends_with_its_proxy_is_no_failure() {
        let [from_proxy, to_server] = connected();
        let [from_server, to_slow] = connected();
        let server = foreign("exec cat", to_server, from_server);
        // It ends once the server has, so that the server is stopped last.
        let script = "trap '' TERM; echo up; exec cat";
        let mut slow = foreign(script, to_slow, Stdio::piped());
        let mut stdout = slow.child.take_stdout().unwrap();
        stdout.read_exact(&mut [0; 3]).unwrap();
        let proxy = foreign("exec sleep 60", Stdio::null(), from_proxy);
        assert_eq!(stop(&mut [server, slow, proxy]).unwrap(), None);
    }

    #[test]
    fn foreign_server_that_crashes_when_its_proxy_ends_is_a_failure() {
        let [from_proxy, to_server] = connected();
        let script = "trap '' TERM; echo up; cat; kill -SEGV $$";
        let mut server = foreign(script, to_server, Stdio::piped());
        let mut stdout = server.child.take_stdout().unwrap();
        stdout.read_exact(&mut [0; 3]).unwrap();
        let proxy = foreign("exec sleep 60", Stdio::null(), from_proxy);
        let complaint = stop(&mut [server, proxy]).unwrap().unwrap();
        assert!(complaint.contains("signal: 11"), "{complaint}");
    }

    #[test]
    fn foreign_server_that_has_ended_before_is_a_failure() {
        let mut server = foreign("exit 0", Stdio::null(), Stdio::null());
        server.child.end(END).unwrap();
        let complaint = stop(&mut [server]).unwrap().unwrap();
        assert!(
            complaint.starts_with("server dev0.server ended ("),
            "{complaint}"
        );
    }

    #[test]
    fn missing_image_is_created_and_other_kept() {
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
    fn too_large_image_leaves_no_file() {
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
