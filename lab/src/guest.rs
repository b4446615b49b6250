//! A running guest: QEMU, the servers behind its devices, its console and its report.

use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use peerbar_report::Line;

use crate::artifacts::Artifacts;
use crate::child::Child;
use crate::console::Console;
use crate::daemons::{self, Server};
use crate::exit::Failure;
use crate::folder::Folder;
use crate::inbox::{Event, Inbox, Voice};
use crate::leash;
use crate::qemu::{self, Boot, Sockets};
use crate::report::Report;
use crate::scenario::Scenario;
use crate::signals::Signals;

/// QEMU's own words in a run's folder.
pub const QEMU_LOG: &str = "qemu.log";
/// How long QEMU may take to go after it was asked to.
const END: Duration = Duration::from_secs(2);
/// How long QEMU may take to fetch the plan from its socket.
const PLAN: Duration = Duration::from_secs(5);

/// A guest that has been started. Dropped, all its processes are killed and reaped.
pub struct Guest<'a> {
    qemu: Child,
    servers: Vec<Server>,
    inbox: Inbox<'a>,
    plan: String,
    started: Instant,
    /// How QEMU ended, if it has.
    ended: Option<ExitStatus>,
    /// How many of console and report are still open.
    open: usize,
    /// What the console has said.
    pub console: Console,
    /// What the agent has reported.
    pub report: Report,
}

/// What is new about a guest.
pub enum News {
    /// Lines of the console.
    Console(Vec<String>),
    /// Lines of the report.
    Report(Vec<Line>),
    /// QEMU has ended, and all that it said has been told.
    Ended(ExitStatus),
    /// A server has ended that should not have; what there is to say about it.
    ServerDied(String),
    /// This process was asked to end by a signal.
    Signal(i32),
    /// Nothing happened before the deadline.
    Late,
}

impl<'a> Guest<'a> {
    /// Starts the servers of `scenario`, then QEMU, and has the plan ready for the agent.
    pub fn start(
        artifacts: &Artifacts,
        boot: &Boot<'_>,
        scenario: &Scenario,
        sockets: &Sockets,
        folder: &Folder,
        signals: &'a Signals,
    ) -> Result<Self, Failure> {
        let mut inbox = Inbox::new(signals);
        let report = listen(sockets, scenario)?;
        let servers = daemons::start(scenario, sockets, folder, &mut inbox)?;
        let tools = artifacts
            .root
            .as_ref()
            .filter(|_| scenario.tools)
            .map(|root| root.path());
        let mut command = artifacts.qemu.command();
        command.args(qemu::lab(boot, scenario, sockets, tools));
        let plan = serde_json::to_string(&scenario.plan()).context("cannot write the plan")? + "\n";
        inbox.add_listener(Voice::Report, report);
        let started = Instant::now();
        let mut qemu = spawn(&command, folder)?;
        inbox.add_bytes(
            Voice::Console,
            qemu.take_stdout().context("QEMU has no standard output")?,
        );
        inbox.add_child(Voice::Qemu, qemu.pidfd())?;
        for (index, server) in servers.iter().enumerate() {
            inbox.add_child(Voice::Server(index), server.child.pidfd())?;
        }
        Ok(Self {
            qemu,
            servers,
            inbox,
            plan,
            started,
            ended: None,
            open: 1,
            console: Console::new(folder.file("console.log")?),
            report: Report::new(folder.file("report.ktap")?),
        })
    }

    /// When QEMU was started.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// The process of QEMU.
    pub fn qemu(&self) -> u32 {
        self.qemu.id()
    }

    /// The processes of the servers, and their names in the scenario.
    pub fn servers(&self) -> impl Iterator<Item = (&str, u32)> {
        let servers = self.servers.iter();
        servers.map(|server| (server.name.as_str(), server.child.id()))
    }

    /// Whether nothing has come from inside yet, so that it may never have run.
    pub fn is_silent(&self) -> bool {
        self.console.tail().is_empty() && self.report.is_empty()
    }

    /// Waits for news until `deadline`.
    pub fn news(&mut self, deadline: Instant) -> anyhow::Result<News> {
        loop {
            if let Some(status) = self.ended.filter(|_| self.open == 0) {
                return Ok(News::Ended(status));
            }
            let Some(event) = self.inbox.next(deadline)? else {
                return Ok(News::Late);
            };
            match event {
                Event::Data(Voice::Console, bytes) => {
                    return Ok(News::Console(self.console.take(&bytes)?));
                }
                Event::Data(Voice::Report, bytes) => {
                    return Ok(News::Report(self.report.take(&bytes)?));
                }
                Event::Signal(signal) => return Ok(News::Signal(signal)),
                Event::Connected(stream) => self.connected(stream)?,
                Event::Closed(Voice::Console | Voice::Report) => {
                    self.open = self.open.saturating_sub(1)
                }
                Event::Ended(Voice::Qemu) => self.ended = self.qemu.ended()?,
                Event::Ended(Voice::Server(index)) => {
                    if let Some(words) = self.server_ended(index)? {
                        return Ok(News::ServerDied(words));
                    }
                }
                Event::Data(..) | Event::Closed(_) | Event::Ended(_) => {}
            }
        }
    }

    /// Kills the server of `name`, because a check has asked for it: the guest sees the device pulled out.
    pub fn lose(&mut self, name: &str) -> anyhow::Result<()> {
        let server = self.servers.iter_mut().find(|server| server.name == name);
        let server = server.with_context(|| format!("a check wants {name} dead, of no server"))?;
        server.lost = true;
        server.child.kill()
    }

    /// Ends QEMU if it has not ended, then the servers: what there is to say about one that did not end well.
    pub fn stop(mut self) -> anyhow::Result<(Console, Report, Option<String>)> {
        self.qemu.end(END)?;
        let complaint = daemons::stop(&mut self.servers)?;
        Ok((self.console, self.report, complaint))
    }

    fn connected(&mut self, mut stream: UnixStream) -> anyhow::Result<()> {
        stream
            .set_write_timeout(Some(PLAN))
            .context("cannot limit the time for the plan")?;
        stream
            .write_all(self.plan.as_bytes())
            .context("QEMU does not take the plan for the agent")?;
        self.inbox.add_bytes(Voice::Report, stream);
        self.open = self.open.saturating_add(1);
        Ok(())
    }

    /// What there is to say about a server that has ended. It serves on when QEMU has left it, so nobody but a check may
    /// have wanted that, however well it has ended; and what becomes of the guest from then on is no fault of its own.
    fn server_ended(&mut self, index: usize) -> anyhow::Result<Option<String>> {
        let server = self.servers.get_mut(index).context("an end of no server")?;
        let status = server
            .child
            .ended()?
            .context("a server that ended and did not")?;
        Ok((!server.lost).then(|| daemons::epitaph(server, status)))
    }
}

/// Starts QEMU with its console on a pipe and its own words in `qemu.log`.
pub fn spawn(command: &Command, folder: &Folder) -> anyhow::Result<Child> {
    let stderr = folder.file(QEMU_LOG)?;
    let mut held = leash::held(command);
    held.stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(stderr);
    Child::spawn(held)
}

/// Listens for QEMU, once it is known that all paths fit an address.
fn listen(sockets: &Sockets, scenario: &Scenario) -> anyhow::Result<UnixListener> {
    if let Some(path) = sockets.too_long(scenario) {
        let path = path.display();
        bail!(
            "{path} is longer than the 107 bytes of a socket address; set TMPDIR to a shorter folder"
        );
    }
    let path = sockets.report();
    UnixListener::bind(&path).with_context(|| format!("cannot listen on {}", path.display()))
}
