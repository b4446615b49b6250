//! `peerbar devices`: the devices of a scenario for a virtual machine that another program starts.

mod description;
mod emulator;
mod watch;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use peerbar_lab::events::{Event, EventSource, Events};
use peerbar_lab::exit::Failure;
use peerbar_lab::finished_run::{SCENARIO, VERDICT, leave_not_run};
use peerbar_lab::folder::Folder;
use peerbar_lab::own_qemu::OwnQemu;
use peerbar_lab::qemu::Sockets;
use peerbar_lab::scenario::Scenario;
use peerbar_lab::servers::{self, Server};
use peerbar_lab::signals::Signals;
use peerbar_lab::socket_folder::SocketFolder;
use peerbar_lab::started::Versions;
use peerbar_lab::terminal::{print, say};
use peerbar_lab::topology::Topology;
use rustix::fs::{FlockOperation, flock};

use crate::cli;
use description::Description;
use emulator::FoundEmulator;
use watch::Watch;

/// Time between two polls of counters and flight records.
const INTERVAL: Duration = Duration::from_millis(500);
/// Lock file in a folder of sockets that the user names.
const LOCK: &str = ".lock";
/// Exit code if a server has failed.
const FAILED: u8 = 1;

/// Serves the devices until a signal comes.
pub(crate) fn devices(options: &cli::Devices) -> Result<ExitCode, Failure> {
    let signals = Signals::new()?;
    let mut scenario = match &options.scenario {
        Some(path) => options.guest.scenario(path, Scenario::load_interactive)?,
        None => Scenario::demo()?,
    };
    scenario.serve_disks_by(options.workers, options.poll);
    let sockets_folder = HeldFolder::of(options)?;
    let sockets = Sockets::in_folder(&sockets_folder.folder).without_monitor();
    let folder = options.runs.begin(&scenario.name)?;
    let versions = Versions {
        peerbar: env!("CARGO_PKG_VERSION").to_owned(),
        ..Versions::default()
    };
    folder.begin(Some(&scenario.path), versions)?;
    folder.write(SCENARIO, &scenario.text)?;
    let died = serve(options, &scenario, &sockets, &folder, &signals)
        .inspect_err(|failure| leave_not_run(&folder, failure))?;
    let verdict = died.as_deref().unwrap_or("ended by the user");
    folder.write(VERDICT, &format!("{verdict}\n"))?;
    Ok(match &died {
        None => ExitCode::SUCCESS,
        Some(message) => {
            say(format_args!("peerbar: {message}"));
            ExitCode::from(FAILED)
        }
    })
}

/// Starts the servers, describes them, and prints events until a signal comes, or a server fails.
/// Returns the message of that failure.
fn serve(
    options: &cli::Devices,
    scenario: &Scenario,
    sockets: &Sockets,
    folder: &Folder,
    signals: &Signals,
) -> Result<Option<String>, Failure> {
    let kept = options.sockets.as_deref().unwrap_or(folder.path());
    let emulator = FoundEmulator::of(kept, options.libvirt, signals)?;
    let topology = Topology::of(scenario);
    sockets.check(&topology)?;
    let mut events = Events::new(signals);
    let recording = scenario.recording;
    let mut servers = servers::start(&topology, recording, sockets, folder, &mut events)?;
    let qemu = OwnQemu {
        machine: &scenario.machine,
        topology: &topology,
        sockets,
    };
    let description = Description::of(&qemu, scenario, folder, &emulator)?;
    description.keep(kept)?;
    print(&description.shown(options)?)?;
    for (index, server) in servers.iter().enumerate() {
        events.add_child(EventSource::Server(index), server.child.pidfd())?;
    }
    let mut watch = Watch::of(scenario, folder.path())?;
    let ending = follow(&mut watch, options.json, &mut events, &mut servers);
    let complaint = servers::stop(&mut servers)?;
    // The servers have ended, so their files hold all their records.
    print(&watch.news(options.json)?)?;
    Ok(ending?.or(complaint))
}

/// Prints events until a signal comes, or a server dies. Returns the message of that failure.
fn follow(
    watch: &mut Watch,
    as_json: bool,
    events: &mut Events<'_>,
    servers: &mut [Server],
) -> anyhow::Result<Option<String>> {
    loop {
        let next = Instant::now() + INTERVAL;
        let event = loop {
            match events.next(next)? {
                Some(Event::Data(..) | Event::Closed(_)) => {}
                other => break other,
            }
        };
        match event {
            Some(Event::Signal(_)) => return Ok(None),
            Some(Event::Ended(EventSource::Server(index))) => {
                let server = servers.get_mut(index).context("an end of no server")?;
                let status = server.child.ended()?;
                let status = status.context("a server that ended and did not")?;
                return Ok(Some(servers::exit_message(server, status)));
            }
            _ => print(&watch.news(as_json)?)?,
        }
    }
}

/// The folder of the sockets.
struct HeldFolder {
    folder: PathBuf,
    /// A folder of this process, gone with it; or the lock of the user's.
    _guard: FolderGuard,
}

enum FolderGuard {
    Temporary(#[expect(dead_code, reason = "held")] SocketFolder),
    Users(#[expect(dead_code, reason = "held")] File),
}

impl HeldFolder {
    fn of(options: &cli::Devices) -> Result<Self, Failure> {
        let Some(folder) = &options.sockets else {
            let temporary = SocketFolder::create()?;
            return Ok(Self {
                folder: temporary.path().to_owned(),
                _guard: FolderGuard::Temporary(temporary),
            });
        };
        let held = hold(folder)?;
        let folder = folder
            .canonicalize()
            .context("cannot find the folder of the sockets")?;
        Ok(Self {
            folder,
            _guard: FolderGuard::Users(held),
        })
    }
}

/// Makes the folder if it is missing, and keeps others of this command out of it by a lock file: servers lock the folder itself.
fn hold(folder: &Path) -> Result<File, Failure> {
    let name = folder.display();
    fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {name}"))?;
    let file = File::create(folder.join(LOCK));
    let file = file.with_context(|| format!("cannot make the file {LOCK} in {name}"))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(_) => Err(Failure::Usage(anyhow!(
            "{name} has the sockets of another `peerbar devices`: end that, or name another folder with --sockets"
        ))),
    }
}
