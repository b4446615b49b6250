//! A session that the server ends: every request that the client could send gets an answer.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use peerbar_rig::wire::*;
use peerbar_rig::{RawClient, is_relayed};
use peerbar_vfio_user::{Listener, Options, SessionError, Stop, serve};
use rustix::io::Errno;

use crate::board::{Rig, board};

const EBUSY: Errno = Errno::BUSY;
const ENODEV: Errno = Errno::NODEV;

/// The longest wait for a round that refuses a request.
const PATIENCE: Duration = Duration::from_secs(60);

/// Requests that fit into the socket buffer together.
const REQUESTS: u16 = 100;

/// Sends requests, ends the session by `end`, and takes the answers. Returns the number of refused
/// requests.
fn requests_that_cross(mut rig: Rig, end: impl FnOnce(&Rig)) -> usize {
    let read = region_access(0, 0, 8);
    let requests: Vec<u8> = (0..REQUESTS)
        .flat_map(|id| message(id, 9, 0, &read))
        .collect();
    rig.raw.send(&requests);
    end(&rig);
    let mut refused = 0;
    for id in 0..REQUESTS {
        let answer = rig.raw.receive();
        assert_eq!(answer.id, id);
        match answer.error {
            0 => assert_eq!(refused, 0, "{id} was answered after a refusal"),
            _ => {
                assert_eq!(answer.errno(), ENODEV);
                refused += 1;
            }
        }
    }
    assert!(rig.raw.is_hung_up_on());
    rig.wait().unwrap();
    refused
}

/// Runs twenty rounds, and more until a request was refused in some round: a server that runs first
/// answers all of them.
fn rounds_with_refused_requests(round: impl Fn() -> usize) {
    let start = Instant::now();
    let mut refused: usize = (0..20).map(|_| round()).sum();
    while refused == 0 {
        assert!(start.elapsed() < PATIENCE, "nothing ever crossed");
        refused += round();
    }
}

#[test]
fn requests_that_cross_a_disconnection_are_answered() {
    rounds_with_refused_requests(|| {
        let rig = Rig::agreed();
        let client = rig.clients.recv().unwrap();
        requests_that_cross(rig, |_| client.disconnect())
    });
}

#[test]
fn requests_that_cross_a_stop_are_answered() {
    rounds_with_refused_requests(|| requests_that_cross(Rig::agreed(), |rig| rig.stop.trigger()));
}

#[test]
fn requests_to_a_disconnecting_server_fail_at_the_client() {
    let mut rig = Rig::agreed();
    rig.clients.recv().unwrap().disconnect();
    let written = rig.raw.stream.write_all(&message(1, 9, 0, &[]));
    match written {
        // The relay has taken the request, and answers it.
        Ok(()) if is_relayed() => assert_eq!(rig.raw.receive().errno(), ENODEV),
        written => assert_eq!(written.unwrap_err().kind(), ErrorKind::BrokenPipe),
    }
    assert!(rig.raw.is_hung_up_on());
}

#[test]
fn version_of_a_second_client_is_answered_with_busy() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = Listener::bind(&path).unwrap();
    let stop = Stop::new().unwrap();
    let options = Options::new(stop.clone());
    std::thread::scope(|scope| {
        scope.spawn(|| listener.run(&mut board().0, &options).unwrap());
        let mut first = RawClient::new(UnixStream::connect(&path).unwrap());
        first.agree();
        let proposal = message(7, 1, 0, &version(0, 0, "{}"));
        for _ in 0..100 {
            let mut second = RawClient::new(UnixStream::connect(&path).unwrap());
            match second.stream.write_all(&proposal) {
                Ok(()) => assert_eq!(second.receive().errno(), EBUSY),
                Err(error) => assert_eq!(error.kind(), ErrorKind::BrokenPipe),
            }
            assert!(second.is_hung_up_on());
        }
        stop.trigger();
    });
}

#[test]
fn slow_reader_holds_up_the_end_for_one_time_out() {
    const TIME_OUT: Duration = Duration::from_millis(200);
    /// With this pause, all answers take ten times as long.
    const PAUSE: Duration = Duration::from_millis(20);
    let (ours, theirs) = UnixStream::pair().unwrap();
    // The smallest buffer that Linux grants, for a few answers.
    rustix::net::sockopt::set_socket_send_buffer_size(&theirs, 1).unwrap();
    let mut client = RawClient::new(ours);
    let read = region_access(0, 0, 8);
    for id in 0..REQUESTS {
        client.send(&message(id, 9, 0, &read));
    }
    let stop = Stop::new().unwrap();
    stop.trigger();
    let mut options = Options::new(stop);
    options.send_time_out = TIME_OUT;
    let session = std::thread::spawn(move || serve(theirs, &mut board().0, &options));
    let mut answers = 0;
    while client.stream.read_exact(&mut [0; 16]).is_ok() {
        answers += 1;
        std::thread::sleep(PAUSE);
    }
    assert!((1..REQUESTS).contains(&answers), "{answers}");
    let error = session.join().unwrap().unwrap_err();
    assert!(
        matches!(error, SessionError::NotReading(TIME_OUT)),
        "{error}"
    );
}
