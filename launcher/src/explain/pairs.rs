//! Which pairs of a provider and a client there are.

use crate::scenario::{Device, Scenario};

/// Whose memory, and whose DMA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    /// The device with the memory.
    pub provider: String,
    /// The device with the DMA.
    pub client: String,
}

impl Pair {
    fn of(provider: &str, client: &str) -> Self {
        Self {
            provider: provider.to_owned(),
            client: client.to_owned(),
        }
    }

    /// Whether `name` is one of both.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.provider == name || self.client == name
    }
}

/// All pairs of `scenario`: of each device with memory for others, its own use of it among them where it has one.
pub(crate) fn all(scenario: &Scenario) -> Vec<Pair> {
    let provides = |device: &Device<'_>| match device {
        Device::Nvme(nvme) => nvme.cmb.is_some(),
        Device::Gpu(gpu, _) => !gpu.window,
    };
    // A GPU's own memory is no p2pmem to itself: it is addressed without the kernel.
    let uses = |provider: Device<'_>, client: Device<'_>| {
        provider.name() != client.name() || matches!(client, Device::Nvme(_))
    };
    let mut pairs = Vec::new();
    for provider in scenario.devices().filter(provides) {
        let clients = scenario.devices().filter(|client| uses(provider, *client));
        pairs.extend(clients.map(|client| Pair::of(provider.name(), client.name())));
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_s_pairs_are_those_of_its_providers() {
        let demo = Scenario::demo().unwrap();
        let pairs = all(&demo);
        let expected = [
            ("disk0", "disk0"),
            ("disk0", "disk1"),
            ("disk0", "gpu0"),
            ("gpu0", "disk0"),
            ("gpu0", "disk1"),
        ];
        assert_eq!(
            pairs,
            expected.map(|(provider, client)| Pair::of(provider, client))
        );
    }
}
