//! The confinement of a switch: the actions that remain possible after an attacker has taken it
//! over.

use peerbar_rig::DaemonCommand;
use peerbar_sandbox::take_over::assert_confined;
use peerbar_sandbox::{Connections, ServerKind};

#[test]
fn server_taken_over_can_only_serve() {
    let server = DaemonCommand::new(env!("CARGO_BIN_EXE_peerbar-switch"));
    assert_confined(
        &mut server.command(),
        ServerKind::Interconnect,
        Connections::None,
    );
}
