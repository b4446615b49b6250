//! The scenario with which `[[check]]` tables are compared. The tables themselves are
//! [`peerbar_report`]'s.

use std::time::Duration;

use peerbar_report::{ForeignKind, Inventory, NvmeDevice};

use super::contents::{Machine, Nvme};
use super::foreign::Foreign;
use super::gpu::Gpu;
use super::nic::Nic;

/// The devices of a scenario.
#[derive(Clone, Copy)]
pub(super) struct Endpoints<'a> {
    pub(super) nvmes: &'a [Nvme],
    pub(super) gpus: &'a [Gpu],
    pub(super) nics: &'a [Nic],
    pub(super) foreign: &'a [Foreign],
}

/// Returns everything that checks can name.
pub(super) fn inventory(
    Endpoints {
        nvmes,
        gpus,
        nics,
        foreign,
    }: Endpoints<'_>,
    machine: &Machine,
    tools: bool,
    timeout: Duration,
) -> Inventory {
    let nvme = |nvme: &Nvme| NvmeDevice {
        name: nvme.name.clone(),
        cmb_bytes: nvme.config.cmb.unwrap_or_default().0,
        cmb_queues: nvme.config.cmb_queues,
        pmr_bytes: nvme.pmr.as_ref().map_or(0, |pmr| pmr.bytes),
        disk_bytes: nvme.disk_bytes,
        block_bytes: nvme.config.block_bytes,
        namespaces: u32::try_from(nvme.namespaces.len()).unwrap_or(u32::MAX),
        uncounted: !nvme.counted,
    };
    let gpu = |gpu: &Gpu| peerbar_report::Gpu {
        name: gpu.name.clone(),
        vram_bytes: gpu.config.vram.0,
        aperture_bytes: gpu.config.aperture().0,
        window: gpu.config.is_window(),
    };
    let nic = |nic: &Nic| peerbar_report::Nic {
        name: nic.name.clone(),
    };
    // The class code of a device without a kind is not known before a run.
    let is_other = |device: &&Foreign| device.kind == Some(ForeignKind::Other);
    let disks = foreign.iter().filter(|device| !is_other(device));
    let functions = foreign.iter().filter(is_other);
    Inventory {
        nvmes: nvmes.iter().map(nvme).collect(),
        gpus: gpus.iter().map(gpu).collect(),
        nics: nics.iter().map(nic).collect(),
        foreign_disks: disks.map(|device| device.plan(0).disk()).collect(),
        functions: functions.map(|device| device.name.clone()).collect(),
        cpus: machine.cpus,
        tools,
        timeout,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::scenario::Scenario;

    const HEAD: &str = "name = \"x\"\n\n[[nvme]]\nname = \"d0\"\nnamespaces = [{ ram = \"64M\" }]\n\n\
        [[gpu]]\nname = \"g0\"\nvram = \"64M\"\n";

    fn parse(top: &str, lines: &str) -> Result<Scenario, String> {
        let text = format!("{top}{HEAD}\n[[check]]\n{lines}\n");
        Scenario::parse(Path::new("x.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn gpu_and_file_system_bring_their_modules() {
        let lines = "kind = \"gpu-file\"\ngpu = \"g0\"\ndisks = [\"d0\"]\non = \"ext4\"\nsizes = [\"4K\"]\noffsets = [0]";
        let scenario = parse("tools = true\n", lines).unwrap();
        let modules = scenario.initramfs_modules();
        assert_eq!(
            modules,
            ["nvme", "peerbar_gpu", "9p", "9pnet_virtio", "ext4"]
        );
        let [gpu] = &scenario.plan().gpus[..] else {
            panic!("{:?}", scenario.gpus)
        };
        assert_eq!((gpu.vram_bytes, gpu.aperture_bytes), (64 << 20, 64 << 20));
        assert!(!gpu.window);
    }

    #[test]
    fn vfio_check_brings_the_modules_of_its_backend() {
        let vfio = |keys: &str| {
            let lines = format!("kind = \"vfio-nvme\"\ndisk = \"d0\"\n{keys}");
            parse("machine.iommu = \"intel\"\n", &lines)
                .map(|scenario| scenario.initramfs_modules().join(" "))
        };
        let own = "nvme peerbar_gpu";
        let type1 = vfio("with = \"guest-ram\"").unwrap();
        assert_eq!(type1, format!("{own} vfio_iommu_type1 vfio_pci"));
        let iommufd = vfio("with = { p2pmem = \"g0\" }\nbackend = \"iommufd\"");
        assert_eq!(iommufd.unwrap(), format!("{own} iommufd vfio_pci"));
        let probe = |client: &str| {
            let lines = "kind = \"probe\"\nprovider = \"g0\"\nby = \"vfio\"\nclient = ";
            parse("", &format!("{lines}\"{client}\"")).map(|scenario| scenario.checks.len())
        };
        assert_eq!(probe("d0").unwrap(), 1);
        assert!(
            probe("g0")
                .unwrap_err()
                .contains("requires a disk as `client`")
        );
    }

    #[test]
    fn rdma_check_mistakes_are_reported_with_their_line() {
        let rdma = |from: &str, sizes: &str| {
            format!(
                "kind = \"rdma\"\nnic = \"n0\"\nfrom = {from}\nto = \"guest-ram\"\nsizes = {sizes}"
            )
        };
        let form = "x.toml:16: `from`: write `\"guest-ram\"`, or `{ vram = \"NAME\" }` with the name of a [[gpu]]";
        for (lines, wanted) in [
            (rdma("\"g0\"", "[1]"), form),
            (rdma("\"vram\"", "[1]"), form),
            (rdma("{ }", "[1]"), form),
            (
                rdma("{ vram = \"g1\" }", "[1]"),
                "x.toml:16: no [[gpu]] is named `g1`: there is `g0`",
            ),
            (
                rdma("\"guest-ram\"", "[64, 0]"),
                "x.toml:18: `sizes`: 0 is too small: write 1 or more",
            ),
            (
                rdma("\"guest-ram\"", "[1]") + "\nguest = \"left\"",
                "x.toml:19: `guest` requires a [[guest]]: add one for each guest, or leave the key out",
            ),
        ] {
            let nic = "[[nic]]\nname = \"n0\"";
            let text = format!("tools = true\n{HEAD}{nic}\n[[check]]\n{lines}\n");
            let error = Scenario::parse(Path::new("x.toml"), text).unwrap_err();
            assert_eq!(error.to_string(), wanted, "{lines}");
        }
    }

    #[test]
    fn gpu_check_mistakes_are_reported_with_their_line() {
        let file = "kind = \"gpu-file\"\ngpu = \"g0\"\nsizes = [\"4K\"]\noffsets = [0]\n";
        for (lines, wanted) in [
            (
                "kind = \"gpu-refused\"\ngpu = \"g1\"\ndisk = \"d0\"".to_owned(),
                "x.toml:13: no [[gpu]] is named `g1`: there is `g0`",
            ),
            (format!("{file}disks = []"), "x.toml:14: no disk is named"),
            (
                format!("{file}disks = [\"d1\"]"),
                "x.toml:16: no [[nvme]] is named `d1`: there is `d0`",
            ),
            (
                format!("{file}disks = [\"d0\"]\non = \"xfs\""),
                "x.toml:17: a file system is made by the tools root: write `tools = true` at the top",
            ),
            (
                format!("{file}disks = [\"d0\"]\nstatus = 1"),
                "x.toml:17: a check of the kind `gpu-file` has no key `status`: there are `gpu`, `disks`, `on`, `by`, `bounce`, `sizes`, `offsets`, \
                 `threads`, `name`, `timeout`",
            ),
        ] {
            assert_eq!(parse("", &lines).unwrap_err(), wanted, "{lines}");
        }
        let error = parse(
            "tools = true\n",
            &format!("{file}disks = [\"d0\"]\non = \"xfs\""),
        );
        let error = error.unwrap_err();
        assert!(
            error.starts_with("x.toml:15: XFS requires a disk of 300M or more"),
            "{error}"
        );
    }

    #[test]
    fn command_mistakes_are_reported_with_their_line() {
        let command =
            |lines: &str| parse("tools = true\n", &format!("kind = \"command\"\n{lines}"));
        let named = "run = \"{d0:disk} {d0:ns1} {d0:pci} {g0} {g0:p2pmem} ${x} {{y}}\"\n";
        let fitting = format!("{named}matches = ['^\\d+$']\ntimeout = \"59s\"");
        assert_eq!(command(&fitting).unwrap().checks[0].seconds(), Some(59));
        for (lines, wanted) in [
            (
                "run = \"nvme list {d1}\"",
                "x.toml:14: unknown placeholder `{d1}` (known: {d0}, {g0}); ",
            ),
            (
                "run = \"{d0:p2pmem}\"",
                "x.toml:14: unknown placeholder `{d0:p2pmem}` (known: {d0}, {d0:disk}, ",
            ),
            (
                "run = \"{d0:ns2}\"",
                "x.toml:14: unknown placeholder `{d0:ns2}` (",
            ),
            (
                "run = \"{g0:disk}\"",
                "x.toml:14: unknown placeholder `{g0:disk}` (known: {g0}, {g0:pci}, {g0:p2pmem}); ",
            ),
            (
                "run = \"true\"\nmatches = [\"(\"]",
                "x.toml:15: `matches`: invalid regular expression \"(\": ",
            ),
            (
                "run = \"true\"\ntimeout = 0",
                "x.toml:15: invalid time limit `0`: ",
            ),
            (
                "run = \"true\"\ntimeout = \"1m\"",
                "x.toml:15: `timeout`: the guest ends after 60 s: ",
            ),
        ] {
            let error = command(lines).unwrap_err();
            assert!(error.starts_with(wanted), "{error}");
        }
    }

    #[test]
    fn p2pmem_of_a_gpu_is_named_like_that_of_a_disk() {
        let lines = "kind = \"copy\"\nfrom = \"d0\"\nto = \"d0\"\nthrough = { p2pmem = \"g0\" }\nsizes = [\"4K\"]\noffsets = [0]";
        assert!(parse("", lines).is_ok());
        let error = parse("", &lines.replace("\"g0\"", "\"d0\"")).unwrap_err();
        assert!(error.contains("`d0` has no p2pmem"), "{error}");
    }

    /// Returns a scenario whose disk has a CMB of 2 MiB and whose only check, from line 15 on, is
    /// these lines.
    fn refused(queues: bool, check: &str) -> Option<String> {
        let text = format!(
            "name = \"x\"\n\n[[nvme]]\nname = \"d0\"\ncmb = \"2M\"\ncmb-queues = {queues}\n\
             namespaces = [{{ ram = \"64M\" }}]\n\n[[gpu]]\nname = \"g0\"\nvram = \"4M\"\n\n\
             [[check]]\nkind = {check}\n"
        );
        let parsed = Scenario::parse(Path::new("x.toml"), text);
        parsed.err().map(|error| error.to_string())
    }

    fn copy(provider: &str, size: &str, threads: u32) -> String {
        format!(
            "\"copy\"\nfrom = \"d0\"\nto = \"d0\"\nthrough = {{ p2pmem = \"{provider}\" }}\n\
             sizes = [\"4K\", \"{size}\"]\noffsets = [0]\nthreads = {threads}"
        )
    }

    #[test]
    fn buffers_of_all_threads_must_fit_the_pool() {
        assert_eq!(refused(false, &copy("d0", "2M", 1)), None);
        assert_eq!(refused(false, &copy("d0", "512K", 4)), None);
        let message = "x.toml:18: 2 x 2M do not fit the p2pmem of `d0`: it has 2M";
        assert_eq!(refused(false, &copy("d0", "2M", 2)).unwrap(), message);
        let message = "x.toml:18: 1 x 8M do not fit the p2pmem of `g0`: it has 4M";
        assert_eq!(refused(false, &copy("g0", "8M", 1)).unwrap(), message);
    }

    #[test]
    fn queues_reduce_the_pool() {
        assert_eq!(refused(true, &copy("d0", "1920K", 1)), None);
        let message = "x.toml:18: 1 x 1924K do not fit the p2pmem of `d0`: it has 2M, and its queues may take 128K of that";
        assert_eq!(refused(true, &copy("d0", "1924K", 1)).unwrap(), message);
    }
}
