//! A relay between client and server, for the tests of both. It must not change their outcome.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

use peerbar_vfio_user::decode::{Payload, reply, request};
use peerbar_vfio_user::relay::{Notice, Observer, PassedMessage, Relay, Side};
use peerbar_vfio_user::{Header, Stop};

/// Decodes everything.
struct Decoder;

impl Observer for Decoder {
    fn message(&mut self, _: Side, message: &PassedMessage<'_>) {
        let payload = Payload {
            start: message.payload,
            length: message.length,
            most_data: 64,
        };
        let decode = match Header::is_reply(&message.header) {
            true => reply,
            false => request,
        };
        let text = decode(message.header.command.get(), &payload).to_string();
        assert!(!text.chars().any(char::is_control), "{text:?}");
    }

    fn notice(&mut self, _: Side, _: u64, _: Notice) {}
}

/// Returns `true` if the environment has `PEERBAR_TEST_RELAY`, so that clients reach their servers
/// through a relay.
pub fn is_relayed() -> bool {
    std::env::var_os("PEERBAR_TEST_RELAY").is_some()
}

/// Returns the other end of a relay to `stream`, and the relay, which ends with its client. If there
/// is to be no relay, it returns `stream` itself.
pub fn relayed(stream: UnixStream) -> (UnixStream, Option<JoinHandle<()>>) {
    if !is_relayed() {
        return (stream, None);
    }
    let (ours, client) = UnixStream::pair().unwrap();
    let relay = std::thread::spawn(move || {
        let stop = Stop::new().unwrap();
        let relay = Relay::new(client, stream, 4096);
        relay.run(stop.as_fd(), None, &mut Decoder).unwrap();
    });
    (ours, Some(relay))
}
