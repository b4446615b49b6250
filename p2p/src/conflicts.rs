//! Contradictions between the kernel's command line and what the functions show.

use crate::address::Address;
use crate::machine::{Acs, Conflict, Iommu, Machine};

/// A parameter that keeps the kernel from switching redirection on (Linux
/// Documentation/admin-guide/kernel-parameters.txt).
const DISABLE_ACS_REDIR: &str = "disable_acs_redir=";

/// Returns the contradictions between the command line of `machine` and its functions.
pub(crate) fn of_command_line(machine: &Machine) -> Vec<Conflict> {
    let redirects = |port: &Address| match machine.function(*port).map(|port| port.acs) {
        Some(Acs::Control(control)) => !control.redirecting().is_empty(),
        _ => false,
    };
    let command_line = machine.host.command_line.as_deref().unwrap_or_default();
    let ports = ports_without_redirection(command_line).filter(redirects);
    let mut conflicts: Vec<Conflict> = ports.map(Conflict::Parameter).collect();
    let mut functions = machine.functions.values();
    let is_off = machine.host.iommu == Some(Iommu::Off);
    if is_off && functions.any(|function| function.iommu_group.is_some()) {
        conflicts.push(Conflict::Iommu);
    }
    conflicts
}

/// Returns the ports that the parameter names by their addresses.
fn ports_without_redirection(command_line: &str) -> impl Iterator<Item = Address> {
    let options = command_line
        .split(' ')
        .filter_map(|word| word.strip_prefix("pci="))
        .flat_map(|options| options.split(','));
    let ports = options.filter_map(|option| option.strip_prefix(DISABLE_ACS_REDIR));
    ports
        .flat_map(|ports| ports.split(';'))
        .filter_map(|port| port.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{DIRECT, REDIRECTS, at, machine, two_sockets};

    fn conflicts(command_line: &str, acs: &str) -> Vec<Conflict> {
        let text = format!(
            "$ cat /proc/cmdline\n{command_line}\n$ sudo lspci -vvv\n{}",
            two_sockets(acs)
        );
        machine(&text).conflicts
    }

    #[test]
    fn port_that_redirects_in_spite_of_the_parameter_is_a_conflict() {
        let line = "ro pci=noaer,disable_acs_redir=0000:19:08.0;pci:10b5:8747;1a:00.0 quiet";
        assert_eq!(
            conflicts(line, REDIRECTS),
            [Conflict::Parameter(at("19:08.0"))]
        );
        assert_eq!(conflicts(line, DIRECT), []);
    }

    #[test]
    fn groups_without_an_iommu_are_a_conflict() {
        assert_eq!(conflicts("ro intel_iommu=off", DIRECT), [Conflict::Iommu]);
        assert_eq!(conflicts("ro intel_iommu=on", DIRECT), []);
    }
}
