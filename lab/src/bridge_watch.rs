//! Tells switches which bus addresses their ports forward: the bridges are QEMU's, and its monitor
//! shows how the guest has set them (QMP, `query-pci`).

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use peerbar_pci::{BusAddress, Range};
use peerbar_switch::{BridgeWindows, LastLine, answer_to, number_of};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::Deserialize;
use serde_json::json;

use crate::monitor::{Monitor, is_late};
use crate::topology::{Topology, port_id};

/// From an answer to a switch to the next one. A switch that is honest asks no sooner.
const MIN_INTERVAL: Duration = Duration::from_millis(20);
/// The most bytes of a question, without the end of its line.
const LONGEST: usize = 63;

/// The socket through which a switch asks.
#[derive(Clone, Debug)]
pub(crate) struct SwitchSocket {
    /// The switch's name in the scenario.
    switch: String,
    /// Names of the devices below it that have servers of peerbar's.
    devices: Vec<String>,
    /// This process's end, without any threads that wait on it.
    socket: Arc<UnixStream>,
}

impl SwitchSocket {
    /// Makes the socket of a switch, and the switch's end of it.
    ///
    /// # Errors
    /// That of socketpair(2).
    pub(crate) fn new(switch: &str) -> io::Result<(Self, UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let socket = Self {
            switch: switch.to_owned(),
            devices: Vec::new(),
            socket: Arc::new(ours),
        };
        Ok((socket, theirs))
    }

    /// In this topology.
    pub(crate) fn within(self, topology: &Topology<'_>) -> Self {
        let below = topology.below(&self.switch);
        let below = below.filter(|device| device.is_ours());
        let devices = below.map(|device| device.name().to_owned()).collect();
        Self { devices, ..self }
    }
}

/// The thread that answers all switches of a guest. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct BridgeWatch {
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl BridgeWatch {
    /// Answers `switches` by the output of the monitor at `monitor`.
    ///
    /// # Errors
    /// A system without threads or descriptors.
    pub(crate) fn start(monitor: PathBuf, switches: Vec<SwitchSocket>) -> io::Result<Self> {
        let (stop, stopped) = UnixStream::pair()?;
        let now = Instant::now();
        let client = |of| Client {
            of,
            question: LastLine::default(),
            free: now,
        };
        let mut answerer = Answerer {
            path: monitor,
            monitor: None,
            clients: switches.into_iter().map(client).collect(),
            has_warned: false,
        };
        let thread = thread::Builder::new().name("bridge-watch".to_owned());
        let thread = thread.spawn(move || {
            if let Err(error) = answerer.run(&stopped) {
                answerer
                    .clients
                    .drain(..)
                    .for_each(|client| client.disconnect(&error));
            }
        })?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for BridgeWatch {
    fn drop(&mut self) {
        self.stop = None;
        let ended = self.thread.take().map(JoinHandle::join);
        if let Some(Err(_)) = ended {
            log::error!("the thread that reports bridge windows to switches has panicked");
        }
    }
}

/// A switch that may ask.
struct Client {
    of: SwitchSocket,
    question: LastLine,
    /// The time from which it may ask again.
    free: Instant,
}

struct Answerer {
    path: PathBuf,
    /// Connected once the first switch asks, as QEMU listens before it starts devices, and kept: it
    /// serves one client at a time.
    monitor: Option<Monitor>,
    clients: Vec<Client>,
    has_warned: bool,
}

impl Answerer {
    /// Answers until the other end of `stop` is closed.
    fn run(&mut self, stop: &UnixStream) -> io::Result<()> {
        loop {
            let Some(asking) = self.wait(stop)? else {
                return Ok(());
            };
            let clients = std::mem::take(&mut self.clients).into_iter().zip(asking);
            for (mut client, asks) in clients {
                let served = match asks {
                    true => self.serve(&mut client),
                    false => Ok(()),
                };
                match served {
                    Ok(()) => self.clients.push(client),
                    Err(error) => client.disconnect(&error),
                }
            }
        }
    }

    /// Waits until switches have asked, and returns a flag for each. Returns `None` if `stop` is
    /// closed.
    fn wait(&self, stop: &UnixStream) -> io::Result<Option<Vec<bool>>> {
        let now = Instant::now();
        let paced = self.clients.iter().map(|client| client.free);
        let paced = paced.filter(|free| *free > now).min();
        let left = paced.map(|free| Timespec::try_from(free.saturating_duration_since(now)));
        let left = left.transpose().map_err(io::Error::other)?;
        let mut polled = vec![PollFd::new(stop, PollFlags::IN)];
        for client in &self.clients {
            let wanted = match client.free <= now {
                true => PollFlags::IN,
                false => PollFlags::empty(),
            };
            polled.push(PollFd::from_borrowed_fd(client.of.socket.as_fd(), wanted));
        }
        match poll(&mut polled, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut ready = polled.iter().map(|socket| !socket.revents().is_empty());
        let is_stopped = ready.next() == Some(true);
        Ok((!is_stopped).then(|| ready.collect()))
    }

    /// Answers a switch, if it has asked.
    fn serve(&mut self, client: &mut Client) -> io::Result<()> {
        let Some(number) = client.question()? else {
            return Ok(());
        };
        let windows = self.bridge_windows(&client.of);
        let windows = windows.inspect_err(|error| self.log(error)).ok();
        client.free = Instant::now() + MIN_INTERVAL;
        let answer = answer_to(number, windows.as_ref());
        (&*client.of.socket).write_all(answer.as_bytes())
    }

    /// Logs once why QEMU does not show its bridges. A missing monitor is usual before QEMU's start
    /// and after its end.
    fn log(&mut self, error: &io::Error) {
        let is_there =
            is_late(error) || matches!(error.kind(), ErrorKind::Other | ErrorKind::InvalidData);
        if is_there && !std::mem::replace(&mut self.has_warned, true) {
            let path = self.path.display();
            log::warn!(
                "QEMU's monitor at {path} does not show bridges, so peers reach no new window through the switch: {error}"
            );
        }
    }

    fn bridge_windows(&mut self, of: &SwitchSocket) -> io::Result<BridgeWindows> {
        let mut monitor = match self.monitor.take() {
            Some(monitor) => monitor,
            None => match Monitor::connect(&self.path) {
                Ok(monitor) => monitor,
                // There is no QEMU, so the windows of the last one's bridges are void.
                Err(error) if is_absent(&error) => return Ok(BridgeWindows::default()),
                Err(error) => return Err(error),
            },
        };
        let buses = monitor.execute(&json!({"execute": "query-pci"}));
        if buses.as_ref().map_or_else(is_late, |_| true) {
            self.monitor = Some(monitor);
        }
        let buses: Vec<Bus> = serde_json::from_value(buses?)?;
        Ok(bridge_windows(&buses, of))
    }
}

/// Returns `true` if no process listens at a socket.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound | ErrorKind::ConnectionRefused
    )
}

impl Client {
    /// Returns the number of the last question that has come.
    fn question(&mut self) -> io::Result<Option<u64>> {
        let Some(line) = self.question.receive(&self.of.socket, LONGEST)? else {
            return Ok(None);
        };
        let number = number_of(&line).map(Some);
        number.ok_or(io::Error::other("no question"))
    }

    /// Disconnects a switch that is gone, asks an invalid question, or reads no answers. The switch
    /// notices that.
    fn disconnect(self, error: &io::Error) {
        if error.kind() != ErrorKind::UnexpectedEof {
            log::warn!(
                "{} no longer learns the windows of its ports: {error}",
                self.of.switch
            );
        }
        // Fails if it is gone.
        let _ = self.of.socket.shutdown(Shutdown::Both);
    }
}

/// A bus that `query-pci` returns (QEMU, qapi/pci.json). It has more fields.
#[derive(Debug, Deserialize)]
struct Bus {
    devices: Vec<PciDevice>,
}

#[derive(Debug, Deserialize)]
struct PciDevice {
    qdev_id: String,
    pci_bridge: Option<Bridge>,
}

#[derive(Debug, Deserialize)]
struct Bridge {
    bus: Forwarded,
    /// Below it.
    #[serde(default)]
    devices: Vec<PciDevice>,
}

#[derive(Debug, Deserialize)]
struct Forwarded {
    memory_range: MemoryRange,
    prefetchable_range: MemoryRange,
}

/// QMP's integers have a sign.
#[derive(Debug, Deserialize)]
struct MemoryRange {
    base: i64,
    limit: i64,
}

impl MemoryRange {
    /// Returns the forwarded range, or `None` if its base is above its limit: the bridge forwards
    /// nothing then.
    fn bus_range(&self) -> Option<Range<BusAddress>> {
        let [base, limit] = [self.base, self.limit].map(|it| u64::from_ne_bytes(it.to_ne_bytes()));
        Range::from_bounds(BusAddress(base), BusAddress(limit))
    }
}

/// Returns the windows of a switch's ports, by the names of the devices below them.
fn bridge_windows(buses: &[Bus], of: &SwitchSocket) -> BridgeWindows {
    let bridges: BTreeMap<&str, &Bridge> =
        buses.iter().flat_map(|bus| bridges(&bus.devices)).collect();
    let ports = of.devices.iter().filter_map(|device| {
        let port = bridges.get(&*port_id(&of.switch, device))?;
        let ranges = [&port.bus.memory_range, &port.bus.prefetchable_range];
        let ranges = ranges.into_iter().filter_map(MemoryRange::bus_range);
        Some((device.clone(), ranges.collect()))
    });
    ports.collect()
}

/// Returns the bridges among some devices and below them, with their identifiers.
fn bridges<'a>(devices: &'a [PciDevice]) -> Vec<(&'a str, &'a Bridge)> {
    let bridges = devices.iter();
    let bridges =
        bridges.filter_map(|device| Some((&*device.qdev_id, device.pci_bridge.as_ref()?)));
    let with_lower = |found: (&'a str, &'a Bridge)| {
        let lower = self::bridges(&found.1.devices);
        [found].into_iter().chain(lower)
    };
    bridges.flat_map(with_lower).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Output of QEMU 11.1 for the demo, without unused parts: a switch with three devices.
    const BUSES: &str = r#"[{"bus": 0, "devices": [
        {"qdev_id": "", "regions": []},
        {"qdev_id": "root.switch0", "pci_bridge": {
            "bus": {"memory_range": {"base": 536870912, "limit": 543162367},
                "prefetchable_range": {"base": 4294967296, "limit": 4632608767}},
            "devices": [{"qdev_id": "switch0", "pci_bridge": {
                "bus": {"memory_range": {"base": 536870912, "limit": 543162367},
                    "prefetchable_range": {"base": 4294967296, "limit": 4632608767}},
                "devices": [
                    {"qdev_id": "switch0.disk0", "pci_bridge": {
                        "bus": {"memory_range": {"base": 536870912, "limit": 538968063},
                            "prefetchable_range": {"base": 4563402752, "limit": 4630511615}},
                        "devices": [{"qdev_id": "disk0", "regions": []}]}},
                    {"qdev_id": "switch0.disk1", "pci_bridge": {
                        "bus": {"memory_range": {"base": 538968064, "limit": 541065215},
                            "prefetchable_range": {"base": -1048576, "limit": 1048575}}}},
                    {"qdev_id": "switch1.gpu0", "pci_bridge": {
                        "bus": {"memory_range": {"base": 541065216, "limit": 543162367},
                            "prefetchable_range": {"base": 4294967296, "limit": 4563402751}}}}]}}]}}]}]"#;

    #[test]
    fn windows_of_a_switch_are_those_of_its_ports_with_servers() {
        let buses: Vec<Bus> = serde_json::from_str(BUSES).unwrap();
        let text = |switch, devices: &[&str]| {
            let of = socket_of(switch, devices).0;
            bridge_windows(&buses, &of).to_string()
        };
        let disks =
            "disk0=0x20000000-0x201fffff,0x110000000-0x113ffffff disk1=0x20200000-0x203fffff";
        assert_eq!(text("switch0", &["disk1", "disk0", "disk2"]), disks);
        let gpu = "gpu0=0x20400000-0x205fffff,0x100000000-0x10fffffff";
        assert_eq!(text("switch1", &["gpu0"]), gpu);
        assert_eq!(text("switch0", &["gpu0"]), "");
        assert_eq!(text("root", &["switch1"]), "");
    }

    fn socket_of(switch: &str, devices: &[&str]) -> (SwitchSocket, UnixStream) {
        let (mut ours, theirs) = SwitchSocket::new(switch).unwrap();
        ours.devices = devices.iter().map(|device| (*device).to_owned()).collect();
        (ours, theirs)
    }

    /// A switch's end of a socket, and the number of its questions.
    struct Switch(BufReader<UnixStream>, u64);

    impl Switch {
        fn new(name: &str) -> (SwitchSocket, Self) {
            let (ours, theirs) = socket_of(name, &["gpu0"]);
            (ours, Self(BufReader::new(theirs), 0))
        }

        /// Asks, and returns the answer.
        fn ask(&mut self) -> String {
            self.1 += 1;
            let question = format!("bridge-windows {}\n", self.1);
            self.0.get_mut().write_all(question.as_bytes()).unwrap();
            let mut answer = String::new();
            self.0.read_line(&mut answer).unwrap();
            let (number, answer) = answer.trim_end_matches('\n').split_once(' ').unwrap();
            assert_eq!(number, self.1.to_string());
            answer.to_owned()
        }

        fn ends(mut self) -> bool {
            let mut rest = String::new();
            // An error if it has not been read to the end.
            self.0.read_line(&mut rest).unwrap_or(0) == 0
        }
    }

    /// A monitor that answers this many commands, and is gone then.
    fn monitor(listener: &UnixListener, commands: usize) {
        let (stream, _) = listener.accept().unwrap();
        writeln!(&stream, r#"{{"QMP": {{}}}}"#).unwrap();
        let lines = BufReader::new(&stream).lines();
        for line in lines.take(commands) {
            let line: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
            let is_query = line["execute"] == "query-pci";
            let returned = if is_query { BUSES } else { "{}" };
            let returned = returned.replace('\n', " ");
            writeln!(&stream, r#"{{"return": {returned}, "id": {}}}"#, line["id"]).unwrap();
        }
    }

    #[test]
    fn switches_are_answered_while_qemu_runs_and_by_the_next_watch() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("monitor");
        let ((first, mut to_first), (second, mut to_second)) =
            (Switch::new("switch0"), Switch::new("switch1"));
        let gpu = "gpu0=0x20400000-0x205fffff,0x100000000-0x10fffffff";
        let watch = BridgeWatch::start(path.clone(), vec![first, second.clone()]).unwrap();
        assert_eq!(to_first.ask(), "", "there is no QEMU");
        let listener = UnixListener::bind(&path).unwrap();
        let qemu = thread::spawn(move || {
            // The capabilities and two questions, then as a new process.
            monitor(&listener, 3);
            monitor(&listener, 2);
        });
        assert_eq!(to_second.ask(), gpu);
        assert_eq!(to_first.ask(), "", "its gpu0 has no port there");
        assert_eq!(to_first.ask(), "unknown");
        drop(watch);
        let watch = BridgeWatch::start(path, vec![second]).unwrap();
        assert_eq!(to_second.ask(), gpu);
        qemu.join().unwrap();
        drop(watch);
    }

    #[test]
    fn switch_that_asks_no_question_is_left_and_others_are_served() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("monitor");
        let sockets = [(); 4].map(|()| Switch::new("switch1"));
        let ours = sockets.iter().map(|(ours, _)| ours.clone()).collect();
        let [mut good, mut wrong, mut endless, mut deaf] = sockets.map(|(_, theirs)| theirs);
        let _watch = BridgeWatch::start(path, ours).unwrap();
        wrong.0.get_mut().write_all(b"what?\n").unwrap();
        endless.0.get_mut().write_all(&[b'x'; 200]).unwrap();
        assert!(wrong.ends() && endless.ends());
        // It reads no answers, until its socket is full.
        let floods = (0..).find_map(|_| {
            let question = b"bridge-windows 18446744073709551615\n".repeat(100);
            deaf.0.get_mut().write_all(&question).err()
        });
        let ended = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset];
        assert!(ended.contains(&floods.unwrap().kind()));
        assert_eq!(good.ask(), "");
    }
}
