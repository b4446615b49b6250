//! The machine's requirements for checks with drivers in user space.

use std::ops::Range;

use peerbar_report::{Check, ProbeDriver, QueueAddresses};
use peerbar_switch::LinkMode;

use super::check::Endpoints;
use super::contents::Machine;
use super::error::Problem;

/// Checks that VFIO takes the devices of `check`, whose kind stands at `at`, and that the check
/// knows the way of their data.
pub(super) fn fit(
    check: &Check,
    at: Range<usize>,
    machine: &Machine,
    endpoints: Endpoints<'_>,
) -> Result<(), Problem> {
    // A probe also reports that VFIO refuses a device.
    let is_probe = matches!(check, Check::Probe(probe) if probe.by == ProbeDriver::Vfio);
    if !machine.iommu.is_present() && !is_probe && check.modules_on_demand().contains(&"vfio_pci") {
        let message = "vfio-pci requires an IOMMU: write `iommu = \"intel\"` in [machine]";
        return Err(Problem::new(at, message));
    }
    let (disk, gpu) = match check {
        Check::VfioAlias(alias) => (&alias.disk, &alias.gpu),
        Check::GpuInitiated(it) if it.addresses == QueueAddresses::Bus => (&it.disk, &it.gpu),
        _ => return Ok(()),
    };
    let device = |name: &str| endpoints.devices().find(|device| device.name() == name);
    let ends = [device(disk), device(gpu)];
    let switches = ends.map(|end| end.and_then(|end| end.attach().switch()));
    let have_switch = matches!(switches, [Some(one), Some(other)] if one == other);
    if matches!(check, Check::GpuInitiated(_)) && !have_switch {
        let message = format!(
            "bus addresses lead from `{disk}` to `{gpu}` below a common switch only: give both the same `below`, or leave `addresses` out"
        );
        return Err(Problem::new(at, message));
    }
    let mut ends = ends.into_iter().flatten();
    match ends.find(|end| end.link() != LinkMode::Route) {
        Some(end) => {
            let message = format!(
                "the check expects ports that route, and `{}` has `link = \"{}\"`: leave its `link` out",
                end.name(),
                end.link()
            );
            Err(Problem::new(at, message))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::scenario::Scenario;

    fn parse(machine: &str, link: &str, check: &str) -> Result<Scenario, String> {
        let text = format!(
            "name = \"x\"\n[machine]\n{machine}\n[[switch]]\nname = \"s0\"\n\
             [[nvme]]\nname = \"d0\"\nbelow = \"s0\"\n{link}\nnamespaces = [{{ ram = \"64M\" }}]\n\
             [[gpu]]\nname = \"g0\"\nbelow = \"s0\"\nvram = \"64M\"\n[[check]]\n{check}\n"
        );
        Scenario::parse(Path::new("x.toml"), text).map_err(|error| error.to_string())
    }

    const ALIAS: &str = "kind = \"vfio-alias\"\ndisk = \"d0\"\ngpu = \"g0\"";
    const BY_BUS: &str =
        "kind = \"gpu-initiated\"\ndisk = \"d0\"\ngpu = \"g0\"\naddresses = \"bus\"";
    const PROBE: &str = "kind = \"probe\"\nprovider = \"g0\"\nclient = \"d0\"\nby = \"vfio\"";

    #[test]
    fn vfio_check_without_an_iommu_is_refused() {
        let refused = |check: &str| parse("", "", check).err();
        let expected =
            "x.toml:16: vfio-pci requires an IOMMU: write `iommu = \"intel\"` in [machine]";
        assert_eq!(refused(ALIAS).as_deref(), Some(expected));
        assert_eq!(refused(PROBE), None);
        assert!(parse("iommu = \"amd\"", "", ALIAS).is_ok());
    }

    #[test]
    fn alias_check_expects_ports_that_route() {
        let refused = |link: &str| parse("iommu = \"intel\"", link, ALIAS).err();
        assert_eq!(refused("link = \"route\""), None);
        let expected = "x.toml:16: the check expects ports that route, and `d0` has `link = \"redirect\"`: leave its `link` out";
        assert_eq!(refused("link = \"redirect\"").as_deref(), Some(expected));
    }

    #[test]
    fn queues_in_vram_take_a_gpu() {
        let refused = |keys: &str| {
            let check = format!("kind = \"vfio-nvme\"\ndisk = \"d0\"\nqueues = \"vram\"\n{keys}");
            parse("iommu = \"intel\"", "", &check).err()
        };
        assert_eq!(refused("with = { p2pmem = \"g0\" }"), None);
        let alone = refused("with = \"guest-ram\"").unwrap();
        assert!(
            alone.ends_with("requires the memory of a GPU: name it by `with`"),
            "{alone}"
        );
    }

    #[test]
    fn bus_addresses_take_a_common_switch_that_routes() {
        let refused = |link: &str, check: &str| parse("iommu = \"intel\"", link, check).err();
        assert_eq!(refused("", BY_BUS), None);
        let foreign = "[[device]]\nname = \"f0\"\nbelow = \"s0\"\nsocket = \"x\"\n";
        let check = BY_BUS.replace("d0", "f0");
        assert_eq!(refused("", &format!("{check}\n{foreign}")), None);
        let link = refused("link = \"drop\"", BY_BUS).unwrap();
        assert!(link.contains("`d0` has `link = \"drop\"`"), "{link}");
        let elsewhere = "[[nvme]]\nname = \"d1\"\nnamespaces = [{ ram = \"64M\" }]\n";
        let check = BY_BUS.replace("d0", "d1");
        let alone = refused("", &format!("{check}\n{elsewhere}")).unwrap();
        let expected = "bus addresses lead from `d1` to `g0` below a common switch only: give both the same `below`, or leave `addresses` out";
        assert!(alone.ends_with(expected), "{alone}");
        let io = check.replace("bus", "io");
        assert_eq!(refused("", &format!("{io}\n{elsewhere}")), None);
        let own = BY_BUS.replace("bus", "io") + "\ndriver = \"peerbar-gpu\"";
        let own = refused("", &own).unwrap();
        assert!(
            own.contains("has no I/O addresses for a disk of vfio-pci"),
            "{own}"
        );
    }

    #[test]
    fn vfio_module_without_a_table_permits_unsafe_interrupts() {
        const DEFAULT: &str = "vfio_iommu_type1.allow_unsafe_interrupts=1";
        let parameters = |table: &str| {
            let scenario = parse("iommu = \"intel\"", "", &format!("{ALIAS}\n{table}")).unwrap();
            let words = scenario.machine.kernel_parameters;
            words
                .split(' ')
                .filter(|word| word.starts_with("vfio"))
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(parameters(""), DEFAULT);
        let table = "[[module]]\nname = \"vfio_iommu_type1\"";
        assert_eq!(parameters(table), DEFAULT);
        let own = format!("{table}\nparameters = \"dma_entry_limit=9\"");
        assert_eq!(parameters(&own), "vfio_iommu_type1.dma_entry_limit=9");
    }
}
