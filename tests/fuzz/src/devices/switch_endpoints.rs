//! Several endpoints that send arbitrary messages with arbitrary descriptors to a switch, and read
//! as they like. The switch must continue to serve others, and must not keep descriptors of
//! endpoints that have left.

use std::fs;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::mpsc::channel;
use std::time::Instant;

use arbitrary::{Arbitrary, Unstructured};
use peerbar_host::socket_file::descriptors::send;
use peerbar_host::socket_file::packets::{Message as _, ReceiveError};
use peerbar_pci::{BusAddress, Range};
use peerbar_switch::{
    BarBacking, BarWindow, Config, Descriptor, LinkTiming, Message, PROTOCOL, PortId, serve,
};
use rustix::fs::{MemfdFlags, Mode, OFlags, ftruncate, memfd_create, open};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket, socket_with,
};

use super::hostile_clients::{LONG, Server};

#[derive(Arbitrary, Debug)]
struct Step {
    endpoint: u8,
    action: Action,
}

#[derive(Arbitrary, Debug)]
enum Action {
    Connect,
    Leave,
    Hello {
        name: u8,
        protocol: bool,
    },
    Link,
    Mark,
    Announce {
        sequence: u8,
        windows: Vec<AnnouncedWindow>,
    },
    Read {
        peer: u8,
        tag: u8,
        length: u16,
    },
    Write {
        peer: u8,
        tag: u8,
        length: u16,
    },
    Reply {
        peer: u8,
        tag: u8,
        length: u16,
    },
    /// Reads a message, and acknowledges it if it is a Peer.
    Receive,
    Acknowledge {
        ticket: u64,
    },
    Bytes {
        bytes: Vec<u8>,
        descriptors: Vec<File>,
    },
}

#[derive(Arbitrary, Clone, Copy, Debug)]
struct AnnouncedWindow {
    bar: u8,
    address: u8,
    pages: u8,
    lent: Option<File>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum File {
    Memory,
    Null,
    Folder,
    Pipe,
    Socket,
    Stream,
}

impl File {
    fn open(self) -> OwnedFd {
        match self {
            Self::Memory => {
                let memory = memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("memory");
                ftruncate(&memory, 0x1000).expect("a page");
                memory
            }
            Self::Null => open("/dev/null", OFlags::RDWR, Mode::empty()).expect("/dev/null"),
            Self::Folder => open("/", OFlags::RDONLY, Mode::empty()).expect("/"),
            Self::Pipe => rustix::pipe::pipe().expect("a pipe").0,
            Self::Socket => socket(AddressFamily::UNIX, SocketType::DGRAM, None).expect("a socket"),
            Self::Stream => UnixStream::pair().expect("sockets").0.into(),
        }
    }
}

impl AnnouncedWindow {
    fn announced(self) -> BarWindow {
        let first = BusAddress(u64::from(self.address) << 12);
        BarWindow {
            bar: self.bar % 7,
            range: Range::new(first, u64::from(self.pages.max(1)) << 12).expect("a window"),
            claim: 0,
            backing: match self.lent {
                Some(file) => BarBacking::Lent(Descriptor::new(file.open()), 0, 1),
                None => BarBacking::ByMessage,
            },
        }
    }
}

/// Returns the switch, which serves all runs.
fn switch() -> &'static PathBuf {
    static SWITCH: OnceLock<PathBuf> = OnceLock::new();
    SWITCH.get_or_init(|| {
        let name = format!("peerbar-fuzz-{}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let (ready, is_ready) = channel();
        let at = path.clone();
        std::thread::spawn(move || {
            let config = Config {
                holes: vec![Range::all()],
                ..Config::default()
            };
            let (_never, stop) = UnixStream::pair().expect("sockets");
            let ready = || ready.send(()).map_err(std::io::Error::other);
            serve(&at, config, None, &stop, ready).expect("the switch goes on");
        });
        is_ready.recv().expect("a switch");
        path
    })
}

struct Endpoint(OwnedFd);

impl Endpoint {
    fn connect() -> Self {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let socket = socket.expect("a socket");
        let address = SocketAddrUnix::new(switch()).expect("an address");
        connect(&socket, &address).expect("the switch listens");
        Self(socket)
    }

    /// Sends a message. Fails if the switch has hung up, or reads too little.
    fn send(&self, message: &Message) {
        let packet = message.encode();
        let descriptors = packet.descriptors.iter().map(|fd| fd.as_fd());
        self.send_bytes(&packet.bytes, &descriptors.collect::<Vec<_>>());
    }

    fn send_bytes(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let _ = send(&self.0, &[IoSlice::new(bytes)], descriptors);
    }

    fn receive(&self) -> Option<Message> {
        match Message::receive(&self.0, &mut Message::space()) {
            Ok(message) => Some(message),
            Err(ReceiveError::Wire(error)) => panic!("the switch breaks the protocol: {error}"),
            Err(_) => None,
        }
    }

    /// Returns the next message, which must come.
    fn expect(&self) -> Message {
        let deadline = Some(Instant::now() + LONG);
        let received = Message::receive_until(&self.0, &mut Message::space(), deadline);
        received.expect("the switch answers")
    }

    fn act(&mut self, action: Action) {
        let data = |length: u16| vec![7; usize::from(length)].into();
        let port = |peer: u8| PortId(u32::from(peer));
        match action {
            Action::Connect | Action::Leave => {}
            Action::Hello { name, protocol } => self.send(&Message::Hello {
                protocol: PROTOCOL + u32::from(protocol),
                name: format!("hostile{}", name % 16),
            }),
            Action::Link => self.send(&Message::Link {
                peer: PortId::NONE,
                timing: LinkTiming {
                    latency: 1,
                    bandwidth: 1,
                    meter: Descriptor::new(File::Memory.open()),
                },
            }),
            Action::Mark => self.send(&Message::Mark),
            Action::Announce { sequence, windows } => self.send(&Message::Announce {
                sequence: sequence.into(),
                windows: windows
                    .into_iter()
                    .take(7)
                    .map(AnnouncedWindow::announced)
                    .collect(),
                leases: Descriptor::new(File::Memory.open()),
            }),
            Action::Read { peer, tag, length } => self.send(&Message::Read {
                peer: port(peer),
                tag: tag.into(),
                address: BusAddress(0),
                length: length.into(),
            }),
            Action::Write { peer, tag, length } => self.send(&Message::Write {
                peer: port(peer),
                tag: tag.into(),
                address: BusAddress(0),
                data: data(length),
            }),
            Action::Reply { peer, tag, length } => self.send(&Message::Reply {
                peer: port(peer),
                tag: tag.into(),
                outcome: Ok(data(length)),
            }),
            Action::Receive => {
                if let Some(Message::Peer { ticket, .. }) = self.receive() {
                    self.send(&Message::Ack { ticket });
                }
            }
            Action::Acknowledge { ticket } => self.send(&Message::Ack { ticket }),
            Action::Bytes { bytes, descriptors } => {
                let descriptors: Vec<OwnedFd> =
                    descriptors.into_iter().take(16).map(File::open).collect();
                let descriptors: Vec<BorrowedFd<'_>> =
                    descriptors.iter().map(AsFd::as_fd).collect();
                self.send_bytes(&bytes, &descriptors);
            }
        }
    }
}

/// Attaches an endpoint that keeps to the protocol. Returns it, and the switch's counter of
/// changes.
fn welcomed() -> (Endpoint, fs::File) {
    let honest = Endpoint::connect();
    honest.send(&Message::Hello {
        protocol: PROTOCOL,
        name: "honest".to_owned(),
    });
    match honest.expect() {
        Message::Welcome { changes, .. } => (honest, changes.try_clone().expect("a count").into()),
        other => panic!("{other:?}"),
    }
}

/// Checks that an endpoint that keeps to the protocol is served, and learns of all changes.
fn check_served() {
    let (honest, changes) = welcomed();
    honest.send(&Message::Announce {
        sequence: 1,
        windows: Vec::new(),
        leases: Descriptor::default(),
    });
    let (mut known, mut announced) = (None, None);
    let mut count = [0; 8];
    while announced.is_none() || known != Some(u64::from_le_bytes(count)) {
        match honest.expect() {
            Message::Peer {
                ticket,
                known: count,
                ..
            } => {
                known = Some(count);
                honest.send(&Message::Ack { ticket });
            }
            Message::Announced { sequence } => announced = Some(sequence),
            Message::Known { count } => known = Some(count),
            Message::Link { .. } => {}
            other => panic!("{other:?}"),
        }
        changes.read_exact_at(&mut count, 0).expect("its count");
    }
    assert_eq!(announced, Some(1));
}

/// Executes the steps of `data`.
pub fn run(data: &[u8]) {
    static SERVER: Server = Server::new(
        || drop(welcomed()),
        check_served,
        |name| name.starts_with("socket:") || name.starts_with("/memfd:"),
    );
    let steps = Vec::<Step>::arbitrary_take_rest(Unstructured::new(data)).unwrap_or_default();
    let steps = steps.into_iter().map(|step| match step.action {
        Action::Leave => (step.endpoint, None),
        action => (step.endpoint, Some(action)),
    });
    SERVER.meet(steps, Endpoint::connect, Endpoint::act);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::{Seed, names};

    const ACTIONS: u32 = 12;

    /// Adds a step of an endpoint.
    fn step(seed: Seed, endpoint: u8, action: u32) -> Seed {
        seed.bytes(&[1, endpoint]).variant(action, ACTIONS)
    }

    #[test]
    fn seed_of_announcements_reads_as_its_steps() {
        let mut seed = Seed::default();
        for endpoint in 0..2 {
            seed = step(seed, endpoint, 2).bytes(&[endpoint, 0]);
            seed = step(seed, endpoint, 9);
            // A window of 4 pages in BAR 2, lent by a memory file.
            seed = step(seed, endpoint, 5).bytes(&[1]);
            seed = seed.bytes(&[1, 2, 16 + 4 * endpoint, 4, 1]).variant(0, 6);
            seed = seed.end();
            seed = step(seed, endpoint, 9);
        }
        for action in [6, 7] {
            seed = step(seed, 0, action).bytes(&[1, 7]).u16(8);
            seed = step(seed, 1, 9);
            seed = step(seed, 1, 8).bytes(&[0, 7]).u16(8);
        }
        seed = step(seed, 1, 4);
        seed = step(seed, 0, 10).u64(1);
        seed = step(seed, 1, 1);
        let seed = seed.end().in_corpus("switch_endpoints", "announcements");
        let read: Vec<Step> = Vec::arbitrary_take_rest(Unstructured::new(&seed)).expect("steps");
        let actions: Vec<Action> = read.into_iter().map(|step| step.action).collect();
        let greeting = ["Hello", "Receive", "Announce", "Receive"];
        let rest = [
            "Read",
            "Receive",
            "Reply",
            "Write",
            "Receive",
            "Reply",
            "Mark",
            "Acknowledge",
            "Leave",
        ];
        assert_eq!(names(&actions), [&greeting[..], &greeting, &rest].concat());
        let Action::Announce { windows, .. } = &actions[2] else {
            panic!("{actions:?}");
        };
        assert!(matches!(
            windows[..],
            [AnnouncedWindow {
                bar: 2,
                address: 16,
                pages: 4,
                lent: Some(File::Memory)
            }]
        ));
    }
}
