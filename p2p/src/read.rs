//! Reads a machine from any source.

use std::io;
use std::path::Path;

use crate::log;
use crate::lspci;
use crate::machine::{Acs, Machine, Place, Statement};
use crate::names;
use crate::sysfs;

/// Why a machine cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// sysfs cannot be read.
    #[error("cannot read the PCI devices in sysfs")]
    Sysfs(#[from] io::Error),
    /// The text has no PCI device.
    #[error(
        "no PCI device found: expected the output of `lspci -vvv`, best as root, or a file of `peerbar p2p --save`"
    )]
    NoDevice,
    /// The text is JSON of another kind.
    #[error("this JSON is not a machine that `peerbar p2p --save` wrote")]
    Json(#[from] serde_json::Error),
}

impl Machine {
    /// Reads this machine from sysfs and procfs. Without root, ACS stays unknown.
    ///
    /// # Errors
    ///
    /// sysfs cannot be read, or shows no PCI device.
    pub fn here() -> Result<Self, ReadError> {
        Self::of_root(Path::new("/"))
    }

    /// Reads the machine whose `/` is the folder `root`, which may be a copy of another's `sys` and
    /// `proc`.
    ///
    /// # Errors
    ///
    /// Its sysfs cannot be read, or shows no PCI device.
    pub fn of_root(root: &Path) -> Result<Self, ReadError> {
        Ok(sysfs::read(root)?)
    }

    /// Reads a machine from a text: a file of `--save`, or a paste with the output of `lspci` and
    /// whatever else a person pasted with it.
    ///
    /// # Errors
    ///
    /// The text has no PCI device.
    pub fn read(text: &str) -> Result<Self, ReadError> {
        if text.trim_start().starts_with('{') {
            return Ok(serde_json::from_str(text)?);
        }
        let text = without_control(text);
        let text = text.as_str();
        let mut machine = Self::default();
        lspci::read(text, &mut machine);
        machine.attach_by_bus_numbers();
        log::read(text, &mut machine);
        if machine.functions.is_empty() {
            return Err(ReadError::NoDevice);
        }
        infer_host(&mut machine);
        machine.gaps = gaps(&machine);
        Ok(machine)
    }
}

/// Returns `text` without characters that steer a terminal, on which parts of it are shown.
fn without_control(text: &str) -> String {
    let is_plain = |c: &char| matches!(c, '\n' | '\t') || !c.is_control();
    text.chars().filter(is_plain).collect()
}

/// Infers processor and hypervisor from the host bridges, which show them.
fn infer_host(machine: &mut Machine) {
    let on_root = machine
        .functions
        .values()
        .filter(|function| function.place == Place::RootBus);
    for function in on_root {
        let vendor = function.id.map(|id| id.vendor);
        if names::is_zen(function.id, &function.description) {
            machine.host.cpu.get_or_insert(names::ZEN_CPU);
        } else if vendor == Some(0x8086) || function.description.starts_with("Intel ") {
            machine.host.cpu.get_or_insert(names::INTEL_CPU);
        }
        if machine.host.hypervisor.is_none() {
            machine.host.hypervisor =
                names::hypervisor(function.id, &function.description).map(str::to_owned);
        }
    }
}

/// Returns what the source lacks.
fn gaps(machine: &Machine) -> Vec<String> {
    let mut gaps = Vec::new();
    let functions = || machine.functions.values();
    let bridges = || functions().filter(|function| function.class == Some(0x0604));
    if bridges().any(|bridge| bridge.acs == Acs::Unknown) {
        gaps.push("ACS of some ports: `sudo lspci -vvv` shows it".to_owned());
    }
    if functions().any(|function| function.is_of_interest() && function.place == Place::Unknown) {
        gaps.push("the bridges above some devices: paste the output for all devices".to_owned());
    }
    if machine.host.cpu.is_none() {
        gaps.push("the processor: `lscpu` shows it".to_owned());
    }
    if machine.host.release.is_none() {
        gaps.push("the kernel: `uname -a` shows it".to_owned());
    }
    gaps
}

impl Machine {
    /// Returns the kernel's lines about host bridges that its list lacks.
    pub fn unlisted_host_bridges(&self) -> impl Iterator<Item = &str> {
        self.statements
            .iter()
            .filter_map(|statement| match statement {
                Statement::NotListed { line, .. } => Some(line.as_str()),
                _ => None,
            })
    }
}
