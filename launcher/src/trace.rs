//! `peerbar trace`: the records of the devices, the trace of the guest's kernel and the checks, on
//! one time line for Perfetto (perfetto.dev). All times are CLOCK_MONOTONIC of the host.

mod clock;
mod device;
pub(crate) mod file;
mod guest_activity;
mod kernel_events;
mod lanes;
mod proto;
mod signals;
#[cfg(test)]
pub(crate) mod tests;
mod wire;

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use peerbar_flight::Level;
use peerbar_lab::count::counted;
use peerbar_lab::exit::Failure;
use peerbar_lab::finished_run::TIMES;
use peerbar_lab::guest::GUEST_TRACE;
use peerbar_lab::report::CheckTime;
use peerbar_lab::run_file;
use peerbar_lab::terminal::print;
use peerbar_report::TraceLine;
use serde::Serialize;

use crate::cli;
use crate::iommu::device_kind::DeviceKind;
use crate::iommu::recorded::Recorded;
use device::Activity;
use file::{Argument, TimedEvent, TraceFile};
use guest_activity::GuestActivity;
use kernel_events::KernelTrace;

/// Default name of the file.
const FILE: &str = "trace.pftrace";

/// The contents of a time line, for people and programs.
#[derive(Debug, Serialize)]
struct Contents {
    file: PathBuf,
    checks: usize,
    devices: Vec<DeviceContents>,
    guest: Option<GuestContents>,
    /// The missing parts, with the reasons.
    missing: Vec<String>,
}

#[derive(Debug, Serialize)]
struct DeviceContents {
    name: String,
    commands: usize,
    doorbells: usize,
    interrupts: usize,
    dmas: usize,
    mapping_changes: usize,
    faults: usize,
}

#[derive(Debug, Serialize)]
struct GuestContents {
    commands: usize,
    /// Those of them that were found in the devices' records.
    commands_found: usize,
    /// Largest error of its times, in nanoseconds.
    clock_error_ns: u64,
}

/// Writes the time line of a run.
pub(crate) fn trace(options: &cli::Trace) -> Result<ExitCode, Failure> {
    let run = options.guest.folder(options.run.path())?;
    let recorded = Recorded::open(&run).map_err(Failure::Usage)?;
    let path = options.output.clone();
    let path = path.unwrap_or_else(|| run.join(FILE));
    let cannot = || format!("cannot write {}", path.display());
    let out = match options.output {
        Some(_) => File::create(&path),
        None => run_file::replace(&path),
    };
    let out = out.with_context(cannot)?;
    let inputs = Inputs::of(&run, recorded)?;
    let mut contents = inputs.write(BufWriter::new(out)).with_context(cannot)?;
    contents.file = path;
    let shown = if options.json {
        serde_json::to_string_pretty(&contents).context("cannot write JSON")? + "\n"
    } else {
        text(&contents)
    };
    print(&shown)?;
    Ok(ExitCode::SUCCESS)
}

/// The sources of a time line.
struct Inputs {
    recorded: Recorded,
    checks: Vec<CheckTime>,
    kernel: Option<KernelTrace>,
}

impl Inputs {
    /// Reads the files of a run.
    fn of(run: &Path, recorded: Recorded) -> anyhow::Result<Self> {
        let checks = match optional(&run.join(TIMES))? {
            Some(text) => {
                serde_json::from_slice(&text).with_context(|| format!("{TIMES} is invalid"))?
            }
            None => Vec::new(),
        };
        let kernel = optional(&run.join(GUEST_TRACE))?;
        let kernel = kernel.map(|text| KernelTrace::parse(&String::from_utf8_lossy(&text)));
        Ok(Self {
            recorded,
            checks,
            kernel,
        })
    }

    fn write<W: Write>(&self, out: W) -> io::Result<Contents> {
        let devices = &self.recorded.devices;
        let start = devices.iter().map(|device| &device.flight.header);
        let start = start.min_by_key(|header| header.monotonic);
        let (monotonic, realtime) =
            start.map_or((0, 0), |header| (header.monotonic, header.realtime));
        let mut file = TraceFile::begin(out, monotonic, realtime)?;
        add_checks(&mut file, &self.checks)?;
        let activities = devices.iter().enumerate();
        let activities: Vec<Activity> = activities
            .map(|(number, device)| Activity::of(&self.recorded, device, number))
            .collect();
        let commands = devices.iter().zip(&activities);
        let commands: Vec<_> = commands
            .map(|(device, activity)| (device.name.as_str(), activity.commands.as_slice()))
            .collect();
        let guest = self.kernel.as_ref();
        let guest = guest.and_then(|kernel| GuestActivity::of(kernel, &commands));
        if let Some(guest) = &guest {
            guest.add(&mut file, &commands)?;
        }
        let mut contents = Contents {
            file: PathBuf::new(),
            checks: self.checks.len(),
            devices: Vec::new(),
            missing: self.missing(guest.as_ref()),
            guest: guest.map(|guest| {
                let (commands, commands_found) = guest.command_counts();
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "`as` saturates"
                )]
                let clock_error_ns = guest.error() as u64;
                GuestContents {
                    commands,
                    commands_found,
                    clock_error_ns,
                }
            }),
        };
        drop(commands);
        for (device, activity) in devices.iter().zip(activities) {
            let (doorbells, interrupts) = activity.signal_counts();
            let (dmas, faults) = activity.dma_counts();
            contents.devices.push(DeviceContents {
                name: device.name.clone(),
                commands: activity.commands.len(),
                doorbells,
                interrupts,
                dmas,
                mapping_changes: activity.mapping_changes(),
                faults,
            });
            activity.add(&mut file, device)?;
        }
        file.end()?;
        Ok(contents)
    }

    /// Returns the missing parts of the time line, with advice on how to add them.
    fn missing(&self, guest: Option<&GuestActivity>) -> Vec<String> {
        let mut missing = Vec::new();
        for device in &self.recorded.devices {
            let name = &device.name;
            if device.flight.header.level == Level::Maps {
                missing.push(format!(
                    "{name} recorded only mappings and failures: `peerbar run --trace` records every command and DMA"
                ));
            }
            if device.kind == DeviceKind::Foreign {
                missing.push(format!(
                    "{name}: its server reports no commands, doorbells and interrupts"
                ));
            }
            if device.lost() > 0 {
                let lost = counted(device.lost(), "older record");
                missing.push(format!("{name} has lost {lost}"));
            }
        }
        let Some(kernel) = &self.kernel else {
            missing
                .push("the guest's kernel was not traced: `peerbar run --trace` does".to_owned());
            return missing;
        };
        if guest.is_none() {
            missing.push("the guest's clock is unknown, so its events are left out".to_owned());
        }
        if kernel.lost > 0 {
            missing.push(format!(
                "the guest has lost {}",
                counted(kernel.lost, "event")
            ));
        }
        if kernel.unreadable > 0 {
            missing.push(format!(
                "{GUEST_TRACE} has {} without an event",
                counted(kernel.unreadable, "line")
            ));
        }
        missing.extend(kernel.notes.iter().filter_map(|note| match note {
            TraceLine::Missing(what) => Some(what.clone()),
            TraceLine::Cut => Some(format!("{GUEST_TRACE} was full: later events are missing")),
            _ => None,
        }));
        missing
    }
}

fn optional(path: &Path) -> anyhow::Result<Option<Vec<u8>>> {
    match run_file::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        read => read
            .map(Some)
            .with_context(|| format!("cannot read {}", path.display())),
    }
}

fn add_checks<W: Write>(file: &mut TraceFile<W>, checks: &[CheckTime]) -> io::Result<()> {
    let group = file.track("checks", None)?;
    let events = checks.iter().map(|check| {
        TimedEvent::slice(check.began_ns, check.ended_ns, check.name.as_str())
            .with("verdict", Argument::Text(check.verdict.clone()))
    });
    lanes::add(file, "checks", group, events.collect())
}

fn text(contents: &Contents) -> String {
    let mut text = format!("{}: open it in ui.perfetto.dev\n", contents.file.display());
    text += &format!("  {}\n", counted(contents.checks, "check"));
    for device in &contents.devices {
        let DeviceContents {
            name,
            commands,
            doorbells,
            interrupts,
            dmas,
            mapping_changes,
            faults,
        } = device;
        text += &format!(
            "  {name}: {}, {}, {}, {} ({faults} failed), {mapping_changes} maps and unmaps\n",
            counted(*commands, "command"),
            counted(*doorbells, "doorbell"),
            counted(*interrupts, "interrupt"),
            counted(*dmas, "DMA"),
        );
    }
    if let Some(guest) = &contents.guest {
        let (commands, found) = (counted(guest.commands, "command"), guest.commands_found);
        let micros = guest.clock_error_ns.div_ceil(1000);
        text += &format!(
            "  guest: {commands}, {found} recorded by the devices; its clock is known to {micros} us\n"
        );
    }
    for missing in &contents.missing {
        text += &format!("  missing: {missing}\n");
    }
    text
}
