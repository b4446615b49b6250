//! Servers that are not there, are no servers, or end.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use peerbar_rig::wire::{self, ERROR, Message, REPLY, command, words};
use peerbar_rig::{Client, Link, RawServer, TIME_OUT};

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
fn file_that_is_not_a_socket_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, "").unwrap();
    let line = proxy(&path).refused().line().to_owned();
    let expected = "is not a socket: correct the path";
    assert!(line.ends_with(expected), "{line}");
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

/// Starts a server at `path` that answers by `answer`, as [`RawServer::serve`] does.
fn serve(
    path: &Path,
    answer: impl FnMut(&RawServer, &Message) -> bool + Send + 'static,
) -> JoinHandle<()> {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        RawServer::new(stream).serve(answer);
    })
}

#[test]
fn device_without_a_reset_is_no_bus_master_after_a_client() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("server");
    let (written, writes) = channel();
    let server = serve(&path, move |server, asked| {
        match asked.command {
            command::INFO => {
                server.reply(asked, &words(&[16, 2, 9, 5]));
                return true;
            }
            command::REGION_WRITE => written.send(asked.payload.clone()).unwrap(),
            command::RESET => panic!("the device has no reset"),
            _ => {}
        }
        false
    });
    let daemon = proxy(&path).start();
    let client = Client::connect(daemon.socket()).unwrap();
    let info = client.ask(command::INFO, &words(&[16, 0, 0, 0]), &[]);
    assert_eq!(info.unwrap().payload, words(&[16, 2, 9, 5]));
    client.set_command(0b110);
    drop(client);
    let command = |value| [wire::region_access(wire::CONFIG, 4, 2), vec![value, 0]].concat();
    let written = || writes.recv_timeout(TIME_OUT).expect("a write");
    assert_eq!(written(), command(0b110));
    assert_eq!(written(), command(0));
    drop(daemon);
    server.join().unwrap();
}

#[test]
fn client_after_a_failed_reset_is_disconnected() {
    const EBUSY: u32 = 16;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("server");
    let mut resets = 0;
    let server = serve(&path, move |server, asked| {
        if asked.command != command::RESET {
            return false;
        }
        resets += 1;
        let is_refused = resets == 1;
        if is_refused {
            let refusal = wire::message_with(asked.id, asked.command, (REPLY | ERROR, EBUSY), &[]);
            server.send(&refusal, &[]);
        }
        is_refused
    });
    let daemon = proxy(&path).start();
    let is_served =
        || Client::connect(daemon.socket()).is_ok_and(|client| client.turn_on().is_ok());
    assert_eq!([is_served(), is_served(), is_served()], [true, false, true]);
    drop(daemon);
    server.join().unwrap();
}
