//! The options for the start of a [`Lab`].

use std::path::{Path, PathBuf};

use peerbar_report::{KINDS, Module};

use crate::artifacts::{Artifacts, Own};
use crate::folder::Folder;
use crate::guest_access::GuestAccess;
use crate::guest_needs::GuestNeeds;
use crate::lab::{Lab, PreparedLab};
use crate::lab_error::LabError;
use crate::programs::program;
use crate::runs::Runs;
use crate::scenario::Scenario;
use crate::signals::{self, Signals};
use crate::survivors::Survivors;

/// The options for the start of a [`Lab`]. By default it uses peerbar's own QEMU and kernel, and
/// the folder `runs`, in which the last 20 runs stay.
#[derive(Clone, Debug, Default)]
pub struct LabOptions {
    own: Own,
    pub(crate) runs: Runs,
    pub(crate) access: Option<GuestAccess>,
    signals: Option<&'static Signals>,
    pub(crate) survivors: Survivors,
    /// The port of the debugger that the guest waits for.
    pub(crate) gdb: Option<u16>,
    /// The socket of a fabric that several guests share.
    pub(crate) fabric: Option<PathBuf>,
}

impl LabOptions {
    /// Sets the folder that gets a folder for each run, and from which none is removed.
    pub fn runs(self, runs: impl AsRef<Path>) -> Self {
        Self {
            runs: Runs::below(runs.as_ref()),
            ..self
        }
    }

    /// QEMU to use.
    pub fn qemu(mut self, qemu: impl Into<PathBuf>) -> Self {
        self.own.qemu = Some(qemu.into());
        self
    }

    /// Kernel to boot: a bzImage, a vmlinux or a build tree.
    pub fn kernel(mut self, kernel: impl Into<PathBuf>) -> Self {
        self.own.kernel = Some(kernel.into());
        self
    }

    /// Modules of that kernel: `lib/modules/RELEASE`, or a folder that contains it.
    pub fn modules(mut self, modules: impl Into<PathBuf>) -> Self {
        self.own.modules = Some(modules.into());
        self
    }

    /// Sets the place of the run's folder, with all its settings.
    pub fn runs_as(self, runs: Runs) -> Self {
        Self { runs, ..self }
    }

    /// Sets the user's own pieces, all at once.
    pub fn own(self, own: Own) -> Self {
        Self { own, ..self }
    }

    /// Lets the host start programs in the guest: see [`Lab::program`].
    pub fn access(self, access: GuestAccess) -> Self {
        Self {
            access: Some(access),
            ..self
        }
    }

    /// Signals that end the lab in place of the whole process, or that [`Lab::run_beside`] passes
    /// on.
    pub fn signals(self, signals: &'static Signals) -> Self {
        Self {
            signals: Some(signals),
            ..self
        }
    }

    /// Uses servers of another lab, whose guest has ended, for the switches and devices of the same
    /// names, and starts the others. The other lab must live as long as this one.
    pub fn survivors(self, survivors: Survivors) -> Self {
        Self { survivors, ..self }
    }

    /// Halts the guest at its first instruction until a debugger comes by this port, if there is one.
    pub fn gdb(self, gdb: Option<u16>) -> Self {
        Self { gdb, ..self }
    }

    /// Starts the devices and the guest of `scenario`, runs its checks if it has any, and waits
    /// until the guest is ready for requests.
    ///
    /// The calling thread must live as long as the lab: the processes die with it.
    ///
    /// # Errors
    /// The reason why the guest does not become ready. The run's folder has the logs.
    pub fn start(self, scenario: Scenario) -> Result<Lab, LabError> {
        self.runs.check()?;
        let mut lab = self.prepare_interactive(scenario, None)?.boot()?;
        lab.become_ready()?;
        Ok(lab)
    }

    /// Finds or makes all that a guest of `scenario` boots from, and begins its run. The guest
    /// runs the checks of the scenario, and then ends.
    ///
    /// # Errors
    /// The reason why the guest cannot boot.
    pub fn prepare(self, scenario: Scenario) -> Result<PreparedLab, LabError> {
        let needs = GuestNeeds::of(&scenario);
        self.prepare_with(scenario, &needs, None)
    }

    /// Does the work of [`LabOptions::prepare`] for a guest that takes requests after its checks.
    /// `folder` is that of its run, if it is there.
    pub(crate) fn prepare_interactive(
        self,
        mut scenario: Scenario,
        folder: Option<Folder>,
    ) -> Result<PreparedLab, LabError> {
        scenario.interactive = true;
        if let Some(access) = &self.access {
            scenario.give_access(access.clone());
        }
        if !scenario.gpus.is_empty() {
            add_module(&mut scenario, "peerbar_gpu_import_test");
        }
        let mut needs = GuestNeeds::of(&scenario);
        if self.own.kernel().is_none() {
            // Those of Debian's kernel that some check may load: the checks are not known yet.
            for name in KINDS.iter().flat_map(|kind| kind.on_demand) {
                if !needs.modules.iter().any(|known| known == name) {
                    needs.modules.push((*name).to_owned());
                }
            }
        }
        self.prepare_with(scenario, &needs, folder)
    }

    fn prepare_with(
        self,
        scenario: Scenario,
        needs: &GuestNeeds,
        folder: Option<Folder>,
    ) -> Result<PreparedLab, LabError> {
        let agent = program("peerbar-agent")?;
        let artifacts = Artifacts::prepare(&self.own, needs, &agent, self.own_signals())?;
        let run = PreparedLab {
            artifacts,
            folder: folder.map_or_else(|| self.runs.begin(&scenario.name), Ok)?,
            scenario,
            options: self,
        };
        run.mark()?;
        Ok(run)
    }

    /// Returns its signals.
    pub(crate) fn own_signals(&self) -> &'static Signals {
        self.signals.unwrap_or(&signals::NONE)
    }
}

impl Lab {
    /// Starts `scenario` with the default options.
    ///
    /// # Errors
    /// As [`LabOptions::start`].
    pub fn start(scenario: Scenario) -> Result<Self, LabError> {
        LabOptions::default().start(scenario)
    }
}

/// Adds a module that is loaded before the first check, for some kinds of checks.
fn add_module(scenario: &mut Scenario, name: &str) {
    if !scenario.modules.iter().any(|module| module.name == name) {
        scenario.modules.push(Module {
            name: name.to_owned(),
            parameters: String::new(),
        });
    }
}
