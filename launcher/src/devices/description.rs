//! The description of the devices for a virtual machine: the arguments of QEMU, or the domain of
//! libvirt.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Context;
use peerbar_lab::folder::Folder;
use peerbar_lab::own_qemu::OwnQemu;
use peerbar_lab::scenario::Scenario;
use peerbar_lab::shell_word::quoted;
use serde::Serialize;

use super::emulator::FoundEmulator;
use crate::cli;

/// File in a run's folder: QEMU's arguments as a shell reads them.
const ARGUMENTS: &str = "qemu.args";
/// File in a run's folder: libvirt's domain.
const DOMAIN: &str = "domain.xml";

/// The devices of one start.
#[derive(Serialize)]
pub(super) struct Description {
    /// Identifies this object among the following ones.
    event: &'static str,
    scenario: String,
    /// The run's folder.
    folder: String,
    /// The socket of each device's server, by its name.
    sockets: BTreeMap<String, String>,
    /// QEMU's arguments.
    arguments: Vec<String>,
    /// The parameters that the guest's kernel needs.
    kernel_parameters: String,
    /// libvirt's domain.
    domain: String,
    /// Description of the QEMU that starts it.
    emulator: String,
}

impl Description {
    pub(super) fn of(
        qemu: &OwnQemu<'_>,
        scenario: &Scenario,
        folder: &Folder,
        emulator: &FoundEmulator,
    ) -> anyhow::Result<Self> {
        let ours = scenario.devices().filter(|device| device.is_ours());
        let socket = |path: &Path| path.display().to_string();
        Ok(Self {
            event: "ready",
            scenario: scenario.name.clone(),
            folder: folder.path().display().to_string(),
            sockets: ours
                .map(|device| {
                    (
                        device.name().to_owned(),
                        socket(&qemu.sockets.server(device)),
                    )
                })
                .collect(),
            arguments: qemu.arguments(),
            kernel_parameters: qemu.kernel_parameters(),
            domain: qemu.domain(&scenario.name, &emulator.emulator)?,
            emulator: emulator.described(),
        })
    }

    /// Leaves it in `folder`, for scripts. xargs(1) reads the arguments back.
    pub(super) fn keep(&self, folder: &Path) -> anyhow::Result<()> {
        let lines: Vec<String> = self.pairs().collect();
        for (name, text) in [
            (ARGUMENTS, &(lines.join("\n") + "\n")),
            (DOMAIN, &self.domain),
        ] {
            let path = folder.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    /// Returns the text that is printed at the start.
    pub(super) fn shown(&self, options: &cli::Devices) -> anyhow::Result<String> {
        if options.json {
            let line = serde_json::to_string(self).context("cannot write JSON")?;
            return Ok(line + "\n");
        }
        let parameters = match self.kernel_parameters.as_str() {
            "" => String::new(),
            words => format!("# the guest's kernel needs the parameters: {words}\n"),
        };
        let (what, file, text) = if options.libvirt {
            let emulator = format!("# started by {}\n", self.emulator);
            ("libvirt", DOMAIN, emulator + &self.domain)
        } else {
            let lines: Vec<String> = self.pairs().collect();
            let what = "QEMU 10.1.1 or later, as `peerbar qemu`";
            (what, ARGUMENTS, lines.join(" \\\n") + "\n")
        };
        let folder = options
            .sockets
            .as_deref()
            .unwrap_or(Path::new(&self.folder));
        Ok(format!(
            "# the devices of {} are ready until Ctrl-C; for {what} (also in {}):\n{parameters}{text}",
            self.scenario,
            folder.join(file).display()
        ))
    }

    /// Returns each option with its value, as a shell reads it.
    fn pairs(&self) -> impl Iterator<Item = String> {
        self.arguments.chunks(2).map(|words| {
            let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
            words.join(" ")
        })
    }
}
