//! The library's own link: its handler's calls, and when the others get the acknowledgement.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use peerbar_switch::{
    ACKNOWLEDGE_TIME_OUT, Attachment, BarWindow, Descriptor, LinkLost, LinkTiming, Message,
    PeerHandler, PortId, Unsupported,
};
use rustix::process::{Pid, Signal, kill_process};

use crate::raw::{Daemon, Endpoint, announce, registers};

/// Takes all changes.
struct Quiet;

impl PeerHandler for Quiet {
    fn peer(&self, _: PortId, _: Vec<BarWindow>, _: &Descriptor) {}

    fn link(&self, _: PortId, _: LinkTiming) {}

    fn lost(&self) {}

    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), Unsupported> {
        Err(Unsupported)
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), Unsupported> {
        Err(Unsupported)
    }
}

/// Reports each change and blocks until the test releases it.
struct Slow {
    changes: Sender<PortId>,
    released: Mutex<Receiver<()>>,
}

impl PeerHandler for Slow {
    fn peer(&self, peer: PortId, _: Vec<BarWindow>, _: &Descriptor) {
        self.changes.send(peer).unwrap();
        // Fails if the test has failed.
        let _ = self.released.lock().unwrap().recv();
    }

    fn link(&self, _: PortId, _: LinkTiming) {}

    fn lost(&self) {}

    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), Unsupported> {
        Err(Unsupported)
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), Unsupported> {
        Err(Unsupported)
    }
}

#[test]
fn a_change_is_acknowledged_only_when_the_neighbour_goes_by_it() {
    let daemon = Daemon::start(&[]);
    let (a, port) = Endpoint::attach(&daemon.path, "a");
    let ((changes, changed), (release, released)) = (channel(), channel());
    let handler = Slow {
        changes,
        released: Mutex::new(released),
    };
    let attachment = Attachment::new(&daemon.path, "slow").unwrap();
    let _link = attachment.start(Arc::new(handler)).unwrap();
    // Dropped before the link, which waits for the handler.
    let release = release;
    a.send(&announce(1, vec![registers(0x1000)]));
    assert_eq!(changed.recv().unwrap(), port);
    // The switch has taken whatever the link has sent so far when it lets a later one in.
    let (_later, _) = Endpoint::attach(&daemon.path, "later");
    assert!(a.hears_nothing());
    release.send(()).unwrap();
    assert!(matches!(a.receive(), Message::Announced { sequence: 1 }));
}

#[test]
fn a_stopped_switch_is_given_up_in_time_and_found_again() {
    let daemon = Daemon::start(&[]);
    let pid = Pid::from_child(&daemon.child);
    let attachment = Attachment::new(&daemon.path, "endpoint").unwrap();
    let link = attachment.start(Arc::new(Quiet)).unwrap();
    let none = Descriptor::default();
    assert_eq!(link.announce(vec![registers(0x1000)], &none), Ok(()));
    kill_process(pid, Signal::STOP).unwrap();
    let begun = Instant::now();
    for address in [0x2000, 0x3000] {
        let announced = link.announce(vec![registers(address)], &none);
        assert_eq!(announced, Err(LinkLost));
    }
    let waited = begun.elapsed();
    let bound = ACKNOWLEDGE_TIME_OUT * 2;
    assert!((bound..bound * 2).contains(&waited), "{waited:?}");
    kill_process(pid, Signal::CONT).unwrap();
    let (peer, _) = Endpoint::attach(&daemon.path, "peer");
    let is_newest = |windows: &[BarWindow]| windows.iter().any(|w| w.address == 0x3000);
    while !is_newest(&peer.acknowledge().1) {}
}
