//! The start of a lab's devices and guest.

use super::Lab;
use crate::artifacts::Artifacts;
use crate::finished_run::{SCENARIO, leave_not_run};
use crate::folder::Folder;
use crate::guest::Guest;
use crate::lab_error::LabError;
use crate::lab_options::LabOptions;
use crate::qemu::{Boot, Sockets};
use crate::scenario::Scenario;
use crate::socket_folder::SocketFolder;

/// A run that has begun, and whose devices and guest are started by [`PreparedLab::boot`].
pub struct PreparedLab {
    /// The files that the guest boots from.
    pub artifacts: Artifacts,
    /// The run's folder.
    pub folder: Folder,
    pub(crate) scenario: Scenario,
    pub(crate) options: LabOptions,
}

impl PreparedLab {
    /// Starts the devices and the guest.
    ///
    /// # Errors
    /// The reason why they do not start, which is the run's verdict then.
    pub fn boot(self) -> Result<Lab, LabError> {
        let (artifacts, options) = (&self.artifacts, &self.options);
        let (scenario, folder) = (&self.scenario, &self.folder);
        let temporary = SocketFolder::create()?;
        let sockets = Sockets::in_folder(temporary.path())
            .with_survivors(options.survivors.clone())
            .with_shared_fabric(options.fabric.clone());
        let boot = Boot {
            gdb: options.gdb,
            ..artifacts.boot(&scenario.machine)
        };
        let signals = options.own_signals();
        let guest = Guest::start(artifacts, &boot, scenario, &sockets, folder, signals);
        Ok(Lab {
            guest: guest.inspect_err(|error| leave_not_run(folder, error))?,
            run: self,
            programs: 0,
            temporary,
        })
    }

    /// Writes the scenario and the versions of the programs into the run's folder.
    pub(crate) fn mark(&self) -> anyhow::Result<()> {
        let versions = self.artifacts.versions();
        self.folder.begin(Some(&self.scenario.path), versions)?;
        self.folder.write(SCENARIO, &self.scenario.text)
    }
}
