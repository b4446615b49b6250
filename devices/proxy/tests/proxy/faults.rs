//! Fault rules for the device of another server.

use peerbar_rig::{Client, GuestRam, Link};
use rustix::io::Errno;

use crate::copier::{CopierServer, copy};
use crate::proxy;

const RAM: u64 = 0x10_0000;
const BYTES: u64 = 0x10_0000;

#[test]
fn rules_for_interrupts_are_refused() {
    let server = CopierServer::start();
    let fault = ["--fault", "drop interrupt vector=0"];
    let exit = proxy(&server.path()).args(fault).refused();
    assert_eq!(exit.code, Some(2));
    let expected = "peerbar-proxy: `drop interrupt vector=0` is for interrupts, which go from the device's own server straight to QEMU";
    assert!(exit.line().starts_with(expected), "{}", exit.line());
}

#[test]
fn server_does_not_learn_of_a_mapping_that_fails() {
    let server = CopierServer::start();
    let fault = ["--fault", "fail mapping nth=1"];
    let daemon = proxy(&server.path()).args(fault).start();
    let ram = GuestRam::new(RAM, BYTES);
    let client = Client::connect(daemon.socket()).unwrap();
    client.turn_on().unwrap();
    assert_eq!(client.lend(&ram), Err(Errno::NOMEM));
    assert!(server.state.lock().unwrap().mappings.is_empty());
    client.lend(&ram).unwrap();
    let mapping = server.state.lock().unwrap().mapping(RAM);
    assert_eq!(mapping, Some((BYTES, true)));
    assert!(copy(&client, RAM, RAM + 0x8000, 8));
}
