//! Probes of programs, of the kernel, of the processor, and of the cache. Each is a function of its
//! observations, so that tests can try any machine.

use std::path::Path;

use peerbar_lab::cpu::of_model;
use peerbar_lab::size::human;
use peerbar_rule::{Cpu, Vendor};

use super::finding::Finding;

/// Reports QEMU's version and origin. `None` means that a run fetches it.
pub(super) fn qemu(found: Result<Option<String>, String>) -> Finding {
    const PROBE: &str = "QEMU";
    match found {
        Ok(Some(version)) => Finding::ok(PROBE, format!("{version}, with vfio-user-pci")),
        Ok(None) => Finding::limited(
            PROBE,
            "none that is suitable yet",
            "the first run, or `peerbar fetch`, gets one from Debian's archive",
        ),
        Err(error) => split(PROBE, &error, "leave --qemu out to use peerbar's own"),
    }
}

/// Checks that KVM runs a guest. `None` means that there is no QEMU to try it with.
pub(super) fn kvm(works: Option<Result<(), String>>, is_demanded: bool) -> Finding {
    const PROBE: &str = "KVM";
    match works {
        Some(Ok(())) => Finding::ok(PROBE, "runs a guest"),
        Some(Err(reason)) if is_demanded => Finding::failed(
            PROBE,
            format!("does not run a guest ({reason})"),
            "leave out `--accel kvm` to emulate processors, or on a host with VT-x or AMD-V load kvm_intel or kvm_amd and join the group kvm",
        ),
        Some(Err(reason)) => Finding::limited(
            PROBE,
            format!("does not run a guest ({reason}), so processors are emulated"),
            "nothing needs to be done; on a host with VT-x or AMD-V, load kvm_intel or kvm_amd and join the group kvm",
        ),
        None => Finding::limited(
            PROBE,
            "not tried without a QEMU",
            "ask again after the first run",
        ),
    }
}

/// Reports the guest's kernel: its release, or its missing options. `None` means that a run fetches
/// it.
pub(super) fn kernel(found: Result<Option<String>, String>) -> Finding {
    const PROBE: &str = "kernel";
    match found {
        Ok(Some(release)) => Finding::ok(
            PROBE,
            format!("Linux {release}, with the options that the scenario needs"),
        ),
        Ok(None) => Finding::limited(
            PROBE,
            "none yet",
            "the first run, or `peerbar fetch`, gets Debian's",
        ),
        Err(error) => split(PROBE, &error, "take peerbar's own with `--kernel default`"),
    }
}

/// An error that ends with its way out after a semicolon is printed as it is, any other with `mend`.
fn split(probe: &'static str, error: &str, mend: &str) -> Finding {
    match error.rsplit_once("; ") {
        Some((found, way_out)) => Finding::failed(probe, found, way_out),
        None => Finding::failed(probe, error, mend),
    }
}

/// Checks that the guest's kernel permits peer-to-peer DMA through the host bridge on its
/// processor.
pub(super) fn cpu(model: &str, cpuinfo: &str, is_one_switch: bool) -> Finding {
    const PROBE: &str = "CPU";
    let name = model.split(',').next().unwrap_or(model);
    let cpu = match name {
        "host" => of_host(cpuinfo),
        _ => of_model(model),
    };
    let found = match cpu.map(Cpu::is_trusted) {
        Some(true) => {
            let found = format!("{model}: p2pdma permits the way through the host bridge");
            return Finding::ok(PROBE, found);
        }
        _ if is_one_switch => {
            let found = format!(
                "{model}: all devices are below one switch, where p2pdma permits it on any"
            );
            return Finding::ok(PROBE, found);
        }
        Some(false) => format!("{model}: p2pdma refuses devices that are not below one switch"),
        None => {
            format!("{model}: whether p2pdma permits the way through the host bridge is not known")
        }
    };
    Finding::limited(
        PROBE,
        found,
        "set `cpu = \"EPYC\"` in [machine], or put the devices below one switch",
    )
}

/// Returns the host's processor.
fn of_host(cpuinfo: &str) -> Option<Cpu> {
    let field = |name: &str| {
        let mut fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        let field = fields.find(|(key, _)| key.trim() == name);
        field.map(|(_, value)| value.trim())
    };
    Some(Cpu {
        vendor: Vendor::from_id(field("vendor_id")?),
        family: field("cpu family")?.parse().ok()?,
    })
}

/// A tool, and its purpose.
pub(super) struct Tool {
    pub(super) name: &'static str,
    pub(super) purpose: &'static str,
    /// Debian's package.
    pub(super) package: &'static str,
    /// Set if the run of this scenario needs it now.
    pub(super) is_needed: bool,
}

/// Checks that the tools are installed, which `is_there` tells.
pub(super) fn tools(tools: &[Tool], is_there: impl Fn(&str) -> bool) -> Finding {
    const PROBE: &str = "tools";
    let missing: Vec<&Tool> = tools.iter().filter(|tool| !is_there(tool.name)).collect();
    if missing.is_empty() {
        let names: Vec<&str> = tools.iter().map(|tool| tool.name).collect();
        return Finding::ok(PROBE, names.join(", "));
    }
    let named = missing
        .iter()
        .map(|tool| format!("{} ({})", tool.name, tool.purpose));
    let found = format!("missing: {}", named.collect::<Vec<_>>().join(", "));
    let packages: Vec<&str> = missing.iter().map(|tool| tool.package).collect();
    let mend = format!("apt-get install {}", packages.join(" "));
    if missing.iter().any(|tool| tool.is_needed) {
        Finding::failed(PROBE, found, mend)
    } else {
        Finding::limited(PROBE, found, mend)
    }
}

/// Reports the cache: its place and size, and an error if it is not writable; and the place and
/// size of the machine's cache below it.
pub(super) fn cache(
    folder: &Path,
    bytes: u64,
    below: Option<(&Path, u64)>,
    written: Result<(), String>,
) -> Finding {
    const PROBE: &str = "cache";
    let folder = folder.display();
    let below = below.map(|(below, bytes)| {
        let below = below.display();
        format!("; {below}, of the whole machine, {}", human(bytes))
    });
    match written {
        Ok(()) => Finding::ok(
            PROBE,
            format!(
                "{folder} holds {}{}",
                human(bytes),
                below.unwrap_or_default()
            ),
        ),
        Err(error) => Finding::failed(
            PROBE,
            format!("{folder} cannot be written ({error})"),
            "set PEERBAR_CACHE to a folder of your own",
        ),
    }
}

/// Reports the downloads of a run of the scenario in `file`, or of the demo.
pub(super) fn downloads(missing: Result<Vec<String>, String>, file: Option<&Path>) -> Finding {
    const PROBE: &str = "network";
    let missing = match missing {
        Ok(missing) => missing,
        Err(error) => return split(PROBE, &error, "peerbar cache prune --all"),
    };
    if missing.is_empty() {
        return Finding::ok(PROBE, "not used: the cache has all that a run needs");
    }
    let file = file.map(|file| format!(" {}", file.display()));
    Finding::limited(
        PROBE,
        format!("a run first fetches {}", missing.join("; ")),
        format!("`peerbar fetch{}` gets it now", file.unwrap_or_default()),
    )
}

/// Returns the programs that a run starts.
pub(super) fn programs(missing: Option<String>) -> Finding {
    const PROBE: &str = "programs";
    match missing {
        None => Finding::ok(PROBE, "all servers and the agent are there"),
        Some(error) => split(PROBE, &error, "scripts/build"),
    }
}

/// The programs of other projects that a run starts.
pub(super) fn foreign(checked: Result<(), String>) -> Finding {
    const PROBE: &str = "other servers";
    match checked {
        Ok(()) => Finding::ok(PROBE, "the programs of each `command` are there"),
        Err(error) => split(PROBE, &error, "correct the `command`"),
    }
}

#[cfg(test)]
mod tests {
    use peerbar_images::ImageError;

    use super::*;
    use crate::doctor::finding::State;

    #[test]
    fn qemu_is_fit_missing_or_refused_with_its_way_out() {
        assert_eq!(qemu(Ok(Some("11.1.3".to_owned()))).state, State::Ok);
        assert_eq!(qemu(Ok(None)).state, State::Limited);
        let error = "/q is QEMU 7.2.0, but vfio-user needs 10.1.1 or later; leave --qemu out to use peerbar's own";
        let line = qemu(Err(error.to_owned())).line(None);
        let expected = "FAILED   QEMU           /q is QEMU 7.2.0, but vfio-user needs 10.1.1 or later: leave --qemu out to use peerbar's own\n";
        assert_eq!(line, expected);
    }

    #[test]
    fn missing_kvm_is_no_failure_and_says_why() {
        assert_eq!(kvm(Some(Ok(())), false).state, State::Ok);
        let finding = kvm(Some(Err("/dev/kvm does not exist".to_owned())), false);
        assert_eq!(finding.state, State::Limited);
        assert!(
            finding.found.contains("(/dev/kvm does not exist)"),
            "{}",
            finding.found
        );
        assert_eq!(kvm(None, false).state, State::Limited);
    }

    #[test]
    fn missing_kvm_that_is_demanded_is_a_failure() {
        assert_eq!(kvm(Some(Ok(())), true).state, State::Ok);
        let line = kvm(Some(Err("no /dev/kvm".to_owned())), true).line(None);
        let begins =
            "FAILED   KVM            does not run a guest (no /dev/kvm): leave out `--accel kvm`";
        assert!(line.starts_with(begins), "{line}");
    }

    #[test]
    fn kernel_without_an_option_fails() {
        let finding = kernel(Err("the kernel lacks CONFIG_PCI_P2PDMA".to_owned()));
        assert_eq!(finding.state, State::Failed);
        assert_eq!(
            finding.mend.as_deref(),
            Some("take peerbar's own with `--kernel default`")
        );
        assert_eq!(kernel(Ok(Some("7.3.4".to_owned()))).state, State::Ok);
        let missing = ImageError::NoKernel { path: "/k".into() };
        let line = kernel(Err(missing.to_string())).line(None);
        let message = "FAILED   kernel         no kernel at /k: give a bzImage, a vmlinux or a kernel build tree\n";
        assert_eq!(line, message);
    }

    #[test]
    fn cpu_is_compared_with_the_rule_of_p2pdma() {
        let zen = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\n";
        let xeon = "vendor_id\t: GenuineIntel\ncpu family\t: 6\n";
        let state = |model, cpuinfo, one_switch| cpu(model, cpuinfo, one_switch).state;
        assert_eq!(state("EPYC", xeon, false), State::Ok);
        assert_eq!(state("Haswell", zen, false), State::Limited);
        assert_eq!(state("Haswell", zen, true), State::Ok);
        assert_eq!(state("host", zen, false), State::Ok);
        assert_eq!(state("host,-avx", xeon, false), State::Limited);
        assert_eq!(state("max", zen, false), State::Limited);
        assert_eq!(state("host", "", false), State::Limited);
    }

    #[test]
    fn downloads_are_named_with_the_command_that_does_them() {
        let none = downloads(Ok(Vec::new()), None);
        assert_eq!(none.state, State::Ok);
        let missing = ["QEMU", "the packages mdadm"].map(str::to_owned).to_vec();
        let line = downloads(Ok(missing), Some(Path::new("my.toml"))).line(None);
        let expected = "limited  network        a run first fetches QEMU; the packages mdadm: `peerbar fetch my.toml` gets it now\n";
        assert_eq!(line, expected);
    }

    #[test]
    fn missing_tools_fail_only_if_they_are_needed() {
        let wanted = |is_needed| {
            [Tool {
                name: "mmdebstrap",
                purpose: "fetches QEMU",
                package: "mmdebstrap",
                is_needed,
            }]
        };
        assert_eq!(
            tools(&wanted(true), |_| true),
            Finding::ok("tools", "mmdebstrap")
        );
        assert_eq!(tools(&wanted(false), |_| false).state, State::Limited);
        let line = tools(&wanted(true), |_| false).line(None);
        let expected = "FAILED   tools          missing: mmdebstrap (fetches QEMU): apt-get install mmdebstrap\n";
        assert_eq!(line, expected);
    }

    #[test]
    fn read_only_cache_and_missing_programs_fail() {
        let finding = cache(
            Path::new("/c"),
            1 << 30,
            None,
            Err("Read-only file system".to_owned()),
        );
        assert_eq!(
            (finding.state, finding.found.as_str()),
            (
                State::Failed,
                "/c cannot be written (Read-only file system)"
            )
        );
        let found = |below| cache(Path::new("/c"), 1 << 30, below, Ok(())).found;
        assert_eq!(found(None), "/c holds 1 GiB");
        assert_eq!(
            found(Some((Path::new("/m"), 2 << 30))),
            "/c holds 1 GiB; /m, of the whole machine, 2 GiB"
        );
        let missing = programs(Some(
            "peerbar-nvme is missing: /x is not a file; run scripts/build".to_owned(),
        ));
        assert_eq!(missing.mend.as_deref(), Some("run scripts/build"));
        assert_eq!(programs(None).state, State::Ok);
    }
}
