//! A link that is not made by hand: what its neighbour is told, and when the others learn that it has been.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use peerbar_switch::{Attachment, LinkTiming, Message, Neighbour, PortId, Unsupported, Window};

use crate::raw::{Daemon, Endpoint, announce, registers};

/// Tells of each change that it hears of, and takes its time with it until it is let go.
struct Slow {
    told: Sender<PortId>,
    go: Mutex<Receiver<()>>,
}

impl Neighbour for Slow {
    fn peer(&self, peer: PortId, _: Vec<Window>) {
        self.told.send(peer).unwrap();
        // A test that has failed lets it go by its end.
        let _ = self.go.lock().unwrap().recv();
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
    let ((told, is_told), (let_go, go)) = (channel(), channel());
    let neighbour = Slow {
        told,
        go: Mutex::new(go),
    };
    let attachment = Attachment::new(&daemon.path, "slow").unwrap();
    let _link = attachment.start(Arc::new(neighbour)).unwrap();
    // Dropped before the link, which waits for the neighbour.
    let let_go = let_go;
    a.send(&announce(1, vec![registers(0x1000)]));
    assert_eq!(is_told.recv().unwrap(), port);
    // The switch has taken whatever the link has sent so far when it lets a later one in.
    let (_later, _) = Endpoint::attach(&daemon.path, "later");
    assert!(a.hears_nothing());
    let_go.send(()).unwrap();
    assert!(matches!(a.receive(), Message::Announced { sequence: 1 }));
}
