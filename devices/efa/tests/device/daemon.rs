//! The daemon as a process, with a foreign client.

use std::cell::RefCell;
use std::rc::Rc;

use peerbar_efa_spec::admin::Opcode;
use peerbar_efa_spec::admin::feature::{FeatureCommand, NetworkAttributes, id};
use peerbar_rig::{Daemon, DaemonCommand, ForeignClient, check_former_client, check_killed_server};
use vfio_user::Client;
use zerocopy::FromZeros;

use crate::driver::{Driver, MEMORY};
use crate::objects::allocate;
use crate::transfers;

pub(crate) fn start(args: &[&str]) -> Daemon {
    command().args(args).start()
}

fn command() -> DaemonCommand {
    DaemonCommand::new(env!("CARGO_BIN_EXE_peerbar-efa"))
}

pub(crate) fn client(daemon: &Daemon) -> Rc<ForeignClient> {
    Rc::new(RefCell::new(foreign(daemon)))
}

fn foreign(daemon: &Daemon) -> Client {
    daemon.connect(Client::new)
}

#[test]
fn former_client_sees_nothing_of_the_next_ones_queues() {
    let daemon = start(&[]);
    for offset in [16 << 20, 40 << 20] {
        let mut client = check_former_client(&daemon, MEMORY, offset);
        let mut read = [0; 4];
        client.region_read(MEMORY, offset, &mut read).unwrap();
        assert_eq!(read, [9; 4], "the device has the second client's memory");
    }
}

#[test]
fn requests_to_a_killed_server_are_refused() {
    check_killed_server(&mut start(&[]));
}

#[test]
fn it_shows_its_regions_and_its_identity() {
    let daemon = start(&[]);
    let mut client = foreign(&daemon);
    assert_eq!(client.region(0).unwrap().size, 0x4000);
    let memory = client.region(2).unwrap();
    let areas = &memory.sparse_areas;
    assert_eq!(memory.size, 64 << 20);
    let areas: Vec<_> = areas.iter().map(|area| (area.offset, area.size)).collect();
    let (polled, queues) = ((16 << 20, 1 << 20), (32 << 20, 32 << 20));
    assert_eq!(areas, [polled, queues], "no doorbell that is a message");
    assert_eq!(client.get_irq_info(2).unwrap().count, 33);
    let mut identity = [0; 4];
    client.region_read(7, 0, &mut identity).unwrap();
    assert_eq!(identity, [0x0f, 0x1d, 0xa3, 0xef]);
    let mut class = [0; 4];
    client.region_read(7, 8, &mut class).unwrap();
    assert_eq!(class, [0, 0, 0, 2]);
}

#[test]
fn daemon_is_brought_up_by_one_client_after_another() {
    let daemon = start(&["--gid", "fe80::7"]);
    for _ in 0..3 {
        let mut driver = Driver::of(client(&daemon));
        driver.bring_up();
        let mut command = FeatureCommand::new_zeroed();
        command.select.id = id::NETWORK_ATTRIBUTES;
        let network: NetworkAttributes = driver.execute(Opcode::GetFeature, &command).view();
        assert_eq!(network.gid[15], 7);
        assert_eq!(allocate(&mut driver, Opcode::AllocPd), 0);
    }
}

#[test]
fn data_moves_between_queue_pairs_of_a_foreign_client() {
    let daemon = start(&[]);
    let mut driver = Driver::of(client(&daemon));
    driver.bring_up();
    transfers::every_operation_moves_its_bytes(driver);
}

#[test]
fn sigterm_ends_it_well() {
    let mut daemon = start(&[]);
    assert_eq!(daemon.terminate().code, Some(0));
    assert!(!daemon.socket().exists());
}

#[test]
fn what_cannot_be_is_refused_in_one_line() {
    let refused = |args: &[&str]| command().args(args).refused();
    let exit = refused(&["--gid", "::"]);
    assert_eq!(exit.code, Some(2), "{exit:?}");
    assert!(exit.line().starts_with("peerbar-efa: GID ::"), "{exit:?}");
    let exit = refused(&["--fabric", "/nonexistent/fabric"]);
    assert_eq!(exit.code, Some(69), "{exit:?}");
    assert!(exit.line().contains("/nonexistent/fabric"), "{exit:?}");
    let exit = refused(&["--fabric", "/nonexistent/fabric", "--fabric-name", "a b"]);
    assert_eq!(exit.code, Some(2), "{}", exit.line());
}
