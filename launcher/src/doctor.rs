//! `peerbar doctor`: checks that this machine can run a scenario, and explains how to remedy its
//! problems.

mod device;
mod finding;
mod host;
mod idle;
mod software;

use std::env;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use peerbar_flight::Level;
use peerbar_images::{Cache, Origin, Qemu, Root};
use peerbar_lab::accel::AccelChoice;
use peerbar_lab::artifacts::Own;
use peerbar_lab::exit::Failure;
use peerbar_lab::programs::{check_foreign, in_path, program};
use peerbar_lab::qemu::Sockets;
use peerbar_lab::scenario::{DeviceSpec, Namespace, Scenario};
use peerbar_lab::server_arguments::{ServerProgram, server_commands};
use peerbar_lab::size::Size;
use peerbar_lab::temporary_folder::temporary_folder;
use peerbar_lab::terminal::{columns, print};
use peerbar_lab::topology::Topology;
use peerbar_lab::{kvm, present};
use peerbar_report::Check;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create, statvfs};
use rustix::process::{Resource, getrlimit};
use serde_json::json;

use crate::cli;
use finding::{Finding, State};
use host::MemoryFiles;
use idle::IdleProcessors;
use software::Tool;

/// Exit code if something prevents a run.
const FAILED: u8 = 1;
/// Disk space for the root, and some more for images.
const ROOT: u64 = 1200 << 20;
/// Room for images and for a run's folder.
const FILES: u64 = 200 << 20;
/// Stands for the name that a folder of sockets gets.
const SOCKETS: &str = "peerbar-run-123456";

/// Looks at everything that a run needs.
pub(crate) fn doctor(options: &cli::Doctor) -> Result<ExitCode, Failure> {
    if let Some(socket) = &options.device {
        let findings = device::findings(socket);
        let name = socket.display().to_string();
        return report(&findings, ("device", &name), options.json);
    }
    let scenario = match &options.scenario {
        Some(path) => options.guest.scenario(path, Scenario::load_interactive)?,
        None => Scenario::demo()?,
    };
    let own = options.own.or_kernel_tree_here()?;
    let findings = findings(&own, &scenario, options.scenario.as_deref());
    report(&findings, ("scenario", &scenario.name), options.json)
}

/// Prints the findings about the subject of this kind and name.
fn report(
    findings: &[Finding],
    (kind, name): (&str, &str),
    json: bool,
) -> Result<ExitCode, Failure> {
    let failed = findings
        .iter()
        .filter(|finding| finding.state == State::Failed)
        .count();
    let text = if json {
        let all = json!({ kind: name, "failed": failed, "findings": findings });
        serde_json::to_string_pretty(&all).context("cannot write JSON")? + "\n"
    } else {
        let lines: String = findings
            .iter()
            .map(|finding| finding.line(columns()))
            .collect();
        let verdict = match failed {
            0 if kind == "device" => "can be a [[device]]".to_owned(),
            0 => "runs here".to_owned(),
            _ if kind == "device" => "cannot be a [[device]]".to_owned(),
            failed => format!(
                "does not run here: {failed} of {} probes failed",
                findings.len()
            ),
        };
        format!("{lines}{name} {verdict}\n")
    };
    print(&text)?;
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(FAILED)
    })
}

fn findings(own: &Own, scenario: &Scenario, file: Option<&Path>) -> Vec<Finding> {
    let cache = Cache::open();
    let topology = Topology::of(scenario);
    let sockets = Sockets::in_folder(&env::temp_dir().join(SOCKETS));
    let mut programs = programs(scenario, &topology, &sockets).into_iter();
    let missing = programs.find_map(|name| program(name).err());
    let missing = missing.map(|error| error.to_string());
    let mut findings = vec![software::programs(missing)];
    findings.extend(of_foreign(&topology, &sockets));
    findings.extend(of_software(own, scenario, file, &cache));
    let cpuinfo = read("/proc/cpuinfo");
    let machine = &scenario.machine;
    findings.push(software::cpu(
        &machine.cpu,
        &cpuinfo,
        scenario.is_one_switch(),
    ));
    findings.push(of_idle_processors(&cpuinfo));
    findings.push(host::memory(
        &read("/proc/meminfo"),
        bytes_in_memory(scenario),
    ));
    let is_cached = cache.as_ref().is_ok_and(Root::is_cached);
    if let Ok(cache) = &cache {
        let needed = if is_cached { FILES } else { ROOT };
        findings.push(host::disk(
            "disk, cache",
            cache.path(),
            free(cache.path()),
            needed,
        ));
    }
    let here = env::current_dir().unwrap_or_default();
    findings.push(host::disk("disk, runs", &here, free(&here), FILES));
    findings.push(memory_files(machine.memory));
    let files = getrlimit(Resource::Nofile);
    findings.push(host::open_files(files.current, files.maximum));
    findings.push(match temporary_folder() {
        Ok(folder) => {
            let checked = sockets.check(&topology);
            host::socket_paths(&folder, checked.map_err(|error| error.to_string()))
        }
        Err(error) => host::no_temporary_folder(error),
    });
    findings
}

/// Returns the programs that a run starts or brings into its guest.
fn programs(scenario: &Scenario, topology: &Topology<'_>, sockets: &Sockets) -> Vec<&'static str> {
    let servers = server_commands(topology, scenario.recording, sockets);
    let servers = servers.iter().flatten();
    let servers = servers.filter_map(|server| match server.program {
        ServerProgram::Own(name) => Some(name),
        ServerProgram::Foreign(_) => None,
    });
    let of_checks = scenario.checks.iter().flat_map(Check::programs).copied();
    let all = ["peerbar-agent"].into_iter().chain(servers);
    all.chain(of_checks).collect()
}

/// The programs of other projects that a run starts, if there are such.
fn of_foreign(topology: &Topology<'_>, sockets: &Sockets) -> Option<Finding> {
    let servers = server_commands(topology, Level::Maps, sockets);
    let programs = servers
        .iter()
        .flatten()
        .filter_map(|server| match &server.program {
            ServerProgram::Own(_) => None,
            ServerProgram::Foreign(foreign) => Some(check_foreign(&foreign.file)),
        });
    let checked = programs.reduce(|first, next| first.and(next))?;
    Some(software::foreign(
        checked.map_err(|error| error.to_string()),
    ))
}

/// QEMU, KVM, kernel, tools and cache.
fn of_software(
    own: &Own,
    scenario: &Scenario,
    file: Option<&Path>,
    cache: &Result<Cache, peerbar_images::ImageError>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let cache = match cache {
        Ok(cache) => cache,
        Err(error) => {
            let failed = Err(error.to_string());
            findings.push(software::cache(Path::new("the cache"), 0, None, failed));
            return findings;
        }
    };
    findings.push(of_cache(cache));
    let qemu = present::qemu(own, cache);
    let found = qemu.as_ref().map(|qemu| qemu.as_ref().map(described));
    findings.push(software::qemu(found.map_err(ToString::to_string)));
    let tried = qemu.ok().flatten().map(|qemu| kvm::works(&qemu));
    let is_demanded = own.accel == AccelChoice::Kvm;
    findings.push(software::kvm(tried, is_demanded));
    let kernel = present::kernel(own, scenario, cache);
    let release = kernel.map(|kernel| kernel.map(|kernel| kernel.release));
    findings.push(software::kernel(release.map_err(|error| error.to_string())));
    let downloads = present::downloads(own, scenario, cache);
    let is_network_needed = downloads.as_ref().is_ok_and(|missing| !missing.is_empty());
    findings.push(software::downloads(
        downloads.map_err(|error| error.to_string()),
        file,
    ));
    findings.push(of_tools(own, scenario, is_network_needed));
    findings
}

fn of_cache(cache: &Cache) -> Finding {
    let written = tempfile::tempfile_in(cache.path()).map(drop);
    let written = written.map_err(|error| error.to_string());
    let below = cache.below().map(|below| (below, cache.bytes_below()));
    software::cache(cache.path(), cache.bytes(), below, written)
}

fn of_tools(own: &Own, scenario: &Scenario, is_network_needed: bool) -> Finding {
    let on_path = |name: &str| in_path(Path::new(name)).any(|file| file.is_file());
    let needs_driver = own.kernel.is_some() && !scenario.gpus.is_empty();
    let tools = [
        tool(
            "mmdebstrap",
            "fetches QEMU, the kernel and the guest's tools",
            is_network_needed,
        ),
        tool(
            "gcc",
            "builds the GPU's driver for a kernel of your own",
            needs_driver,
        ),
        tool("make", "as gcc", needs_driver),
    ];
    software::tools(&tools, on_path)
}

fn tool(name: &'static str, purpose: &'static str, is_needed: bool) -> Tool {
    Tool {
        name,
        purpose,
        package: name,
        is_needed,
    }
}

fn described(qemu: &Qemu) -> String {
    let origin = match qemu.origin {
        Origin::Named => "of --qemu",
        Origin::Path => "of PATH",
        Origin::Root => "of the cache",
    };
    format!("{} {origin}", qemu.version)
}

/// Returns the size of guest RAM and of the memory of the devices.
fn bytes_in_memory(scenario: &Scenario) -> u64 {
    let of_device = |device: DeviceSpec<'_>| match device {
        DeviceSpec::Gpu(gpu, _) => gpu.config.vram.0,
        DeviceSpec::Nic(..) | DeviceSpec::Foreign(_) => 0,
        DeviceSpec::Nvme(nvme) => {
            let namespaces = nvme.namespaces.iter();
            let ram = namespaces.map(|namespace| match namespace {
                Namespace::Ram(bytes) => *bytes,
                Namespace::File { .. } | Namespace::Image(_) | Namespace::Null(_) => 0,
            });
            let cmb = nvme.config.cmb.map(|Size(bytes)| bytes);
            ram.chain(cmb).fold(0, u64::saturating_add)
        }
    };
    let devices = scenario.devices().map(of_device);
    devices.fold(scenario.machine.memory, u64::saturating_add)
}

/// Makes, sizes and seals a memory file as QEMU makes guest RAM.
fn memory_files(bytes: u64) -> Finding {
    let made = memfd_create(
        "peerbar-doctor",
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    );
    let sealed = made.and_then(|file| {
        ftruncate(&file, bytes)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
    });
    let noexec = read("/proc/sys/vm/memfd_noexec");
    let files = MemoryFiles {
        made: sealed.map_err(|error| error.to_string()),
        noexec: Some(noexec.as_str()),
        largest: getrlimit(Resource::Fsize).current,
    };
    host::memory_files(&files, bytes)
}

fn of_idle_processors(cpuinfo: &str) -> Finding {
    let cpuidle = |file: &str| read(&format!("/sys/devices/system/cpu/cpuidle/{file}"));
    idle::idle(&IdleProcessors {
        cpuinfo,
        driver: &cpuidle("current_driver"),
        governor: &cpuidle("current_governor"),
        poll_ns: &read("/sys/module/haltpoll/parameters/guest_halt_poll_ns"),
    })
}

/// Returns the free space for this user on the file system of `folder`.
fn free(folder: &Path) -> Option<u64> {
    let stat = statvfs(folder).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Returns the contents of a file of the kernel, or an empty string if it is unreadable.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_those_of_the_scenario() {
        let programs_of = |scenario: &Scenario| {
            let sockets = Sockets::in_folder(Path::new("/sockets"));
            programs(scenario, &Topology::of(scenario), &sockets)
        };
        let demo = programs_of(&Scenario::demo().unwrap());
        for name in [
            "peerbar-agent",
            "peerbar-switch",
            "peerbar-nvme",
            "peerbar-gpu",
        ] {
            assert!(demo.contains(&name), "{name}: {demo:?}");
        }
        assert!(!demo.contains(&"peerbar-efa"), "{demo:?}");
        let text = include_str!("../../scenarios/rdma.toml").to_owned();
        let rdma = Scenario::parse(Path::new("rdma.toml"), text).unwrap();
        let rdma = programs_of(&rdma);
        assert!(rdma.contains(&"peerbar-efa"), "{rdma:?}");
        assert!(rdma.contains(&"peerbar-verbs"), "{rdma:?}");
    }

    #[test]
    fn missing_program_of_another_project_fails() {
        let of = |command: &str| {
            let text = format!(
                "name = \"x\"\n[[device]]\nname = \"d\"\ncommand = [\"{command}\", \"{{socket}}\"]\n"
            );
            let scenario = Scenario::parse_interactive(Path::new("x.toml"), text).unwrap();
            let sockets = Sockets::in_folder(Path::new("/sockets"));
            of_foreign(&Topology::of(&scenario), &sockets)
                .unwrap()
                .line(None)
        };
        let missing = "FAILED   other servers  `command`: no-such-server is not in PATH: install it, or write its path\n";
        assert_eq!(of("no-such-server"), missing);
        assert!(of("sh").starts_with("ok "));
    }
}
