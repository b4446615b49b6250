//! The client of other projects' servers, against our own server.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use peerbar_pci::{Iova, Range};
use peerbar_rig::relayed;
use peerbar_vfio_user::remote::{
    CallError, Lending, RemoteDevice, RemoteEnd, RemoteHandler, RemoteMapping, TIME_OUT,
};
use peerbar_vfio_user::{Client, Data, DmaRequest, IrqAction, Options, Stop, serve};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::board::{BAD_IOVA, BAD_OFFSET, Call, board, pattern};

/// Memory from 0x1000 on, and the end of the session.
pub(crate) struct Memory {
    pub(crate) ends: Sender<RemoteEnd>,
    pub(crate) written: Sender<(Iova, Vec<u8>)>,
}

impl RemoteHandler for Memory {
    fn dma_read(&self, address: Iova, data: &mut [u8]) -> Result<(), Errno> {
        let offset = address.offset_from(Iova(0x1000)).ok_or(Errno::NODEV)?;
        data.copy_from_slice(&bytes(offset, data.len()));
        Ok(())
    }

    fn dma_write(&self, address: Iova, data: &[u8]) -> Result<(), Errno> {
        address.offset_from(Iova(0x1000)).ok_or(Errno::NODEV)?;
        self.written.send((address, data.to_vec())).unwrap();
        Ok(())
    }

    fn ended(&self, reason: RemoteEnd) {
        self.ends.send(reason).unwrap();
    }
}

/// A device behind a server of ours, and its session.
struct Remote {
    device: RemoteDevice,
    calls: Receiver<Call>,
    client: Client,
    ends: Receiver<RemoteEnd>,
    written: Receiver<(Iova, Vec<u8>)>,
    stop: Stop,
    server: JoinHandle<()>,
}

impl Remote {
    fn new() -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (mut board, calls, clients) = board();
        let stop = Stop::new().unwrap();
        let options = Options::new(stop.clone());
        let server = std::thread::spawn(move || serve(theirs, &mut board, &options).unwrap());
        let (ends, ended) = channel();
        let (written, all_written) = channel();
        let memory = Arc::new(Memory { ends, written });
        let device = RemoteDevice::start(relayed(ours).0, memory, TIME_OUT).unwrap();
        assert_eq!(calls.recv().unwrap(), Call::Attached);
        Self {
            device,
            calls,
            client: clients.recv().unwrap(),
            ends: ended,
            written: all_written,
            stop,
            server,
        }
    }
}

/// Returns the pattern of `len` bytes from `first` on.
pub(crate) fn bytes(first: u64, len: usize) -> Vec<u8> {
    (first..).take(len).map(pattern).collect()
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).unwrap()
}

fn map(iova: u64, memory: Option<(BorrowedFd<'_>, u64)>) -> Lending<'_> {
    Lending {
        range: Range::new(Iova(iova), 0x1000).unwrap(),
        readable: true,
        writable: false,
        memory,
    }
}

#[test]
fn device_is_described_as_the_server_does() {
    let remote = Remote::new();
    let info = remote.device.info();
    assert_eq!((info.regions, info.irqs), (9, 5));
    let region = |index| remote.device.region(index).unwrap();
    assert!(matches!(region(0).mapping, RemoteMapping::Nothing));
    assert!(matches!(region(5).mapping, RemoteMapping::NoArea));
    let RemoteMapping::Memory { areas, offset, .. } = &region(1).mapping else {
        panic!("{:?}", region(1));
    };
    let expected = [(0x1000, 0x1000), (0x3000, 0x1000)];
    assert_eq!((areas.as_deref(), *offset), (Some(expected.as_slice()), 0));
    let RemoteMapping::Memory { areas: None, .. } = &region(2).mapping else {
        panic!("{:?}", region(2));
    };
    let rights = |index| (region(index).readable, region(index).writable);
    assert_eq!(
        [3, 4, 6].map(rights),
        [(true, false), (false, true), (false, false)]
    );
    assert!(remote.device.region(9).is_none());
    let irq = |index| remote.device.irq(index).unwrap();
    assert_eq!([0, 1, 2, 3].map(|index| irq(index).count), [1, 4, 8, 1]);
    assert!(irq(0).automasked && irq(0).maskable && !irq(2).maskable);
}

#[test]
fn accesses_longer_than_a_message_are_cut() {
    let remote = Remote::new();
    let mut data = vec![0; (1 << 20) + 5];
    remote.device.region_read(5, 64, &mut data).unwrap();
    assert_eq!(data, bytes(64, data.len()));
    remote.device.region_write(5, 0x1000, &data).unwrap();
    let first = Call::Write(5, 0x1000, data[..1 << 20].to_vec());
    let second = Call::Write(5, 0x10_1000, data[1 << 20..].to_vec());
    assert_eq!(
        [(); 2].map(|()| remote.calls.recv().unwrap()),
        [first, second]
    );
    let refused = remote.device.region_write(0, BAD_OFFSET, &[1]);
    assert_eq!(refused, Err(CallError::Refused(Errno::IO)));
    let refused = remote.device.region_read(4, 0, &mut [0]);
    assert_eq!(refused, Err(CallError::Refused(Errno::INVAL)));
}

#[test]
fn interrupts_mappings_and_resets_arrive() {
    let remote = Remote::new();
    let device = &remote.device;
    let events = (0..8).map(|_| Some(event().try_into().unwrap()));
    let set = |action| device.set_irqs(2, 0, 8, &action).unwrap();
    set(IrqAction::Events(events.collect()));
    set(IrqAction::Trigger);
    set(IrqAction::Disable);
    device.set_irqs(0, 0, 1, &IrqAction::Unmask).unwrap();
    let called = || remote.calls.recv().unwrap();
    let irqs = |index, count, action: &str| Call::Irqs(index, 0, count, action.to_owned());
    assert!(matches!(called(), Call::Irqs(2, 0, 8, action) if action == "8 events"));
    assert_eq!(called(), irqs(2, 8, "Trigger"));
    assert_eq!(called(), irqs(2, 0, "Disable"));
    assert_eq!(called(), irqs(0, 1, "Unmask"));
    let memory = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    device
        .dma_map(&map(0x1000, Some((memory.as_fd(), 0x3000))))
        .unwrap();
    device.dma_map(&map(0x5000, None)).unwrap();
    let refused = device.dma_map(&map(BAD_IOVA, None));
    assert!(matches!(refused, Err(CallError::Refused(_))), "{refused:?}");
    let range = Range::new(Iova(0x1000), 0x1000).unwrap();
    device.dma_unmap(range, true).unwrap();
    device.reset().unwrap();
    assert_eq!(
        called(),
        Call::Map(0x1000, 0x1000, true, false, Some(0x3000))
    );
    assert_eq!(called(), Call::Map(0x5000, 0x1000, true, false, None));
    assert_eq!([called(), called()], [Call::Unmap(range), Call::Reset]);
}

#[test]
fn servers_dma_is_answered_from_a_thread_of_its_own() {
    let remote = Remote::new();
    let (mut read, written) = (vec![0; 100_000], vec![7; 50_000]);
    let mut requests = [
        DmaRequest::new(Iova(0x1800), Data::Read(&mut read)),
        DmaRequest::new(Iova(0x2000), Data::Write(&written)),
        DmaRequest::new(Iova(0x500), Data::Write(&written)),
    ];
    remote.client.carry_out(&mut requests, &|| true);
    let outcomes = requests.map(|request| request.outcome);
    let [Some(Ok(())), Some(Ok(())), Some(Err(refused))] = outcomes else {
        panic!("{outcomes:?}");
    };
    assert_eq!(
        refused,
        peerbar_vfio_user::RequestError::Refused(Errno::NODEV)
    );
    let parts: Vec<_> = read.chunks(32 << 10).map(<[u8]>::to_vec).collect();
    for (at, part) in (0x800..).step_by(32 << 10).zip(parts) {
        assert_eq!(part, bytes(at, part.len()));
    }
    let mut arrived = 0;
    while arrived < written.len() {
        let (address, data) = remote.written.recv().unwrap();
        assert_eq!(address, Iova(0x2000 + arrived as u64));
        arrived += data.len();
    }
}

#[test]
fn end_of_the_server_fails_calls_and_is_reported() {
    let remote = Remote::new();
    remote.stop.trigger();
    remote.server.join().unwrap();
    assert_eq!(remote.ends.recv().unwrap(), RemoteEnd::HungUp);
    assert_eq!(remote.device.reset(), Err(CallError::Gone));
    assert_eq!(remote.device.ended(), Some(RemoteEnd::HungUp));
}

#[test]
fn closed_session_is_not_reported() {
    let remote = Remote::new();
    remote.device.close();
    let unmapped = remote.device.dma_unmap(Range::all(), true);
    assert_eq!(unmapped, Err(CallError::Gone));
    drop(remote.device);
    assert!(remote.ends.recv().is_err());
    remote.server.join().unwrap();
}
