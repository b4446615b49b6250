//! The activity of the guest's kernel, by the host's clock: its commands with those of the devices,
//! and the invalidations of its IOMMU.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::ops::RangeInclusive;

use peerbar_nvme_spec::command::NvmOpcode;
use peerbar_report::TraceLine;

use super::clock::{Bound, GuestClock};
use super::device::RecordedCommand;
use super::file::{Argument, TimedEvent, TraceFile};
use super::kernel_events::{DriverCommand, KernelEvent, KernelTrace, TimedKernelEvent};
use super::lanes;

/// The kernel rounds a time to a microsecond.
const ROUNDING: u64 = 500;
/// A device takes a command up within this many nanoseconds, if it is not known when the command was complete.
const LONGEST: u64 = 1_000_000_000;
/// The driver waits at least this many nanoseconds for an interrupt before it looks for a completion by itself (`nvme_core.io_timeout`).
const TIME_OUT: u64 = 1_000_000_000;
/// Number of rounds that find commands and then improve the clock by them.
const ROUNDS: u32 = 3;

/// A command of the driver's, as the guest's kernel traced it.
struct GuestCommand {
    submitted: u64,
    completed: Option<u64>,
    about: DriverCommand,
    text: String,
    /// The device's command, if it was found.
    found: Option<Found>,
}

/// The device's command that one of the driver's is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    command: CommandIndex,
    /// No other one of its key was in the time of the driver's.
    is_certain: bool,
}

/// Device, and command of the device.
type CommandIndex = (usize, usize);

impl Found {
    fn of<'a>(self, devices: &DeviceCommands<'a>) -> Option<&'a RecordedCommand> {
        let (device, index) = self.command;
        devices.get(device)?.1.get(index)
    }
}

/// The key of a driver's command in the record of its device: device, queue, number, and a flag for
/// a flush.
///
/// A number is used again after 16 commands with the driver's tag. But a flush takes the tag of the
/// command that is waiting for it and has a separate count, so both may have the same number, one
/// after the other (Linux block/blk-flush.c, drivers/nvme/host/nvme.h).
type Key<'a> = (&'a str, u16, u32, bool);

fn recorded_key<'a>(device: &'a str, command: &RecordedCommand) -> Key<'a> {
    let is_flush = command.queue != 0 && command.operation.opcode == NvmOpcode::Flush as u8;
    (device, command.queue, command.number, is_flush)
}

fn driver_key<'a>(device: &'a str, command: &GuestCommand) -> Key<'a> {
    let is_flush = command.text.contains("cmd=(nvme_cmd_flush");
    let about = &command.about;
    (device, about.queue, about.number, is_flush)
}

/// The begins of a device's commands of one key, in their order.
#[derive(Default)]
struct Begins {
    times: Vec<(u64, CommandIndex)>,
    /// Number of begins in front that belong to earlier commands of the driver.
    taken: usize,
}

impl Begins {
    /// Returns the one in `span` that is nearest to `at`; the driver's later commands have later
    /// ones.
    fn take(&mut self, at: u64, span: &RangeInclusive<u64>) -> Option<Found> {
        let later = self.times.partition_point(|(begun, _)| *begun < at);
        let later = later.max(self.taken);
        let earlier = later.checked_sub(1).filter(|index| *index >= self.taken);
        let around = earlier.into_iter().chain([later]);
        let around = around.filter_map(|index| Some((index, *self.times.get(index)?)));
        let around = around.filter(|(_, (begun, _))| span.contains(begun));
        let (index, (_, command)) = around.min_by_key(|(_, (begun, _))| begun.abs_diff(at))?;
        self.taken = index + 1;
        let first = self
            .times
            .partition_point(|(begun, _)| begun < span.start());
        let after = self.times.partition_point(|(begun, _)| begun <= span.end());
        Some(Found {
            command,
            is_certain: after - first == 1,
        })
    }
}

/// The commands of the devices, by device.
pub(super) type DeviceCommands<'a> = [(&'a str, &'a [RecordedCommand])];

/// The guest's part of a time line.
pub(super) struct GuestActivity {
    clock: GuestClock,
    commands: Vec<GuestCommand>,
    others: Vec<TimedKernelEvent>,
    controllers: HashMap<String, String>,
}

impl GuestActivity {
    /// Finds the guest's commands among those of the devices. Returns `None` if its clock is
    /// unknown.
    pub(super) fn of(trace: &KernelTrace, devices: &DeviceCommands<'_>) -> Option<Self> {
        let mut controllers = HashMap::new();
        let mut bounds = Vec::new();
        for note in &trace.notes {
            match note {
                TraceLine::Controller { controller, device } => {
                    controllers.insert(controller.clone(), device.clone());
                }
                TraceLine::Clock(sample) => bounds.extend([
                    Bound {
                        guest: sample.before,
                        earliest: None,
                        latest: Some(sample.host),
                    },
                    Bound {
                        guest: sample.after,
                        earliest: Some(sample.host),
                        latest: None,
                    },
                ]),
                TraceLine::Missing(_) | TraceLine::Cut => {}
            }
        }
        let mut guest = Self {
            clock: GuestClock::of(&bounds)?,
            commands: commands(trace),
            others: trace
                .events
                .iter()
                .filter(|event| !is_command(event))
                .cloned()
                .collect(),
            controllers,
        };
        for _ in 0..ROUNDS {
            guest.find(devices);
            let of_commands = guest.bounds(devices);
            let all: Vec<Bound> = bounds.iter().copied().chain(of_commands).collect();
            guest.clock = GuestClock::of(&all)?;
        }
        Some(guest)
    }

    /// Finds each command's begin in the record of its device, between its submission and its completion.
    fn find(&mut self, devices: &DeviceCommands<'_>) {
        let mut begins: HashMap<Key<'_>, Begins> = HashMap::new();
        for (number, (name, commands)) in devices.iter().enumerate() {
            for (index, command) in commands.iter().enumerate() {
                let key = recorded_key(name, command);
                let begin = (command.begun, (number, index));
                begins.entry(key).or_default().times.push(begin);
            }
        }
        for command in &mut self.commands {
            let at = self.clock.host(command.submitted);
            let until = command
                .completed
                .map_or(at.saturating_add(LONGEST), |at| self.clock.host(at));
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "`as` saturates"
            )]
            let error = self.clock.error as u64;
            let span = at.saturating_sub(error)..=until.saturating_add(error);
            let device = self.controllers.get(&command.about.controller);
            let key = device.map(|device| driver_key(device, command));
            let begins = key.and_then(|key| begins.get_mut(&key));
            command.found = begins.and_then(|begins| begins.take(at, &span));
        }
    }

    /// Returns the bounds of the clocks that follow from the commands that were found for certain:
    /// a device reads the doorbell after the submission, and the driver takes the completion after
    /// the device's end. It takes that of a single command after the interrupt, too. It may take
    /// others while it handles an earlier interrupt.
    fn bounds(&self, devices: &DeviceCommands<'_>) -> impl Iterator<Item = Bound> {
        let commands = self.commands.iter().zip(alone(&self.commands));
        commands.flat_map(|(command, is_alone)| {
            let recorded = command.found.filter(|found| found.is_certain);
            let recorded = recorded.and_then(|found| found.of(devices));
            let submitted = recorded.map(|recorded| Bound {
                guest: command.submitted.saturating_sub(ROUNDING),
                earliest: None,
                latest: recorded.announced.or(Some(recorded.begun)),
            });
            let completed = recorded.and_then(|recorded| {
                let ended = recorded.ended?;
                let in_time = |at: &u64| is_alone && at.saturating_sub(ended) < TIME_OUT;
                let interrupted = recorded.interrupted.filter(in_time);
                Some(Bound {
                    guest: command.completed?.saturating_add(ROUNDING),
                    earliest: interrupted.or(Some(ended)),
                    latest: None,
                })
            });
            submitted.into_iter().chain(completed)
        })
    }

    /// Returns the number of commands, and the number of those that the devices recorded.
    pub(super) fn command_counts(&self) -> (usize, usize) {
        let found = self
            .commands
            .iter()
            .filter(|command| command.found.is_some());
        (self.commands.len(), found.count())
    }

    /// Returns the error of its times in nanoseconds, at most.
    pub(super) fn error(&self) -> f64 {
        self.clock.error
    }

    /// Adds the guest's tracks.
    pub(super) fn add<W: Write>(
        &self,
        file: &mut TraceFile<W>,
        devices: &DeviceCommands<'_>,
    ) -> io::Result<()> {
        let group = file.track("guest kernel", None)?;
        let mut faults = Vec::new();
        let mut mappings = Vec::new();
        for other in &self.others {
            let (name, events) = match other.event {
                KernelEvent::Map => ("map", &mut mappings),
                KernelEvent::Unmap => ("unmap", &mut mappings),
                _ => ("io_page_fault", &mut faults),
            };
            let event = TimedEvent::instant(self.clock.host(other.at), name);
            events.push(event.with("text", Argument::Text(other.text.clone())));
        }
        for (name, events) in [("IOMMU faults", faults), ("IOMMU", mappings)] {
            if !events.is_empty() {
                lanes::add(file, name, group, events)?;
            }
        }
        let mut queues: BTreeMap<(&str, u16), Vec<&GuestCommand>> = BTreeMap::new();
        for command in &self.commands {
            let key = (command.about.controller.as_str(), command.about.queue);
            queues.entry(key).or_default().push(command);
        }
        for ((controller, queue), commands) in queues {
            let device = self.controllers.get(controller);
            let device = device.map_or_else(String::new, |device| format!(" ({device})"));
            let name = format!("{controller} queue {queue}{device}");
            let slices = commands.iter().map(|command| self.slice(command, devices));
            lanes::add(file, &name, group, slices.collect())?;
            let ends = commands
                .iter()
                .filter_map(|command| self.completion(command, devices));
            lanes::add(file, &format!("{name}: completions"), group, ends.collect())?;
        }
        Ok(())
    }

    fn slice(&self, command: &GuestCommand, devices: &DeviceCommands<'_>) -> TimedEvent {
        let from = self.clock.host(command.submitted);
        let to = command.completed.map_or(from, |at| self.clock.host(at));
        // `cmd=(nvme_cmd_read slba=0, …)`
        let name = command
            .text
            .split_once("cmd=(nvme_cmd_")
            .or(command.text.split_once("cmd=(nvme_admin_"));
        let name = name
            .and_then(|(_, rest)| rest.split([' ', ')']).next())
            .unwrap_or("command");
        TimedEvent::slice(from, to, name)
            .with("command", Argument::Number(command.about.number.into()))
            .with("text", Argument::Text(command.text.clone()))
            .in_flows(flow(command, devices))
    }

    fn completion(
        &self,
        command: &GuestCommand,
        devices: &DeviceCommands<'_>,
    ) -> Option<TimedEvent> {
        let event = TimedEvent::instant(self.clock.host(command.completed?), "complete")
            .with("command", Argument::Number(command.about.number.into()))
            .in_flows(flow(command, devices));
        Some(event)
    }
}

fn flow(command: &GuestCommand, devices: &DeviceCommands<'_>) -> Option<u64> {
    Some(command.found?.of(devices)?.flow)
}

/// Returns for each command `true` if it was the only one of its controller from its submission to
/// its completion.
fn alone(commands: &[GuestCommand]) -> Vec<bool> {
    let mut alone = vec![true; commands.len()];
    // By controller the latest completion so far, and the index of its command.
    let mut latest: HashMap<&str, (u64, usize)> = HashMap::new();
    for (number, command) in commands.iter().enumerate() {
        let own = (command.completed.unwrap_or(u64::MAX), number);
        let controller = command.about.controller.as_str();
        let before = latest.get(controller).copied();
        let overlapped = before.filter(|(completed, _)| *completed >= command.submitted);
        for (_, one) in overlapped.into_iter().chain(overlapped.map(|_| own)) {
            if let Some(is_alone) = alone.get_mut(one) {
                *is_alone = false;
            }
        }
        latest.insert(controller, overlapped.map_or(own, |before| before.max(own)));
    }
    alone
}

fn is_command(event: &TimedKernelEvent) -> bool {
    matches!(
        event.event,
        KernelEvent::Submit(_) | KernelEvent::Complete(_)
    )
}

/// Returns the driver's commands, each with its completion.
fn commands(trace: &KernelTrace) -> Vec<GuestCommand> {
    let mut commands: Vec<GuestCommand> = Vec::new();
    let mut open: HashMap<DriverCommand, usize> = HashMap::new();
    for event in &trace.events {
        match &event.event {
            KernelEvent::Submit(about) => {
                open.insert(about.clone(), commands.len());
                commands.push(GuestCommand {
                    submitted: event.at,
                    completed: None,
                    about: about.clone(),
                    text: event.text.clone(),
                    found: None,
                });
            }
            KernelEvent::Complete(about) => {
                let submitted = open.remove(about);
                let command = submitted.and_then(|index| commands.get_mut(index));
                if let Some(command) = command {
                    command.completed = Some(event.at);
                }
            }
            _ => {}
        }
    }
    commands
}

#[cfg(test)]
mod tests {
    use peerbar_report::ClockSample;

    use super::*;

    /// Delay of the guest's clock.
    const BEHIND: u64 = 7_000_000_000;
    const START: u64 = 20_000_000_000;
    const MILLISECOND: u64 = 1_000_000;

    /// Times of commands in milliseconds, from their submission until the guest takes their
    /// completion, and the device's records: doorbell, begin, end, and the interrupt if it is for a
    /// single command.
    type Times = ([u64; 2], [u64; 3], Option<u64>);

    fn host(milliseconds: u64) -> u64 {
        START + milliseconds * MILLISECOND
    }

    fn guest(milliseconds: u64) -> u64 {
        host(milliseconds) - BEHIND
    }

    /// The guest's clock as a trace of these commands shows it, which is otherwise known to 40 ms.
    fn clock(commands: &[Times]) -> GuestClock {
        let mut trace = KernelTrace::default();
        let mut recorded = Vec::new();
        for (number, (of_guest, of_device, interrupt)) in (1..).zip(commands) {
            let about = DriverCommand {
                controller: "nvme0".to_owned(),
                queue: 1,
                number,
            };
            let events =
                [KernelEvent::Submit, KernelEvent::Complete].map(|event| event(about.clone()));
            let events = events.into_iter().zip(of_guest);
            trace
                .events
                .extend(events.map(|(event, at)| TimedKernelEvent {
                    at: guest(*at),
                    event,
                    text: String::new(),
                }));
            let [announced, begun, ended] = of_device.map(host);
            recorded.push(RecordedCommand {
                queue: 1,
                number,
                operation: 2.into(),
                begun,
                ended: Some(ended),
                announced: Some(announced),
                interrupted: interrupt.map(host),
                status: 0,
                flow: number.into(),
            });
        }
        trace.events.sort_by_key(|event| event.at);
        trace.notes = notes([40, 40]);
        let guest = GuestActivity::of(&trace, &[("disk0", &recorded)]).unwrap();
        assert_eq!(guest.command_counts(), (commands.len(), commands.len()));
        guest.clock
    }

    /// The name of the disk, and readings of the clocks, whose errors are this many milliseconds before and after.
    fn notes([before, after]: [u64; 2]) -> Vec<TraceLine> {
        let clock = |at| {
            TraceLine::Clock(ClockSample {
                before: guest(at - before),
                host: host(at),
                after: guest(at + after),
            })
        };
        let disk = TraceLine::Controller {
            controller: "nvme0".to_owned(),
            device: "disk0".to_owned(),
        };
        vec![disk, clock(100), clock(900)]
    }

    /// Readings that make the guest's clock look 35 ms late, and early.
    const MISLEADING: [[u64; 2]; 2] = [[5, 75], [75, 5]];

    /// Returns the device's commands that match those of the driver, all with the number 4097 and 5
    /// ms long, and the guest's clock, by readings with these errors. Each is an operation and the
    /// time of its submission in milliseconds.
    fn found(
        readings: [u64; 2],
        driver: &[(&str, u64)],
        device: &[(NvmOpcode, u64)],
    ) -> (Vec<Option<usize>>, GuestClock) {
        let mut text = String::new();
        for (operation, at) in driver {
            let line = |at: u64, event: &str, rest: &str| {
                let (seconds, micros) = (at / 1_000_000_000, at % 1_000_000_000 / 1000);
                format!(
                    "init-107 [000] .....  {seconds}.{micros:06}: {event}: nvme0: disk=nvme0n1, qid=1, cmdid=4097, {rest}\n"
                )
            };
            let cmd = format!("cmd=(nvme_cmd_{operation} slba=0)");
            text += &line(guest(*at), "nvme_setup_cmd", &cmd);
            text += &line(guest(*at + 5), "nvme_complete_rq", "status=0x0");
        }
        let mut trace = KernelTrace::parse(&text);
        trace.notes = notes(readings);
        let recorded = device.iter().map(|(opcode, at)| RecordedCommand {
            queue: 1,
            number: 4097,
            operation: (*opcode as u8).into(),
            begun: host(*at + 1),
            ended: Some(host(*at + 4)),
            announced: None,
            interrupted: None,
            status: 0,
            flow: 0,
        });
        let recorded: Vec<_> = recorded.collect();
        let guest = GuestActivity::of(&trace, &[("disk0", &recorded)]).unwrap();
        let found = guest.commands.iter();
        let found = found.map(|command| Some(command.found?.command.1));
        (found.collect(), guest.clock)
    }

    #[test]
    fn flush_with_the_number_of_the_command_before_is_told_apart() {
        use NvmOpcode::{Flush, Write};
        let of_device = [(Write, 200), (Flush, 206), (Write, 400), (Flush, 406)];
        let of_driver = [
            ("write", 200),
            ("flush", 206),
            ("write", 400),
            ("flush", 406),
        ];
        for readings in MISLEADING {
            let (all, clock) = found(readings, &of_driver, &of_device);
            assert_eq!(all, [0, 1, 2, 3].map(Some));
            assert!(milliseconds(&clock) < 5.0, "{clock:?}");
            // The record has two of them only.
            let (two, _) = found(readings, &of_driver, &[(Write, 200), (Flush, 406)]);
            assert_eq!(two, [Some(0), None, None, Some(1)]);
        }
    }

    #[test]
    fn commands_of_one_number_are_found_once_at_most() {
        let of_driver: Vec<_> = (0..20).map(|number| ("read", 200 + 6 * number)).collect();
        let of_device = of_driver.iter().map(|(_, at)| (NvmOpcode::Read, *at));
        let of_device: Vec<_> = of_device.collect();
        for readings in MISLEADING {
            let (found, clock) = found(readings, &of_driver, &of_device);
            let commands: Vec<usize> = found.iter().copied().flatten().collect();
            assert!(commands.len() > 10, "{found:?}");
            assert!(commands.is_sorted_by(|one, other| one < other), "{found:?}");
            // Those that may be another one say nothing of the clock.
            let off = clock.host(guest(250)).abs_diff(host(250)) as f64;
            assert!(off <= clock.error + 1.0, "{off} {clock:?}");
        }
    }

    #[test]
    fn begin_is_taken_once_and_in_the_order_of_the_driver() {
        let times = [(10, 0), (20, 1), (30, 2), (90, 3)].map(|(at, index)| (at, (0, index)));
        let mut begins = Begins {
            times: times.to_vec(),
            taken: 0,
        };
        let mut take = |at, span| {
            let found = begins.take(at, &span)?;
            Some((found.command.1, found.is_certain))
        };
        assert_eq!(take(21, 0..=40), Some((1, false)));
        // Both neighbours are taken, or too early.
        assert_eq!(take(5, 0..=40), Some((2, false)));
        assert_eq!(take(30, 0..=40), None);
        assert_eq!(take(80, 70..=99), Some((3, true)));
        assert_eq!(take(80, 70..=99), None);
    }

    fn milliseconds(clock: &GuestClock) -> f64 {
        clock.error / MILLISECOND as f64
    }

    #[test]
    fn doorbell_and_interrupt_of_a_lone_command_bound_the_clock() {
        let times = |at: u64| ([at, at + 30], [at + 1, at + 10, at + 20], Some(at + 29));
        let clock = clock(&[times(200), times(400), times(600)]);
        assert!((0.9..1.1).contains(&milliseconds(&clock)), "{clock:?}");
    }

    #[test]
    fn completion_before_its_interrupt_does_not_mislead_the_clock() {
        // The handler of the first one's interrupt takes the second one's completion, too.
        let first = ([200, 230], [201, 210, 219], Some(229));
        let second = ([205, 231], [206, 211, 229], Some(239));
        let clock = clock(&[first, second]);
        assert!((1.4..1.6).contains(&milliseconds(&clock)), "{clock:?}");
        let off = clock.host(START - BEHIND).abs_diff(START) as f64;
        assert!(off <= clock.error + 1.0, "{off} {clock:?}");
    }
}
