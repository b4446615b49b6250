//! A machine without a guest: two disks and a GPU below a switch, each a daemon, and a thread that
//! drives each device.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, anyhow};
use fastrand::Rng;
use parking_lot::Mutex;
use peerbar_rig::{Daemon, GuestRam};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::blocks::Blocks;
use crate::disk::{Disk, IMAGE_BYTES};
use crate::gpu::Gpu;
use crate::server::{self, Usage};
use crate::shared::{Part, Shared};

/// The bus addresses of RAM, VRAM and the CMB.
pub(crate) const RAM: u64 = 1 << 32;
pub(crate) const VRAM: u64 = 1 << 38;
pub(crate) const CMB: u64 = 1 << 39;
pub(crate) const RAM_BYTES: u64 = 16 << 20;

/// An injected event.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    /// SIGKILL. The server is restarted at once.
    Kill,
    /// SIGSTOP, and SIGCONT after this time.
    Stop(Duration),
    /// The client leaves in the middle of its commands, like a QEMU that is killed, and another
    /// comes at once.
    Leave,
}

/// An event of a part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) part: Part,
    pub(crate) action: Action,
}

impl Moment {
    /// Returns `true` if it kills the server of `part`.
    pub(crate) fn kills(self, part: Part) -> bool {
        self.part == part && matches!(self.action, Action::Kill)
    }
}

/// Servers and the threads that drive them.
pub(crate) struct Machine {
    servers: BTreeMap<Part, Daemon>,
    shared: Arc<Shared>,
    images: BTreeMap<Part, (PathBuf, Arc<Mutex<Blocks>>)>,
    drivers: Vec<JoinHandle<()>>,
    folder: TempDir,
}

impl Machine {
    pub(crate) fn start(seed: u64) -> anyhow::Result<Self> {
        let folder = TempDir::new()?;
        let mut machine = Self {
            servers: BTreeMap::new(),
            shared: Arc::new(Shared::new(GuestRam::new(RAM, RAM_BYTES))),
            images: BTreeMap::new(),
            drivers: Vec::new(),
            folder,
        };
        let switch = server::start("peerbar-switch", &[])?;
        let switch_at = switch.socket().display().to_string();
        machine.servers.insert(Part::Switch0, switch);
        let below = |name| ["--switch", switch_at.as_str(), "--port-name", name];
        let disks = [
            (Part::Disk0, "disk0", &["--cmb", "16M"][..]),
            (Part::Disk1, "disk1", &[]),
        ];
        for (area, (part, name, more)) in (0..).zip(disks) {
            let words = [&below(name)[..], more].concat();
            machine.add_disk(part, name, area, &words, seed)?;
        }
        let words = [&below("gpu0")[..], &["--vram", "16M"]].concat();
        machine.add_gpu(&words)?;
        machine.shared.recover()?;
        Ok(machine)
    }

    fn add_disk(
        &mut self,
        part: Part,
        name: &str,
        area: u64,
        words: &[&str],
        seed: u64,
    ) -> anyhow::Result<()> {
        let image = self.folder.path().join(format!("{name}.img"));
        File::create(&image)?.set_len(IMAGE_BYTES)?;
        let namespace = format!("file={}", image.display());
        let own = ["--serial", name, "--namespace", &namespace];
        let words = [words, &own[..]].concat();
        let server = server::start("peerbar-nvme", &words)?;
        let disk = Disk {
            part,
            socket: server.socket().to_owned(),
            area,
            blocks: Arc::default(),
            shared: self.shared.clone(),
        };
        self.images.insert(part, (image, disk.blocks.clone()));
        self.servers.insert(part, server);
        let random = Rng::with_seed(seed.wrapping_add(area));
        self.drivers.push(thread::spawn(move || disk.run(random)));
        self.shared.serve(part);
        Ok(())
    }

    fn add_gpu(&mut self, words: &[&str]) -> anyhow::Result<()> {
        let server = server::start("peerbar-gpu", words)?;
        let gpu = Gpu {
            socket: server.socket().to_owned(),
            shared: self.shared.clone(),
        };
        self.servers.insert(Part::Gpu0, server);
        self.drivers.push(thread::spawn(move || gpu.run()));
        self.shared.serve(Part::Gpu0);
        Ok(())
    }

    /// Injects a moment, and waits until all transfers work again and all earlier data is there.
    pub(crate) fn inject(&mut self, moment: Moment) -> anyhow::Result<()> {
        let Moment { part, action } = moment;
        self.shared.inject(moment);
        match action {
            Action::Kill => self.kill(part)?,
            Action::Leave => self.shared.end_session(part),
            Action::Stop(time) => {
                let server = self.servers.get(&part).context("no server")?;
                server.signal(Signal::STOP);
                thread::sleep(time);
                server.signal(Signal::CONT);
            }
        }
        self.shared.recover()?;
        self.servers.values_mut().try_for_each(server::check_alive)
    }

    /// Kills a server, checks its image, and restarts it.
    fn kill(&mut self, part: Part) -> anyhow::Result<()> {
        let server = self.servers.get_mut(&part).context("no server")?;
        server::kill(server)?;
        if part != Part::Switch0 {
            self.shared.remove(part)?;
        }
        if let Some((image, blocks)) = self.images.get(&part) {
            let mut blocks = blocks.lock();
            blocks.check_image(image)?;
        }
        server.restart();
        self.shared.serve(part);
        Ok(())
    }

    /// Returns the resources of each server.
    pub(crate) fn usage(&self) -> anyhow::Result<BTreeMap<Part, Usage>> {
        let servers = self.servers.iter();
        servers
            .map(|(part, server)| Ok((*part, server::usage(server)?)))
            .collect()
    }

    /// Returns the number of compared transfers.
    pub(crate) fn passes(&self) -> u64 {
        self.shared.passes()
    }

    /// Ends all servers, which must leave nothing but logs, and images with the data. Returns the
    /// number of flushed blocks.
    pub(crate) fn end(mut self) -> anyhow::Result<usize> {
        self.shared.end();
        for driver in self.drivers.drain(..) {
            driver.join().map_err(|_| anyhow!("a driver panicked"))?;
        }
        // The devices first, then the switch.
        let servers = std::mem::take(&mut self.servers);
        servers.into_values().try_for_each(server::end)?;
        let mut flushed = 0;
        for (image, blocks) in self.images.values() {
            let mut blocks = blocks.lock();
            flushed += blocks.check_image(image)?;
        }
        Ok(flushed)
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {:?}", self.action, self.part)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // For the drivers of a failed test.
        self.shared.end();
    }
}
