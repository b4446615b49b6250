//! Bus numbers: each host bridge has a range of them, and all that is below it must fit.

use std::ops::Range;

use toml::Spanned;

use super::error::Problem;
use super::file::File;

/// Bus numbers of a PCI segment. A machine has one segment (PCI Firmware 3.3, 4.1.2).
const ALL: usize = 256;

/// Returns the number of bus numbers for each host bridge, with `bridges` in addition to the
/// machine's own.
fn share(bridges: usize) -> usize {
    ALL / bridges.saturating_add(1)
}

/// Returns the first bus number of each of the `bridges` after the machine's own, which has the
/// numbers before them.
pub fn first_buses(bridges: usize) -> impl Iterator<Item = usize> {
    let share = share(bridges);
    (1..)
        .take(bridges)
        .map(move |number: usize| number.saturating_mul(share))
}

/// Checks that every host bridge has enough bus numbers for everything below it.
pub(super) fn fit(file: &File) -> Result<(), Problem> {
    let share = share(file.host_bridge.len());
    let bridges = file.host_bridge.iter().map(|bridge| &bridge.name);
    let further = bridges.map(|name| (Some(name.get_ref().as_str()), name.span()));
    let all = [(None, file.name.span())].into_iter().chain(further);
    for (bridge, at) in all {
        let needed = needed(file, bridge);
        if needed > share {
            return Err(too_many(at, bridge, needed, share));
        }
    }
    Ok(())
}

fn too_many(at: Range<usize>, bridge: Option<&str>, needed: usize, share: usize) -> Problem {
    let whose = bridge.map_or("the machine's host bridge".to_owned(), |name| {
        format!("`{name}`")
    });
    let message = format!(
        "the devices below {whose} take {needed} bus numbers, and each host bridge has {share}: declare fewer bridges or \
         fewer devices"
    );
    Problem::new(at, message)
}

/// Returns the number of necessary bus numbers: one for the bridge's bus, one for each port with
/// something below it, and one for the bus inside each switch.
fn needed(file: &File, bridge: Option<&str>) -> usize {
    let name = |below: &Option<Spanned<String>>| below.as_ref().map(|name| name.get_ref().clone());
    let switches = file.switch.iter();
    let switches = switches.filter(|switch| name(&switch.below).as_deref() == bridge);
    let switches: Vec<&str> = switches
        .map(|switch| switch.name.get_ref().as_str())
        .collect();
    let nvmes = file.nvme.iter().map(|nvme| &nvme.below);
    let gpus = file.gpu.iter().map(|gpu| &gpu.below);
    let devices = nvmes
        .chain(gpus)
        .chain(file.nic.iter().map(|nic| &nic.below));
    let here = devices.map(name).filter(|below| match below.as_deref() {
        below if below == bridge => true,
        Some(below) => switches.contains(&below),
        None => false,
    });
    1 + 2 * switches.len() + here.count()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::scenario::Scenario;

    #[test]
    fn bridges_share_the_bus_numbers() {
        assert_eq!(first_buses(0).count(), 0);
        assert_eq!(first_buses(3).collect::<Vec<_>>(), [64, 128, 192]);
    }

    #[test]
    fn what_is_below_a_bridge_must_have_numbers() {
        let lab = |devices: u32| {
            let bridge = |number| format!("[[host-bridge]]\nname = \"b{number}\"\n");
            let disk = |number| {
                format!(
                    "[[nvme]]\nname = \"d{number}\"\nbelow = \"s0\"\nnamespaces = [{{ ram = \"1M\" }}]\n"
                )
            };
            let text = "name = \"x\"\n".to_owned()
                + &(0..7).map(bridge).collect::<String>()
                + "[[switch]]\nname = \"s0\"\nbelow = \"b1\"\n"
                + &(0..devices).map(disk).collect::<String>()
                + "[[check]]\nkind = \"controller-reset\"\ndevice = \"d0\"\n";
            let parsed = Scenario::parse(Path::new("x.toml"), text);
            parsed.map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(lab(29), Ok(()));
        let expected = "x.toml:5: the devices below `b1` take 33 bus numbers, and each host bridge has 32: declare fewer \
                        bridges or fewer devices";
        assert_eq!(lab(30).unwrap_err(), expected);
    }
}
