//! A scenario as a run uses it: the choice of its checks, and what its guest needs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use peerbar_flight::Level;
use peerbar_nvme::PollPolicy;
use peerbar_report::{Check, ForeignDevice, HostFolder, Inventory, Mount, Plan, Rdma};

use super::check::{self, Endpoints};
use super::contents::{Nvme, Scenario};
use super::file::Model;
use super::names::demand_known_checks;
use super::program;
use crate::guest_access::GuestAccess;
use crate::guest_files::GuestFile;
use crate::iommu::Iommu;

impl Scenario {
    /// Returns everything that checks can name.
    pub fn inventory(&self) -> Inventory {
        check::inventory(self.endpoints(), &self.machine, self.tools, self.timeout)
    }

    /// Returns the tables of all devices.
    pub(super) fn endpoints(&self) -> Endpoints<'_> {
        Endpoints {
            nvmes: &self.nvmes,
            gpus: &self.gpus,
            nics: &self.nics,
            foreign: &self.foreign,
        }
    }

    /// Replaces the number of workers and the poll policy of our disks, where one is given.
    pub fn serve_disks_by(&mut self, workers: Option<u8>, poll: Option<PollPolicy>) {
        let own = |nvme: &&mut Nvme| nvme.model == Model::Peerbar;
        for nvme in self.nvmes.iter_mut().filter(own) {
            let config = &mut nvme.config;
            config.workers = workers.unwrap_or(config.workers);
            config.poll = poll.unwrap_or(config.poll);
        }
    }

    /// Keeps the checks that have one of these names in the report, or all if there are no names.
    ///
    /// # Errors
    /// An unknown name, with the list of names.
    pub fn select_checks(&mut self, names: &[String]) -> anyhow::Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        demand_known_checks(names, &self.check_names())?;
        self.keep_checks(names);
        Ok(())
    }

    /// Returns the names that its checks have in the report.
    pub fn check_names(&self) -> Vec<String> {
        let labels = self.labels.iter().map(Option::as_ref);
        let names = self.checks.iter().zip(labels);
        names
            .map(|(check, label)| label.cloned().unwrap_or_else(|| check.name()))
            .collect()
    }

    /// Keeps the checks with one of these names.
    pub(super) fn keep_checks(&mut self, names: &[String]) {
        let known = self.check_names();
        let wanted = |name: &String| names.contains(name);
        self.programs.retain(|program| wanted(&program.name));
        let mut keep = known.iter().map(wanted);
        self.checks.retain(|_| keep.next().unwrap_or(false));
        let mut keep = known.iter().map(wanted);
        self.labels.retain(|_| keep.next().unwrap_or(false));
    }

    /// Records every command and DMA, and traces the guest's kernel, for `peerbar trace`.
    pub fn trace(&mut self) {
        self.machine.trace = true;
        self.recording = Level::All;
    }

    /// Lets the host start programs in the guest, which takes requests after the checks then.
    pub fn give_access(&mut self, access: GuestAccess) {
        self.tools = true;
        self.interactive = true;
        self.access = Some(access);
    }

    /// Returns the names of the devices whose server a check has killed.
    pub(crate) fn losable(&self) -> BTreeSet<String> {
        let lost = self.checks.iter().filter_map(Check::kills);
        lost.map(str::to_owned).collect()
    }

    /// Returns the plan for the guest's agent.
    pub fn plan(&self) -> Plan {
        let Inventory {
            nvmes, gpus, nics, ..
        } = self.inventory();
        Plan {
            modules: self.modules.clone(),
            devices: nvmes,
            gpus,
            nics,
            foreign: self.planned_foreign(),
            one_switch: self.is_one_switch(),
            tools: self.tools,
            layers: Vec::new(),
            udev: self.udev,
            network: self.machine.network,
            shares: self.mounts(),
            check_seconds: self.check_seconds(),
            live: self.live || self.checks.iter().any(Check::is_shown),
            interactive: self.interactive,
            trace: self.machine.trace,
            exec: self.access.as_ref().map(|access| access.permission),
            iommu_faults: Iommu::fault_texts().map(str::to_owned).collect(),
            checks: self.checks.clone(),
        }
    }

    /// Returns the devices with servers of other projects, each with its slot.
    fn planned_foreign(&self) -> Vec<ForeignDevice> {
        let slots: BTreeMap<&str, u32> = self.slots().collect();
        let slot = |name: &str| slots.get(name).copied().unwrap_or_default();
        let foreign = self.foreign.iter();
        foreign
            .map(|device| device.plan(slot(&device.name)))
            .collect()
    }

    /// Returns the host's folders that the guest mounts.
    fn mounts(&self) -> Vec<Mount> {
        let shares = self.shares.iter().enumerate();
        let mounts = shares.map(|(index, share)| Mount {
            tag: Mount::tag(index),
            at: share.at.clone(),
            folder: match share.writable {
                true => HostFolder::ReadWrite,
                false => HostFolder::ReadOnly,
            },
        });
        mounts.collect()
    }

    /// Returns the scenario's name for check `number`, counted from 1, if it has one.
    pub fn label(&self, number: u32) -> Option<&str> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        self.labels.get(index)?.as_deref()
    }

    /// Returns the time limit of a check: the agent must abandon a hung check, and say so, before
    /// the launcher abandons the guest.
    pub(crate) fn check_seconds(&self) -> u32 {
        let half = self.timeout.as_secs().div_ceil(2);
        let most = Plan::CHECK_SECONDS.saturating_mul(self.slowness);
        u32::try_from(half).map_or(most, |half| half.min(most))
    }

    /// Sets another time limit. A longer one is for a slow machine or kernel: it raises the limits
    /// of checks without an explicit limit by the same factor.
    pub fn set_timeout(&mut self, timeout: Duration) {
        let times = timeout.as_secs() / self.timeout.as_secs().max(1);
        self.slowness = u32::try_from(times).unwrap_or(u32::MAX).max(1);
        self.timeout = timeout;
    }

    /// Returns the files that the guest gets from the host: those that the scenario lists, and the
    /// programs of its checks.
    pub fn guest_files(&self) -> Vec<GuestFile> {
        let programs = self.programs.iter();
        let brought = programs.map(|program| program.brought.clone());
        let files = self.files.iter().cloned().chain(brought);
        let of_ends = if self.rdma_ends { Rdma::PROGRAMS } else { &[] };
        let own = self.checks.iter().flat_map(Check::programs).chain(of_ends);
        files.chain(program::of_project(own.copied())).collect()
    }

    /// Names of the modules that the initramfs must hold: besides those of the plan the ones that
    /// the agent loads when it needs them.
    pub fn initramfs_modules(&self) -> Vec<String> {
        let own = self.modules.iter().map(|module| module.name.as_str());
        let tools = ["9p", "9pnet_virtio"].into_iter().filter(|_| self.tools);
        let access = ["vmw_vsock_virtio_transport"].into_iter();
        let tools = tools.chain(access.filter(|_| self.access.is_some()));
        let checks = self.checks.iter();
        let checks = checks.flat_map(|check| check.modules_on_demand().iter().copied());
        let mut names: Vec<String> = Vec::new();
        for name in own.chain(tools).chain(checks) {
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
        names
    }
}
