//! The library's own link: its handler's calls, and the time at which the others get the
//! acknowledgement.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use peerbar_pci::BusAddress;
use peerbar_rig::TIME_OUT;
use peerbar_switch::{
    Acknowledgement, Attachment, BarWindow, CLOSING_TIME_OUT, Descriptor, ENDPOINT_TIME_OUT,
    LinkLost, LinkTiming, Message, PeerHandler, PortId, Unsupported,
};
use rustix::process::Signal;

use crate::raw::{Endpoint, announce, registers, start, wait_for_all_sent};

/// Calls a function for each change of a peer, and refuses all requests.
struct OnChange<F>(F);

impl<F: Fn(PortId, Acknowledgement) + Send + Sync> PeerHandler for OnChange<F> {
    fn attached(&self, _: &Descriptor) -> io::Result<()> {
        Ok(())
    }

    fn known(&self, _: u64) {}

    fn peer(
        &self,
        peer: PortId,
        _: Vec<BarWindow>,
        _: &Descriptor,
        _: u64,
        acknowledgement: Acknowledgement,
    ) {
        (self.0)(peer, acknowledgement);
    }

    fn link(&self, _: PortId, _: LinkTiming) {}

    fn lost(&self) {}

    fn read(&self, _: PortId, _: BusAddress, _: &mut [u8]) -> Result<(), Unsupported> {
        Err(Unsupported)
    }

    fn write(&self, _: PortId, _: BusAddress, _: &[u8]) -> Result<(), Unsupported> {
        Err(Unsupported)
    }
}

#[test]
fn a_change_is_acknowledged_only_when_the_neighbour_goes_by_it() {
    let daemon = start(&[]);
    let (a, port) = Endpoint::attach(daemon.socket(), "a");
    let ((changes, changed), (release, released)) = (channel(), channel());
    let released = Mutex::new(released);
    // Reports each change and blocks until the test releases it.
    let handler = OnChange(move |peer, _acknowledgement| {
        changes.send(peer).unwrap();
        // Fails if the test has failed.
        let _: Result<(), _> = released.lock().unwrap().recv();
    });
    let attachment = Attachment::new(daemon.socket(), "slow").unwrap();
    let _link = attachment.start(Arc::new(handler)).unwrap();
    // Dropped before the link, which waits for the handler.
    let release = release;
    a.send(&announce(1, vec![registers(0x1000)]));
    assert_eq!(changed.recv().unwrap(), port);
    release.send(()).unwrap();
    a.receive();
    let begun = Instant::now();
    a.send(&announce(2, Vec::new()));
    assert_eq!(changed.recv().unwrap(), port);
    wait_for_all_sent(&daemon);
    assert!(a.has_heard_nothing() || begun.elapsed() >= CLOSING_TIME_OUT);
    release.send(()).unwrap();
    assert!(matches!(a.receive(), Message::Announced { sequence: 2 }));
}

#[test]
fn a_change_may_be_acknowledged_later_from_another_thread() {
    let daemon = start(&[]);
    let (a, port) = Endpoint::attach(daemon.socket(), "a");
    let (changes, changed) = channel();
    let handler = OnChange(move |peer, acknowledgement| {
        changes.send((peer, acknowledgement)).unwrap();
    });
    let attachment = Attachment::new(daemon.socket(), "patient").unwrap();
    let _link = attachment.start(Arc::new(handler)).unwrap();
    a.send(&announce(1, vec![registers(0x1000)]));
    let (peer, opened) = changed.recv().unwrap();
    assert_eq!(peer, port);
    assert!(matches!(a.receive(), Message::Announced { sequence: 1 }));
    drop(opened);
    let begun = Instant::now();
    a.send(&announce(2, Vec::new()));
    let (_, closed) = changed.recv().unwrap();
    wait_for_all_sent(&daemon);
    assert!(a.has_heard_nothing() || begun.elapsed() >= CLOSING_TIME_OUT);
    drop(closed);
    assert!(matches!(a.receive(), Message::Announced { sequence: 2 }));
}

/// Reports changes, and answers a write once the test allows it.
struct Waiting {
    changes: Sender<PortId>,
    begun: Sender<()>,
    release: Mutex<Receiver<()>>,
}

impl PeerHandler for Waiting {
    fn attached(&self, _: &Descriptor) -> io::Result<()> {
        Ok(())
    }

    fn known(&self, _: u64) {}

    fn peer(&self, peer: PortId, _: Vec<BarWindow>, _: &Descriptor, _: u64, _: Acknowledgement) {
        self.changes.send(peer).unwrap();
    }

    fn link(&self, _: PortId, _: LinkTiming) {}

    fn lost(&self) {}

    fn read(&self, _: PortId, _: BusAddress, _: &mut [u8]) -> Result<(), Unsupported> {
        Err(Unsupported)
    }

    fn write(&self, _: PortId, _: BusAddress, _: &[u8]) -> Result<(), Unsupported> {
        self.begun.send(()).unwrap();
        // Fails if the test has failed.
        self.release.lock().unwrap().recv().map_err(|_| Unsupported)
    }

    fn makes_peers_wait(&self) -> bool {
        true
    }
}

#[test]
fn changes_do_not_wait_for_requests_that_wait_for_others() {
    let daemon = start(&[]);
    let (a, port) = Endpoint::attach(daemon.socket(), "a");
    let ((changes, changed), (begun, has_begun)) = (channel(), channel());
    let (release, released) = channel();
    let handler = Waiting {
        changes,
        begun,
        release: Mutex::new(released),
    };
    let attachment = Attachment::new(daemon.socket(), "waiting").unwrap();
    let link = attachment.start(Arc::new(handler)).unwrap();
    assert_eq!(
        link.announce(vec![registers(0x1000)], &Descriptor::default()),
        Ok(())
    );
    // Dropped before the link, which waits for the handler.
    let release = release;
    let (waiting, _) = a.acknowledge();
    a.send(&Message::Write {
        peer: waiting,
        tag: 1,
        address: BusAddress(0x1000),
        data: vec![1; 4].into(),
    });
    has_begun.recv().unwrap();
    a.send(&announce(1, vec![registers(0x2000)]));
    assert_eq!(changed.recv_timeout(TIME_OUT), Ok(port), "no change");
    release.send(()).unwrap();
    assert!(matches!(a.receive(), Message::Announced { sequence: 1 }));
    assert!(matches!(a.receive(), Message::Reply { tag: 1, .. }));
}

#[test]
fn a_stopped_switch_is_given_up_in_time_and_found_again() {
    let daemon = start(&[]);
    let attachment = Attachment::new(daemon.socket(), "endpoint").unwrap();
    let link = attachment.start(Arc::new(OnChange(|_, _| ()))).unwrap();
    let none = Descriptor::default();
    assert_eq!(link.announce(vec![registers(0x1000)], &none), Ok(()));
    let (peer, _) = Endpoint::attach(daemon.socket(), "peer");
    daemon.signal(Signal::STOP);
    let begun = Instant::now();
    for address in [0x2000, 0x3000] {
        let announced = link.announce(vec![registers(address)], &none);
        assert_eq!(announced, Err(LinkLost));
    }
    let waited = begun.elapsed();
    let bound = ENDPOINT_TIME_OUT;
    assert!((bound..bound * 2).contains(&waited), "{waited:?}");
    daemon.signal(Signal::CONT);
    let ticket = attached_again(&peer, 0x3000);
    // An announcement during the attachment comes after it.
    thread::scope(|scope| {
        let announcing = scope.spawn(|| link.announce(vec![registers(0x4000)], &none));
        peer.send(&Message::Ack { ticket });
        while !is_at(&peer.acknowledge().1, 0x4000) {}
        assert_eq!(announcing.join().unwrap(), Ok(()));
    });
}

/// Acknowledges all changes before the one to this window, and returns that one's ticket.
fn attached_again(peer: &Endpoint, address: u64) -> u64 {
    loop {
        let Message::Peer {
            ticket, windows, ..
        } = peer.receive()
        else {
            panic!("no Peer")
        };
        if is_at(&windows, address) {
            return ticket;
        }
        peer.send(&Message::Ack { ticket });
    }
}

fn is_at(windows: &[BarWindow], address: u64) -> bool {
    windows
        .iter()
        .any(|window| window.range.first().0 == address)
}
