//! The ports of a switch that have Access Control Services.

use serde::Deserialize;
use toml::Spanned;

use super::attach::AttachPoint;
use super::error::Problem;

/// The ports of a switch that have Access Control Services.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(
    untagged,
    expecting = "expected `true`, or a list of devices below the switch"
)]
pub enum AcsPorts {
    /// All or none.
    All(bool),
    /// Those above these devices.
    Above(Vec<String>),
}

impl Default for AcsPorts {
    fn default() -> Self {
        Self::All(false)
    }
}

impl AcsPorts {
    /// Returns `true` if the port above `device` has them.
    pub fn has(&self, device: &str) -> bool {
        match self {
            Self::All(all) => *all,
            Self::Above(devices) => devices.iter().any(|name| name == device),
        }
    }
}

/// Returns the ports of `switch`. `devices` are all devices with their places.
pub(super) fn ports<'a>(
    ports: Option<Spanned<AcsPorts>>,
    switch: &str,
    devices: impl Iterator<Item = (&'a str, &'a AttachPoint)> + Clone,
) -> Result<AcsPorts, Problem> {
    let Some(ports) = ports else {
        return Ok(AcsPorts::default());
    };
    let (at, ports) = (ports.span(), ports.into_inner());
    let is_below = |name: &str| {
        let found = devices.clone().find(|(known, _)| *known == name);
        found.is_some_and(|(_, attach)| attach.switch() == Some(switch))
    };
    if let AcsPorts::Above(names) = &ports {
        if let Some(name) = names.iter().find(|name| !is_below(name)) {
            let message = format!("`acs`: no device `{name}` is below `{switch}`");
            return Err(Problem::new(at, message));
        }
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::super::Scenario;
    use crate::topology::{FunctionKind, Topology};

    const SCENARIO: &str = r#"
name = "x"
[[switch]]
name = "s0"
acs = ["a"]
[[nvme]]
name = "a"
below = "s0"
namespaces = [{ ram = "1M" }]
[[nvme]]
name = "b"
below = "s0"
namespaces = [{ ram = "1M" }]
"#;

    fn parsed(text: &str) -> Result<Scenario, String> {
        let parsed = Scenario::parse_interactive("x.toml".as_ref(), text);
        parsed.map_err(|error| format!("{error:#}"))
    }

    /// Returns the devices below a port with Access Control Services.
    fn with_acs(acs: &str) -> Vec<String> {
        let scenario = parsed(&SCENARIO.replace("[\"a\"]", acs)).unwrap();
        let topology = Topology::of(&scenario);
        let ports = topology.functions.iter();
        let ports = ports.filter(|port| matches!(port.kind, FunctionKind::AcsPort(_)));
        ports.map(|port| port.id.to_string()).collect()
    }

    #[test]
    fn ports_above_named_devices_have_acs() {
        assert_eq!(with_acs("[\"a\"]"), ["s0.a"]);
        assert_eq!(with_acs("true"), ["s0.a", "s0.b"]);
        assert_eq!(with_acs("false"), [""; 0]);
    }

    #[test]
    fn device_that_is_not_below_the_switch_is_refused() {
        let error = parsed(&SCENARIO.replace("[\"a\"]", "[\"c\"]")).unwrap_err();
        assert!(
            error.contains("x.toml:5: `acs`: no device `c` is below `s0`"),
            "{error}"
        );
        let error = parsed(&SCENARIO.replace("[\"a\"]", "3")).unwrap_err();
        assert!(
            error.contains("a list of devices below the switch"),
            "{error}"
        );
    }
}
