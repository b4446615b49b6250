//! The client of other projects' servers, against servers that do what they like.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use peerbar_pci::{Iova, Range};
use peerbar_rig::RawServer;
use peerbar_rig::wire::{self, ERROR, Message, NO_REPLY, Outcome, REPLY, command, message};
use peerbar_vfio_user::IrqAction;
use peerbar_vfio_user::remote::{
    CallError, Lending, RemoteDevice, RemoteEnd, RemoteHandler, RemoteMapping, SessionStartError,
    TIME_OUT,
};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;

use crate::remote::{Memory, bytes};

/// Time in which a late server is given up in these tests.
const SOON: Duration = Duration::from_millis(50);

/// A session with a server of a test.
struct Session {
    device: Option<RemoteDevice>,
    failure: Option<SessionStartError>,
    ends: Receiver<RemoteEnd>,
    written: Receiver<(Iova, Vec<u8>)>,
    server: JoinHandle<()>,
}

impl Session {
    /// Begins a session with a server that answers by `serve`, which returns `false` for a message
    /// that it leaves to [`RawServer::answer`].
    fn new(
        time_out: Duration,
        mut serve: impl FnMut(&RawServer, &Message) -> bool + Send + 'static,
    ) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = std::thread::spawn(move || {
            RawServer::new(theirs).serve(|server, message| serve(server, message));
        });
        let (ends, ended) = channel();
        let (written, all_written) = channel();
        let memory = Arc::new(Memory { ends, written });
        let (device, failure) = match RemoteDevice::start(ours, memory, time_out) {
            Ok(device) => (Some(device), None),
            Err(error) => (None, Some(error)),
        };
        Self {
            device,
            failure,
            ends: ended,
            written: all_written,
            server,
        }
    }

    #[track_caller]
    fn device(&self) -> &RemoteDevice {
        self.device.as_ref().expect("no session")
    }

    /// Ends the session and waits for the server.
    fn end(mut self) {
        self.device = None;
        self.server.join().unwrap();
    }
}

/// Returns the failure of a session whose server answers `command` with `payload`.
fn failure(command: u16, payload: Vec<u8>) -> String {
    let session = Session::new(TIME_OUT, move |server, asked| {
        let is_meant = asked.command == command;
        if is_meant {
            server.reply(asked, &payload);
        }
        is_meant
    });
    let failure = session.failure.as_ref().expect("a session");
    let text = match std::error::Error::source(failure) {
        Some(source) => format!("{failure}: {source}"),
        None => failure.to_string(),
    };
    session.end();
    text
}

#[test]
fn server_without_version_data_is_taken_at_its_defaults() {
    let (counts, counted) = channel();
    let session = Session::new(TIME_OUT, move |_, asked| {
        if asked.command == command::SET_IRQS {
            counts.send(asked.descriptors.len()).unwrap();
        }
        false
    });
    let events = (0..3).map(|_| {
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        Some(event.try_into().unwrap())
    });
    let events = IrqAction::Events(events.collect());
    session.device().set_irqs(2, 0, 3, &events).unwrap();
    session.end();
    assert_eq!(counted.iter().collect::<Vec<_>>(), [1, 1, 1]);
}

#[test]
fn limits_of_the_server_cut_accesses_and_descriptors() {
    let (sizes, sent) = channel();
    let session = Session::new(TIME_OUT, move |server, asked| {
        match asked.command {
            command::VERSION => {
                let json = r#"{"capabilities":{"max_data_xfer_size":10,"max_msg_fds":2,"odd":[]}}"#;
                server.reply(asked, &wire::version(0, 1, json));
                return true;
            }
            command::SET_IRQS => sizes.send(asked.descriptors.len()).unwrap(),
            command::REGION_WRITE => sizes.send(asked.payload.len() - 16).unwrap(),
            _ => {}
        }
        false
    });
    let mut data = [0; 25];
    session.device().region_read(0, 0, &mut data).unwrap();
    assert_eq!(data, [0x5a; 25]);
    session.device().region_write(0, 0, &data).unwrap();
    let events = (0..3).map(|_| {
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        Some(event.try_into().unwrap())
    });
    let events = IrqAction::Events(events.collect());
    session.device().set_irqs(2, 4, 3, &events).unwrap();
    session.end();
    assert_eq!(sent.iter().collect::<Vec<_>>(), [10, 10, 5, 2, 1]);
}

#[test]
fn posted_writes_do_not_wait_for_calls_with_a_limit() {
    let (begun, has_begun) = channel();
    let (release, released) = channel();
    let session = Session::new(TIME_OUT, move |_, asked| {
        if asked.command == command::REGION_WRITE {
            begun.send(()).unwrap();
            released.recv().unwrap();
        }
        false
    });
    let device = session.device();
    std::thread::scope(|scope| {
        let write = scope.spawn(|| device.region_write_within(TIME_OUT, 0, 0, &[1; 4]));
        has_begun.recv().unwrap();
        let posted = device.post_writes(TIME_OUT / 2);
        release.send(()).unwrap();
        assert!(posted.is_some(), "it waits for the write");
        write.join().unwrap().unwrap();
    });
    session.end();
}

#[test]
fn server_that_does_not_speak_vfio_user_is_refused() {
    for version in [&[][..], &[1, 0, 0, 0], b"\0\0\0\0{\0", &[0; 3]] {
        let text = failure(command::VERSION, version.to_vec());
        assert_eq!(
            text, "it does not speak vfio-user: the server's reply makes no sense",
            "{version:?}"
        );
    }
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    std::io::Write::write_all(&mut theirs, b"220 mail.example ESMTP\r\n").unwrap();
    let (ends, ended) = channel();
    let memory = Arc::new(Memory {
        ends,
        written: channel().0,
    });
    let refused = RemoteDevice::start(ours, memory, SOON).err().unwrap();
    assert!(matches!(refused, SessionStartError::Version(_)));
    assert!(matches!(
        ended.recv(),
        Ok(RemoteEnd::NotAnswering(_) | RemoteEnd::Framing(_)) | Err(_)
    ));
}

#[test]
fn device_that_is_not_pci_is_refused() {
    for info in [[16, 1, 9, 5], [16, 2, 7, 5]] {
        let text = failure(command::INFO, wire::words(&info));
        assert_eq!(text, "its device is not a PCI device");
    }
    let text = failure(command::INFO, wire::words(&[16, 2, 9]));
    assert_eq!(
        text,
        "it does not describe its device: the server's reply makes no sense"
    );
    let text = failure(command::REGION_INFO, vec![0xff; 32]);
    assert_eq!(
        text,
        "it does not describe its device: the server's reply makes no sense"
    );
}

#[test]
fn endless_counts_of_a_server_are_cut() {
    let session = Session::new(TIME_OUT, |server, asked| {
        match asked.command {
            command::INFO => server.reply(asked, &wire::words(&[16, 2, u32::MAX, u32::MAX])),
            command::IRQ_INFO => server.reply(asked, &wire::words(&[16, 1, 0, u32::MAX])),
            _ => return false,
        }
        true
    });
    let info = session.device().info();
    assert!(info.regions < 100 && info.irqs < 100, "{info:?}");
    assert_eq!(session.device().irq(2).unwrap().count, 2048);
    session.end();
}

/// Returns region 0 of a server that answers DEVICE_GET_REGION_INFO by `info`, and the sizes that
/// the client has offered.
fn region_0(info: impl Fn(&RawServer, &Message, u64) + Send + 'static) -> (Session, Receiver<u64>) {
    let (sizes, offered) = channel();
    let session = Session::new(TIME_OUT, move |server, asked| {
        let is_meant = asked.command == command::REGION_INFO && asked.payload[8..12] == [0; 4];
        if is_meant {
            let size = wire::number(&asked.payload[..4]);
            sizes.send(size).unwrap();
            info(server, asked, size);
        }
        is_meant
    });
    (session, offered)
}

fn memory() -> OwnedFd {
    let memory = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&memory, 0x10_0000).unwrap();
    memory
}

/// Returns a description of region 0: mappable, of 0x4000 bytes at this offset in its descriptor,
/// with the areas.
fn sparse(argsz: u32, offset: u64, areas: &[(u64, u64)]) -> Vec<u8> {
    let flags = 0b1111;
    let count = u32::try_from(areas.len()).unwrap();
    let areas = areas
        .iter()
        .flat_map(|(at, size)| wire::quads(&[*at, *size]));
    let mut info = wire::words(&[argsz, flags, 0, 32]);
    info.extend(wire::quads(&[0x4000, offset]));
    info.extend([1, 0, 1, 0]);
    info.extend(wire::words(&[0, count, 0]));
    info.extend(areas);
    info
}

#[test]
fn longer_description_is_asked_for_again() {
    let (session, offered) = region_0(|server, asked, size| {
        let memory = memory();
        match size {
            5000 => server.reply_with(
                asked,
                &sparse(5000, 0x8000, &[(0x1000, 0x2000)]),
                &[memory.as_fd()],
            ),
            _ => server.reply(asked, &sparse(5000, 0, &[])[..32]),
        }
    });
    let RemoteMapping::Memory { offset, areas, .. } = &session.device().region(0).unwrap().mapping
    else {
        panic!("not mapped");
    };
    assert_eq!(
        (*offset, areas.as_deref()),
        (0x8000, Some([(0x1000, 0x2000)].as_slice()))
    );
    session.end();
    assert_eq!(offered.iter().last(), Some(5000));
}

#[test]
fn impossible_areas_are_not_mapped() {
    let wrong = [
        (0, vec![(0x1000, 0x4000)]),
        (0, vec![(0x800, 0x1000)]),
        (0, vec![(0x1000, 0)]),
        (0, vec![(u64::MAX - 0xfff, 0x1000)]),
        (u64::MAX - 0xfff, vec![(0, 0x1000)]),
        (0x800, vec![(0, 0x1000)]),
        (0, vec![]),
    ];
    for (offset, areas) in wrong {
        let text = format!("{offset:#x} {areas:x?}");
        let (session, _) = region_0(move |server, asked, _| {
            let memory = memory();
            server.reply_with(asked, &sparse(100, offset, &areas), &[memory.as_fd()]);
        });
        let mapping = &session.device().region(0).unwrap().mapping;
        assert!(matches!(mapping, RemoteMapping::NoArea), "{text}");
        session.end();
    }
}

#[test]
fn capability_list_that_does_not_end_is_given_up() {
    for next in [32, 0xffff_fff0_u32] {
        let (session, _) = region_0(move |server, asked, _| {
            let mut info = sparse(64, 0, &[]);
            info[32] = 99;
            info[36..40].copy_from_slice(&next.to_le_bytes());
            let memory = memory();
            server.reply_with(asked, &info, &[memory.as_fd()]);
        });
        let mapping = &session.device().region(0).unwrap().mapping;
        assert!(
            !matches!(mapping, RemoteMapping::Memory { .. }),
            "{next:#x}"
        );
        session.end();
    }
}

#[test]
fn descriptor_that_is_not_memory_is_not_mapped() {
    let (session, _) = region_0(|server, asked, _| {
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        server.reply_with(asked, &sparse(64, 0, &[(0, 0x1000)]), &[event.as_fd()]);
    });
    let mapping = &session.device().region(0).unwrap().mapping;
    assert!(matches!(mapping, RemoteMapping::NoArea));
    session.end();
}

#[test]
fn descriptors_of_other_replies_are_closed() {
    let (read, write) = rustix::pipe::pipe().unwrap();
    let write = Mutex::new(Some(write));
    let session = Session::new(TIME_OUT, move |server, asked| {
        let is_meant = asked.command == command::RESET;
        if is_meant {
            let write = write.lock().unwrap().take().unwrap();
            server.reply_with(asked, &[], &[write.as_fd()]);
        }
        is_meant
    });
    session.device().reset().unwrap();
    // The end of the pipe's last writer.
    assert_eq!(rustix::io::read(&read, &mut [0; 1]), Ok(0));
    session.end();
}

#[test]
fn server_that_does_not_answer_loses_the_session() {
    let session = Session::new(SOON, |_, asked| asked.command == command::RESET);
    assert_eq!(session.device().reset(), Err(CallError::TimedOut));
    assert_eq!(session.ends.recv().unwrap(), RemoteEnd::NotAnswering(SOON));
    assert_eq!(session.device().reset(), Err(CallError::Gone));
    session.end();
}

const EBUSY: u32 = 16;

/// A page without memory.
fn page() -> Lending<'static> {
    Lending {
        range: Range::new(Iova(0), 0x1000).unwrap(),
        readable: true,
        writable: true,
        memory: None,
    }
}

/// Begins a session with a server that refuses these commands.
fn session_with_refusals(commands: &'static [u16]) -> Session {
    Session::new(TIME_OUT, |server, asked| {
        let is_meant = commands.contains(&asked.command);
        if is_meant {
            let refusal = (REPLY | ERROR, EBUSY);
            let refusal = wire::message_with(asked.id, asked.command, refusal, &[]);
            server.send(&refusal, &[]);
        }
        is_meant
    })
}

#[test]
fn posted_mapping_that_the_server_refuses_need_not_be_unmapped() {
    let session = session_with_refusals(&[command::DMA_MAP, command::DMA_UNMAP]);
    let device = session.device();
    let lent = page();
    for has_memory in [false, true] {
        let posted = device.post_writes(TIME_OUT).unwrap();
        device.dma_map(&lent).unwrap();
        drop(posted);
        device.dma_unmap(lent.range, has_memory).unwrap();
    }
    assert_eq!(device.dma_map(&lent), Err(CallError::Refused(Errno::BUSY)));
    assert_eq!(device.ended(), None);
    session.end();
}

#[test]
fn server_that_refuses_to_unmap_a_posted_mapping_loses_the_session() {
    let session = session_with_refusals(&[command::DMA_UNMAP]);
    let device = session.device();
    let lent = page();
    let posted = device.post_writes(TIME_OUT).unwrap();
    device.dma_map(&lent).unwrap();
    drop(posted);
    let refused = device.dma_unmap(lent.range, true);
    assert_eq!(refused, Err(CallError::Refused(Errno::BUSY)));
    assert_eq!(session.ends.recv().unwrap(), RemoteEnd::KeepsMapping);
    session.end();
}

#[test]
fn server_that_refuses_to_unmap_loses_the_session() {
    let session = session_with_refusals(&[command::DMA_UNMAP]);
    let range = Range::new(Iova(0), 0x1000).unwrap();
    let refused = session.device().dma_unmap(range, true);
    assert_eq!(refused, Err(CallError::Refused(Errno::BUSY)));
    assert_eq!(session.ends.recv().unwrap(), RemoteEnd::KeepsMapping);
    session.end();
}

#[test]
fn late_reply_to_a_limited_access_reaches_no_other_call() {
    let mut kept = None;
    let session = Session::new(TIME_OUT, move |server, asked| {
        match (asked.command, kept.take()) {
            (command::REGION_WRITE, _) => {
                let reply = message(asked.id, asked.command, REPLY, &asked.payload[..16]);
                kept = Some(reply);
                true
            }
            (_, Some(late)) => {
                server.send(&late, &[]);
                false
            }
            _ => false,
        }
    });
    let device = session.device();
    let late = device.region_write_within(SOON, 0, 0, &[1; 4]);
    assert_eq!(late, Err(CallError::TimedOut));
    let mut data = [0; 4];
    device
        .region_read_within(TIME_OUT, 0, 0, &mut data)
        .unwrap();
    assert_eq!(data, [0x5a; 4]);
    session.end();
}

#[test]
fn limit_of_an_access_holds_for_all_of_its_messages() {
    let session = Session::new(TIME_OUT, |server, asked| {
        match asked.command {
            command::VERSION => {
                let json = r#"{"capabilities":{"max_data_xfer_size":1}}"#;
                server.reply(asked, &wire::version(0, 1, json));
                return true;
            }
            // Each reply comes within the limit.
            command::REGION_READ | command::REGION_WRITE => std::thread::sleep(SOON / 5),
            _ => {}
        }
        false
    });
    let device = session.device();
    let read = device.region_read_within(SOON, 0, 0, &mut [0; 32]);
    assert_eq!(read, Err(CallError::TimedOut));
    let written = device.region_write_within(SOON, 0, 0, &[1; 32]);
    assert_eq!(written, Err(CallError::TimedOut));
    assert_eq!(device.ended(), None);
    session.end();
}

#[test]
fn wrong_and_doubled_replies_hurt_nobody() {
    let session = Session::new(TIME_OUT, |server, asked| {
        match asked.command {
            command::RESET => {
                // Of no call, then doubled.
                server.send(&message(asked.id ^ 0x8000, command::RESET, REPLY, &[]), &[]);
                server.reply(asked, &[]);
                server.reply(asked, &[]);
            }
            command::DMA_MAP => {
                server.send(&message(asked.id, command::RESET, REPLY, &[]), &[]);
            }
            command::REGION_READ => server.reply(asked, &asked.payload),
            command::SET_IRQS => {
                let refusal = (REPLY | ERROR, 0xffff_ffff);
                server.send(
                    &wire::message_with(asked.id, asked.command, refusal, &[7; 9]),
                    &[],
                );
            }
            _ => return false,
        }
        true
    });
    let device = session.device();
    for _ in 0..3 {
        device.reset().unwrap();
    }
    let lent = page();
    assert_eq!(device.dma_map(&lent), Err(CallError::Malformed));
    let read = device.region_read(0, 0, &mut [0; 4]);
    assert_eq!(read, Err(CallError::Malformed));
    let set = device.set_irqs(0, 0, 1, &IrqAction::Mask);
    assert_eq!(set, Err(CallError::Refused(Errno::IO)));
    session.end();
}

/// A handler that executes no request before the test allows it.
struct Held {
    release: Mutex<Receiver<()>>,
    executed: Sender<()>,
    ends: Sender<RemoteEnd>,
}

/// A session with such a handler.
struct HeldSession {
    device: RemoteDevice,
    release: Sender<()>,
    executed: Receiver<()>,
    ends: Receiver<RemoteEnd>,
}

impl Held {
    /// Begins a session with such a handler. A server answers a call only after `count` requests,
    /// writes of `len` bytes.
    fn session(count: u16, len: usize) -> HeldSession {
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::thread::spawn(move || {
            RawServer::new(theirs).serve(|server, asked| {
                let written = [wire::quads(&[0x1000, len as u64]), vec![0; len]].concat();
                for id in (0..count).filter(|_| asked.command == command::RESET) {
                    server.send(&message(id, command::DMA_WRITE, NO_REPLY, &written), &[]);
                }
                false
            });
        });
        let ((release, released), (ends, ended)) = (channel(), channel());
        let (executed, all_executed) = channel();
        let held = Arc::new(Self {
            release: Mutex::new(released),
            executed,
            ends,
        });
        HeldSession {
            device: RemoteDevice::start(ours, held, TIME_OUT).unwrap(),
            release,
            executed: all_executed,
            ends: ended,
        }
    }
}

impl RemoteHandler for Held {
    fn dma_read(&self, _: Iova, _: &mut [u8]) -> Result<(), Errno> {
        Err(Errno::IO)
    }

    fn dma_write(&self, _: Iova, _: &[u8]) -> Result<(), Errno> {
        // Both fail once the test is over.
        let released = self.release.lock().unwrap().recv();
        let _ = self.executed.send(());
        released.map_err(|_| Errno::IO)
    }

    fn ended(&self, reason: RemoteEnd) {
        self.ends.send(reason).unwrap();
    }
}

#[test]
fn reply_behind_many_requests_is_received() {
    let held = Held::session(1000, 8);
    held.device.reset().unwrap();
    drop(held.release);
}

#[test]
fn requests_before_a_reply_can_be_waited_for() {
    let held = Held::session(3, 8);
    held.device.reset().unwrap();
    let early = held.device.finish_requests(SOON);
    assert_eq!(early, Err(CallError::TimedOut));
    for _ in 0..3 {
        held.release.send(()).unwrap();
    }
    held.device.finish_requests(TIME_OUT).unwrap();
    assert_eq!(held.executed.try_iter().count(), 3);
    held.device.close();
    let late = held.device.finish_requests(TIME_OUT);
    assert_eq!(late, Err(CallError::Gone));
}

#[test]
fn requests_that_wait_at_the_end_of_the_session_are_not_executed() {
    let held = Held::session(100, 8);
    held.device.reset().unwrap();
    held.device.close();
    drop(held.release);
    drop(held.device);
    // One may have been in progress.
    assert!(held.executed.iter().count() <= 1);
}

#[test]
fn server_that_floods_its_client_with_requests_loses_the_session() {
    let held = Held::session(100, 1 << 20);
    assert_eq!(held.device.reset(), Err(CallError::Gone));
    drop(held.release);
    assert_eq!(held.ends.recv().unwrap(), RemoteEnd::TooManyRequests);
}

#[test]
fn requests_are_answered_while_a_call_waits() {
    let session = Session::new(TIME_OUT, |server, asked| {
        let is_meant = asked.command == command::REGION_READ;
        if is_meant {
            let read = wire::quads(&[0x1000, 5]);
            server.send(&message(7, command::DMA_READ, 0, &read), &[]);
            let answer = server.receive();
            assert_eq!((answer.id, answer.command), (7, command::DMA_READ));
            let data = answer.ok();
            assert_eq!(data[..16], read);
            server.reply(asked, &[&asked.payload[..], &data[16..]].concat());
        }
        is_meant
    });
    let mut data = [0; 5];
    session.device().region_read(0, 0, &mut data).unwrap();
    assert_eq!(data[..], bytes(0, 5));
    session.end();
}

#[test]
fn impossible_requests_are_refused() {
    let session = Session::new(TIME_OUT, |server, asked| {
        let is_meant = asked.command == command::RESET;
        if is_meant {
            let wrong = [
                (
                    command::DMA_READ,
                    wire::quads(&[0x1000, 1 << 40]),
                    Errno::TOOBIG,
                ),
                (command::DMA_READ, wire::quads(&[u64::MAX, 2]), Errno::INVAL),
                (command::DMA_READ, wire::quads(&[0x1000]), Errno::INVAL),
                (command::DMA_READ, wire::quads(&[0x10, 4]), Errno::NODEV),
                (command::DMA_WRITE, wire::quads(&[0x1000, 8]), Errno::INVAL),
                (
                    command::DMA_WRITE,
                    wire::quads(&[0x1000, 8, 8, 8]),
                    Errno::INVAL,
                ),
                (command::VERSION, wire::quads(&[0, 0]), Errno::NOTSUP),
                (99, vec![0; 16], Errno::NOTSUP),
            ];
            for (command, payload, expected) in wrong {
                let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
                server.send(&message(1, command, 0, &payload), &[event.as_fd()]);
                assert_eq!(server.receive().errno(), expected, "{command}: {payload:?}");
            }
            let huge = vec![0; 3 << 20];
            server.send(&message(1, command::DMA_WRITE, 0, &huge), &[]);
            assert_eq!(server.receive().errno(), Errno::TOOBIG);
            server.send(&message(2, command::DMA_READ, 2, &[]), &[]);
            assert_eq!(server.receive().errno(), Errno::INVAL);
            let written = wire::quads(&[0x1000, 8, 5]);
            server.send(&message(3, command::DMA_WRITE, NO_REPLY, &written), &[]);
            server.reply(asked, &[]);
        }
        is_meant
    });
    session.device().reset().unwrap();
    assert_eq!(session.written.recv().unwrap().0, Iova(0x1000));
    session.end();
}

#[test]
fn stream_of_nonsense_ends_the_session() {
    let session = Session::new(TIME_OUT, |server, asked| {
        let is_meant = asked.command == command::RESET;
        if is_meant {
            server.send(&[0; 16], &[]);
        }
        is_meant
    });
    let reset = session.device().reset();
    assert_eq!(reset, Err(CallError::Gone));
    assert!(matches!(session.ends.recv(), Ok(RemoteEnd::Framing(_))));
    session.end();
}

#[test]
fn write_gives_way_to_a_request_that_needs_the_client() {
    let (asked_for, writes) = channel();
    let (go_on, waits) = channel::<()>();
    let session = Session::new(TIME_OUT, move |_, asked| {
        let is_meant = asked.command == command::REGION_WRITE;
        if is_meant {
            asked_for.send(()).unwrap();
            waits.recv().unwrap();
        }
        false
    });
    let device = session.device();
    std::thread::scope(|scope| {
        let write = scope.spawn(|| device.region_write(0, 0, &[1; 4]));
        writes.recv().unwrap();
        // The server has not answered the write.
        let posted = device.post_writes(TIME_OUT).unwrap();
        write.join().unwrap().unwrap();
        device.region_write(0, 4, &[2; 4]).unwrap();
        drop(posted);
        go_on.send(()).unwrap();
        go_on.send(()).unwrap();
        // It comes after the replies to the writes.
        device.reset().unwrap();
    });
    session.end();
}

#[test]
fn read_does_not_give_way() {
    let (asked_for, reads) = channel();
    let (go_on, waits) = channel::<()>();
    let session = Session::new(TIME_OUT, move |_, asked| {
        if asked.command == command::REGION_READ {
            asked_for.send(()).unwrap();
            waits.recv().unwrap();
        }
        false
    });
    let device = session.device();
    std::thread::scope(|scope| {
        let read = scope.spawn(|| device.region_read(0, 0, &mut [1; 4]));
        reads.recv().unwrap();
        assert!(device.post_writes(SOON).is_none());
        go_on.send(()).unwrap();
        read.join().unwrap().unwrap();
        assert!(device.post_writes(TIME_OUT).is_some());
    });
    session.end();
}
