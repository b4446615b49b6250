//! Checks that a client gets an answer to everything that it has sent even if its server is killed.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use rustix::process::Signal;

use crate::Daemon;
use crate::daemon::TIME_OUT;

const VERSION: u16 = 1;
const REGION_READ: u16 = 9;
const HEADER: usize = 16;
const ENODEV: u32 = 19;

/// The configuration space (vfio-user, DEVICE_GET_REGION_INFO), and the number of its bytes that
/// are read.
const CONFIG: u32 = 7;
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
        let mut stream = daemon.connect(|path| UnixStream::connect(path));
        stream.set_read_timeout(Some(TIME_OUT)).unwrap();
        let capabilities = br#"{"capabilities":{"max_msg_fds":16}}"#;
        let version = [&[0; 4], capabilities.as_slice(), &[0]].concat();
        stream.write_all(&message(0, VERSION, &version)).unwrap();
        let mut answers = vec![answer(&mut stream).unwrap()];

        let read = [[0; 2], [CONFIG, BYTES]].concat();
        let read: Vec<u8> = read.into_iter().flat_map(u32::to_le_bytes).collect();
        let requests: Vec<u8> = (1..=REQUESTS)
            .flat_map(|id| message(id, REGION_READ, &read))
            .collect();
        // In one round before it can answer, in the others while it does.
        if round == 0 {
            daemon.signal(Signal::STOP);
        }
        stream.write_all(&requests).unwrap();
        daemon.signal(Signal::STOP);
        daemon.restart();
        while let Some(answer) = answer(&mut stream) {
            answers.push(answer);
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

fn message(id: u16, command: u16, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(HEADER + payload.len()).unwrap();
    let numbers = [id.to_le_bytes(), command.to_le_bytes()].concat();
    [&numbers, size.to_le_bytes().as_slice(), &[0; 8], payload].concat()
}

/// Returns the id and the errno of the next answer, or `None` at the end of the stream.
fn answer(stream: &mut UnixStream) -> Option<(u16, u32)> {
    let mut header = [0; HEADER];
    if stream.read(&mut header).unwrap() == 0 {
        return None;
    }
    let [low, high, _, _, size @ .., _, _, _, _, a, b, c, d] = header;
    let size = u32::from_le_bytes(size);
    let mut payload = vec![0; usize::try_from(size).unwrap() - HEADER];
    stream.read_exact(&mut payload).unwrap();
    let error = u32::from_le_bytes([a, b, c, d]);
    Some((u16::from_le_bytes([low, high]), error))
}
