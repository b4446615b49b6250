//! Processes that serve, end and refuse to start.

#![allow(clippy::unwrap_used, reason = "a test panics if it fails")]

use std::panic::catch_unwind;
use std::path::Path;
use std::thread;

use peerbar_rig::DaemonCommand;

fn command(what: &str) -> DaemonCommand {
    DaemonCommand::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/daemon.sh")).args([what])
}

#[test]
fn daemon_that_serves_is_killed_when_dropped() {
    let daemon = command("serve").start();
    let process = daemon.proc_path("");
    assert!(Path::new(&process).exists());
    drop(daemon);
    assert!(!Path::new(&process).exists());
}

#[test]
fn daemon_that_ends_by_itself_fails_its_test() {
    let mut daemon = command("end").start();
    while daemon.is_running() {
        thread::yield_now();
    }
    let message = catch_unwind(|| drop(daemon)).unwrap_err();
    let message: &String = message.downcast_ref().unwrap();
    assert!(message.contains("by itself: exit status: 3: at the end"));
}

#[test]
fn daemon_that_does_not_start_says_why() {
    let exit = command("refuse").refused();
    assert_eq!((exit.code, exit.line()), (Some(2), "no such thing"));
    assert!(catch_unwind(|| command("refuse").start()).is_err());
}

#[test]
fn restarted_daemon_is_another_process() {
    let mut daemon = command("serve").start();
    let before = daemon.pid();
    daemon.restart();
    assert_ne!(daemon.pid(), before);
    assert_eq!(daemon.terminate().code, None);
    assert!(!daemon.is_running());
}

#[test]
fn connection_that_is_refused_is_tried_again() {
    let daemon = command("serve").start();
    let mut attempts = 0;
    let connected = daemon.connect(|socket| {
        attempts += 1;
        if attempts < 3 {
            return Err("a former client is there");
        }
        Ok(socket == daemon.socket())
    });
    assert!(connected);
}
