//! Checks that a client gets an answer to everything that it has sent even if its server is killed.

use std::os::unix::net::UnixStream;

use rustix::process::Signal;

use crate::wire::{self, CONFIG, command};
use crate::{Daemon, RawClient};

const ENODEV: u32 = 19;

/// Bytes of configuration space that are read.
const BYTES: u32 = 4;

/// Number of a client's requests that fit into the socket buffer together.
const REQUESTS: u16 = 100;
const ROUNDS: usize = 10;

/// Kills the server several times, while a client's requests are in progress. Checks that each
/// request is answered, from some request on by ENODEV, and that the connection is then closed, not
/// reset: QEMU 11.1 aborts if it is reset.
///
/// # Panics
/// If a check fails.
pub fn check_killed_server(daemon: &mut Daemon) {
    let mut refused = 0;
    for round in 0..ROUNDS {
        let stream = daemon.connect(|path| UnixStream::connect(path));
        let mut client = RawClient::new(stream);
        let version = wire::version(0, 0, wire::CAPABILITIES);
        client.send(&wire::message(0, command::VERSION, 0, &version));
        let version = client.receive();
        let mut answers = vec![(version.id, version.error)];
        let read = wire::region_access(CONFIG, 0, BYTES);
        let requests: Vec<u8> = (1..=REQUESTS)
            .flat_map(|id| wire::message(id, command::REGION_READ, 0, &read))
            .collect();
        // In one round before it can answer, in the others while it does.
        if round == 0 {
            daemon.signal(Signal::STOP);
        }
        client.send(&requests);
        daemon.signal(Signal::STOP);
        daemon.restart();
        while let Some(answer) = wire::receive(&client.stream).unwrap() {
            answers.push((answer.id, answer.error));
        }
        refused += check_answers(&answers);
    }
    assert!(refused > 0, "all was answered before the kill");
}

/// Checks that all requests are answered in turn, VERSION before them, and the last of them
/// refused. Returns the number of answers. One more may be refused: the last one whose answer the
/// server had sent when it was killed.
fn check_answers(answers: &[(u16, u32)]) -> usize {
    let done = answers.iter().take_while(|(_, error)| *error == 0).count();
    let mut refused = answers.iter().skip(done).peekable();
    let last = answers.get(done - 1).unwrap().0;
    refused.next_if(|(id, _)| *id == last);
    let refused = refused.copied().collect::<Vec<_>>();
    let expected: Vec<_> = (0..=REQUESTS)
        .map(|id| (id, if usize::from(id) < done { 0 } else { ENODEV }))
        .collect();
    assert_eq!([answers.get(..done).unwrap(), &refused].concat(), expected);
    refused.len()
}
