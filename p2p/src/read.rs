//! Reads a machine from any source.

use std::io;
use std::path::Path;

use crate::hwloc;
use crate::log;
use crate::lspci;
use crate::machine::{Acs, Machine, Place, Statement};
use crate::names;
use crate::nccl;
use crate::sysfs;
use crate::xml::Document;

/// Why a machine cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// sysfs cannot be read.
    #[error("cannot read the PCI devices in sysfs")]
    Sysfs(#[from] io::Error),
    /// The text has no PCI device.
    #[error(
        "no PCI device found: expected the output of `lspci -vvv`, best as root, a file of `peerbar p2p --save`, or \
         a topology file of NCCL, RCCL or hwloc"
    )]
    NoDevice,
    /// The file of a tool has no PCI device.
    #[error("{0} shows no PCI device: {1}")]
    NoDeviceIn(&'static str, &'static str),
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

    /// Reads a machine from a text: a file of `--save`, a paste with the output of `lspci` and
    /// whatever else a person pasted with it, or a topology file of NCCL, RCCL or hwloc.
    ///
    /// # Errors
    ///
    /// The text has no PCI device.
    pub fn read(text: &str) -> Result<Self, ReadError> {
        let text = text.trim_start_matches('\u{feff}').trim_start();
        if text.starts_with('{') {
            return Ok(serde_json::from_str(text)?);
        }
        let mut machine = Self::default();
        // A paste may begin with a tag, too.
        let document = text.starts_with('<').then(|| Document::read(text));
        let tool = document
            .as_ref()
            .and_then(|document| Tool::of(document.root()?));
        match tool.zip(document) {
            Some((tool, document)) => tool.read(&document, &mut machine)?,
            None => read_paste(text, &mut machine)?,
        }
        infer_host(&mut machine);
        let gaps = gaps(&machine, tool);
        machine.gaps.extend(gaps);
        Ok(machine)
    }
}

fn read_paste(text: &str, machine: &mut Machine) -> Result<(), ReadError> {
    let text = without_control(text);
    lspci::read(&text, machine);
    machine.attach_by_bus_numbers();
    log::read(&text, machine);
    if machine.functions.is_empty() {
        return Err(ReadError::NoDevice);
    }
    Ok(())
}

/// A tool that writes the shape of a machine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tool {
    Nccl,
    Hwloc,
}

impl Tool {
    /// Returns the tool whose XML has this root element.
    fn of(root: &str) -> Option<Self> {
        match root {
            "system" => Some(Self::Nccl),
            "topology" => Some(Self::Hwloc),
            _ => None,
        }
    }

    /// Returns the name of its file.
    fn file(self) -> &'static str {
        match self {
            Self::Nccl => "NCCL's topology file",
            Self::Hwloc => "hwloc's file",
        }
    }

    /// Reads its file into `machine`.
    fn read(self, document: &Document, machine: &mut Machine) -> Result<(), ReadError> {
        match self {
            Self::Nccl => nccl::read(document, machine),
            Self::Hwloc => hwloc::read(document, machine),
        }
        if machine.functions.is_empty() {
            return Err(ReadError::NoDeviceIn(self.file(), self.way_out()));
        }
        if let Some(broken) = &document.broken {
            machine.gaps.push(format!(
                "a part of the file, which is cut or broken at {broken}"
            ));
        }
        Ok(())
    }

    /// Returns the ports that its file does not show.
    fn leaves_out(self) -> &'static str {
        match self {
            Self::Nccl => "root ports, downstream ports and host bridges (so PHB may be NODE)",
            Self::Hwloc => "some ports",
        }
    }

    /// Returns how to get a file with devices.
    fn way_out(self) -> &'static str {
        match self {
            Self::Nccl => "NCCL_TOPO_DUMP_FILE=FILE has a run of NCCL or RCCL write one",
            Self::Hwloc => "`lstopo FILE.xml` without --no-io writes one that does",
        }
    }
}

/// Returns `text` without characters that steer a terminal, on which parts of it are shown.
pub(crate) fn without_control(text: &str) -> String {
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

/// Returns what the source lacks, which is the file of `tool` or a paste.
fn gaps(machine: &Machine, tool: Option<Tool>) -> Vec<String> {
    let mut gaps = Vec::new();
    let functions = || machine.functions.values();
    let bridges = || functions().filter(|function| function.class == Some(0x0604));
    if bridges().any(|bridge| bridge.acs == Acs::Unknown) {
        gaps.push(match tool {
            Some(tool) => format!("ACS: {} shows none, `sudo lspci -vvv` does", tool.file()),
            None => "ACS of some ports: `sudo lspci -vvv` shows it".to_owned(),
        });
    }
    if let Some(tool) = tool {
        if machine.functions.keys().any(|at| at.is_not_shown()) {
            gaps.push(format!(
                "{}: {} leaves them out",
                tool.leaves_out(),
                tool.file()
            ));
        }
        gaps.push(format!(
            "memory: {} shows no BARs, so only GPUs and accelerators count as providers",
            tool.file()
        ));
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
