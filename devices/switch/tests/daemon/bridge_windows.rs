//! A switch that asks on a bridge socket for the windows that its ports forward.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use peerbar_rig::Daemon;
use peerbar_switch::{BridgeWindows, Message, answer_to, number_of};

use crate::raw::{Endpoint, announce, command, registers, wait_for_log};

/// The other end of the switch's socket.
struct Bridges(BufReader<UnixStream>);

impl Bridges {
    /// Waits until the switch asks. Returns the number of the question.
    fn question(&mut self) -> u64 {
        let mut asked = String::new();
        self.0.read_line(&mut asked).unwrap();
        number_of(asked.trim_end()).unwrap()
    }

    /// Answers the next question.
    fn answer(&mut self, windows: Option<&str>) {
        let number = self.question();
        let windows = windows.map(|windows| windows.parse::<BridgeWindows>().unwrap());
        let answer = answer_to(number, windows.as_ref());
        self.0.get_mut().write_all(answer.as_bytes()).unwrap();
    }
}

fn start() -> (Daemon, Bridges) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let holes = ["--bridge-windows", "--pci-hole", "0x0-0xffffffffffffffff"];
    let daemon = command().args(holes).input(theirs).start();
    (daemon, Bridges(BufReader::new(ours)))
}

#[test]
fn endpoint_cannot_claim_what_another_port_forwards() {
    let (daemon, mut bridges) = start();
    let (disk, port) = Endpoint::attach(daemon.socket(), "disk0");
    let (gpu, _) = Endpoint::attach(daemon.socket(), "gpu0");
    let (other, _) = Endpoint::attach(daemon.socket(), "disk1");
    // This precedes the disk's window.
    gpu.send(&announce(1, vec![registers(0x2000)]));
    assert!(matches!(gpu.receive(), Message::Announced { sequence: 1 }));
    // The switch asks until the window may be passed on, and logs it after a while.
    let windows = "disk0=0x2000-0x2fff gpu0=0x5000-0x5fff disk1=";
    let line = "(gpu0), BAR0 at 0x2000+0x1000 is outside of the range that the bridge above it forwards, 0x5000-0x5fff";
    while !daemon.stderr().contains(line) {
        bridges.answer(Some(windows));
    }
    bridges.answer(None);
    disk.send(&announce(1, vec![registers(0x2000)]));
    assert!(matches!(disk.receive(), Message::Announced { sequence: 1 }));
    for peer in [&gpu, &other] {
        let (of, windows) = peer.acknowledge();
        assert_eq!((of, windows[0].range.first().0), (port, 0x2000));
    }
    assert!(other.hears_nothing_before_an_answer());
    assert!(disk.has_heard_nothing());
    // A window that its port forwards is reached, also by endpoints that attach later.
    gpu.send(&announce(2, vec![registers(0x5000)]));
    assert!(matches!(gpu.receive(), Message::Announced { sequence: 2 }));
    let (_, windows) = disk.acknowledge();
    assert_eq!(windows[0].range.first().0, 0x5000);
    assert_eq!(daemon.stderr().matches(line).count(), 1);
}

#[test]
fn bridge_socket_ends_and_known_bridge_windows_stay() {
    let (daemon, mut bridges) = start();
    let (a, _) = Endpoint::attach(daemon.socket(), "a");
    let (b, _) = Endpoint::attach(daemon.socket(), "b");
    a.send(&announce(1, vec![registers(0x1000), registers(0x2000)]));
    assert!(matches!(a.receive(), Message::Announced { sequence: 1 }));
    bridges.answer(Some("a=0x1000-0x1fff"));
    assert_eq!(b.acknowledge().1.len(), 1);
    drop(bridges);
    wait_for_log(&daemon, "the bridge socket has ended");
    a.send(&announce(2, Vec::new()));
    assert!(b.acknowledge().1.is_empty());
    assert!(matches!(a.receive(), Message::Announced { sequence: 2 }));
    a.send(&announce(3, vec![registers(0x1000), registers(0x3000)]));
    assert_eq!(b.acknowledge().1.len(), 1);
    assert!(matches!(a.receive(), Message::Announced { sequence: 3 }));
}
