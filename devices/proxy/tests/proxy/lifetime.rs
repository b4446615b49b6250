//! Servers that are not there, are no servers, or end.

use std::os::unix::net::UnixListener;

use peerbar_rig::{Client, Link};

use crate::copier::CopierServer;
use crate::{proxy, until};

#[test]
fn server_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nobody");
    let exit = proxy(&path).refused();
    assert_eq!(exit.code, Some(69));
    let expected = format!(
        "peerbar-proxy: no vfio-user server at {}: start it first",
        path.display()
    );
    assert_eq!(exit.line(), expected);
}

#[test]
fn server_that_does_not_speak_vfio_user_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other");
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || drop(listener.accept().unwrap()));
    let exit = proxy(&path).refused();
    server.join().unwrap();
    assert_eq!(exit.code, Some(69));
    let line = exit.line();
    assert!(
        line.contains("other cannot be used: it does not speak vfio-user"),
        "{line}"
    );
}

#[test]
fn ats_is_refused() {
    let server = CopierServer::start();
    let exit = proxy(&server.path()).args(["--ats"]).refused();
    assert_eq!(exit.code, Some(2));
    assert!(
        exit.line()
            .starts_with("peerbar-proxy: --ats is for devices")
    );
}

#[test]
fn daemon_ends_with_its_server() {
    let mut server = CopierServer::start();
    let mut daemon = proxy(&server.path()).start();
    let client = Client::connect(daemon.socket()).unwrap();
    client.turn_on().unwrap();
    server.end();
    assert!(client.is_hung_up_on());
    assert!(client.turn_on().is_err());
    let exit = daemon.end();
    assert_eq!(exit.code, Some(69));
    let expected = format!(
        "peerbar-proxy: lost the vfio-user server at {}: it has closed its socket",
        server.path().display()
    );
    assert_eq!(exit.stderr.lines().last(), Some(expected.as_str()));
}

#[test]
fn proxy_serves_one_client_after_the_other() {
    let server = CopierServer::start();
    let daemon = proxy(&server.path()).start();
    for _ in 0..3 {
        let client: Client = daemon.connect(Client::connect);
        client.turn_on().unwrap();
        assert_eq!(client.bytes::<1>(7, 4), [0b110]);
        drop(client);
        until("it is reset", || {
            server.state.lock().unwrap().mappings.is_empty()
        });
    }
}
