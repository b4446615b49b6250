//! A scenario: the devices and their places, the machine around them, and the checks.
//!
//! [`Scenario::load`] reads a file, [`Scenario::demo`] the one that is built in. Their results are
//! consistent as a whole. Inconsistent input is rejected, with the line of the mistake.

mod acs;
mod attach;
mod builder;
mod bus_numbers;
mod catalogue;
mod check;
mod contents;
mod device;
mod error;
mod fault;
mod file;
mod files;
pub(crate) mod foreign;
mod gpu;
mod group;
mod link;
mod lost;
mod machine;
mod mistakes;
mod modules;
mod names;
mod nic;
mod nvme;
mod packages;
pub(crate) mod program;
mod qemu_nvme;
mod rdma_network;
mod reading;
#[cfg(test)]
mod reference;
mod root_ports;
mod run;
mod sanitize;
mod settings;
mod share;
mod together;
mod twin;
mod user_drivers;
mod validate;

pub use acs::AcsPorts;
pub use attach::AttachPoint;
pub use builder::{DeviceBuilder, GpuBuilder, NicBuilder, NvmeBuilder, ScenarioBuilder};
pub use bus_numbers::first_buses;
pub use catalogue::{ScenarioFile, in_folder, shipped};
pub use contents::{Machine, Namespace, Nvme, Pmr, Scenario, Switch};
pub use device::DeviceSpec;
pub use error::ScenarioError;
pub use file::Model;
pub use foreign::{Count, Foreign, ServerProgram};
pub use gpu::Gpu;
pub use group::{GroupCheck, GroupGuest, GuestGroup};
pub use mistakes::{Known, Review, review};
pub use nic::Nic;
pub use program::HostProgram;
pub use rdma_network::RdmaNetwork;
pub use sanitize::Sanitize;
pub use share::Share;
pub use twin::{ProviderVerdicts, Twin};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;
    use std::time::Duration;

    use peerbar_flight::Level;
    use peerbar_nvme::PollPolicy;

    use super::reading::DEMO;
    use super::*;
    use crate::firmware::Firmware;
    use crate::guest_needs::GuestNeeds;

    const HEAD: &str = "name = \"x\"\n\n[[switch]]\nname = \"s0\"\n\n[[nvme]]\nname = \"d0\"\n";
    const DISK: &str = "namespaces = [{ ram = \"1M\" }]\n";

    fn parse(text: String) -> Result<Scenario, String> {
        Scenario::parse(Path::new("x.toml"), text).map_err(|error| error.to_string())
    }

    /// Returns a scenario with these lines about its only controller, from line 8 on.
    fn nvme(lines: &str) -> String {
        parse(format!(
            "{HEAD}{lines}\n[[check]]\nkind = \"controller-reset\"\ndevice = \"d0\"\n"
        ))
        .unwrap_err()
    }

    /// Returns a scenario with these lines as its only check, from line 12 on.
    fn check(lines: &str) -> String {
        parse(format!("{HEAD}cmb = \"2M\"\n{DISK}\n[[check]]\n{lines}\n")).unwrap_err()
    }

    #[test]
    fn devices_that_a_check_loses_may_be_lost() {
        let gpu = "[[gpu]]\nname = \"g0\"\nvram = \"64M\"\n";
        let check = "[[check]]\nkind = \"program\"\npath = \"x\"\nloses = \"g0\"\n";
        let scenario = parse(format!("tools = true\n{HEAD}{DISK}\n{gpu}\n{check}")).unwrap();
        assert_eq!(scenario.losable(), BTreeSet::from(["g0".to_owned()]));
    }

    #[test]
    fn the_demo_makes_sense() {
        let mut demo = Scenario::demo().unwrap();
        let plan = demo.plan();
        let devices: Vec<(&str, u64)> = plan
            .devices
            .iter()
            .map(|device| (device.name.as_str(), device.cmb_bytes))
            .collect();
        assert_eq!(devices, [("disk0", 64 << 20), ("disk1", 0)]);
        assert_eq!(plan.gpus.len(), 1);
        let modules = [
            "nvme",
            "peerbar_gpu",
            "9p",
            "9pnet_virtio",
            "ext4",
            "xfs",
            "vfio_iommu_type1",
            "vfio_pci",
        ];
        assert_eq!(demo.initramfs_modules(), modules);
        assert_eq!(plan.check_seconds, 60);
        demo.set_timeout(Duration::from_secs(900));
        assert_eq!(demo.plan().check_seconds, 180);
        assert_eq!(demo.text, DEMO);
    }

    #[test]
    fn file_that_is_no_scenario_is_refused_with_its_reason() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.toml");
        let refused = |path: &Path| Scenario::load(path).unwrap_err().to_string();
        let reason = refused(folder.path());
        assert!(reason.ends_with("it is a folder: name a file"), "{reason}");
        fs::write(&path, [0xff, 0xfe]).unwrap();
        let reason = refused(&path);
        assert!(reason.ends_with("it is not UTF-8"), "{reason}");
        let reason = refused(Path::new("/dev/zero"));
        assert!(reason.ends_with("it is larger than 1M"), "{reason}");
    }

    #[test]
    fn what_is_left_out_has_a_default() {
        let scenario = parse(
            format!("tools = true\n{HEAD}{DISK}check = []\n").replace("check = []\n", "")
                + "[[check]]\nkind = \"command\"\nrun = \"true\"\n",
        )
        .unwrap();
        let Machine {
            cpu, memory, cpus, ..
        } = scenario.machine.clone();
        assert_eq!((cpu.as_str(), memory, cpus), ("EPYC", 512 << 20, 2));
        assert_eq!(scenario.machine.kernel_parameters, "");
        assert_eq!(scenario.initramfs_modules(), ["nvme", "9p", "9pnet_virtio"]);
        let [nvme] = scenario.nvmes.as_slice() else {
            panic!("{:?}", scenario.nvmes)
        };
        assert_eq!(
            (nvme.config.cmb, nvme.config.block_bytes, &nvme.attach),
            (None, 512, &AttachPoint::Root)
        );
    }

    #[test]
    fn iommu_driver_is_loaded_first() {
        let machine = "name = \"x\"\n[machine]\niommu = \"virtio\"\n";
        let check = "[[check]]\nkind = \"controller-reset\"\ndevice = \"d0\"\n";
        let text = format!("{HEAD}{DISK}{check}").replacen("name = \"x\"\n", machine, 1);
        let scenario = parse(text).unwrap();
        assert_eq!(scenario.initramfs_modules(), ["virtio_iommu", "nvme"]);
        let module = "[[module]]\nname = \"nvme\"\nparameters = \"use_cmb_sqes=0\"\n";
        let scenario = parse(scenario.text + module).unwrap();
        assert_eq!(scenario.initramfs_modules(), ["virtio_iommu", "nvme"]);
    }

    #[test]
    fn what_is_sanitized_is_recorded() {
        let recording = |lines: &str| {
            let machine = format!("name = \"x\"\n[machine]\niommu = \"virtio\"\n{lines}");
            let check = "[[check]]\nkind = \"controller-reset\"\ndevice = \"d0\"\n";
            let text = format!("{HEAD}{DISK}{check}").replacen("name = \"x\"\n", &machine, 1);
            parse(text).unwrap().recording
        };
        assert_eq!(recording(""), Level::Maps);
        assert_eq!(recording("sanitize = true\n"), Level::All);
    }

    #[test]
    fn file_mistake_names_its_line() {
        let unclosed = parse("name = \"x\nnvme = []\n".to_owned()).unwrap_err();
        assert!(
            unclosed.starts_with("x.toml:1: invalid basic string"),
            "{unclosed}"
        );
        assert_eq!(
            parse(format!("{HEAD}colour = 1\n{DISK}")).unwrap_err(),
            "x.toml:8: unknown key `colour`: there are `name`, `model`, `below`, `link`, `link-latency`, `link-bandwidth`, `ats`, `pmr`, `faults`, `counted`, `namespaces`, \
             `cmb`, `cmb-queues`, `cmb-legacy`, `block-size`, `mdts`, `sgl`, `spare-queues`, `workers`, `poll`, `seed-fault`"
        );
        assert_eq!(
            nvme("cmb = \"64MB\""),
            "x.toml:8: `cmb`: invalid size `64MB`: expected bytes, or a number with K, M, G or T, such as `64M`"
        );
    }

    #[test]
    fn qboot_with_further_host_bridges_is_refused() {
        let firmware = |machine: &str, bridges: &str| {
            let check = "[[check]]\nkind = \"controller-reset\"\ndevice = \"d0\"\n";
            let text = format!("{HEAD}{DISK}{check}[machine]\n{machine}\n{bridges}");
            parse(text).map(|scenario| scenario.machine.firmware)
        };
        let bridge = "[[host-bridge]]\nname = \"b0\"\n";
        let (qboot, seabios) = ("firmware = \"qboot\"", "firmware = \"seabios\"");
        assert_eq!(firmware("", ""), Ok(Firmware::Qboot));
        assert_eq!(firmware(qboot, ""), Ok(Firmware::Qboot));
        assert_eq!(firmware(seabios, ""), Ok(Firmware::Seabios));
        assert_eq!(firmware("", bridge), Ok(Firmware::Seabios));
        let output = "x.toml:13: `firmware = \"qboot\"`: it assigns no addresses, so there would be none for devices below \
                    b0: leave it out";
        assert_eq!(firmware(qboot, bridge), Err(output.to_owned()));
    }

    #[test]
    fn checks_are_selected_by_their_names() {
        let mut scenario = Scenario::demo().unwrap();
        let all = scenario.checks.len();
        scenario.select_checks(&[]).unwrap();
        assert_eq!(scenario.checks.len(), all);
        let control = "the control: through guest RAM".to_owned();
        let unknown = scenario.select_checks(&[control.clone(), "x".to_owned()]);
        let output = unknown.unwrap_err().to_string();
        assert!(
            output.starts_with("no check is named `x`: there are `"),
            "{output}"
        );
        assert!(output.contains(&format!("`, `{control}`, `")), "{output}");
        scenario
            .select_checks(std::slice::from_ref(&control))
            .unwrap();
        assert_eq!(scenario.plan().checks.len(), 1);
        assert_eq!(scenario.label(1), Some(control.as_str()));
    }

    #[test]
    fn a_run_may_say_how_our_disks_are_served() {
        let mut scenario = Scenario::demo().unwrap();
        scenario.nvmes[0].model = Model::Qemu;
        scenario.nvmes[1].config.workers = 2;
        scenario.serve_disks_by(None, Some(PollPolicy::Always));
        let ways = |scenario: &Scenario| -> Vec<_> {
            let configs = scenario.nvmes.iter().map(|nvme| &nvme.config);
            configs
                .map(|config| (config.workers, config.poll))
                .collect()
        };
        let own = PollPolicy::default();
        assert_eq!(ways(&scenario), [(1, own), (2, PollPolicy::Always)]);
        scenario.serve_disks_by(Some(3), None);
        assert_eq!(ways(&scenario), [(1, own), (3, PollPolicy::Always)]);
    }

    /// Checks that a controller with these keys, from line 8 on, is rejected with that message.
    fn assert_refused<const N: usize>(cases: [(String, &str); N]) {
        for (lines, message) in cases {
            assert_eq!(nvme(&lines), format!("x.toml:{message}"));
        }
    }

    #[test]
    fn controller_attach_or_link_mistake_names_its_line() {
        assert_refused([
            (
                format!("below = \"s1\"\n{DISK}"),
                "8: no [[switch]] or [[host-bridge]] is named `s1`: declare it, or leave `below` out",
            ),
            (
                format!("link = \"drop\"\n{DISK}"),
                "8: `d0` is below no switch: give it a `below`, or leave `link` out",
            ),
            (
                format!("below = \"s0\"\nlink = \"lossy\"\n{DISK}"),
                "9: invalid link mode \"lossy\": expected route, redirect, unsupported-request or drop",
            ),
            (
                format!("{DISK}link-latency = \"2\""),
                "9: `link-latency`: `2` must be a latency up to 100ms, such as 2us or 500ns",
            ),
            (
                format!("{DISK}link-bandwidth = \"4G\""),
                "9: `link-bandwidth`: `4G` must be a bandwidth from 1MiB/s on, such as 4GiB/s",
            ),
        ]);
    }

    #[test]
    fn controller_memory_mistake_names_its_line() {
        assert_refused([
            (
                format!("cmb = \"3M\"\n{DISK}"),
                "8: `cmb`: CMB of 3145728 bytes: the size must be a multiple of 2 MiB up to 64 GiB, or Linux ignores it; try 4M",
            ),
            (
                format!("cmb = 0\n{DISK}"),
                "8: `cmb`: CMB of 0 bytes: the size must be a multiple of 2 MiB up to 64 GiB, or Linux ignores it; try 2M",
            ),
            (
                format!("cmb = \"65538M\"\n{DISK}"),
                "8: `cmb`: CMB of 68721573888 bytes: the size must be a multiple of 2 MiB up to 64 GiB, or Linux ignores it; try 65536M",
            ),
            (
                format!("pmr = {{ size = \"3M\" }}\n{DISK}"),
                "8: `pmr` of 3M: the region is a whole BAR, so its size is a power of two from 2M to 64G",
            ),
            (
                format!("pmr = {{ size = \"2M\", file = \"/dev/null\" }}\n{DISK}"),
                "8: `pmr`: /dev/null is not a regular file of 2097152 bytes: give `size` its size, or name another file",
            ),
            (
                format!("{DISK}cmb-queues = true"),
                "9: `cmb-queues`: no CMB: give it a size with `cmb`",
            ),
            (
                format!("{DISK}cmb-legacy = true"),
                "9: `cmb-legacy`: no CMB: give it a size with `cmb`",
            ),
        ]);
    }

    #[test]
    fn controller_limit_mistake_names_its_line() {
        assert_refused([
            (
                format!("{DISK}block-size = 1024"),
                "9: `block-size`: block size 1024: must be 512 or 4096",
            ),
            (
                format!("{DISK}mdts = 11"),
                "9: `mdts`: MDTS 11: must be 1 (8 KiB) to 10 (4 MiB)",
            ),
            (
                format!("{DISK}spare-queues = 64"),
                "9: `spare-queues`: 64 spare queues: at most 63, of 64 queue pairs for I/O",
            ),
            (
                format!("{DISK}workers = 0"),
                "9: `workers`: 0 workers: must be 1 to 64, as there are 64 I/O queues to share",
            ),
            (
                format!("{DISK}workers = 1000"),
                "9: `workers` takes a whole number from 0 to 255, not integer `1000`",
            ),
            (
                format!("{DISK}poll = \"often\""),
                "9: `poll`: `often` must be never, adaptive or always",
            ),
        ]);
    }

    #[test]
    fn controller_fault_mistake_names_its_line() {
        assert_refused([
            (
                format!("{DISK}seed-fault = [\"lost:1\"]"),
                "9: `seed-fault`: `lost:1` must be KIND:BLOCK, such as unmapped:2048; the kinds are unmapped, beyond-52-bits, \
                 wraps, after-unmap, past-end, write-back",
            ),
            (
                format!("{DISK}faults = [\"drop dma\", \"fail completion\"]"),
                "9: `faults`: `fail completion` must name a subject of `fail`: command, admin-command, gpu-command, dma, mapping",
            ),
            (
                format!("{DISK}[[gpu]]\nname = \"g0\"\nfaults = [\"fail command\"]"),
                "11: `faults`: `fail command` is for another device: this one has no command",
            ),
            (
                format!("{DISK}faults = [\"drop completion nsid=9\"]"),
                "9: `faults`: `drop completion nsid=9` has `nsid=9`: this device has namespaces 1 to 1",
            ),
            (
                format!("{DISK}[[gpu]]\nname = \"g0\"\nfaults = [\"drop interrupt vector=17\"]"),
                "11: `faults`: `drop interrupt vector=17` has `vector=17`: this device has vectors 0 to 16",
            ),
            (
                format!("{DISK}faults = [\"link-down device for=2s\"]"),
                "9: `faults`: `link-down device for=2s` fires at once, and no guest has the device yet: give it to `peerbar inject`, \
                 or to the socket of --control, while a guest runs",
            ),
        ]);
    }

    #[test]
    fn namespace_mistake_names_its_line() {
        assert_refused([
            (
                "namespaces = []".to_owned(),
                "8: `d0` has no namespace: write `namespaces = [{ ram = \"64M\" }]`",
            ),
            (
                "block-size = 4096\nnamespaces = [{ ram = 512 }]".to_owned(),
                "9: a namespace of 512 bytes is smaller than one block of 4096",
            ),
            (
                "namespaces = [{ ram = 512, size = 512 }]".to_owned(),
                "8: a namespace is `{ ram = SIZE }`, `{ null = SIZE }`, `{ image = SIZE }`, `{ file = PATH }` or `{ file = PATH, size = SIZE }`",
            ),
            (
                "namespaces = [{ file = \"no/such.img\" }]".to_owned(),
                "8: image no/such.img cannot be used (No such file or directory (os error 2)): give a `size` to have \
                 it created",
            ),
        ]);
    }

    #[test]
    fn taken_or_malformed_name_names_its_line() {
        assert_refused([
            (
                format!("{DISK}[[nvme]]\nname = \"s0\"\n{DISK}"),
                "10: the name `s0` is taken: every bridge, switch, device and module needs its own",
            ),
            (
                format!("{DISK}[[nvme]]\nname = \"a disk\"\n{DISK}"),
                "10: invalid name `a disk`: expected a letter first, then letters, digits, `-` and `_`, 20 at most",
            ),
        ]);
    }

    #[test]
    fn check_mistake_names_its_line() {
        let copy = "kind = \"copy\"\nfrom = \"d0\"\nto = \"d0\"\nthrough = \"guest-ram\"\n";
        let cases = [
            (
                "kind = \"provider\"\ndevice = \"d9\"".to_owned(),
                "13: no [[nvme]] is named `d9`: there is `d0`",
            ),
            (
                "kind = \"provider\"".to_owned(),
                "12: a check of this kind needs the key `device`",
            ),
            (
                "kind = \"provider\"\ndevice = \"d0\"\nfrom = \"d0\"".to_owned(),
                "14: a check of the kind `provider` has no key `from`: there are `device`, `name`, `timeout`",
            ),
            (
                "kind = \"queues-in-cmb\"\ndevice = \"d0\"".to_owned(),
                "13: `d0` does not support queues in its CMB: give [[nvme]] d0 `cmb-queues = true`",
            ),
            (
                format!("{copy}sizes = [\"6K\"]\noffsets = [0]"),
                "16: `sizes`: 6K is not a multiple of 4K",
            ),
            (
                format!("{copy}sizes = [\"4K\"]\noffsets = [100]"),
                "17: `offsets`: 100 is not a multiple of 512",
            ),
            (
                format!("{copy}sizes = []\noffsets = [0]"),
                "16: `sizes` is empty: write one size or more",
            ),
            (
                format!("{copy}sizes = [\"512K\"]\noffsets = [\"4K\"]"),
                "16: 1 x 2 areas of 512K at 4K do not fit a disk of 1M: enlarge the namespaces",
            ),
            (
                format!("{copy}sizes = [\"4K\"]\noffsets = [0]\nthreads = 0"),
                "18: `threads = 0`: expected 1 to 64",
            ),
            (
                "kind = \"controller-reset\"\ndevice = \"d0\"\nname = \"a\\u001b[2J\"".to_owned(),
                "14: the name \"a\\u{1b}[2J\" has the control character U+001B: leave it out",
            ),
            (
                "kind = \"controller-reset\"\ndevice = \"d0\"\nname = \"a\\u202egnp.exe\""
                    .to_owned(),
                "14: the name \"a\\u{202e}gnp.exe\" has the control character U+202E: leave it out",
            ),
            (
                "kind = \"controller-reset\"\ndevice = \"d0\"\nname = \" \"".to_owned(),
                "14: the name \" \" is blank: write one that identifies the check",
            ),
        ];
        for (lines, message) in cases {
            assert_eq!(check(&lines), format!("x.toml:{message}"));
        }
        let unknown = check("kind = \"copied\"");
        let start = "x.toml:12: unknown kind of check `copied`: ";
        assert!(unknown.starts_with(start), "{unknown}");
    }

    #[test]
    fn name_of_a_check_is_its_own() {
        let reset = "kind = \"controller-reset\"\ndevice = \"d0\"";
        let named = |name: &str| format!("{reset}\nname = \"{name}\"");
        let and = "\n\n[[check]]\n";
        let taken = |name: &str| format!("another check has the name `{name}`: give each its own");
        let twice = format!("{}{and}{}", named("same"), named("same"));
        assert_eq!(check(&twice), format!("x.toml:19: {}", taken("same")));
        let derived = parse(format!("{HEAD}{DISK}[[check]]\n{reset}\n"));
        let derived = derived.unwrap().checks[0].name();
        let early = format!("{}{and}{reset}", named(&derived));
        assert_eq!(check(&early), format!("x.toml:14: {}", taken(&derived)));
        // Without explicit names, there is no conflict to report.
        parse(format!("{HEAD}{DISK}[[check]]\n{reset}{and}{reset}\n")).unwrap();
    }

    #[test]
    fn what_a_guest_could_not_do_is_refused() {
        let refused = |top: &str, check: &str| parse(format!("{top}{HEAD}{DISK}{check}"));
        let command = "[[check]]\nkind = \"command\"\nrun = \"true\"\n";
        assert_eq!(
            refused("", command).unwrap_err(),
            "x.toml:10: a command is run in the tools root: write `tools = true` at the top"
        );
        assert_eq!(
            refused("", "").unwrap_err(),
            "x.toml:1: no [[check]]: add one, or enter the guest by `peerbar shell`"
        );
        assert_eq!(
            parse("timeout = \"9s\"\nname = \"x\"\n".to_owned()).unwrap_err(),
            "x.toml:2: no device: add an [[nvme]], a [[gpu]], a [[nic]] or a [[device]]"
        );
        for memory in ["0", "94M", "97M"] {
            let top = format!("tools = true\nmachine = {{ memory = \"{memory}\" }}\n");
            let message = format!(
                "x.toml:2: `memory = \"{memory}\"`: a guest requires 96M or more, in multiples of 2M"
            );
            assert_eq!(refused(&top, command).unwrap_err(), message);
        }
    }

    #[test]
    fn huge_pages_leave_the_guest_enough_memory() {
        let read = |hugepages: &str| {
            let top = format!(
                "tools = true\nmachine = {{ memory = \"128M\", hugepages = \"{hugepages}\" }}\n"
            );
            let command = "kind = \"command\"\nrun = \"true\"";
            parse(format!("{top}{HEAD}{DISK}[[check]]\n{command}\n"))
        };
        let parameters = read("32M").unwrap().machine.kernel_parameters;
        assert_eq!(parameters, "hugepages=16");
        for hugepages in ["3M", "34M", "1G"] {
            let message = format!(
                "x.toml:2: `hugepages = \"{hugepages}\"`: must be a multiple of 2M, and leave 96M or more of `memory`, which is 128M"
            );
            assert_eq!(read(hugepages).unwrap_err(), message);
        }
    }

    #[test]
    fn interactive_scenario_needs_no_check_and_reads_one_later() {
        let text = format!("{HEAD}cmb = \"2M\"\n{DISK}");
        assert!(parse(text.clone()).is_err());
        let scenario = Scenario::parse_interactive(Path::new("x.toml"), text).unwrap();
        assert!(scenario.plan().interactive && scenario.plan().checks.is_empty());
        let check = scenario
            .check("kind = \"provider\"\ndevice = \"d0\"")
            .unwrap();
        assert_eq!(check.name(), "d0 provides its memory as p2pmem");
        let error = |lines: &str| scenario.check(lines).unwrap_err().to_string();
        assert_eq!(
            error("kind = \"provider\"\ndevice = \"d1\""),
            "check:2: no [[nvme]] is named `d1`: there is `d0`"
        );
        let unknown = error("kind = \"copied\"\ndevice = \"d0\"");
        assert!(
            unknown.starts_with("check:1: unknown kind of check `copied`"),
            "{unknown}"
        );
        // A missing key is reported at the header, which is not part of the caller's text.
        assert_eq!(
            error("kind = \"provider\""),
            "check:1: a check of this kind needs the key `device`"
        );
    }

    #[test]
    fn what_is_brought_along_implies_the_tools_root() {
        let check = "[[check]]\nkind = \"command\"\nrun = \"true\"\n";
        let read = |top: &str| parse(format!("{top}\n{HEAD}{DISK}{check}"));
        let files = read("files = { \"bin/x\" = \"Cargo.toml\" }").unwrap();
        assert!(files.plan().tools && GuestNeeds::of(&files).layers);
        assert_eq!(files.files[0].guest(), Path::new("usr/bin/x"));
        let packages = read("packages = [\"rdma-core\"]").unwrap();
        assert_eq!(GuestNeeds::of(&packages).packages, ["rdma-core"]);
        assert!(packages.plan().tools && GuestNeeds::of(&packages).layers);
        let udev = read("udev = true").unwrap();
        assert!(udev.plan().tools && udev.plan().udev && !GuestNeeds::of(&udev).layers);
    }

    #[test]
    fn mistake_in_what_is_brought_along_names_its_line() {
        let check = "[[check]]\nkind = \"provider\"\ndevice = \"d0\"\n";
        let output =
            |top: &str| parse(format!("{top}\n{HEAD}cmb = \"2M\"\n{DISK}{check}")).unwrap_err();
        for name in ["x", "Rdma", "-a", "a b", "a,b", "é", ""] {
            let error = output(&format!("packages = [\"{name}\"]"));
            let start = format!("x.toml:1: `packages`: invalid package name `{name}`");
            assert!(error.starts_with(&start), "{error}");
        }
        let missing = output("files = { \"bin/x\" = \"no/such\" }");
        assert!(
            missing.starts_with("x.toml:1: `files`: no/such cannot be read"),
            "{missing}"
        );
        let first = output("files = { \"z/x\" = \"no/first\", \"a/x\" = \"no/second\" }");
        assert!(first.contains("no/first cannot be read"), "{first}");
        let twice = output("files = { \"bin/x\" = \"src\", \"/usr/bin/x\" = \"src\" }");
        assert_eq!(twice, "x.toml:1: `usr/bin/x` is in `files` twice");
        let hidden = output("files = { \"tmp/x\" = \"src\" }");
        assert!(hidden.contains("the guest mounts /tmp itself"), "{hidden}");
        let folder = output("module = [{ path = \"no/such\" }]");
        assert!(
            folder.starts_with("x.toml:1: `path`: no/such is not a folder"),
            "{folder}"
        );
        let bare = output("module = [{ path = \"src\" }]");
        assert!(
            bare.starts_with("x.toml:1: `path`: src is not a folder with a Kbuild or a Makefile"),
            "{bare}"
        );
        let neither = output("module = [{ parameters = \"a=1\" }]");
        assert_eq!(
            neither,
            "x.toml:1: a [[module]] has a `name`, or the `path` of a folder to build"
        );
    }

    #[test]
    fn a_provider_needs_a_cmb() {
        let text =
            format!("{HEAD}{DISK}\n[[check]]\nkind = \"pool-exhausted\"\nprovider = \"d0\"\n");
        assert_eq!(
            parse(text).unwrap_err(),
            "x.toml:12: `d0` has no p2pmem: give [[nvme]] d0 a `cmb`"
        );
    }

    #[test]
    fn an_image_is_used_as_it_is_or_created() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("d.img"), [0; 1024]).unwrap();
        let load = |namespace: &str| {
            let text = format!(
                "{HEAD}namespaces = [{namespace}]\n[[check]]\nkind = \"controller-reset\"\ndevice = \"d0\"\n"
            );
            let path = folder.path().join("x.toml");
            fs::write(&path, text).unwrap();
            Scenario::load(&path).map(|scenario| scenario.nvmes[0].namespaces[0].clone())
        };
        let file = |name: &str, create| Namespace::File {
            path: folder.path().join(name),
            create,
        };
        assert_eq!(load("{ file = \"d.img\" }").unwrap(), file("d.img", None));
        assert_eq!(
            load("{ file = \"new.img\", size = \"4K\" }").unwrap(),
            file("new.img", Some(4096))
        );
        let error = load("{ file = \"d.img\", size = \"4K\" }")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("d.img has 1024 bytes, not 4096: leave `size` out"),
            "{error}"
        );
        let error = load("{ file = \".\" }").unwrap_err().to_string();
        assert!(error.ends_with("is not a regular file"), "{error}");
    }

    #[test]
    fn file_of_a_disk_has_a_path_of_utf8() {
        let parse = |folder: &[u8], key: &str| {
            let text =
                format!("{HEAD}{key}\n[[check]]\nkind = \"controller-reset\"\ndevice = \"d0\"\n");
            let path = Path::new(OsStr::from_bytes(folder)).join("x.toml");
            Scenario::parse(&path, text).map_err(|error| error.to_string())
        };
        for key in [
            "namespaces = [{ file = \"f\", size = \"1M\" }]".to_owned(),
            format!("pmr = {{ size = \"2M\", file = \"f\" }}\n{DISK}"),
        ] {
            parse(b"", &key).unwrap();
            let error = parse(b"a\xff", &key).unwrap_err();
            assert!(error.contains("a\u{fffd}/f is not UTF-8, "), "{error}");
        }
    }
}
