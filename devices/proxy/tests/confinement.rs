//! The confinement of a proxy: the actions that remain possible after its server or an attacker has
//! taken it over.

// Clippy recognises tests only by their attribute, not the functions that they call.
#![allow(clippy::unwrap_used)]

use std::os::unix::net::UnixListener;

use peerbar_rig::{DaemonCommand, RawServer};
use peerbar_sandbox::take_over::assert_confined;
use peerbar_sandbox::{Connections, ServerKind};

#[test]
fn proxy_taken_over_can_only_serve() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("server");
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let server = RawServer::new(stream.unwrap());
            std::thread::spawn(move || server.serve(|_, _| false));
        }
    });
    let server = ["--server".into(), path.into_os_string()];
    let proxy = DaemonCommand::new(env!("CARGO_BIN_EXE_peerbar-proxy")).args(server);
    assert_confined(&mut proxy.command(), ServerKind::Device, Connections::None);
}
