//! A machine whose parts can be killed and stopped while its guest is under load.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use peerbar_lab::guest_access::GuestAccess;
use peerbar_lab::guest_program::GuestProgram;
use peerbar_lab::scenario::{GpuBuilder, NvmeBuilder, Scenario, ScenarioBuilder};
use peerbar_lab::survivors::Survivors;
use peerbar_lab::verdict::Ending;
use peerbar_lab::{Lab, LabError, LabOptions};
use peerbar_report::HostFolder;
use peerbar_report::exec::{GuestMessage, ProgramRequest};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::load::Said;
use crate::plan::DEVICES;
use crate::processes::Processes;

/// The program of the load, in the folder that the guest sees as `/host`.
const LOAD: &str = "load";
/// The disks that also have a file system, and those with a CMB.
pub(crate) const WITH_FILES: [&str; 2] = ["disk0", "disk3"];
const WITH_CMB: [&str; 2] = ["disk1", "disk4"];

/// A running machine.
pub(crate) struct Machine {
    pub(crate) lab: Lab,
    pub(crate) processes: Processes,
    sockets: PathBuf,
}

/// The load in a guest.
pub(crate) struct Load {
    program: GuestProgram,
    pub(crate) said: Said,
}

/// Returns the disks of all devices.
pub(crate) fn disks() -> impl Iterator<Item = &'static str> {
    let devices = DEVICES.iter().flat_map(|(_, devices)| devices).copied();
    devices.filter(|device| device.starts_with("disk"))
}

/// Returns each disk with each device below the same switch that has memory for peer-to-peer
/// transfers.
pub(crate) fn peers() -> impl Iterator<Item = (&'static str, &'static str)> {
    let pairs = DEVICES.iter().flat_map(|(_, devices)| {
        let disks = devices.iter().filter(|device| device.starts_with("disk"));
        disks.flat_map(|disk| devices.iter().map(move |device| (*disk, *device)))
    });
    pairs.filter(|(_, device)| WITH_CMB.contains(device) || device.starts_with("gpu"))
}

/// Returns the image of a namespace of `disk`.
pub(crate) fn image(folder: &Path, disk: &str, nsid: u32) -> PathBuf {
    folder.join(format!("{disk}-{nsid}.img"))
}

/// Returns a scenario of all devices, with the images of the disks in `folder`.
fn scenario(folder: &Path) -> anyhow::Result<Scenario> {
    let mut scenario = ScenarioBuilder::new("dying")
        .key("timeout", "3m")
        .tools()
        .machine("memory", "1G")
        .module("nvme_core", "io_timeout=3 admin_timeout=3")
        .module("ext4", "");
    for (switch, devices) in DEVICES {
        scenario = scenario.switch(switch);
        for name in devices {
            if name.starts_with("gpu") {
                scenario = scenario.gpu(GpuBuilder::new(name, "64M").below(switch));
                continue;
            }
            let mut disk = NvmeBuilder::new(name).below(switch);
            disk = disk.image(&image(folder, name, 1), "512M");
            if WITH_FILES.contains(&name) {
                disk = disk.image(&image(folder, name, 2), "64M");
            }
            if WITH_CMB.contains(&name) {
                disk = disk.cmb("16M");
            }
            scenario = scenario.nvme(disk);
        }
    }
    Ok(scenario.build()?)
}

/// Makes a folder for the guest with the load's program.
pub(crate) fn folder() -> anyhow::Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    fs::copy(
        env!("CARGO_BIN_EXE_peerbar-dying-load"),
        folder.path().join(LOAD),
    )?;
    Ok(folder)
}

impl Machine {
    /// Starts a guest with these servers of another, and with new ones for the other parts.
    pub(crate) fn start(folder: &Path, survivors: Survivors) -> anyhow::Result<Self> {
        let access = GuestAccess {
            folder: folder.to_owned(),
            permission: HostFolder::ReadOnly,
        };
        let runs = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/dying");
        let options = LabOptions::default().runs(runs).access(access);
        let lab = options.survivors(survivors).start(scenario(folder)?)?;
        let sockets = lab.socket();
        Ok(Self {
            processes: Processes::of(&lab)?,
            sockets: sockets.parent().context("a socket at /")?.to_owned(),
            lab,
        })
    }

    /// Starts the load in the guest, which writes.
    pub(crate) fn write(&mut self, seed: u64) -> anyhow::Result<Load> {
        let make = WITH_FILES.map(|disk| format!("mkfs.ext4 -q -F {{{disk}:ns2}}"));
        let memories = DEVICES.map(|(_, [_, disk, _, gpu])| [disk, gpu]);
        let memories = memories.as_flattened().iter();
        let memories = memories.map(|name| format!("{name}={{{name}:p2pmem}}"));
        let memories: Vec<String> = memories.collect();
        let program = format!("write {seed} {} {}", named_paths(), memories.join(" "));
        self.start_load(&[make.join(" && "), mounting(), program])
    }

    /// Starts the load in the guest, which compares the disks with `/host/said`.
    pub(crate) fn verify(&mut self, seed: u64) -> anyhow::Result<Load> {
        let program = format!("verify {seed} {} < /host/said", named_paths());
        self.start_load(&["true".to_owned(), mounting(), program])
    }

    fn start_load(&mut self, [make, mount, program]: &[String; 3]) -> anyhow::Result<Load> {
        let line = format!("{make} && {mount} && exec /host/{LOAD} {program}");
        let request = ProgramRequest::new(["sh", "-c", &line]);
        Ok(Load {
            program: GuestProgram::start(&self.lab.socket(), &request)?,
            said: Said::default(),
        })
    }

    /// Keeps the guest going until `deadline`, or until `is_enough` of the load's output. Returns
    /// `false` if the guest has died. The death of a server ends nothing.
    pub(crate) fn attend(
        &mut self,
        load: &mut Load,
        deadline: Instant,
        is_enough: impl Fn(&Said) -> bool + Sync,
    ) -> anyhow::Result<bool> {
        loop {
            let attended = self
                .lab
                .run_beside(|_, stop| load.listen(&stop, deadline, &is_enough));
            match attended {
                Ok(done) => return done.map(|()| true),
                Err(LabError::Ended(Ending::ServerDied(_))) => {}
                Err(LabError::GuestEnded { .. }) => {
                    // The last output of the guest is still in the socket.
                    return load.take().map(|_| false);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Ends the lab whose guest is gone. Nothing may be left of it.
    pub(crate) fn check_ended(self) -> anyhow::Result<()> {
        drop(self.lab);
        nothing_is_left(&self.processes, &self.sockets)
    }

    /// Shuts down the guest and the servers, which must all succeed.
    pub(crate) fn shut_down(self) -> anyhow::Result<()> {
        let finished = self.lab.shut_down()?;
        ensure!(finished.is_passed(), "{}", finished.verdict);
        nothing_is_left(&self.processes, &self.sockets)
    }
}

/// Returns the guest's paths of disks and file systems, as arguments of the load.
fn named_paths() -> String {
    let disks = disks().map(|disk| format!("{disk}={{{disk}:ns1}}"));
    let folders = WITH_FILES.map(|disk| format!("{disk}=/tmp/{disk}"));
    let paths: Vec<String> = disks.chain(folders).collect();
    paths.join(" ")
}

fn mounting() -> String {
    WITH_FILES
        .map(|disk| format!("mkdir -p /tmp/{disk} && mount {{{disk}:ns2}} /tmp/{disk}"))
        .join(" && ")
}

/// Checks that the run's processes have ended and its sockets are gone.
fn nothing_is_left(processes: &Processes, sockets: &Path) -> anyhow::Result<()> {
    let alive = processes.alive()?;
    ensure!(alive.is_empty(), "{alive:?} outlive the run");
    ensure!(!sockets.exists(), "{} is left", sockets.display());
    Ok(())
}

impl Load {
    /// Takes the guest's output until `deadline`, until `is_enough`, or until `stop` is readable.
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
            if left == Duration::ZERO || is_enough(&self.said) {
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

    /// Takes the guest's output so far. Returns `false` at its end.
    fn take(&mut self) -> anyhow::Result<bool> {
        loop {
            match self.program.next_message() {
                Ok(Some(GuestMessage::Output(bytes))) => self.said.take(&bytes)?,
                Ok(Some(GuestMessage::Ended(end))) => {
                    ensure!(end.status() == 0, "the load ends by itself: {end:?}");
                    return Ok(false);
                }
                Ok(Some(GuestMessage::ErrorOutput(bytes))) => {
                    eprint!("{}", String::from_utf8_lossy(&bytes));
                }
                Ok(Some(_)) => {}
                Ok(None) => return Ok(true),
                Err(_) => return Ok(false),
            }
        }
    }
}

#[test]
fn each_disk_has_two_peers_below_its_switch() {
    let found: Vec<_> = peers().collect();
    let first = ["disk0", "disk1", "disk2"].map(|disk| [(disk, "disk1"), (disk, "gpu0")]);
    let second = ["disk3", "disk4", "disk5"].map(|disk| [(disk, "disk4"), (disk, "gpu1")]);
    assert_eq!(found, [first, second].as_flattened().as_flattened());
}
