//! The check against a server that conforms, and against one whose answers are changed.

// Clippy recognises tests only by their attribute, not the functions that they call.
#![allow(clippy::unwrap_used)]

mod liar;
mod lies;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use peerbar_dma::{MemoryFile, Requester};
use peerbar_endpoint::{BarMemory, Endpoint, PeerPages, Vectors};
use peerbar_pci::{Bar, ConfigSpace, NoRegisters};
use peerbar_rig::{ServerThread, TIME_OUT};
use peerbar_vfio_user::{Listener, Options as ServerOptions, Stop};
use peerbar_vfio_user_check::{Checker, Options, Test, Verdict, tests};
use rustix::event::{PollFd, PollFlags, poll};

use crate::liar::{Fate, Lie, TRUTH};
use crate::lies::LIES;

/// Longest wait for a server that does not answer, because it is to be silent.
const SHORT: Duration = Duration::from_millis(300);

/// Starts a server of a function with registers and memory.
fn server() -> ServerThread {
    ServerThread::start(|path, stop, ready| {
        let listener = Listener::bind(path).unwrap();
        let ended = Stop::new().unwrap();
        let options = ServerOptions::new(ended.clone());
        std::thread::scope(|scope| {
            scope.spawn(|| listener.run(&mut endpoint(), &options).unwrap());
            ready().unwrap();
            poll(&mut [PollFd::new(&stop, PollFlags::IN)], None).unwrap();
            ended.trigger();
        });
    })
}

fn endpoint() -> Endpoint<NoRegisters> {
    let bars = [Bar::new(0, 0x4000, false).unwrap()];
    let file = Arc::new(MemoryFile::create("registers", 0x4000).unwrap());
    let areas = vec![(0x3000, 0x1000)];
    Endpoint::new(
        Arc::new(NoRegisters),
        ConfigSpace::of_test_function(&bars),
        [BarMemory::RegistersWithPages(
            file,
            areas,
            PeerPages::Notified,
        )],
        Arc::new(Requester::new()),
        Arc::new(Vectors::new(1).unwrap()),
    )
}

fn checker(socket: &Path, time_out: Duration) -> Checker {
    Checker::new(Options {
        socket: socket.to_owned(),
        command: Vec::new(),
        time_out,
        bars: true,
        reset: true,
    })
    .unwrap()
}

/// Runs all tests. Only those named may be skipped.
fn check_conforms(socket: &Path) {
    let mut checker = checker(socket, TIME_OUT);
    let mut skipped = Vec::new();
    for test in tests() {
        match checker.run(&test) {
            Verdict::Pass => {}
            Verdict::Skip(_) => skipped.push(test.to_string()),
            Verdict::Fail(lines) => panic!("{test}: {lines:#?}"),
        }
    }
    let expected = [
        "optional.io-fds",
        "optional.migration-probe",
        "optional.migration",
        "optional.migration-state",
    ];
    assert_eq!(skipped, expected);
}

#[test]
fn conforming_server_passes() {
    let server = server();
    check_conforms(&server.socket());
    let passed_on = liar::start(server.socket(), TRUTH);
    check_conforms(&passed_on.socket());
}

#[test]
fn each_test_is_there_for_a_wrong_answer() {
    let all: BTreeSet<String> = tests().iter().map(Test::to_string).collect();
    let found = LIES.iter().flat_map(|lie| lie.tests);
    let found: BTreeSet<String> = found.map(|name| (*name).to_owned()).collect();
    assert_eq!(all, found);
}

/// Returns the tests that do not find a lie which is meant for them.
fn deceived_by(lie: Lie) -> Vec<String> {
    let named = |name: &&str| tests().into_iter().find(|test| test.is_named(name));
    let meant = lie.tests.iter().map(|name| named(name).unwrap());
    let is_deceived = |test: &Test| {
        let truth = server();
        let liar = liar::start(truth.socket(), lie);
        let verdict = checker(&liar.socket(), SHORT).run(test);
        !matches!(verdict, Verdict::Fail(_))
    };
    meant
        .filter(is_deceived)
        .map(|test| test.to_string())
        .collect()
}

#[test]
fn wrong_answer_fails_the_test_that_is_meant_for_it() {
    const THREADS: usize = 4;
    let deceived: Vec<String> = std::thread::scope(|scope| {
        let part = |from| {
            let lies = LIES.iter().skip(from).step_by(THREADS);
            lies.flat_map(|lie| deceived_by(*lie)).collect::<Vec<_>>()
        };
        let parts: Vec<_> = (0..THREADS)
            .map(|from| scope.spawn(move || part(from)))
            .collect();
        parts
            .into_iter()
            .flat_map(|part| part.join().unwrap())
            .collect()
    });
    assert_eq!(deceived, [""; 0]);
}

#[test]
fn server_that_hangs_after_its_first_client_does_not_pass() {
    let truth = server();
    let silent = Lie {
        reply: |answer| {
            if answer.client > 0 {
                answer.fate = Fate::Lost;
            }
        },
        ..TRUTH
    };
    let liar = liar::start(truth.socket(), silent);
    let mut checker = checker(&liar.socket(), SHORT);
    let mut verdicts = tests().into_iter().map(|test| checker.run(&test));
    assert!(verdicts.any(|verdict| matches!(verdict, Verdict::Fail(_))));
}
