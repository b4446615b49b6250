//! One boot: a machine, its load, the parts of it that are stopped and die, and another guest with
//! the remaining ones.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use peerbar_lab::folder::QEMU_LOG;
use peerbar_lab::guest::CONSOLE_LOG;
use peerbar_lab::survivors::Survivors;
use rustix::process::Signal;

use crate::load::Said;
use crate::machine::{self, Load, Machine, WITH_FILES, disks, image, peers};
use crate::plan::{Action, DEVICES, Moment, Plan};
use crate::processes::QEMU;

/// Time limit for the load to begin, and for a living disk to flush again after a moment: drivers'
/// resets take their time.
const BEGIN: Duration = Duration::from_secs(120);
const AGAIN: Duration = Duration::from_secs(60);
/// Time limit for another guest to begin its comparison, and from one progress report of it to the
/// next. The total time depends on the number of flushes.
const COMPARE: Duration = Duration::from_secs(120);
/// Messages of a kernel with corrupted memory.
const BROKEN: [&str; 3] = ["BUG: ", "general protection fault", "Kernel panic"];

/// A boot in progress.
struct Boot {
    seed: u64,
    machine: Machine,
    load: Load,
    dead: BTreeSet<&'static str>,
    done: Done,
}

/// The result of a boot without a fault.
#[derive(Default)]
pub(crate) struct Done {
    /// Kills and stops of its plan. A boot beyond its limit has fewer.
    pub(crate) planned: usize,
    pub(crate) kills: usize,
    pub(crate) stops: usize,
    flushes: usize,
    verified: usize,
    survivors: usize,
    took: Duration,
}

/// Runs the boot of `seed`. After `limit`, parts die without further stops.
pub(crate) fn run(seed: u64, limit: Duration) -> anyhow::Result<Done> {
    let begun = Instant::now();
    let folder = machine::folder()?;
    let mut machine = Machine::start(folder.path(), Survivors::default())?;
    let load = machine.write(seed)?;
    let mut boot = Boot {
        seed,
        machine,
        load,
        dead: BTreeSet::new(),
        done: Done::default(),
    };
    boot.begin()?;
    let Plan(moments) = Plan::of_seed(seed);
    boot.done.planned = moments.len();
    for moment in moments {
        if begun.elapsed() > limit && moment.action != Action::Kill {
            continue;
        }
        eprintln!("seed {seed}: {moment}");
        boot.inject(moment).with_context(|| moment.to_string())?;
    }
    boot.check(folder.path())?;
    let mut done = boot.go_on_with_survivors(folder.path())?;
    done.took = begun.elapsed();
    Ok(done)
}

impl Boot {
    /// Waits until each disk has flushed something, and has transferred with each memory below its
    /// switch.
    fn begin(&mut self) -> anyhow::Result<()> {
        let idle = |said: &Said| disks().find(|disk| said.flushes(disk) == 0);
        let unverified =
            |said: &Said| peers().find(|(disk, device)| !said.is_verified(disk, device));
        let is_busy = |said: &Said| idle(said).is_none() && unverified(said).is_none();
        let deadline = Instant::now() + BEGIN;
        let lives = self.machine.attend(&mut self.load, deadline, is_busy)?;
        let said = &self.load.said;
        ensure!(lives, "QEMU ends before anything is done to a part");
        ensure!(idle(said).is_none(), "{:?} flushes nothing", idle(said));
        let unverified = unverified(said);
        ensure!(unverified.is_none(), "no transfers between {unverified:?}");
        Ok(())
    }

    /// Injects a moment, and waits until the living disks work again.
    fn inject(&mut self, moment: Moment) -> anyhow::Result<()> {
        let Moment {
            after,
            part,
            action,
        } = moment;
        self.attend_for(after)?;
        match action {
            Action::Kill => {
                self.machine.processes.signal(part, Signal::KILL)?;
                self.dead.insert(part);
                self.done.kills += 1;
            }
            Action::Stop(time) => {
                self.machine.processes.signal(part, Signal::STOP)?;
                let attended = self.attend_for(time);
                self.machine.processes.signal(part, Signal::CONT)?;
                self.done.stops += 1;
                attended?;
            }
        }
        self.check_others()?;
        if part == QEMU && action == Action::Kill {
            let deadline = Instant::now() + AGAIN;
            let lives = self.machine.attend(&mut self.load, deadline, |_| false)?;
            ensure!(!lives, "QEMU outlives SIGKILL");
            return Ok(());
        }
        self.wait_for_flushes()
    }

    /// Checks that no other server has died.
    fn check_others(&self) -> anyhow::Result<()> {
        let alive = self.machine.processes.alive()?;
        for name in self.machine.processes.names() {
            let may_die = self.dead.contains(name) || name == QEMU;
            ensure!(may_die || alive.contains(&name), "{name} died too");
        }
        Ok(())
    }

    /// Keeps the guest going for `time`.
    fn attend_for(&mut self, time: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + time;
        let lives = self.machine.attend(&mut self.load, deadline, |_| false)?;
        self.check_qemu(lives)
    }

    /// Checks that QEMU lives. Only SIGKILL may end it.
    fn check_qemu(&self, lives: bool) -> anyhow::Result<()> {
        if lives {
            return Ok(());
        }
        let log = fs::read(self.machine.lab.folder().join(QEMU_LOG))?;
        bail!("QEMU ends early: {}", String::from_utf8_lossy(&log));
    }

    /// Waits until each living disk has flushed more.
    fn wait_for_flushes(&mut self) -> anyhow::Result<()> {
        let living = disks().filter(|disk| !self.dead.contains(disk));
        let said = &self.load.said;
        let before: Vec<_> = living.map(|disk| (disk, said.flushes(disk))).collect();
        let late = |said: &Said| {
            let mut disks = before.iter();
            disks
                .find(|(disk, before)| said.flushes(disk) <= *before)
                .copied()
        };
        let deadline = Instant::now() + AGAIN;
        let is_enough = |said: &Said| late(said).is_none();
        let lives = self.machine.attend(&mut self.load, deadline, is_enough)?;
        self.check_qemu(lives)?;
        let late = late(&self.load.said);
        ensure!(late.is_none(), "flushes no more: {late:?}");
        Ok(())
    }

    /// Fails if flushed data is lost, if data was wrong, or if the guest's kernel reports a fault.
    fn check(&mut self, folder: &Path) -> anyhow::Result<()> {
        let said = &self.load.said;
        ensure!(said.wrong.is_empty(), "wrong data: {:?}", said.wrong);
        for disk in disks() {
            said.check_image(self.seed, disk, &image(folder, disk, 1))?;
        }
        let console = fs::read(self.machine.lab.folder().join(CONSOLE_LOG))?;
        let console = String::from_utf8_lossy(&console);
        let broken = console
            .lines()
            .find(|line| BROKEN.iter().any(|word| line.contains(word)));
        ensure!(broken.is_none(), "the guest's kernel says: {broken:?}");
        self.done.flushes = said.all();
        self.done.verified = said.verified();
        Ok(())
    }

    /// Starts another guest at once, with the living servers, and new ones in place of the others.
    /// It must see all data.
    fn go_on_with_survivors(mut self, folder: &Path) -> anyhow::Result<Done> {
        fs::write(folder.join("said"), self.load.said.lines())?;
        let survivors = self.machine.lab.survivors()?;
        let found: BTreeSet<&str> = survivors.names().collect();
        let parts = DEVICES
            .iter()
            .flat_map(|(switch, devices)| devices.iter().chain([switch]));
        let expected: BTreeSet<&str> = parts
            .copied()
            .filter(|part| !self.dead.contains(part))
            .collect();
        ensure!(found == expected, "{found:?} live, not {expected:?}");
        self.done.survivors = found.len();
        let mut next = Machine::start(folder, survivors)?;
        let mut load = next.verify(self.seed)?;
        wait_for_comparison(&mut next, &mut load)?;
        ensure!(load.said.wrong.is_empty(), "lost: {:?}", load.said.wrong);
        let expected = Some(self.done.flushes);
        ensure!(
            load.said.compared == expected,
            "{:?} compared, not {expected:?}",
            load.said.compared
        );
        let mounted = WITH_FILES.map(|disk| format!("/tmp/{disk}")).join(" ");
        let left = next.lab.command(&format!("umount {mounted}"))?;
        ensure!(left.status == 0, "{}", left.text);
        next.shut_down()?;
        self.machine.check_ended()?;
        Ok(self.done)
    }
}

/// Waits until the load has compared everything, as long as it makes progress.
fn wait_for_comparison(machine: &mut Machine, load: &mut Load) -> anyhow::Result<()> {
    while load.said.compared.is_none() {
        let before = load.said.comparing;
        let goes_on = |said: &Said| said.comparing > before || said.compared.is_some();
        let lives = machine.attend(load, Instant::now() + COMPARE, goes_on)?;
        ensure!(lives, "the guest ends while it compares, after {before}");
        ensure!(
            goes_on(&load.said),
            "nothing more was compared for {} s, after {before}",
            COMPARE.as_secs()
        );
    }
    Ok(())
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            planned,
            kills,
            stops,
            flushes,
            verified,
            survivors,
            took,
        } = self;
        write!(
            f,
            "{kills} kills and {stops} stops of {planned} planned; {flushes} flushes kept, {verified} transfers between devices, {survivors} survivors; {took:.0?}"
        )
    }
}
