//! The machine that is explained, recorded or planned, as the rule sees it.

use anyhow::anyhow;
use peerbar_rule::{Decision, PciTree, Platform, Release, decide};

use super::observed_guest::ObservedGuest;
use super::pairs::Pair;
use super::recorded::Recorded;
use peerbar_lab::exit::Failure;
use peerbar_lab::pci_tree::{pci_tree, platform};
use peerbar_lab::results::CheckResult;
use peerbar_lab::scenario::{DeviceSpec, Machine, Scenario};
use peerbar_lab::verdict::RunVerdict;

/// A machine with its pairs of provider and client.
pub(crate) struct Case {
    /// Its scenario.
    pub scenario: Scenario,
    /// Its tree: the guest's if there was one, else the scenario's.
    pub tree: PciTree,
    /// Its platform. The IOMMU may translate for some clients only.
    platform: Platform,
    /// The verdict on the run, if there was one.
    pub verdict: Option<RunVerdict>,
    /// The guest that was run.
    pub guest: Option<ObservedGuest>,
    /// The results of its checks.
    pub results: Vec<CheckResult>,
    /// The results of the checks across it and other guests.
    pub across: Vec<CheckResult>,
}

impl Case {
    /// Returns the machine of `scenario` under the newest kernel that the rule knows.
    pub(crate) fn of_scenario(scenario: Scenario) -> Result<Self, Failure> {
        Ok(Self {
            tree: pci_tree(&scenario),
            platform: expected(&scenario.machine, Release::NEWEST)?,
            scenario,
            verdict: None,
            guest: None,
            results: Vec::new(),
            across: Vec::new(),
        })
    }

    /// Returns the machine of a run, as its guest reported it, or as the scenario describes it if
    /// the guest died before it reported anything.
    pub(crate) fn of_run(run: Recorded) -> Result<Self, Failure> {
        let Recorded {
            scenario,
            release,
            evidence,
            results,
            across,
            verdict,
        } = run;
        let kernel = Release::parse(&release).ok_or_else(|| {
            Failure::Usage(anyhow!(
                "the run's kernel {release:?} has no release that starts with two numbers"
            ))
        })?;
        let mut guest = ObservedGuest::of(evidence);
        if let Some(guest) = &mut guest {
            guest.name_ports(&pci_tree(&scenario));
        }
        let (tree, platform) = match guest
            .as_ref()
            .and_then(|guest| Some((guest.tree(), guest.platform(false)?)))
        {
            Some(found) => found,
            None => (pci_tree(&scenario), expected(&scenario.machine, kernel)?),
        };
        Ok(Self {
            scenario,
            tree,
            platform,
            verdict: Some(verdict),
            guest,
            results,
            across,
        })
    }

    /// Returns the platform for DMA of `client`.
    pub(crate) fn platform(&self, client: &str) -> Platform {
        let translates = match &self.guest {
            Some(guest) => guest.translates(client),
            None => self.platform.translates,
        };
        Platform {
            translates,
            ..self.platform
        }
    }

    /// Returns the devices of `pair` that QEMU serves itself, and for which it routes nothing in a
    /// switch.
    pub(crate) fn served_by_qemu(&self, pair: &Pair) -> Vec<&str> {
        let devices = self.scenario.devices();
        let by_qemu = devices.filter(|device| pair.has(device.name()) && !device.is_ours());
        by_qemu.map(DeviceSpec::name).collect()
    }

    /// Returns the rule's decision about `pair`, or `None` if one of both is not in the tree.
    pub(crate) fn decide(&self, pair: &Pair) -> Option<Decision> {
        decide_in(&self.tree, &self.platform(&pair.client), pair)
    }
}

/// Returns the rule's decision about `pair` in `tree`, or `None` if one of both is not in it.
pub(crate) fn decide_in(tree: &PciTree, platform: &Platform, pair: &Pair) -> Option<Decision> {
    let (provider, client) = (tree.find(&pair.provider)?, tree.find(&pair.client)?);
    decide(tree, platform, provider, client)
}

fn expected(machine: &Machine, kernel: Release) -> Result<Platform, Failure> {
    platform(machine, kernel).ok_or_else(|| {
        Failure::Usage(anyhow!(
            "the guest's CPU with `cpu = \"{}\"` depends on the host: run the scenario and explain the run, or name a model \
             of QEMU's",
            machine.cpu
        ))
    })
}
