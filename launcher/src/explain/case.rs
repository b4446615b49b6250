//! What is explained: a fabric and a platform, and who in it provides memory and who may want it.

use anyhow::anyhow;
use peerbar_rule::{Decision, Fabric, Platform, Release, decide};

use super::pairs::Pair;
use crate::exit::Failure;
use crate::fabric::{fabric, platform};
use crate::scenario::Scenario;

/// A machine whose pairs can be decided about.
pub(crate) struct Case {
    /// Its fabric.
    pub fabric: Fabric,
    /// What is around it.
    pub platform: Platform,
    /// What it is made from.
    pub scenario: Scenario,
}

impl Case {
    /// What `scenario` will be under a kernel of the newest release whose rule is known.
    pub(crate) fn of_scenario(scenario: Scenario) -> Result<Self, Failure> {
        let cpu = &scenario.machine.cpu;
        let platform = platform(&scenario.machine, Release::NEWEST).ok_or_else(|| {
            Failure::Usage(anyhow!(
                "what `cpu = \"{cpu}\"` is for the guest depends on the host: run the scenario and explain the run, or name \
                 a model of QEMU's"
            ))
        })?;
        Ok(Self {
            fabric: fabric(&scenario),
            platform,
            scenario,
        })
    }

    /// What the rule says of `pair`; nothing if one of both is not in the fabric.
    pub(crate) fn decide(&self, pair: &Pair) -> Option<Decision> {
        let find = |name: &str| self.fabric.find(name);
        let (provider, client) = (find(&pair.provider)?, find(&pair.client)?);
        decide(&self.fabric, &self.platform, provider, client)
    }
}
