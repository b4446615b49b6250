//! Several adapters that send arbitrary messages with arbitrary descriptors to a fabric, and read
//! as they like. The fabric must continue to serve others, and must not keep descriptors of
//! adapters that have left. Its rules lose, delay and duplicate the messages of the hostile ones.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use arbitrary::{Arbitrary, Unstructured};
use peerbar_fabric::{
    Body, Config, Gid, Impairment, Incarnation, MAX_DESCRIPTORS, Message, PROTOCOL, WireError,
    serve,
};
use peerbar_host::socket_file::descriptors::{Sockets, send};
use peerbar_host::socket_file::packets::{Message as _, ReceiveError, connection};

use super::hostile_clients::{LONG, Server};
use crate::descriptors::descriptors;

/// GIDs of the hostile adapters. Those of the honest adapters come next.
const GIDS: u8 = 4;

#[derive(Arbitrary, Debug)]
struct Step {
    adapter: u8,
    action: Action,
}

#[derive(Arbitrary, Debug)]
enum Action {
    Connect,
    Leave,
    Hello { number: u8, protocol: bool },
    Resolve { number: u8 },
    Packet { to: u8, incarnation: Of, what: What },
    Receive,
    Bytes { bytes: Vec<u8>, descriptors: u8 },
    ConnectDirectly { number: u8 },
    SendDirectly { what: What },
}

/// An incarnation that an adapter names.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Of {
    Nobody,
    /// The last one that it was sent.
    Known,
    Guess(u64),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum What {
    Datagram(u16),
    Request {
        tag: u8,
        oldest: u8,
        descriptors: u8,
    },
    Working(u8),
    Response {
        tag: u8,
        length: Option<u16>,
    },
    Settled(u64),
}

impl What {
    fn body(self) -> Body {
        let data = |length: u16| vec![7; usize::from(length)].into();
        match self {
            Self::Datagram(length) => Body::Datagram { data: data(length) },
            Self::Request {
                tag,
                oldest,
                descriptors: count,
            } => Body::Request {
                tag: tag.into(),
                oldest: oldest.into(),
                data: data(8),
                descriptors: descriptors(usize::from(count) % (MAX_DESCRIPTORS + 2))
                    .into_iter()
                    .map(Arc::new)
                    .collect(),
            },
            Self::Working(tag) => Body::Working { tag: tag.into() },
            Self::Response { tag, length } => Body::Response {
                tag: tag.into(),
                data: length.map(data),
            },
            Self::Settled(oldest) => Body::Settled { oldest },
        }
    }
}

/// Returns the fabric, which serves all runs.
fn fabric() -> &'static PathBuf {
    static FABRIC: OnceLock<PathBuf> = OnceLock::new();
    FABRIC.get_or_init(|| {
        let name = format!("peerbar-fuzz-fabric-{}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let (ready, is_ready) = channel();
        let at = path.clone();
        std::thread::spawn(move || {
            let rule = |text: &str| text.parse::<Impairment>().expect("a rule");
            let config = Config {
                seed: 1,
                impairments: vec![
                    rule("hostile0->* loss=10% duplicate=50% reorder=20% delay=1us"),
                    rule("hostile1->* loss=10% duplicate=50% reorder=20% delay=1us"),
                ],
                ..Config::default()
            };
            let (_never, stop) = UnixStream::pair().expect("sockets");
            let ready = || ready.send(()).map_err(std::io::Error::other);
            serve(&at, config, &stop, ready).expect("the fabric goes on");
        });
        is_ready.recv().expect("a fabric");
        path
    })
}

struct Adapter {
    socket: OwnedFd,
    known: Incarnation,
    /// Its end of the latest direct connection.
    direct: Option<Arc<OwnedFd>>,
}

/// Sends a message. Fails if the other side has hung up, or reads too little.
fn send_message(socket: &OwnedFd, message: &Message) {
    let packet = message.encode();
    let descriptors = packet.descriptors.iter().map(|fd| fd.as_fd());
    send_bytes(socket, &packet.bytes, &descriptors.collect::<Vec<_>>());
}

fn send_bytes(socket: &OwnedFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let _ = send(socket, &[IoSlice::new(bytes)], descriptors);
}

impl Adapter {
    fn connect() -> Self {
        Self {
            socket: connection(fabric()).expect("the fabric listens"),
            known: Incarnation::NONE,
            direct: None,
        }
    }

    fn send(&self, message: &Message) {
        send_message(&self.socket, message);
    }

    fn receive(&mut self) {
        let received = Message::receive_with(&self.socket, &mut Message::space(), Sockets::Unix);
        let message = match received {
            Ok(message) => message,
            Err(ReceiveError::Wire(error)) => panic!("the fabric breaks the protocol: {error}"),
            Err(_) => return,
        };
        match message {
            Message::Peer { incarnation, .. } | Message::Packet { incarnation, .. } => {
                self.known = incarnation;
            }
            Message::Direct { socket, .. } => self.direct = socket,
            _ => {}
        }
    }

    /// Returns the next message, which must come.
    fn expect(&self) -> Message {
        let deadline = Some(Instant::now() + LONG);
        let mut space = Message::space();
        let received: Result<Message, ReceiveError<WireError>> =
            Message::receive_until(&self.socket, &mut space, deadline);
        received.expect("the fabric answers")
    }

    fn act(&mut self, action: Action) {
        let gid = |number: u8| Gid([number % GIDS; 16]);
        match action {
            Action::Connect | Action::Leave => {}
            Action::Hello { number, protocol } => self.send(&Message::Hello {
                protocol: PROTOCOL + u32::from(protocol),
                name: format!("hostile{}", number % 16),
                gid: gid(number),
            }),
            Action::Resolve { number } => self.send(&Message::Resolve { gid: gid(number) }),
            Action::Packet {
                to,
                incarnation,
                what,
            } => self.send(&Message::Packet {
                // The honest adapters, too.
                peer: Gid([to % (GIDS + 2); 16]),
                incarnation: match incarnation {
                    Of::Nobody => Incarnation::NONE,
                    Of::Known => self.known,
                    Of::Guess(number) => Incarnation(number),
                },
                body: what.body(),
            }),
            Action::Receive => self.receive(),
            Action::Bytes {
                bytes,
                descriptors: count,
            } => {
                let descriptors = descriptors(usize::from(count) % 17);
                let descriptors: Vec<BorrowedFd<'_>> =
                    descriptors.iter().map(AsFd::as_fd).collect();
                send_bytes(&self.socket, &bytes, &descriptors);
            }
            Action::ConnectDirectly { number } => {
                self.send(&Message::Connect { gid: gid(number) });
            }
            Action::SendDirectly { what } => {
                if let Some(direct) = &self.direct {
                    let packet = Message::Packet {
                        peer: gid(0),
                        incarnation: self.known,
                        body: what.body(),
                    };
                    send_message(direct, &packet);
                }
            }
        }
    }
}

/// Checks that two adapters that keep to the protocol reach each other.
fn check_served() {
    let [one, other] = [0, 1].map(|number| {
        let honest = Adapter::connect();
        honest.send(&Message::Hello {
            protocol: PROTOCOL,
            name: format!("honest{number}"),
            gid: Gid([GIDS + number; 16]),
        });
        let answer = honest.expect();
        assert!(matches!(answer, Message::Welcome { .. }), "{answer:?}");
        honest
    });
    one.send(&Message::Packet {
        peer: Gid([GIDS + 1; 16]),
        incarnation: Incarnation::NONE,
        body: What::Datagram(9).body(),
    });
    while !matches!(other.expect(), Message::Packet { peer, .. } if peer == Gid([GIDS; 16])) {}
}

/// Executes the steps of `data`.
pub fn run(data: &[u8]) {
    static SERVER: Server = Server::new(check_served, check_served, |name| {
        name.starts_with("socket:") || name == "/dev/null"
    });
    let steps = Vec::<Step>::arbitrary_take_rest(Unstructured::new(data)).unwrap_or_default();
    let steps = steps.into_iter().map(|step| match step.action {
        Action::Leave => (step.adapter, None),
        action => (step.adapter, Some(action)),
    });
    // Opened once.
    drop(descriptors(1));
    SERVER.meet(steps, Adapter::connect, Adapter::act);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::{Seed, names};

    /// Adds an adapter and its action, the latter `number` of 9, in the encoding of `arbitrary`.
    fn step(seed: Seed, adapter: u8, number: u32) -> Seed {
        seed.bytes(&[1, adapter]).variant(number, 9)
    }

    #[test]
    fn seed_reads_as_two_adapters_that_talk() {
        let mut seed = Seed::default();
        for adapter in [2, 3] {
            seed = step(seed, adapter, 2).bytes(&[adapter, 0]);
            seed = step(seed, adapter, 5);
        }
        seed = step(seed, 2, 3).bytes(&[3]);
        seed = step(seed, 2, 5);
        seed = step(seed, 2, 4).bytes(&[3]).variant(1, 3);
        seed = seed.variant(1, 5).bytes(&[0, 0, 1]);
        seed = step(seed, 3, 5);
        seed = step(seed, 2, 7).bytes(&[3]);
        seed = step(seed, 2, 5);
        seed = step(seed, 2, 8).variant(1, 5).bytes(&[1, 0, 1]);
        let bytes = seed.end().in_corpus("fabric_adapters", "request");
        let steps = Vec::<Step>::arbitrary_take_rest(Unstructured::new(&bytes)).unwrap();
        let actions: Vec<Action> = steps.into_iter().map(|step| step.action).collect();
        assert_eq!(
            names(&actions),
            [
                "Hello",
                "Receive",
                "Hello",
                "Receive",
                "Resolve",
                "Receive",
                "Packet",
                "Receive",
                "ConnectDirectly",
                "Receive",
                "SendDirectly"
            ]
        );
    }
}
