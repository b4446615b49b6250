//! Writes of devices to registers of their peers, such as doorbells, and the fate of these writes.

use std::collections::BTreeMap;
use std::path::Path;

use peerbar_flight::{
    Dma, DmaOutcome, Event, IgnoredWrite, PeerWindowEvent, Purpose, RegisterWrite, Route,
    WindowKind,
};
use peerbar_pci::BusAddress;

use super::behind::{window_at, window_name};
use super::recorded::{Recorded, RecordedDevice};

/// The fate of a write to a peer's register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    /// The switch above both routed it.
    Switched,
    /// It went through the root, and the peer is not below the same switch.
    ByRoot,
    /// It went through the root, although the peer is below the same switch.
    Redirected,
    /// The switch lost it, and the device believes it done.
    Lost,
    /// It was rejected.
    Refused,
    /// It reached RAM or memory of the device itself.
    Done,
}

impl Fate {
    fn of(device: &RecordedDevice, dma: &Dma) -> Self {
        match (dma.route, dma.outcome) {
            (Route::Refused, DmaOutcome::Done) => Self::Lost,
            (_, DmaOutcome::Done) if has_peer_at(device, dma.address.on_bus()) => match dma.route {
                Route::Peer => Self::Switched,
                _ => Self::Redirected,
            },
            (Route::Peer, DmaOutcome::Done) => Self::Switched,
            (Route::Upstream, DmaOutcome::Done) => Self::ByRoot,
            (_, DmaOutcome::Done) => Self::Done,
            _ => Self::Refused,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Switched => "done through the switch",
            Self::ByRoot => "done through the root",
            Self::Redirected => "REDIRECTED to the root and done there",
            Self::Lost => {
                "LOST: the switch drops this device's requests to peers, without an error"
            }
            Self::Refused => "REFUSED",
            Self::Done => "done",
        }
    }
}

/// Returns the number of a device's writes to the registers of each peer, by their fate. If a
/// device records only failures, that is the rejected and lost ones.
pub(super) fn made(recorded: &Recorded, device: &RecordedDevice) -> Vec<String> {
    let mut counts: BTreeMap<(String, Fate, String), u64> = BTreeMap::new();
    for record in &device.flight.records {
        let Event::Dma(ref dma) = record.event else {
            continue;
        };
        if dma.purpose == Purpose::Register {
            let fate = Fate::of(device, dma);
            let why = match fate {
                Fate::Refused => format!(": {}", dma.outcome),
                _ => String::new(),
            };
            let target = target(recorded, dma);
            *counts.entry((target, fate, why)).or_default() += 1;
        }
    }
    let line = |((target, fate, why), count): ((String, Fate, String), u64)| {
        let times = times(count);
        format!("wrote to {target} {times}, {}{why}", fate.text())
    };
    counts.into_iter().map(line).collect()
}

/// Returns the number of writes of each peer to the device's registers through the switch.
pub(super) fn met(recorded: &Recorded, device: &RecordedDevice) -> Vec<String> {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for record in &device.flight.records {
        if let Event::RegisterWrite(write) = record.event {
            *counts.entry(writer(recorded, device, &write)).or_default() += 1;
        }
    }
    let line = |(peer, count): (String, u64)| {
        let times = times(count);
        format!("{peer} wrote to its registers {times}, through the switch")
    };
    counts.into_iter().map(line).collect()
}

/// Returns the guest's writes to the device's registers that have no effect there.
pub(super) fn ignored(device: &RecordedDevice) -> Vec<String> {
    let mut writes = device
        .flight
        .records
        .iter()
        .filter_map(|record| match record.event {
            Event::IgnoredWrite(write) => Some(write),
            _ => None,
        });
    let Some(first) = writes.next() else {
        return Vec::new();
    };
    let more = match writes.count() {
        0 => String::new(),
        more => format!("; and {more} more, which --history shows"),
    };
    vec![format!("{}{more}", ignored_line(&first))]
}

/// Returns a write that was ignored.
pub(super) fn ignored_line(write: &IgnoredWrite) -> String {
    let IgnoredWrite { bar, offset, len } = write;
    format!("IGNORED a write of {len} bytes at {offset:#x} of BAR {bar}, which means nothing there")
}

/// Returns the fate of a write to a peer's register, if it is wrong without an error.
pub(crate) fn mishap(device: &RecordedDevice, dma: &Dma) -> Option<&'static str> {
    if dma.purpose != Purpose::Register {
        return None;
    }
    match Fate::of(device, dma) {
        fate @ (Fate::Redirected | Fate::Lost) => Some(fate.text()),
        _ => None,
    }
}

/// Returns a peer's write, without its time.
pub(super) fn line(recorded: &Recorded, device: &RecordedDevice, write: &RegisterWrite) -> String {
    let RegisterWrite {
        bar,
        offset,
        len,
        value,
        ..
    } = write;
    let peer = writer(recorded, device, write);
    format!("register {offset:#x} of BAR {bar} written by {peer}: {value:#x}, {len} bytes")
}

/// Returns the lines of every device of a run; empty if no device wrote to a peer's registers, or
/// nothing is recorded.
pub(crate) fn of_run(run: &Path) -> String {
    let recorded = match Recorded::open(run) {
        Ok(recorded) => recorded,
        Err(error) => {
            log::debug!("{}: no register writes are shown: {error:#}", run.display());
            return String::new();
        }
    };
    let mut text = String::new();
    for device in recorded.shown() {
        for line in [made(&recorded, device), met(&recorded, device)].concat() {
            text += &format!("{}: {line}\n", device.name);
        }
    }
    text
}

fn times(count: u64) -> String {
    match count {
        1 => "once".to_owned(),
        count => format!("{count} times"),
    }
}

/// Returns the target of a DMA: a register or memory of a device, or RAM.
fn target(recorded: &Recorded, dma: &Dma) -> String {
    if dma.route == Route::GuestRam {
        return "guest RAM".to_owned();
    }
    let mut devices = recorded.devices.iter();
    let found = devices.find_map(|device| Some((device, window_at(device, dma.address.on_bus())?)));
    let Some((device, window)) = found else {
        return format!("an unknown device at {}", dma.address);
    };
    let what = match window.memory {
        WindowKind::Registers => "a register",
        _ => "memory",
    };
    format!("{what} of {} ({})", device.name, window_name(window.id))
}

/// Returns the device that wrote, by the addresses of its windows.
fn writer(recorded: &Recorded, device: &RecordedDevice, write: &RegisterWrite) -> String {
    let windows = peer_windows(device).filter(|window| window.peer == write.peer);
    let owner = |window: PeerWindowEvent| {
        let mut devices = recorded.devices.iter();
        devices.find(|other| window_at(other, window.range.first()).is_some())
    };
    let owner = windows.filter_map(owner).last();
    owner.map_or_else(
        || format!("peer {}", write.peer),
        |owner| owner.name.clone(),
    )
}

/// Returns `true` if a peer below the same switch ever had a window there.
fn has_peer_at(device: &RecordedDevice, address: BusAddress) -> bool {
    peer_windows(device).any(|window| window.range.contains(address))
}

fn peer_windows(device: &RecordedDevice) -> impl Iterator<Item = PeerWindowEvent> {
    let records = device.flight.now.iter().chain(&device.flight.records);
    records.filter_map(|record| match record.event {
        Event::PeerWindow(window) => Some(window),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use peerbar_flight::{Completer, Direction, Level, Origin, Recorder, WindowEvent, WindowId};
    use peerbar_pci::{Iova, Range};

    use super::*;

    const DISK: u64 = 0x38_0000_0000;
    const GPU: u64 = 0x38_1000_0000;
    const VRAM: u64 = 0x38_2000_0000;
    const FAR: u64 = 0x39_0000_0000;

    fn write(address: u64, route: Route, outcome: DmaOutcome) -> Dma {
        Dma {
            origin: Origin::Queue(1),
            purpose: Purpose::Register,
            direction: Direction::Write,
            address: Iova(address + 0x1008),
            len: 4,
            route,
            completer: Completer::PeerBar,
            outcome,
            took: 0,
        }
    }

    fn window(address: u64) -> Event {
        Event::Window(WindowEvent {
            id: WindowId::Bar(0),
            range: Range::new(BusAddress(address), 0x4000),
            memory: WindowKind::Registers,
        })
    }

    fn peer(peer: u32, address: u64) -> Event {
        Event::PeerWindow(PeerWindowEvent {
            peer,
            range: Range::new(BusAddress(address), 0x4000).unwrap(),
            claim: 1,
            memory: WindowKind::Registers,
        })
    }

    /// Returns a GPU that rings doorbells of disk0, below the same switch, and of disk1, which is
    /// elsewhere.
    fn run(rung: &[(u64, Route, DmaOutcome)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let device = |name: &str, address| {
            let path = folder.path().join(name).with_extension("flight");
            let recorder = Recorder::create(&path, name, Level::All).unwrap();
            recorder.record(window(address));
            recorder
        };
        let (disk0, gpu0, _disk1) = (
            device("disk0", DISK),
            device("gpu0", GPU),
            device("disk1", FAR),
        );
        disk0.record(peer(3, GPU));
        gpu0.record(peer(2, DISK));
        gpu0.record(Event::Window(WindowEvent {
            id: WindowId::Bar(2),
            range: Range::new(BusAddress(VRAM), 0x4000),
            memory: WindowKind::Memory,
        }));
        for (address, route, outcome) in rung {
            gpu0.dma(write(*address, *route, *outcome), gpu0.clock());
            if (*route, *outcome) == (Route::Peer, DmaOutcome::Done) {
                disk0.record(Event::RegisterWrite(RegisterWrite {
                    peer: 3,
                    bar: 0,
                    offset: 0x1008,
                    len: 4,
                    value: 5,
                }));
            }
        }
        folder
    }

    #[test]
    fn writes_are_counted_by_target_and_fate() {
        let folder = run(&[
            (DISK, Route::Peer, DmaOutcome::Done),
            (DISK, Route::Peer, DmaOutcome::Done),
            (DISK, Route::Upstream, DmaOutcome::Done),
            (DISK, Route::Refused, DmaOutcome::Done),
            (DISK, Route::Refused, DmaOutcome::PeerUnsupported),
            (FAR, Route::Upstream, DmaOutcome::Done),
            (0x1000, Route::Upstream, DmaOutcome::ClientRefused(19)),
            (VRAM, Route::OwnBar, DmaOutcome::Done),
            (0x5000, Route::GuestRam, DmaOutcome::Done),
        ]);
        let expected = "\
disk0: gpu0 wrote to its registers 2 times, through the switch
gpu0: wrote to a register of disk0 (BAR 0) 2 times, done through the switch
gpu0: wrote to a register of disk0 (BAR 0) once, REDIRECTED to the root and done there
gpu0: wrote to a register of disk0 (BAR 0) once, LOST: the switch drops this device's requests to peers, without an error
gpu0: wrote to a register of disk0 (BAR 0) once, REFUSED: unsupported request
gpu0: wrote to a register of disk1 (BAR 0) once, done through the root
gpu0: wrote to an unknown device at 0x2008 once, REFUSED: QEMU refused it (errno 19)
gpu0: wrote to guest RAM once, done
gpu0: wrote to memory of gpu0 (BAR 2) once, done
";
        assert_eq!(of_run(folder.path()), expected);
    }

    #[test]
    fn run_without_register_writes_has_no_lines() {
        assert_eq!(of_run(run(&[]).path()), "");
        assert_eq!(of_run(tempfile::tempdir().unwrap().path()), "");
    }

    #[test]
    fn history_names_the_writer_and_each_mishap() {
        let folder = run(&[
            (DISK, Route::Peer, DmaOutcome::Done),
            (DISK, Route::Refused, DmaOutcome::Done),
        ]);
        let recorded = Recorded::open(folder.path()).unwrap();
        let history = crate::iommu::line::history(&recorded);
        let written = "disk0    register 0x1008 of BAR 0 written by gpu0: 0x5, 4 bytes\n";
        assert!(history.contains(written), "{history}");
        let lost = "4 B write register Refused, queue 1: LOST: the switch drops";
        assert!(history.contains(lost), "{history}");
        let done = "4 B write register Peer, queue 1\n";
        assert!(history.contains(done), "{history}");
    }
}
