//! The pairs of a provider and a client in a scenario and in a check.

pub(crate) use peerbar_report::Pair;

use peerbar_lab::scenario::{DeviceSpec, Scenario};

/// Returns all pairs of `scenario`: those of each device with memory for others, and last the use
/// of a device's memory by itself.
pub(crate) fn all(scenario: &Scenario) -> Vec<Pair> {
    let provides = |device: &DeviceSpec<'_>| match device {
        DeviceSpec::Nvme(nvme) => nvme.config.cmb.is_some(),
        DeviceSpec::Gpu(gpu, _) => !gpu.config.is_window(),
        DeviceSpec::Nic(..) => false,
        // The kernel knows no memory of it as p2pmem before its driver says so.
        DeviceSpec::Foreign(_) => false,
    };
    // A GPU's memory is no p2pmem to itself: it is addressed without the kernel.
    let uses = |provider: DeviceSpec<'_>, client: DeviceSpec<'_>| {
        provider.name() != client.name() || matches!(client, DeviceSpec::Nvme(_))
    };
    let mut pairs = Vec::new();
    for provider in scenario.devices().filter(provides) {
        let clients = scenario.devices().filter(|client| uses(provider, *client));
        pairs.extend(clients.map(|client| Pair::of(provider.name(), client.name())));
    }
    pairs.sort_by_key(|pair| pair.provider == pair.client);
    pairs
}

#[cfg(test)]
mod tests {
    use peerbar_report::Check;

    use super::*;

    #[test]
    fn the_demo_s_pairs_are_those_of_its_providers() {
        let demo = Scenario::demo().unwrap();
        let pairs = all(&demo);
        let expected = [
            ("disk0", "disk1"),
            ("disk0", "gpu0"),
            ("gpu0", "disk0"),
            ("gpu0", "disk1"),
            ("disk0", "disk0"),
        ];
        assert_eq!(
            pairs,
            expected.map(|(provider, client)| Pair::of(provider, client))
        );
    }

    #[test]
    fn a_copy_has_two_clients_and_its_control_none() {
        let pairs = |through: &str| {
            let text = format!(
                r#"{{"kind":"copy","from":"a","to":"b","through":{through},"sizes":[4096],"offsets":[0]}}"#
            );
            serde_json::from_str::<Check>(&text).unwrap().pairs()
        };
        assert_eq!(
            pairs(r#"{"p2pmem":"c"}"#),
            [Pair::of("c", "a"), Pair::of("c", "b")]
        );
        assert_eq!(pairs(r#""guest-ram""#), []);
    }
}
