//! The daemon, and an endpoint that sends any message.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use peerbar_pci::{BusAddress, Range};
use peerbar_rig::{Daemon, DaemonCommand, TIME_OUT as LONG, poll_until, wire};
use peerbar_switch::{BarBacking, BarWindow, Descriptor, MAX_PACKET, Message, PROTOCOL, PortId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, shutdown,
    socket_with,
};

/// A running `peerbar-switch`.
pub(crate) fn start(links: &[&str]) -> Daemon {
    let holes = ["--pci-hole", "0x0-0xffffffffffffffff"];
    let links = links.iter().flat_map(|link| ["--link", link]);
    command().args(holes).args(links).start()
}

pub(crate) fn command() -> DaemonCommand {
    DaemonCommand::new(env!("CARGO_BIN_EXE_peerbar-switch"))
}

/// An endpoint that does nothing by itself: it does not even acknowledge.
pub(crate) struct Endpoint {
    socket: OwnedFd,
}

impl Drop for Endpoint {
    /// Hangs up at once. A process that another test is about to start has copies of all descriptors for a moment.
    fn drop(&mut self) {
        // Fails if the daemon has hung up.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

impl Endpoint {
    pub(crate) fn connect(path: &Path) -> Self {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        Self { socket }
    }

    /// Connects and attaches. Returns its port.
    pub(crate) fn attach(path: &Path, name: &str) -> (Self, PortId) {
        let endpoint = Self::connect(path);
        endpoint.send(&hello(name));
        let Message::Welcome { port, .. } = endpoint.receive() else {
            panic!("no welcome")
        };
        (endpoint, port)
    }

    pub(crate) fn send(&self, message: &Message) {
        self.try_send(message).unwrap();
    }

    pub(crate) fn try_send(&self, message: &Message) -> rustix::io::Result<usize> {
        let packet = message.encode();
        let descriptors: Vec<BorrowedFd<'_>> =
            packet.descriptors.iter().map(|fd| fd.as_fd()).collect();
        self.try_send_raw(&packet.bytes, &descriptors)
    }

    pub(crate) fn send_raw(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        self.try_send_raw(bytes, descriptors).unwrap();
    }

    pub(crate) fn try_send_raw(
        &self,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> rustix::io::Result<usize> {
        wire::send_part(&self.socket, bytes, descriptors)
    }

    /// Returns the next message, which must come.
    pub(crate) fn receive(&self) -> Message {
        self.try_receive(LONG).expect("cut off")
    }

    /// Acknowledges the next message, which must be a Peer.
    pub(crate) fn acknowledge(&self) -> (PortId, Vec<BarWindow>) {
        let Message::Peer {
            ticket,
            peer,
            windows,
            ..
        } = self.receive()
        else {
            panic!("no Peer")
        };
        self.send(&Message::Ack { ticket });
        (peer, windows)
    }

    /// Waits until the switch hangs up, and ignores its messages. Returns `true`.
    pub(crate) fn is_cut_off(&self) -> bool {
        while self.try_receive(LONG).is_some() {}
        true
    }

    /// Announces that it has no windows, and waits for the answer. By then the switch has taken all
    /// earlier messages of this endpoint, and has sent their results. Returns `true` if the answer
    /// comes first.
    pub(crate) fn hears_nothing_before_an_answer(&self) -> bool {
        self.send(&announce(u64::MAX, Vec::new()));
        matches!(self.receive(), Message::Announced { sequence: u64::MAX })
    }

    /// Returns `true` if only counts of changes have come.
    pub(crate) fn has_heard_nothing(&self) -> bool {
        while self.readable(Duration::ZERO) {
            if !matches!(
                self.next(LONG, RecvFlags::PEEK),
                Some(Message::Known { .. })
            ) {
                return false;
            }
            self.next(LONG, RecvFlags::empty());
        }
        true
    }

    /// Returns the next message that is not a count of changes, or `None` if the switch has hung
    /// up. Panics if neither happens in time.
    pub(crate) fn try_receive(&self, limit: Duration) -> Option<Message> {
        loop {
            match self.receive_any(limit)? {
                Message::Known { .. } => {}
                message => return Some(message),
            }
        }
    }

    /// Returns the next message, or `None` if the switch has hung up. Panics if neither happens in
    /// time.
    pub(crate) fn receive_any(&self, limit: Duration) -> Option<Message> {
        self.next(limit, RecvFlags::empty())
    }

    /// Returns the ticket of the next message that is not a count of changes, or `None` if the
    /// switch has hung up. The message must be a Peer, and stays in the queue.
    pub(crate) fn peek_ticket(&self) -> Option<u64> {
        loop {
            match self.next(LONG, RecvFlags::PEEK)? {
                Message::Peer { ticket, .. } => return Some(ticket),
                Message::Known { .. } => drop(self.receive_any(LONG)),
                other => panic!("{other:?}"),
            }
        }
    }

    fn next(&self, limit: Duration, flags: RecvFlags) -> Option<Message> {
        assert!(self.readable(limit), "nothing in {limit:?}");
        let mut space = vec![0; MAX_PACKET];
        let received = wire::receive_part(&self.socket, &mut space, flags);
        let (bytes, descriptors) = received.ok().filter(|(bytes, _)| *bytes > 0)?;
        Some(Message::decode(&space[..bytes], descriptors).unwrap())
    }

    fn readable(&self, limit: Duration) -> bool {
        let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec::try_from(limit).unwrap())).unwrap() > 0
    }
}

/// Waits until the switch has taken all messages that endpoints have sent: it takes one message
/// after another, and this one's last.
pub(crate) fn wait_for_all_sent(daemon: &Daemon) {
    Endpoint::attach(daemon.socket(), "later");
}

/// Waits until the daemon has logged this.
pub(crate) fn wait_for_log(daemon: &Daemon, line: &str) {
    let found = poll_until(|| daemon.stderr().contains(line).then_some(()));
    assert!(found.is_some(), "no `{line}` in: {}", daemon.stderr());
}

/// Waits until some of the endpoints have a message. Returns their indexes.
pub(crate) fn readable<'a>(endpoints: impl Iterator<Item = &'a Endpoint>) -> Vec<usize> {
    let polled = endpoints.map(|endpoint| PollFd::new(&endpoint.socket, PollFlags::IN));
    let mut polled: Vec<_> = polled.collect();
    let limit = Timespec::try_from(LONG).unwrap();
    assert!(
        poll(&mut polled, Some(&limit)).unwrap() > 0,
        "nothing in {LONG:?}"
    );
    let found = polled.iter().zip(0..);
    let found = found.filter(|(fd, _)| !fd.revents().is_empty());
    found.map(|(_, index)| index).collect()
}

pub(crate) fn hello(name: &str) -> Message {
    Message::Hello {
        protocol: PROTOCOL,
        name: name.to_owned(),
    }
}

pub(crate) fn registers(address: u64) -> BarWindow {
    BarWindow {
        bar: 0,
        range: Range::new(BusAddress(address), 0x1000).unwrap(),
        claim: 0,
        backing: BarBacking::ByMessage,
    }
}

pub(crate) fn announce(sequence: u64, windows: Vec<BarWindow>) -> Message {
    let leases = Descriptor::new(File::open("/dev/null").unwrap());
    Message::Announce {
        sequence,
        windows,
        leases,
    }
}

/// Checks that the switch still works: two new endpoints find each other.
pub(crate) fn check_alive(daemon: &mut Daemon) {
    assert!(daemon.is_running(), "the daemon has ended");
    let (one, port) = Endpoint::attach(daemon.socket(), "alive 1");
    one.send(&announce(1, Vec::new()));
    let (other, _) = Endpoint::attach(daemon.socket(), "alive 2");
    one.send(&announce(2, vec![registers(0x7000_0000)]));
    loop {
        let (peer, windows) = other.acknowledge();
        if peer == port {
            assert_eq!(windows[0].range.first().0, 0x7000_0000);
            return;
        }
    }
}
