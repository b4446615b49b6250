//! The client of the `vfio_user` crate, an independent implementation.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc::Receiver;
use std::thread;

use peerbar_pci::{Iova, Range};
use peerbar_vfio_user::{Listener, Options, Stop};
use rustix::event::{EventfdFlags, eventfd};
use vfio_user::Client;

use crate::board::{Call, board, pattern};

/// Calls `act` with a client, and with the calls of the device behind its server.
fn with_client(act: impl FnOnce(&mut Client, &Receiver<Call>)) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = Listener::bind(&path).unwrap();
    let stop = Stop::new().unwrap();
    let options = Options::new(stop.clone());
    let (mut board, calls, _) = board();
    thread::scope(|scope| {
        let server = scope.spawn(|| listener.run(&mut board, &options));
        let mut client = Client::new(&path).unwrap();
        assert_eq!(calls.recv().unwrap(), Call::Attached);
        act(&mut client, &calls);
        client.shutdown().unwrap();
        assert_eq!(calls.recv().unwrap(), Call::Detached);
        stop.trigger();
        server.join().unwrap().unwrap();
    });
}

#[test]
fn it_sees_the_regions() {
    with_client(|client, _| {
        let plain = client.region(0).unwrap();
        assert_eq!((plain.flags, plain.size), (3, 0x1000));
        assert!(plain.file_offset.is_none());
        let whole = client.region(2).unwrap();
        assert_eq!((whole.flags, whole.size), (7, 0x2000));
        assert_eq!(whole.file_offset.as_ref().unwrap().start(), 0);
        assert!(whole.sparse_areas.is_empty());
        let sparse = client.region(1).unwrap();
        assert_eq!((sparse.flags, sparse.size), (15, 0x4000));
        assert!(sparse.file_offset.is_some());
        let areas: Vec<(u64, u64)> = sparse
            .sparse_areas
            .iter()
            .map(|area| (area.offset, area.size))
            .collect();
        assert_eq!(areas, [(0x1000, 0x1000), (0x3000, 0x1000)]);
    });
}

#[test]
fn it_reads_and_writes_regions() {
    with_client(|client, calls| {
        let mut data = [0; 100];
        client.region_read(7, 0x40, &mut data).unwrap();
        let expected: Vec<u8> = (0x40..).take(100).map(pattern).collect();
        assert_eq!(data.to_vec(), expected);
        client.region_write(0, 0x10, &[1, 2, 3, 4]).unwrap();
        let call = calls.recv().unwrap();
        assert_eq!(call, Call::Write(0, 0x10, vec![1, 2, 3, 4]));
    });
}

#[test]
fn it_maps_and_unmaps() {
    with_client(|client, calls| {
        let memory = File::open("/dev/zero").unwrap();
        client
            .dma_map(0x3000, 0x10_0000, 0x2000, memory.as_raw_fd())
            .unwrap();
        let call = calls.recv().unwrap();
        assert_eq!(call, Call::Map(0x10_0000, 0x2000, true, true, Some(0x3000)));
        client.dma_unmap(0x10_0000, 0x2000).unwrap();
        let range = Range::new(Iova(0x10_0000), 0x2000).unwrap();
        assert_eq!(calls.recv().unwrap(), Call::Unmap(range));
    });
}

#[test]
fn it_sets_up_interrupts() {
    with_client(|client, calls| {
        let msix = client.get_irq_info(2).unwrap();
        assert_eq!((msix.flags, msix.count), (1, 8));
        let event: OwnedFd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        client
            .set_irqs(2, 0x24, 3, 1, &[event.as_raw_fd()])
            .unwrap();
        let call = calls.recv().unwrap();
        assert_eq!(call, Call::Irqs(2, 3, 1, "1 events".into()));
        let mut count = [0; 8];
        File::from(event).read_exact(&mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 4);
    });
}

#[test]
fn it_resets() {
    with_client(|client, calls| {
        client.reset().unwrap();
        assert_eq!(calls.recv().unwrap(), Call::Reset);
    });
}
