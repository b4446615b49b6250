//! The start of a guest: its servers, QEMU, and the plan for the agent.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use peerbar_report::{Check, KnownWarnings, Plan};

use super::{CONSOLE_LOG, GUEST_TRACE, Guest, spawn};
use crate::artifacts::Artifacts;
use crate::bounded_file::BoundedFile;
use crate::bridge_watch::{BridgeWatch, SwitchSocket};
use crate::child::Child;
use crate::console::Console;
use crate::counters::CounterFiles;
use crate::events::{EventSource, Events};
use crate::exit::Failure;
use crate::folder::{Folder, QEMU_LOG};
use crate::guest_files;
use crate::kernel_needs;
use crate::kvm::GivenUp;
use crate::port_error::MONITOR;
use crate::program_builds;
use crate::qemu::{self, Boot, SharedFolder, Sockets, VSOCK};
use crate::report::{REPORT, Report};
use crate::scenario::Scenario;
use crate::servers::{self, Server};
use crate::signals::Signals;
use crate::topology::Topology;

/// The most bytes of trace events that are kept.
const LARGEST_TRACE: usize = 40 << 20;
/// The most bytes of QEMU's own output that are kept: a guest may have it complain without end.
const LARGEST_LOG: usize = 16 << 20;

impl<'a> Guest<'a> {
    /// Starts the servers of `scenario`, then QEMU, and prepares the plan for the agent.
    pub fn start(
        artifacts: &Artifacts,
        boot: &Boot<'_>,
        scenario: &Scenario,
        sockets: &Sockets,
        folder: &Folder,
        signals: &'a Signals,
    ) -> Result<Self, Failure> {
        if let Some(config) = &artifacts.kernel_config {
            kernel_needs::check_machine(config, &scenario.machine)?;
        }
        program_builds::build(&scenario.programs, scenario.live, folder, signals)?;
        let files = stage(artifacts, scenario, folder)?;
        let topology = Topology::of(scenario);
        let mut events = Events::new(signals);
        sockets.check(&topology)?;
        let report = listen(&sockets.report())?;
        let started = StartedServers::of(&topology, scenario, sockets, folder, &mut events)?;
        let shared = artifacts.shared(scenario, files.as_deref());
        let access = scenario.access.is_some();
        let link = access.then(|| folder.link(VSOCK, &sockets.vsock_programs()));
        let link = link.transpose()?;
        let monitor = folder.link(MONITOR, &sockets.monitor())?;
        let mut command = artifacts.qemu.command();
        command.args(qemu::arguments(boot, &topology, sockets, &shared));
        let plan = serde_json::to_string(&plan(scenario, artifacts, &shared));
        let plan = plan.context("cannot write the plan")? + "\n";
        events.add_listener(EventSource::Report, report);
        let trace = match scenario.machine.trace {
            true => Some(listen_for_trace(&mut events, sockets, folder)?),
            false => None,
        };
        let qemu = StartedQemu::of(&command, &mut events)?;
        for (index, server) in started.servers.iter().enumerate() {
            events.add_child(EventSource::Server(index), server.child.pidfd())?;
        }
        let mut report = Report::new(folder.file(REPORT)?, scenario.interactive);
        for check in &scenario.checks {
            report.await_result(check);
        }
        Ok(Self {
            qemu: qemu.process,
            servers: started.servers,
            bridges: Some(started.bridges),
            switches: started.switches,
            events,
            plan,
            counters: Arc::new(CounterFiles::of(scenario, folder.path())),
            losable: scenario.losable(),
            requested_loss: None,
            port: None,
            started: qemu.started,
            _link: link,
            _monitor: monitor,
            ended: None,
            open: 2,
            _cache: artifacts.cache.clone(),
            trace,
            qemu_log: BoundedFile::new(folder.file(QEMU_LOG)?, LARGEST_LOG),
            search: GivenUp::default(),
            given_up: None,
            qemu_said: qemu.said,
            console: console(scenario, folder)?,
            report,
        })
    }
}

/// The servers of a guest's devices, and the thread that tells the switches among them the windows
/// of their ports.
struct StartedServers {
    servers: Vec<Server>,
    switches: Vec<SwitchSocket>,
    bridges: BridgeWatch,
}

impl StartedServers {
    /// Starts those of `scenario` that `sockets` has no survivors for.
    fn of(
        topology: &Topology<'_>,
        scenario: &Scenario,
        sockets: &Sockets,
        folder: &Folder,
        events: &mut Events<'_>,
    ) -> Result<Self, Failure> {
        let mut servers = servers::start(topology, scenario.recording, sockets, folder, events)?;
        servers::let_foreign_die(&mut servers, &scenario.losable());
        let switches = servers.iter().filter_map(|server| server.bridges.clone());
        let switches = switches.chain(sockets.survivors().switches());
        let switches = switches.map(|socket| socket.within(topology));
        let switches: Vec<SwitchSocket> = switches.collect();
        let bridges = BridgeWatch::start(sockets.launcher_monitor(), switches.clone());
        let bridges = bridges.context("cannot report bridge windows to switches")?;
        Ok(Self {
            servers,
            switches,
            bridges,
        })
    }
}

/// QEMU, whose end and streams are among the events.
struct StartedQemu {
    process: Child,
    /// Its own output.
    said: ChildStderr,
    /// When it was started.
    started: Instant,
}

impl StartedQemu {
    /// Starts it by `command`.
    fn of(command: &Command, events: &mut Events<'_>) -> Result<Self, Failure> {
        let started = Instant::now();
        let mut process = spawn(command, Stdio::piped())?;
        let said = add_qemu(events, &mut process)?;
        Ok(Self {
            process,
            said,
            started,
        })
    }
}

/// Puts the host's files for the guest into `folder`. Returns `None` if the guest gets no files,
/// now or later.
fn stage(
    artifacts: &Artifacts,
    scenario: &Scenario,
    folder: &Folder,
) -> Result<Option<PathBuf>, Failure> {
    let wanted = scenario.guest_files();
    if wanted.is_empty() && !artifacts.has_overlay {
        return Ok(None);
    }
    let files = guest_files::stage(&wanted, folder.path())?;
    artifacts.built.stage(&files, &artifacts.guest.release)?;
    artifacts.stage_configuration(&files)?;
    Ok(Some(files))
}

/// Listens for the guest's trace events, and returns the file for them.
fn listen_for_trace(
    events: &mut Events<'_>,
    sockets: &Sockets,
    folder: &Folder,
) -> anyhow::Result<BoundedFile> {
    events.add_listener(EventSource::Trace, listen(&sockets.trace())?);
    Ok(BoundedFile::new(folder.file(GUEST_TRACE)?, LARGEST_TRACE))
}

/// Adds QEMU's end, the console and QEMU's log, which is also returned.
fn add_qemu(events: &mut Events<'_>, qemu: &mut Child) -> anyhow::Result<ChildStderr> {
    let said = qemu.take_stderr().context("QEMU has no standard error")?;
    let log = said.as_fd().try_clone_to_owned();
    let log = log.context("cannot share QEMU's output")?;
    let console = qemu.take_stdout().context("QEMU has no standard output")?;
    events.add_bytes(EventSource::Console, console);
    events.add_bytes(EventSource::QemuLog, File::from(log));
    events.add_child(EventSource::Qemu, qemu.pidfd())?;
    Ok(said)
}

/// Returns the plan of `scenario` for a guest that may mount `shared`.
fn plan(scenario: &Scenario, artifacts: &Artifacts, shared: &[SharedFolder<'_>]) -> Plan {
    let mut plan = scenario.plan();
    let tags = shared.iter().map(|folder| folder.tag);
    let layers = tags.filter(|tag| *tag != Plan::TOOLS_TAG);
    plan.layers = layers.map(str::to_owned).collect();
    artifacts.built.add_to(&mut plan.modules);
    plan
}

/// Returns the guest's console. The checks may cause warnings of its kernel.
fn console(scenario: &Scenario, folder: &Folder) -> anyhow::Result<Console> {
    let warnings = scenario.checks.iter().flat_map(Check::warnings);
    let warnings: Vec<_> = warnings.copied().collect();
    let known = KnownWarnings::of(&warnings);
    Ok(Console::new(folder.file(CONSOLE_LOG)?, known))
}

/// Listens for QEMU.
fn listen(path: &Path) -> anyhow::Result<UnixListener> {
    UnixListener::bind(path).with_context(|| format!("cannot listen on {}", path.display()))
}
