//! One round: a machine, its load, and the part of it that dies.

use std::fmt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use peerbar_exec::{GuestMessage, ProgramRequest};
use peerbar_lab::guest_access::GuestAccess;
use peerbar_lab::guest_program::GuestProgram;
use peerbar_lab::scenario::Scenario;
use peerbar_lab::{Lab, LabError, LabOptions};
use peerbar_report::{HostFolder, Verdict};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::load::{SCRIPT, Said};
use crate::processes::{Processes, QEMU};

const SCENARIO: &str = r#"
name = "dying"
timeout = "2m"
tools = true

[[module]]
name = "nvme_core"
parameters = "io_timeout=3"

[[switch]]
name = "switch0"

[[nvme]]
name = "disk0"
below = "switch0"
cmb = "16M"
namespaces = [{ file = "disk0.img", size = "64M" }]

[[nvme]]
name = "disk1"
below = "switch0"
namespaces = [{ ram = "64M" }]

[[gpu]]
name = "gpu0"
below = "switch0"
vram = "64M"
"#;
/// A copy from peer to peer, with its data compared.
const CHECK: &str = "kind = \"copy\"\nfrom = \"disk1\"\nto = \"disk0\"\nthrough = { p2pmem = \"disk0\" }\n\
                     sizes = [\"4K\", \"1M\"]\noffsets = [0]";
const VICTIMS: [&str; 5] = ["disk0", "disk1", "gpu0", "switch0", QEMU];
/// How long the load may take to flush a block of each disk.
const BEGIN: Duration = Duration::from_secs(60);
/// How long the load goes on after the part died or continued.
const AFTERMATH: Duration = Duration::from_secs(4);
/// How long the whole round may take.
const ROUND: Duration = Duration::from_secs(240);

/// What happens in a round.
pub(crate) struct Round {
    seed: u64,
    victim: &'static str,
    /// For how long it is stopped; none if it is killed.
    stopped: Option<Duration>,
    /// When, after the load has begun.
    after: Duration,
}

/// What a round without a fault came to.
pub(crate) struct Done {
    flushed: [usize; 2],
    flushed_later: usize,
    verified: usize,
    ending: String,
    took: Duration,
}

/// A running machine.
pub(crate) struct Machine {
    lab: Lab,
    processes: Processes,
    sockets: PathBuf,
    folder: TempDir,
}

/// What goes on while the guest is attended to.
struct Load {
    program: GuestProgram,
    said: Said,
}

impl Round {
    pub(crate) fn of_seed(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let victim = random.choice(VICTIMS).unwrap();
        let stop = Duration::from_millis(random.u64(100..=6000));
        Self {
            seed,
            victim,
            stopped: random.bool().then_some(stop),
            after: Duration::from_millis(random.u64(0..3000)),
        }
    }

    pub(crate) fn run(&self) -> anyhow::Result<Done> {
        let begun = Instant::now();
        let mut machine = Machine::start(self.seed)?;
        machine.check()?;
        let mut load = machine.load(self.seed)?;
        machine.attend(&mut load, Instant::now() + BEGIN, |said| {
            said.blocks("disk0") > 0 && said.blocks("disk1") > 0
        })?;
        ensure!(
            load.said.blocks("disk0") > 0 && load.said.blocks("disk1") > 0,
            "the load does not begin"
        );
        let moment = Instant::now() + self.after;
        machine.attend(&mut load, moment, |_| false)?;
        let before = load.said.blocks("disk0");
        self.strike(&mut machine, &mut load)?;
        machine.attend(&mut load, Instant::now() + AFTERMATH, |_| false)?;
        let qemu_lives = self.check_survivors(&machine)?;
        let Machine {
            lab,
            processes,
            sockets,
            folder,
        } = machine;
        let ending = if qemu_lives {
            lab.shut_down()?.verdict.to_string()
        } else {
            drop(lab);
            "QEMU ended".to_owned()
        };
        nothing_is_left(&processes, &sockets)?;
        let took = begun.elapsed();
        ensure!(took < ROUND, "it took {took:?}");
        self.check_data(&load.said, folder.path())?;
        Ok(Done {
            flushed: [load.said.blocks("disk0"), load.said.blocks("disk1")],
            flushed_later: load.said.blocks("disk0") - before,
            verified: load.said.verified,
            ending,
            took,
        })
    }

    /// Kills the victim, or stops it for a time.
    fn strike(&self, machine: &mut Machine, load: &mut Load) -> anyhow::Result<()> {
        let Some(stopped) = self.stopped else {
            return machine.processes.signal(self.victim, Signal::KILL);
        };
        machine.processes.signal(self.victim, Signal::STOP)?;
        machine.attend(load, Instant::now() + stopped, |_| false)?;
        machine.processes.signal(self.victim, Signal::CONT)
    }

    /// That no other part died with it. QEMU 11.1 may abort when a server goes from under a request. Returns whether it lives.
    fn check_survivors(&self, machine: &Machine) -> anyhow::Result<bool> {
        let alive = machine.processes.alive()?;
        let is_killed = |name| self.stopped.is_none() && name == self.victim;
        for name in machine.processes.names() {
            let lives = alive.contains(&name);
            let may_abort = name == QEMU && self.stopped.is_none();
            ensure!(lives || may_abort || is_killed(name), "{name} died too");
            ensure!(!(lives && is_killed(name)), "{name} outlives SIGKILL");
        }
        Ok(alive.contains(&QEMU))
    }

    fn check_data(&self, said: &Said, folder: &Path) -> anyhow::Result<()> {
        said.check_image(self.seed, "disk0", &folder.join("disk0.img"))?;
        // The load's peer memory is disk0's: of a device that is gone it reads as ones.
        let memory_is_gone = self.victim == "disk0" && self.stopped.is_none();
        let mut wrong = said.wrong.iter();
        let wrong = wrong.find(|line| !(memory_is_gone && *line == "wrong peer"));
        ensure!(wrong.is_none(), "the guest read wrong data: {wrong:?}");
        Ok(())
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            seed,
            victim,
            after,
            ..
        } = self;
        match self.stopped {
            Some(time) => write!(
                f,
                "seed {seed}: {victim} stopped for {time:?} after {after:?}"
            ),
            None => write!(f, "seed {seed}: {victim} killed after {after:?}"),
        }
    }
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            flushed: [disk0, disk1],
            flushed_later,
            verified,
            ending,
            took,
        } = self;
        write!(
            f,
            "{disk0} and {disk1} blocks flushed ({flushed_later} of disk0 later), {verified} times verified; {ending}; {took:.1?}"
        )
    }
}

/// That the run's processes have ended and its sockets are gone.
fn nothing_is_left(processes: &Processes, sockets: &Path) -> anyhow::Result<()> {
    let alive = processes.alive()?;
    ensure!(alive.is_empty(), "{alive:?} outlive the run");
    ensure!(!sockets.exists(), "{} is left", sockets.display());
    Ok(())
}

impl Machine {
    pub(crate) fn start(seed: u64) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("dying.toml");
        let scenario = Scenario::parse_interactive(&path, SCENARIO)?;
        let access = GuestAccess {
            folder: folder.path().to_owned(),
            permission: HostFolder::ReadOnly,
        };
        let runs = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/dying");
        let options = LabOptions::default().runs(runs).access(access);
        let lab = options.start(scenario);
        let lab = lab.with_context(|| format!("no machine for seed {seed}"))?;
        let sockets = lab.socket();
        Ok(Self {
            processes: Processes::of(&lab)?,
            sockets: sockets.parent().context("a socket at /")?.to_owned(),
            lab,
            folder,
        })
    }

    /// A small check of all of it.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        let row = self.lab.check_table(CHECK)?;
        let passed = row.verdict == Verdict::Pass;
        ensure!(
            passed,
            "a machine at its start fails: {:?}",
            row.diagnostics
        );
        Ok(())
    }

    pub(crate) fn end(self) -> anyhow::Result<()> {
        let finished = self.lab.shut_down()?;
        ensure!(finished.is_passed(), "{}", finished.verdict);
        nothing_is_left(&self.processes, &self.sockets)
    }

    fn load(&mut self, seed: u64) -> anyhow::Result<Load> {
        let places = "exec sh -c \"$0\" load \"$1\" {disk0:disk} {disk1:disk} {disk0:p2pmem}";
        let seed = seed.to_string();
        let request = ProgramRequest::new(["sh", "-c", places, SCRIPT, &seed]);
        Ok(Load {
            program: GuestProgram::start(&self.lab.socket(), &request)?,
            said: Said::default(),
        })
    }

    /// Keeps the guest going until `deadline`, or until `is_enough` of what the load has said. A part that dies ends nothing.
    fn attend(
        &mut self,
        load: &mut Load,
        deadline: Instant,
        is_enough: impl Fn(&Said) -> bool + Sync,
    ) -> anyhow::Result<()> {
        loop {
            let attended = self
                .lab
                .attend(|_, stop| load.listen(&stop, deadline, &is_enough));
            match attended {
                Ok(done) => return done,
                Err(LabError::ServerDied(_)) => {}
                Err(LabError::GuestEnded { .. }) => {
                    // What the guest said before is still in the socket.
                    let rest = load.take();
                    return rest.map(drop);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Load {
    /// Takes what the guest says until `deadline`, until `is_enough`, or until there is something on `stop`.
    fn listen(
        &mut self,
        stop: &UnixStream,
        deadline: Instant,
        is_enough: &impl Fn(&Said) -> bool,
    ) -> anyhow::Result<()> {
        let mut is_open = true;
        loop {
            is_open = is_open && self.take()?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || is_enough(&self.said) {
                return Ok(());
            }
            let left = Timespec::try_from(left)?;
            let stop = PollFd::new(stop, PollFlags::IN);
            let mut fds = vec![stop];
            if is_open {
                fds.push(PollFd::new(&self.program, PollFlags::IN));
            }
            poll(&mut fds, Some(&left))?;
            if fds.first().is_some_and(|stop| !stop.revents().is_empty()) {
                return Ok(());
            }
            drop(fds);
            self.program.flush()?;
        }
    }

    /// Takes what the guest has said; false if it says nothing more.
    fn take(&mut self) -> anyhow::Result<bool> {
        loop {
            match self.program.next_message() {
                Ok(Some(GuestMessage::Output(bytes))) => self.said.take(&bytes)?,
                Ok(Some(GuestMessage::Ended(end))) => {
                    anyhow::bail!("the load ends by itself: {end:?}")
                }
                // Its complaints of errors, which are permitted.
                Ok(Some(_)) => {}
                Ok(None) => return Ok(true),
                Err(_) => return Ok(false),
            }
        }
    }
}
