//! Tells switches which bus addresses their ports forward: the bridges are QEMU's, and its monitor shows how the guest has set them
//! (QMP, `query-pci`).

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use peerbar_switch::{BridgeWindows, BusRange, UNKNOWN};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use serde::Deserialize;
use serde_json::json;

use crate::monitor::Monitor;

/// How long a switch may take to read an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A switch and the socket by which it asks.
#[derive(Clone, Debug)]
pub(crate) struct Asking {
    /// Its name in the scenario.
    pub(crate) switch: String,
    /// This process's end.
    pub(crate) socket: Arc<UnixStream>,
}

/// The thread that answers all switches of a guest. Dropped, it has ended.
#[derive(Debug)]
pub(crate) struct BridgeWatch {
    stop: Option<UnixStream>,
    /// Returns the switches that have not ended.
    thread: Option<JoinHandle<Vec<Asking>>>,
}

impl BridgeWatch {
    /// Answers `switches` by what the monitor at `monitor` shows.
    ///
    /// # Errors
    /// A system without threads or descriptors.
    pub(crate) fn start(monitor: PathBuf, switches: Vec<Asking>) -> io::Result<Self> {
        let (stop, stopped) = UnixStream::pair()?;
        let mut answerer = Answerer {
            path: monitor,
            monitor: None,
            switches,
        };
        let thread = thread::Builder::new().name("bridge-windows".to_owned());
        let thread = thread.spawn(move || {
            if let Err(error) = answerer.run(&stopped) {
                log::warn!("no switch learns any more what its ports forward: {error}");
            }
            answerer.switches
        })?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Ends it; the switches that have not ended.
    pub(crate) fn stop(mut self) -> Vec<Asking> {
        self.end()
    }

    fn end(&mut self) -> Vec<Asking> {
        self.stop = None;
        let ended = self.thread.take().map(JoinHandle::join);
        let switches = ended.transpose();
        let switches = switches.inspect_err(|_| log::error!("the thread has panicked"));
        switches.ok().flatten().unwrap_or_default()
    }
}

impl Drop for BridgeWatch {
    fn drop(&mut self) {
        self.end();
    }
}

struct Answerer {
    path: PathBuf,
    /// Connected once the first switch asks: QEMU listens before it starts devices.
    monitor: Option<Monitor>,
    switches: Vec<Asking>,
}

impl Answerer {
    /// Answers until the other end of `stop` is closed.
    fn run(&mut self, stop: &UnixStream) -> io::Result<()> {
        loop {
            let sockets = self.switches.iter().map(|asking| asking.socket.as_fd());
            let sockets = [stop.as_fd()].into_iter().chain(sockets);
            let polled = sockets.map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN));
            let mut polled: Vec<PollFd<'_>> = polled.collect();
            match poll(&mut polled, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let mut ready = polled.iter().map(|socket| !socket.revents().is_empty());
            if ready.next() == Some(true) {
                return Ok(());
            }
            let ready: Vec<bool> = ready.collect();
            let switches = std::mem::take(&mut self.switches).into_iter().zip(ready);
            let switches = switches.filter(|(asking, asks)| !asks || self.serve(asking));
            self.switches = switches.map(|(asking, _)| asking).collect();
        }
    }

    /// Answers a switch that has asked. Whether it may ask again: one that is gone, or reads no answer, does not.
    fn serve(&mut self, asking: &Asking) -> bool {
        let mut questions = [0; 64];
        let read = (&*asking.socket).read(&mut questions);
        if !read.is_ok_and(|read| read > 0) {
            return false;
        }
        let answer = self.answer(&asking.switch);
        let answer = answer.map_or_else(
            |error| {
                log::debug!("QEMU does not say what ports forward: {error}");
                UNKNOWN.to_owned()
            },
            |windows| windows.to_string(),
        );
        let sent = asking.socket.set_write_timeout(Some(PATIENCE));
        let sent = sent.and_then(|()| writeln!(&*asking.socket, "{answer}"));
        sent.is_ok()
    }

    fn answer(&mut self, switch: &str) -> io::Result<BridgeWindows> {
        let mut monitor = match self.monitor.take() {
            Some(monitor) => monitor,
            None => Monitor::connect(&self.path)?,
        };
        let buses = monitor.execute(&json!({"execute": "query-pci"}))?;
        self.monitor = Some(monitor);
        let buses: Vec<Bus> = serde_json::from_value(buses)?;
        Ok(bridge_windows(&buses, switch))
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
    /// None if its base is above its limit, as the bridge forwards nothing then.
    fn bus_range(&self) -> Option<BusRange> {
        BusRange::new(self.base.cast_unsigned(), self.limit.cast_unsigned())
    }
}

/// What the ports of a switch forward, by the names of the devices below them.
fn bridge_windows(buses: &[Bus], switch: &str) -> BridgeWindows {
    let prefix = format!("{switch}.");
    let bridges = buses.iter().flat_map(|bus| bridges(&bus.devices));
    let ports = bridges.filter_map(|(id, Bridge { bus, .. })| {
        let ranges = [&bus.memory_range, &bus.prefetchable_range];
        let ranges = ranges.into_iter().filter_map(MemoryRange::bus_range);
        Some((id.strip_prefix(&prefix)?.to_owned(), ranges.collect()))
    });
    ports.collect()
}

/// The bridges among some devices and below them, with their identifiers.
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

    use peerbar_switch::QUESTION;

    use super::*;

    /// What QEMU 11.1 shows of the demo, without what is not read: a switch with three devices.
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
    fn windows_of_a_switch_are_those_of_its_downstream_ports() {
        let buses: Vec<Bus> = serde_json::from_str(BUSES).unwrap();
        let text = |switch| bridge_windows(&buses, switch).to_string();
        let first =
            "disk0=0x20000000-0x201fffff,0x110000000-0x113ffffff disk1=0x20200000-0x203fffff";
        assert_eq!(text("switch0"), first);
        let gpu = "gpu0=0x20400000-0x205fffff,0x100000000-0x10fffffff";
        assert_eq!(text("switch1"), gpu);
        assert_eq!(text("switch"), "");
    }

    /// A switch's end of a socket: asks, and returns the answer.
    fn ask(socket: &UnixStream) -> String {
        writeln!(&*socket, "{QUESTION}").unwrap();
        let mut answer = String::new();
        BufReader::new(socket).read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    }

    fn asking(switch: &str) -> (Asking, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let switch = switch.to_owned();
        let socket = Arc::new(ours);
        (Asking { switch, socket }, theirs)
    }

    /// A monitor that answers this many commands, and is gone then.
    fn monitor(listener: &UnixListener, commands: usize) {
        let (stream, _) = listener.accept().unwrap();
        writeln!(&stream, r#"{{"QMP": {{}}}}"#).unwrap();
        let lines = BufReader::new(&stream).lines();
        for line in lines.take(commands) {
            let is_query = line.unwrap().contains("query-pci");
            let returned = if is_query { BUSES } else { "{}" };
            let returned = returned.replace('\n', " ");
            writeln!(&stream, r#"{{"return": {returned}}}"#).unwrap();
        }
    }

    #[test]
    fn switches_are_answered_while_qemu_is_there_and_by_the_next_watch() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("monitor");
        let ((first, to_first), (second, to_second)) = (asking("switch0"), asking("switch1"));
        let watch = BridgeWatch::start(path.clone(), vec![first, second]).unwrap();
        assert_eq!(ask(&to_first), UNKNOWN);
        let listener = UnixListener::bind(&path).unwrap();
        let qemu = thread::spawn(move || {
            // The capabilities and two questions, then as a new process.
            monitor(&listener, 3);
            monitor(&listener, 2);
        });
        assert!(ask(&to_second).starts_with("gpu0="));
        assert!(ask(&to_first).starts_with("disk0="));
        assert_eq!(ask(&to_first), UNKNOWN);
        // That switch ends.
        drop(to_first);
        let left = watch.stop();
        let watch = BridgeWatch::start(path, left).unwrap();
        assert!(ask(&to_second).starts_with("gpu0="));
        qemu.join().unwrap();
        drop(watch);
    }
}
