//! The context in which checks run.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use parking_lot::Mutex;
use peerbar_report::{HostFolder, Plan};

use crate::devices::{Controller, Roots};
use crate::exec_server;
use crate::foreign::{self, Foreign};
use crate::gpus::{self, Gpu};
use crate::launcher::Launcher;
use crate::modules::Modules;
use crate::nics::{self, Nic};
use crate::p2pmem::Pool;
use crate::placeholders::Placeholders;
use crate::program_socket;
use crate::tools::Tools;
use crate::uevents::Uevents;
use peerbar_pattern::Pattern;

/// The reason why a check that needs the tools root cannot run.
pub(crate) const NO_TOOLS_ROOT: &str = "the guest has no tools root: write `tools = true` in the scenario, or call `tools()` of its builder";

/// Time limit for the devices to come up.
const DEVICE_TIME_OUT: Duration = Duration::from_secs(30);

/// The guest, ready for checks.
#[derive(Debug)]
pub struct GuestContext {
    /// The disks under test, in the order of the plan, with those of other projects' servers last.
    pub controllers: Vec<Controller>,
    /// The GPUs under test, in the order of the plan.
    pub gpus: Vec<Gpu>,
    /// The RDMA network adapters under test, in the order of the plan, with the names that they had
    /// once the guest was ready.
    pub(crate) nics: Vec<Nic>,
    /// The devices with servers of other projects, in the order of the plan.
    pub(crate) foreign: Vec<Foreign>,
    /// The kernel's announcements, for waiting.
    pub uevents: Uevents,
    modules: Modules,
    /// The launcher, which reads the devices' counters.
    pub launcher: Launcher,
    /// The tools root, once a check has needed it.
    tools: Mutex<Option<Tools>>,
    /// The plan, without its checks.
    pub(crate) plan: Plan,
    rounds: AtomicU64,
}

impl GuestContext {
    /// Makes the context once the devices are up.
    pub(crate) fn new(
        plan: &Plan,
        modules: Modules,
        uevents: Uevents,
        port: File,
    ) -> anyhow::Result<Self> {
        let roots = Roots::of_the_guest();
        let found = uevents.wait_for(DEVICE_TIME_OUT, || {
            anyhow::Ok((
                roots.find_all(&plan.devices)?,
                gpus::find_all(&roots, plan)?,
                nics::find_all(&roots, plan)?,
                foreign::find_all(&roots, plan)?,
            ))
        });
        let (mut controllers, gpus, nics, foreign) = found.with_context(|| {
            format!(
                "not all devices came up within {} s (modules taken as built into the kernel: {}; the console log has \
                 the drivers' own words)",
                DEVICE_TIME_OUT.as_secs(),
                modules.taken_as_built_in().join(", ")
            )
        })?;
        controllers.extend(foreign.iter().filter_map(|device| device.disk.clone()));
        let first_round = first_round();
        eprintln!("peerbar-agent: contents of disks have round {first_round} and later ones");
        Ok(GuestContext {
            controllers,
            gpus,
            nics,
            foreign,
            uevents,
            modules,
            launcher: Launcher::at(port),
            tools: Mutex::default(),
            plan: Plan {
                checks: Vec::new(),
                ..plan.clone()
            },
            rounds: AtomicU64::new(first_round),
        })
    }

    /// Returns the guest as a program run by a check of the kind `program` sees it.
    ///
    /// # Errors
    /// No check has started this process, or not all devices are up.
    pub fn of_program() -> anyhow::Result<Self> {
        let (plan, port) = program_socket::connect()?;
        Self::new(&plan, Modules::open()?, Uevents::open()?, port)
    }

    /// Returns the device that the plan calls `name`.
    pub(crate) fn controller(&self, name: &str) -> anyhow::Result<&Controller> {
        let found = self
            .controllers
            .iter()
            .find(|controller| controller.name == name);
        found.with_context(|| {
            let names: Vec<&str> = self
                .controllers
                .iter()
                .map(|controller| controller.name.as_str())
                .collect();
            format!(
                "the plan has no device {name:?}; it has {}",
                names.join(", ")
            )
        })
    }

    /// Returns the tools root, if the plan has one. It is mounted at the first call: mounting is
    /// slow under emulation, and a run without such a check does not need it.
    pub(crate) fn tools(&self) -> anyhow::Result<Option<Tools>> {
        let mut tools = self.tools.lock();
        if self.plan.tools && tools.is_none() {
            *tools = Some(Tools::mount(&self.modules, &self.plan.layers)?);
        }
        Ok(*tools)
    }

    /// [`GuestContext::tools`] for a check that cannot be skipped: it fails without a tools root.
    pub(crate) fn required_tools(&self) -> anyhow::Result<Tools> {
        self.tools()?.context(NO_TOOLS_ROOT)
    }

    /// Returns the time limit of a check that asks for this number of `seconds`, if it does.
    pub(crate) fn limit(&self, seconds: Option<u32>) -> Duration {
        Duration::from_secs(seconds.unwrap_or(self.plan.check_seconds).into())
    }

    /// Shows a line of a running command, if that is wanted.
    pub(crate) fn show(&self, line: &str) {
        if !self.plan.live {
            return;
        }
        if let Err(error) = self.launcher.show(line) {
            eprintln!("peerbar-agent: {error:#}");
        }
    }

    /// Returns the values of the placeholders for devices in commands. An adapter without a driver
    /// keeps the names that it had once the guest was ready, so that a command can bind one.
    pub(crate) fn placeholders(&self) -> Placeholders {
        let roots = Roots::of_the_guest();
        let nics = self.nics.iter();
        let nics: Vec<Nic> = nics
            .map(|nic| nic.now(&roots).unwrap_or_else(|_| nic.clone()))
            .collect();
        let functions = self.functions();
        let functions = functions.map(|device| (device.name.as_str(), device.pci.as_path()));
        Placeholders::of(&self.controllers, &self.gpus, &nics).with_functions(functions)
    }

    /// Starts to run programs for the host.
    pub(crate) fn start_exec_server(&self, host_folder: HostFolder) -> anyhow::Result<()> {
        self.tools()?
            .context("the plan wants programs of the host, and has no tools root")?;
        let placeholders = self.placeholders();
        exec_server::start(&self.modules, &placeholders, host_folder)
    }

    /// Loads a module that only some checks need.
    pub fn load_module(&self, name: &str) -> anyhow::Result<()> {
        self.load_module_with(name, "")
    }

    /// Loads a module with parameters.
    pub(crate) fn load_module_with(&self, name: &str, parameters: &str) -> anyhow::Result<()> {
        self.modules.load(name, parameters)
    }

    /// Returns each device's name and its index in the plan.
    pub(crate) fn devices(&self) -> impl Iterator<Item = (&str, u32)> {
        let controllers = self.controllers.iter();
        let gpus = self.gpus.iter().map(|gpu| (gpu.name.as_str(), gpu.number));
        let controllers =
            controllers.map(|controller| (controller.name.as_str(), controller.number));
        let nics = self.nics.iter().map(|nic| (nic.name.as_str(), nic.number));
        let functions = self.functions();
        let functions = functions.map(|device| (device.name.as_str(), device.number));
        controllers.chain(gpus).chain(nics).chain(functions)
    }

    /// Returns the devices with servers of other projects that are no disks.
    fn functions(&self) -> impl Iterator<Item = &Foreign> {
        self.foreign.iter().filter(|device| device.disk.is_none())
    }

    /// Returns the devices whose accesses to mapped memory nobody counts.
    pub(crate) fn unmeasured(&self) -> impl Iterator<Item = &Foreign> {
        self.foreign.iter().filter(|device| !device.is_counted)
    }

    /// Returns `true` if a server of ours serves this device, and so counts its interrupts.
    pub(crate) fn counts_interrupts(&self, device: u32) -> bool {
        !self.foreign.iter().any(|foreign| foreign.number == device)
    }

    /// Returns the GPU that the plan calls `name`.
    pub(crate) fn gpu(&self, name: &str) -> anyhow::Result<&Gpu> {
        let found = self.gpus.iter().find(|gpu| gpu.name == name);
        found.with_context(|| format!("the plan has no GPU {name:?}"))
    }

    /// Returns the RDMA network adapter that the plan calls `name`, with the names that it has now.
    pub(crate) fn nic(&self, name: &str) -> anyhow::Result<Nic> {
        let found = self.nics.iter().find(|nic| nic.name == name);
        let found = found.with_context(|| format!("the plan has no adapter {name:?}"))?;
        found.now(&Roots::of_the_guest())
    }

    /// Returns the p2pmem of the device or GPU that the plan calls `name`.
    pub fn provider(&self, name: &str) -> anyhow::Result<Provider> {
        if let Ok(gpu) = self.gpu(name) {
            return Ok(Provider {
                pool: gpu.pool(),
                bytes: gpu.aperture_bytes,
                description: gpu.description(),
            });
        }
        let controller = self.with_cmb(name)?;
        Ok(Provider {
            pool: controller.pool(),
            bytes: controller.cmb_bytes,
            description: controller.cmb_registers(),
        })
    }

    /// Returns the controller that the plan calls `name`, which must have a CMB.
    pub(crate) fn with_cmb(&self, name: &str) -> anyhow::Result<&Controller> {
        let controller = self.controller(name)?;
        if controller.cmb_bytes == 0 {
            bail!(
                "{name} has no CMB in the plan, so it provides no p2pmem; give it one in the scenario"
            );
        }
        Ok(controller)
    }

    /// Returns a pattern for the disk of `controller` that was never used before.
    pub fn fresh_pattern(&self, controller: &Controller) -> Pattern {
        self.fresh_pattern_of(controller.number)
    }

    /// Returns a pattern for the device with this index in the plan that was never used before.
    pub(crate) fn fresh_pattern_of(&self, number: u32) -> Pattern {
        Pattern {
            disk: number,
            round: self.rounds.fetch_add(1, Ordering::Relaxed),
        }
    }
}

/// Returns a random number: a disk that outlives the guest may contain data that a check of an
/// earlier boot wrote.
fn first_round() -> u64 {
    // Half of the range, so that no number of a boot wraps around.
    RandomState::new().hash_one(std::process::id()) >> 1
}

/// A device that provides memory to others.
#[derive(Debug)]
pub struct Provider {
    /// The kernel's pool of its memory.
    pub pool: Pool,
    /// Size of the memory in bytes, according to the plan.
    pub(crate) bytes: u64,
    /// The device's own properties, for messages.
    pub(crate) description: String,
}
