//! The facts that a source lacks for a certain verdict, and the commands that show them.

use crate::address::Address;
use crate::labels::Labels;
use crate::machine::{Acs, Function, Host, Kind, Machine};

/// Names after which a list is shortened.
const MOST_NAMES: usize = 3;

/// Returns what the paste lacks from which `machine` was read.
pub(crate) fn of_paste(machine: &Machine) -> Vec<String> {
    let labels = Labels::of(machine);
    let which = |lacks: &dyn Fn(&Address, &Function) -> bool| {
        let functions = machine.functions.iter();
        functions
            .filter(|(address, function)| lacks(address, function))
            .map(|(address, _)| *address)
            .collect::<Vec<Address>>()
    };
    let ports =
        which(&|_, function| function.class == Some(0x0604) && function.acs == Acs::Unknown);
    let unplaced =
        which(&|address, function| function.is_of_interest() && !machine.bridges_above(*address).1);
    let devices = which(&|_, function| function.kind() != Kind::Bridge);
    let without_kind = which(&|_, function| function.class.is_none());
    let mut gaps = Vec::new();
    if !devices.is_empty() && without_kind.len() == devices.len() {
        gaps.push(
            "the kinds of devices: `lspci -nn` shows them; name two addresses for a verdict"
                .to_owned(),
        );
    }
    if !ports.is_empty() {
        let names = list(ports.iter().map(Address::to_string).collect());
        gaps.push(format!("ACS of {names}: `sudo lspci -vvv` shows it"));
    }
    if !unplaced.is_empty() {
        let names = unplaced
            .iter()
            .map(|address| labels.label(*address).to_owned());
        let names = list(names.collect());
        gaps.push(format!("the bridges above {names}: `lspci -tv` shows them"));
    }
    gaps.extend(of_host(&machine.host));
    gaps
}

/// Returns what is not known of processor and kernel.
pub(crate) fn of_host(host: &Host) -> Vec<String> {
    let cpu = host
        .cpu
        .is_none()
        .then_some("the processor: `lscpu` shows it");
    let kernel = host
        .release
        .is_none()
        .then_some("the kernel: `uname -a` shows it");
    let gaps = [cpu, kernel].into_iter().flatten();
    gaps.map(str::to_owned).collect()
}

/// Returns the names with commas, or the first and the number of the others.
pub(crate) fn list(names: Vec<String>) -> String {
    match names.as_slice() {
        [first, others @ ..] if others.len() >= MOST_NAMES => {
            format!("{first} and {} others", others.len())
        }
        _ => names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gaps(text: &str) -> Vec<String> {
        Machine::read(text).unwrap().gaps
    }

    #[test]
    fn each_gap_has_the_command_that_fills_it() {
        let tree = "-[0000:00]-+-00.0\n           \\-01.0-[01]----00.0\n";
        assert_eq!(
            gaps(tree),
            [
                "the kinds of devices: `lspci -nn` shows them; name two addresses for a verdict",
                "ACS of 0000:00:01.0: `sudo lspci -vvv` shows it",
                "the processor: `lscpu` shows it",
                "the kernel: `uname -a` shows it",
            ]
        );
        let list = "00:00.0 Host bridge: Intel Corporation Device 09a2\n01:00.0 Ethernet controller: Intel Corporation I210\n";
        assert_eq!(
            gaps(list),
            [
                "the bridges above nic0: `lspci -tv` shows them",
                "the kernel: `uname -a` shows it",
            ]
        );
    }

    #[test]
    fn long_lists_are_counted() {
        let names = ["a", "b", "c", "d"].map(str::to_owned);
        assert_eq!(list(names[..3].to_vec()), "a, b, c");
        assert_eq!(list(names.to_vec()), "a and 3 others");
    }
}
