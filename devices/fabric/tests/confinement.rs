//! What a fabric can still do after it was taken over.

#![allow(clippy::unwrap_used, reason = "a test that goes wrong shall panic")]

use peerbar_fabric::make_certificates;
use peerbar_sandbox::take_over::assert_confined;
use peerbar_sandbox::{Connections, ServerKind};
use peerbar_test_daemon::DaemonCommand;

#[test]
fn server_taken_over_can_only_serve() {
    let server = DaemonCommand::new(env!("CARGO_BIN_EXE_peerbar-fabric"))
        .file("--control", "control")
        .file("--record", "record");
    assert_confined(
        &mut server.command(),
        ServerKind::Interconnect,
        Connections::Pairs,
    );
}

#[test]
fn server_with_tunnels_taken_over_can_only_serve() {
    let server = DaemonCommand::new(env!("CARGO_BIN_EXE_peerbar-fabric"))
        .args(["--listen", "127.0.0.1:0"])
        .file("--certificates", "here");
    make_certificates(server.folder(), &["here".to_owned()]).unwrap();
    assert_confined(
        &mut server.command(),
        ServerKind::Interconnect,
        Connections::Datagrams,
    );
}
