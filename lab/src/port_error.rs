//! Errors that the port above a device reports (PCIe Base 6.0, 7.8.4, Advanced Error Reporting).
//! QEMU's monitor has a port report one.

use std::fs;
use std::path::Path;
use std::str::FromStr;

use serde_json::{Value, json};
use thiserror::Error;

use crate::injecting::{InjectError, link_name};
use crate::monitor::Monitor;

/// Name of the link in a run's folder to the socket of QEMU's monitor.
pub(crate) const MONITOR: &str = "qemu.monitor";

/// The errors: name, a flag that is set if it is correctable, and its bit in the status register of
/// that kind.
const ERRORS: [(&str, bool, u32); 9] = [
    ("receiver-error", true, 0),
    ("bad-tlp", true, 6),
    ("bad-dllp", true, 7),
    ("replay-timeout", true, 12),
    ("data-link-protocol", false, 4),
    ("surprise-down", false, 5),
    ("poisoned-tlp", false, 12),
    ("completion-timeout", false, 14),
    ("unsupported-request", false, 20),
];

/// An error that a port reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortError {
    name: &'static str,
    correctable: bool,
    bit: u32,
}

/// The name is not one of a port's errors.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("must be an error of a port: {}", ERRORS.map(|(name, ..)| name).join(", "))]
pub struct UnknownPortError;

impl FromStr for PortError {
    type Err = UnknownPortError;

    fn from_str(text: &str) -> Result<Self, UnknownPortError> {
        let found = ERRORS.into_iter().find(|(name, ..)| *name == text);
        let (name, correctable, bit) = found.ok_or(UnknownPortError)?;
        Ok(Self {
            name,
            correctable,
            bit,
        })
    }
}

impl PortError {
    /// Returns the command of QEMU's human monitor.
    fn command(self, port: &str) -> String {
        let option = if self.correctable { "-c " } else { "" };
        format!(
            "pcie_aer_inject_error {option}{port} {:#x}",
            1u32 << self.bit
        )
    }
}

/// Makes the port above the device `device` of the run in the folder `run` report an error to the
/// guest. Returns a confirmation.
///
/// # Errors
/// A guest or a device that is not there, and a port that does not report errors.
pub fn report_port_error(
    run: &Path,
    device: &str,
    error: PortError,
) -> Result<String, InjectError> {
    let name = device.to_owned();
    let no_device = || InjectError::no_device(run, device);
    let failed = |source| InjectError::Socket {
        device: format!("{name}'s QEMU"),
        source,
    };
    let socket = fs::read_link(run.join(MONITOR)).map_err(|_| {
        match run.join(link_name(device)).exists() {
            true => InjectError::NoPort {
                run: run.to_owned(),
                device: name.clone(),
            },
            false => no_device(),
        }
    })?;
    let mut monitor = Monitor::connect(&socket).map_err(failed)?;
    let path = json!({"path": "/machine/peripheral"});
    let list = json!({"execute": "qom-list", "arguments": path});
    let listed = monitor.execute(&list).map_err(failed)?;
    let port = port_above(&listed, device).ok_or_else(no_device)?;
    let said = monitor.human(&error.command(&port)).map_err(failed)?;
    match said.starts_with("OK") {
        true => Ok(format!("reported by port {port}: {}", error.name)),
        false => Err(InjectError::Refused {
            device: name.clone(),
            cause: said,
        }),
    }
}

/// Returns the identifier of the port above a device, among QEMU's devices: a name of the switch or
/// `root`, a dot, and the device's.
fn port_above(listed: &Value, device: &str) -> Option<String> {
    let listed = listed.as_array()?.iter();
    let mut names = listed.filter_map(|entry| entry.get("name")?.as_str());
    let is_above = |name: &&str| {
        name.split_once('.')
            .is_some_and(|(_, below)| below == device)
    };
    names.find(is_above).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_is_the_monitor_s_command_for_its_bit() {
        let command = |text: &str| text.parse::<PortError>().unwrap().command("root.d0");
        let surprise = "pcie_aer_inject_error root.d0 0x20";
        assert_eq!(command("surprise-down"), surprise);
        let bad = "pcie_aer_inject_error -c root.d0 0x40";
        assert_eq!(command("bad-tlp"), bad);
        let error = "fire".parse::<PortError>().unwrap_err().to_string();
        assert!(error.starts_with("must be an error of a port: receiver-error, bad-tlp,"));
    }

    #[test]
    fn device_without_a_qemu_of_peerbar_has_no_port() {
        let folder = tempfile::tempdir().unwrap();
        let error = "surprise-down".parse::<PortError>().unwrap();
        let report = || report_port_error(folder.path(), "disk0", error).unwrap_err();
        assert!(matches!(report(), InjectError::NoDevice { .. }));
        fs::write(folder.path().join(link_name("disk0")), "").unwrap();
        assert!(matches!(report(), InjectError::NoPort { .. }));
    }

    #[test]
    fn port_above_a_device_has_its_name_behind_a_dot() {
        let names = [
            "type",
            "disk0",
            "switch0.disk1",
            "root.disk10",
            "root.disk0",
        ];
        let listed: Vec<_> = names.map(|name| json!({"name": name})).into();
        let above = |device| port_above(&Value::Array(listed.clone()), device);
        assert_eq!(above("disk0").as_deref(), Some("root.disk0"));
        assert_eq!(above("disk1").as_deref(), Some("switch0.disk1"));
        assert_eq!(above("disk2"), None);
    }
}
