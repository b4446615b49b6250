//! An independent implementation of the protocol: the client of the `vfio_user` crate.

use std::cell::RefCell;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

use peerbar_rig::nvme::{DATA, Driver, RAM, RAM_BYTES};
use peerbar_rig::{Daemon, Guest, check_former_client};
use vfio_user::Client;

use crate::SUCCESS;
use crate::process::start;

fn client(daemon: &Daemon) -> Client {
    Client::new(daemon.socket()).unwrap()
}

#[test]
fn former_client_sees_nothing_of_the_next_ones_memory() {
    let daemon = start(&["--cmb", "6M", "--poll", "always", "--namespace", "ram=1M"]);
    drop(check_former_client(&daemon, 0, 0x1008));
    let mut client = check_former_client(&daemon, 2, 0x12_3400);
    let mut read = [0; 4];
    client.region_read(2, 0x12_3400, &mut read).unwrap();
    assert_eq!(read, [9; 4], "the device has the second client's memory");
}

#[test]
fn it_finds_a_controller_with_a_buffer_that_can_be_mapped() {
    let daemon = start(&["--cmb", "6M", "--cmb-queues", "--namespace", "ram=1M"]);
    let mut client = client(&daemon);
    let mut class = [0; 4];
    client.region_read(7, 8, &mut class).unwrap();
    assert_eq!(class[1..], [0x02, 0x08, 0x01], "an NVMe controller");
    let registers = client.region(0).unwrap();
    assert_eq!(
        (registers.size, registers.file_offset.is_some()),
        (0x4000, false)
    );
    let buffer = client.region(2).unwrap();
    assert_eq!(buffer.size, 8 << 20, "the next power of two");
    assert!(buffer.sparse_areas.is_empty(), "all of it can be mapped");
    let memory = buffer.file_offset.as_ref().unwrap().file();
    memory
        .write_all_at(b"seen from both sides", 0x1234)
        .unwrap();
    let mut seen = [0; 20];
    client.region_read(2, 0x1234, &mut seen).unwrap();
    assert_eq!(&seen, b"seen from both sides");
    assert_eq!(client.get_irq_info(2).unwrap().count, 65, "MSI-X");
    assert_eq!(client.get_irq_info(0).unwrap().count, 1, "INTx");
}

#[test]
fn it_brings_the_controller_up_writes_and_reads_back() {
    let daemon = start(&["--namespace", "ram=1M"]);
    let client = Rc::new(RefCell::new(client(&daemon)));
    let mut driver = Driver::enabled(Guest::new(client, RAM, RAM_BYTES));
    assert_eq!(driver.serial(), "test");
    driver.fill(0x5a, 64 << 10);
    assert_eq!(driver.io(0x01, DATA, 128), SUCCESS);
    driver.fill(0, 64 << 10);
    assert_eq!(driver.io(0x02, DATA, 128), SUCCESS);
    assert_eq!(driver.data(64 << 10), [0x5a; 64 << 10]);
}
