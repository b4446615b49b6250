//! One test: its name, and its parameters.

use std::fmt;

use anyhow::{Context, anyhow};
use peerbar_agent::devices::Controller;
use peerbar_agent::gpus::Gpu;
use peerbar_agent::guest_context::GuestContext;

use crate::TESTS;

/// The function of a test.
pub(crate) type TestFunction = fn(&Test<'_>) -> anyhow::Result<()>;

/// A test, and the devices and numbers in its argument.
pub(crate) struct Test<'a> {
    pub(crate) guest: &'a GuestContext,
    name: &'static str,
    run: TestFunction,
    gpus: Vec<&'a Gpu>,
    disks: Vec<&'a Controller>,
    numbers: Vec<u32>,
}

impl<'a> Test<'a> {
    /// Reads `NAME=DEVICE,DEVICE,NUMBER...`. A device is the path of its node.
    pub(crate) fn read(guest: &'a GuestContext, argument: &str) -> anyhow::Result<Self> {
        let (name, uses) = argument.split_once('=').unwrap_or((argument, ""));
        let test = TESTS.iter().find(|(known, _)| *known == name);
        let (name, run) = *test.with_context(|| {
            let names = TESTS.map(|(name, _)| name).join(", ");
            format!("no test is named {name:?}: there are {names}")
        })?;
        let mut test = Test {
            guest,
            name,
            run,
            gpus: Vec::new(),
            disks: Vec::new(),
            numbers: Vec::new(),
        };
        for used in uses.split(',').filter(|used| !used.is_empty()) {
            test.add(used)?;
        }
        Ok(test)
    }

    fn add(&mut self, used: &str) -> anyhow::Result<()> {
        let guest = self.guest;
        let mut gpus = guest.gpus.iter();
        let mut disks = guest.controllers.iter();
        if let Some(gpu) = gpus.find(|gpu| gpu.node_path().as_os_str() == used) {
            self.gpus.push(gpu);
        } else if let Some(disk) = disks.find(|disk| disk.node.as_os_str() == used) {
            self.disks.push(disk);
        } else {
            let number = used.parse();
            self.numbers.push(number.map_err(|_| {
                anyhow!("{used:?} is neither a GPU or a disk nor a number: write {{gpu0}}")
            })?);
        }
        Ok(())
    }

    pub(crate) fn run(&self) -> anyhow::Result<()> {
        (self.run)(self)
    }

    /// Returns the first GPU.
    pub(crate) fn gpu(&self) -> anyhow::Result<&'a Gpu> {
        let gpu = self.gpus.first().copied();
        gpu.context("the test requires a GPU: name one")
    }

    /// Returns the second GPU.
    pub(crate) fn other_gpu(&self) -> anyhow::Result<&'a Gpu> {
        let gpu = self.gpus.get(1).copied();
        gpu.context("the test requires two GPUs: name another one")
    }

    /// Returns the first disk.
    pub(crate) fn disk(&self) -> anyhow::Result<&'a Controller> {
        let disk = self.disks.first().copied();
        disk.context("the test requires a disk: name one")
    }

    /// Returns the second disk.
    pub(crate) fn other_disk(&self) -> anyhow::Result<&'a Controller> {
        let disk = self.disks.get(1).copied();
        disk.context("the test requires two disks: name another one")
    }

    /// Returns the numbers, or `defaults` in place of those that are missing.
    pub(crate) fn numbers<const N: usize>(&self, mut defaults: [u32; N]) -> [u32; N] {
        for (default, number) in defaults.iter_mut().zip(&self.numbers) {
            *default = *number;
        }
        defaults
    }
}

/// Writes its name in the report, with those of the devices.
impl fmt::Display for Test<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        let gpus = self.gpus.iter().map(|gpu| &gpu.name);
        let mut devices = gpus.chain(self.disks.iter().map(|disk| &disk.name));
        devices.try_for_each(|name| write!(f, " {name}"))?;
        self.numbers
            .iter()
            .try_for_each(|number| write!(f, " {number}"))
    }
}

/// Writes `text` to the report, about the running test.
pub(crate) fn say(text: &str) {
    for line in text.lines() {
        println!("# {line}");
    }
}
