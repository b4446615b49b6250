//! What the guest's kernel did, by the host's clock: its commands beside those of the devices, and the invalidations of its IOMMU.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

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
/// How often commands are found and the clock is known better by them.
const ROUNDS: u32 = 3;

/// A command of the driver's, as the guest's kernel traced it.
struct GuestCommand {
    submitted: u64,
    completed: Option<u64>,
    about: DriverCommand,
    text: String,
    /// The device's command, if it was found.
    found: Option<CommandIndex>,
}

/// Device, and command of the device.
type CommandIndex = (usize, usize);

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
    /// Finds the guest's commands among those of the devices; none if its clock is unknown.
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

    /// Finds each command's begin in the record of its device: of those with its queue and number between its submission
    /// and its completion the nearest to the submission.
    fn find(&mut self, devices: &DeviceCommands<'_>) {
        let mut begun: HashMap<_, Vec<(u64, CommandIndex)>> = HashMap::new();
        for (number, (name, commands)) in devices.iter().enumerate() {
            for (index, command) in commands.iter().enumerate() {
                let key = (*name, command.queue, command.number);
                let start = (command.begun, (number, index));
                begun.entry(key).or_default().push(start);
            }
        }
        for command in &mut self.commands {
            let device = self.controllers.get(&command.about.controller);
            let key =
                device.map(|device| (device.as_str(), command.about.queue, command.about.number));
            let candidates = key.and_then(|key| begun.get(&key));
            let candidates = candidates.map_or(&[][..], Vec::as_slice);
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
            let (from, until) = (at.saturating_sub(error), until.saturating_add(error));
            // In the order of their begins.
            let later = candidates.partition_point(|(begun, _)| *begun < at);
            let around = [later.checked_sub(1), Some(later)].into_iter().flatten();
            let candidates = around.filter_map(|index| candidates.get(index));
            let candidates = candidates.filter(|(begun, _)| (from..=until).contains(begun));
            let nearest = candidates.min_by_key(|(begun, _)| begun.abs_diff(at));
            command.found = nearest.map(|(_, index)| *index);
        }
    }

    /// What the commands show of the clocks: a device reads the doorbell after the submission, and the driver takes the
    /// completion after the device's end. It takes that of a command which is alone after the interrupt, too. Others it may take
    /// while it is at work on an earlier interrupt.
    fn bounds(&self, devices: &DeviceCommands<'_>) -> impl Iterator<Item = Bound> {
        let commands = self.commands.iter().zip(alone(&self.commands));
        commands.flat_map(|(command, is_alone)| {
            let recorded = command
                .found
                .and_then(|(device, index)| devices.get(device)?.1.get(index));
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

    /// How many commands there are, and how many of them the devices recorded.
    pub(super) fn command_counts(&self) -> (usize, usize) {
        let found = self
            .commands
            .iter()
            .filter(|command| command.found.is_some());
        (self.commands.len(), found.count())
    }

    /// The error of its times in nanoseconds, at most.
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
    let (device, index) = command.found?;
    Some(devices.get(device)?.1.get(index)?.flow)
}

/// Whether each command was the only one of its controller from its submission to its completion.
fn alone(commands: &[GuestCommand]) -> Vec<bool> {
    let mut alone = vec![true; commands.len()];
    // By controller the latest completion so far, and whose it is.
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

/// The driver's commands, each with its completion.
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

    /// How far the guest's clock is behind.
    const BEHIND: u64 = 7_000_000_000;
    const START: u64 = 20_000_000_000;
    const MILLISECOND: u64 = 1_000_000;

    /// Commands from their submission until the guest takes their completion, in milliseconds, and what the device records: doorbell,
    /// begin, end, and the interrupt if it is for one command alone.
    type Times = ([u64; 2], [u64; 3], Option<u64>);

    /// The guest's clock as a trace of these commands shows it, which is otherwise known to 40 ms.
    fn clock(commands: &[Times]) -> GuestClock {
        let host = |milliseconds: u64| START + milliseconds * MILLISECOND;
        let guest = |milliseconds| host(milliseconds) - BEHIND;
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
                opcode: 2,
                begun,
                ended: Some(ended),
                announced: Some(announced),
                interrupted: interrupt.map(host),
                status: 0,
                flow: number.into(),
            });
        }
        trace.events.sort_by_key(|event| event.at);
        let sample = |at| ClockSample {
            before: guest(at - 40),
            host: host(at),
            after: guest(at + 40),
        };
        trace.notes = vec![TraceLine::Controller {
            controller: "nvme0".to_owned(),
            device: "disk0".to_owned(),
        }];
        trace
            .notes
            .extend([100, 900].map(|at| TraceLine::Clock(sample(at))));
        let guest = GuestActivity::of(&trace, &[("disk0", &recorded)]).unwrap();
        assert_eq!(guest.command_counts(), (commands.len(), commands.len()));
        guest.clock
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
