//! The real machine that a scenario imitates, and that machine's verdicts on pairs of devices.

use std::collections::BTreeMap;

use peerbar_rule::Way;
use serde::Deserialize;

/// The verdicts on the real machine. Devices have their names in the scenario. Names without a
/// device are ignored, so that devices can be removed from the scenario.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Twin {
    /// The source that the machine was read from.
    pub of: String,
    /// The verdicts, by the name of the device with the memory.
    #[serde(default)]
    pub verdicts: BTreeMap<String, ProviderVerdicts>,
    /// The clients whose verdicts depend on facts that the source lacks, by the name of the device
    /// with the memory. The verdict is that without any of these facts.
    #[serde(default)]
    pub conditional: BTreeMap<String, Vec<String>>,
    /// Differences between the machine and the scenario, as sentences.
    #[serde(default)]
    pub differences: Vec<String>,
}

/// Names of the devices that issue the DMA, by the kernel's verdict.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct ProviderVerdicts {
    /// Direct, by bus address.
    pub bus_address: Vec<String>,
    /// Through the host bridge.
    pub through_host_bridge: Vec<String>,
    /// Refused.
    pub not_supported: Vec<String>,
}

impl Twin {
    /// Returns the machine's verdict on DMA of `client` to memory of `provider`.
    pub fn verdict(&self, provider: &str, client: &str) -> Option<Way> {
        let verdicts = self.verdicts.get(provider)?;
        let all = [
            (&verdicts.bus_address, Way::BusAddress),
            (&verdicts.through_host_bridge, Way::ThroughHostBridge),
            (&verdicts.not_supported, Way::NotSupported),
        ];
        let found = all
            .into_iter()
            .find(|(clients, _)| clients.iter().any(|name| name == client));
        found.map(|(_, verdict)| verdict)
    }

    /// Returns `true` if that verdict depends on facts that the source lacks.
    pub fn is_conditional(&self, provider: &str, client: &str) -> bool {
        let clients = self.conditional.get(provider);
        clients.is_some_and(|clients| clients.iter().any(|name| name == client))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::Scenario;
    use super::*;

    #[test]
    fn verdicts_are_found_by_provider_and_client() {
        let text = "name = \"x\"\n[[nvme]]\nname = \"d0\"\nnamespaces = [{ ram = \"1M\" }]\n[twin]\nof = \"x\"\n\
                    verdicts.g0 = { bus-address = [\"d0\"], not-supported = [\"d1\", \"gone\"] }\nconditional.g0 = [\"d1\"]\n";
        let scenario = Scenario::parse_interactive(Path::new("x.toml"), text).unwrap();
        let twin = scenario.twin.unwrap();
        assert_eq!(twin.verdict("g0", "d0"), Some(Way::BusAddress));
        assert_eq!(twin.verdict("g0", "d1"), Some(Way::NotSupported));
        assert_eq!(twin.verdict("d0", "g0"), None);
        assert!(twin.is_conditional("g0", "d1") && !twin.is_conditional("g0", "d0"));
    }
}
