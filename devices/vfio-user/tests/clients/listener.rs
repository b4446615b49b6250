//! The socket file, and the one client at a time.

use std::fs;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use peerbar_rig::RawClient;
use peerbar_rig::wire::Outcome;
use peerbar_vfio_user::{BindError, Listener, Options, Stop};
use tempfile::TempDir;

use crate::board::board;

fn socket_path() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    (directory, path)
}

/// A listener that runs until it is stopped.
struct Running {
    stop: Stop,
    thread: JoinHandle<()>,
}

impl Running {
    fn start(path: &Path) -> Self {
        let listener = Listener::bind(path).unwrap();
        let stop = Stop::new().unwrap();
        let options = Options::new(stop.clone());
        let thread = thread::spawn(move || {
            let (mut board, _, _) = board();
            listener.run(&mut board, &options).unwrap();
        });
        Self { stop, thread }
    }

    fn end(self) {
        self.stop.trigger();
        self.thread.join().unwrap();
    }
}

fn connect(path: &Path) -> RawClient {
    RawClient::new(UnixStream::connect(path).unwrap())
}

#[test]
fn clients_are_served_one_after_the_other() {
    let (_directory, path) = socket_path();
    let running = Running::start(&path);
    for _ in 0..20 {
        let mut client = connect(&path);
        client.agree();
        client.ask(13, &[]).ok();
    }
    running.end();
    assert!(!path.exists());
}

#[test]
fn a_second_client_is_turned_away() {
    let (_directory, path) = socket_path();
    let running = Running::start(&path);
    let mut first = connect(&path);
    first.agree();
    for _ in 0..3 {
        assert!(connect(&path).is_hung_up_on());
    }
    first.ask(13, &[]).ok();
    drop(first);
    let mut next = connect(&path);
    next.agree();
    running.end();
    assert!(next.is_hung_up_on());
}

#[test]
fn a_session_that_ends_badly_is_followed_by_the_next() {
    let (_directory, path) = socket_path();
    let running = Running::start(&path);
    let mut bad = connect(&path);
    bad.send(&[0; 16]);
    assert!(bad.is_hung_up_on());
    connect(&path).agree();
    running.end();
}

#[test]
fn a_listener_without_client_can_be_stopped() {
    let (_directory, path) = socket_path();
    Running::start(&path).end();
    assert!(!path.exists());
}

#[test]
fn a_path_beyond_107_bytes_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let free = 107 - directory.path().as_os_str().len() - 1;
    let longest = directory.path().join("x".repeat(free));
    drop(Listener::bind(&longest).unwrap());
    let longer = directory.path().join("x".repeat(free + 1));
    let error = Listener::bind(&longer).unwrap_err();
    assert!(matches!(error, BindError::TooLong { length: 108, .. }));
    assert!(error.to_string().contains(longer.to_str().unwrap()));
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let (_directory, path) = socket_path();
    fs::write(&path, "precious").unwrap();
    let error = Listener::bind(&path).unwrap_err();
    assert!(matches!(error, BindError::NotASocket(_)));
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn the_socket_of_a_live_server_is_left_alone() {
    let (_directory, path) = socket_path();
    let running = Running::start(&path);
    let error = Listener::bind(&path).unwrap_err();
    assert!(matches!(error, BindError::InUse(_)));
    connect(&path).agree();
    running.end();
}

#[test]
fn the_socket_of_a_server_that_never_accepts_is_left_alone() {
    let (_directory, path) = socket_path();
    let live = UnixListener::bind(&path).unwrap();
    rustix::net::listen(&live, 0).unwrap();
    let _backlog = UnixStream::connect(&path).unwrap();
    for _ in 0..3 {
        let error = Listener::bind(&path).unwrap_err();
        assert!(matches!(error, BindError::InUse(_)));
    }
}

#[test]
fn the_socket_of_a_dead_server_is_replaced() {
    let (_directory, path) = socket_path();
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    // A process that another test starts keeps a copy of the socket for a moment.
    while UnixStream::connect(&path).is_ok() {
        thread::yield_now();
    }
    let running = Running::start(&path);
    connect(&path).agree();
    running.end();
}

#[test]
fn the_socket_of_another_is_not_removed() {
    let (_directory, path) = socket_path();
    let listener = Listener::bind(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let _other = UnixListener::bind(&path).unwrap();
    drop(listener);
    assert!(path.exists());
}

#[test]
fn a_directory_that_does_not_exist_is_named() {
    let (_directory, path) = socket_path();
    let error = Listener::bind(&path.join("deeper")).unwrap_err();
    assert!(matches!(error, BindError::System { .. }));
    assert!(error.to_string().contains("deeper"));
}
