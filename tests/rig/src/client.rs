//! A client that a driver uses: it waits for replies, and a thread answers the device's requests
//! for memory in the meantime.

use std::fs::File;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use peerbar_nvme_driver::Registers;
use rustix::io::Errno;

use crate::TIME_OUT;
use crate::guest_ram::GuestRam;
use crate::link::{Link, REGISTERS};
use crate::relayed::relayed;
use crate::upstream::{Answer, Upstream, UpstreamRequest};
use crate::wire::{
    self, CAPABILITIES, ERROR, Message, NO_REPLY, Outcome, REPLY, command, number, quads, words,
};

/// The device's access to a mapping: read and write.
const ACCESS: u32 = 1 | 2;
/// VFIO_IRQ_SET_DATA_EVENTFD.
const EVENTFD: u32 = 1 << 2;
/// VFIO_IRQ_SET_ACTION_UNMASK and VFIO_IRQ_SET_ACTION_TRIGGER.
const UNMASK: u32 = 1 << 4;
const TRIGGER: u32 = 1 << 5;

/// The side of the stream that both threads write to, a whole message at a time.
#[derive(Debug)]
struct Outgoing {
    stream: UnixStream,
    turn: Mutex<()>,
}

/// The replies to a client's commands.
#[derive(Debug)]
struct Replies {
    received: Receiver<Message>,
    last_id: u16,
}

#[derive(Debug)]
struct Session {
    outgoing: Arc<Outgoing>,
    replies: Mutex<Replies>,
    reader: Option<JoinHandle<()>>,
    /// Passes the end on to the device, which serves no other client before.
    relay: Option<JoinHandle<()>>,
    upstream: Arc<Upstream>,
}

/// A client of a device's vfio-user socket. When the last clone is dropped, it disconnects without
/// notice, like a QEMU that is killed.
#[derive(Clone, Debug)]
pub struct Client(Arc<Session>);

impl Client {
    /// Connects and agrees on a version.
    pub fn connect(socket: &Path) -> io::Result<Self> {
        let client = Self::connect_silently(socket)?;
        let version = wire::version(0, 0, CAPABILITIES);
        client.ask(command::VERSION, &version, &[])?;
        Ok(client)
    }

    /// Connects, lends the device `ram` and turns its memory space and bus mastering on.
    pub fn attach(socket: &Path, ram: &GuestRam) -> io::Result<Self> {
        let client = Self::connect(socket)?;
        client.lend(ram)?;
        client.turn_on()?;
        Ok(client)
    }

    /// Connects and sends no message.
    pub fn connect_silently(socket: &Path) -> io::Result<Self> {
        let (stream, relay) = relayed(UnixStream::connect(socket)?);
        let incoming = stream.try_clone()?;
        let outgoing = Arc::new(Outgoing {
            stream,
            turn: Mutex::new(()),
        });
        let upstream = Arc::new(Upstream::new());
        let (found, received) = channel();
        let reader = Reader {
            incoming,
            outgoing: outgoing.clone(),
            replies: found,
            upstream: upstream.clone(),
        };
        Ok(Self(Arc::new(Session {
            outgoing,
            replies: Mutex::new(Replies {
                received,
                last_id: 0,
            }),
            reader: Some(std::thread::spawn(move || reader.run())),
            relay,
            upstream,
        })))
    }

    /// Returns its answers to the device's requests.
    pub fn upstream(&self) -> &Arc<Upstream> {
        &self.0.upstream
    }

    /// Sends DMA_MAP, with or without a descriptor of the memory.
    pub fn map(
        &self,
        (iova, size): (u64, u64),
        memory: Option<BorrowedFd<'_>>,
    ) -> Result<(), Errno> {
        let fds: Vec<_> = memory.into_iter().collect();
        let payload = wire::dma_map(ACCESS, 0, iova, size);
        self.ask(command::DMA_MAP, &payload, &fds).map(drop)
    }

    /// Sends DMA_UNMAP.
    pub fn unmap(&self, (iova, size): (u64, u64)) -> Result<(), Errno> {
        let payload = wire::dma_unmap(0, iova, size);
        self.ask(command::DMA_UNMAP, &payload, &[]).map(drop)
    }

    /// Sends DMA_UNMAP without requesting a reply.
    pub fn post_unmap(&self, (iova, size): (u64, u64)) {
        let payload = wire::dma_unmap(0, iova, size);
        let sent = self
            .0
            .outgoing
            .send(0, command::DMA_UNMAP, (NO_REPLY, 0), &payload, &[]);
        sent.unwrap();
    }

    /// DEVICE_SET_IRQS: sets `event` as the signal of the first vector of an interrupt index.
    #[track_caller]
    pub fn signal_by(&self, index: u32, event: BorrowedFd<'_>) {
        let payload = wire::set_irqs(EVENTFD | TRIGGER, index, 0, 1);
        self.ask(command::SET_IRQS, &payload, &[event]).unwrap();
    }

    /// DEVICE_SET_IRQS: sets `event` to unmask INTx.
    #[track_caller]
    pub fn unmask_by(&self, event: BorrowedFd<'_>) {
        let payload = wire::set_irqs(EVENTFD | UNMASK, wire::INTX, 0, 1);
        self.ask(command::SET_IRQS, &payload, &[event]).unwrap();
    }

    /// DEVICE_RESET.
    #[track_caller]
    pub fn reset(&self) {
        self.ask(command::RESET, &[], &[]).unwrap();
    }

    /// Sets the address of a memory BAR. Returns the memory, which the device must lend.
    pub fn open_bar(&self, bar: u32, address: u64) -> io::Result<GuestRam> {
        self.set_bar(bar, address)?;
        let payload = [words(&[32, 0, bar, 0]), quads(&[0, 0])].concat();
        let mut info = self.ask(command::REGION_INFO, &payload, &[])?;
        let fd = info.descriptors.pop().ok_or(Errno::NOTSUP)?;
        let [size, offset] = [16, 24].map(|at| number(&info.payload[at..at + 8]));
        Ok(GuestRam::from_file(File::from(fd), offset, address, size))
    }

    /// Answers every request that waits for it, the last one first. Reads return only `byte`.
    pub fn answer_late(&self, byte: u8) {
        for request in self.0.upstream.take_late().into_iter().rev() {
            let data = vec![byte; request.len];
            self.0.outgoing.answer(&request, &data).unwrap();
        }
    }

    /// Hangs up.
    pub fn hang_up(&self) {
        self.0.outgoing.stream.shutdown(Shutdown::Both).unwrap();
    }

    /// Waits until the device hangs up. Returns `true` if it has.
    pub fn is_hung_up_on(&self) -> bool {
        matches!(
            self.0.replies.lock().received.recv_timeout(TIME_OUT),
            Err(RecvTimeoutError::Disconnected)
        )
    }

    /// Sends a command, and waits for its reply. Fails with the reply's errno, with EBADMSG if it is
    /// the reply to another command, with ECONNRESET if the device hangs up, and with ETIMEDOUT if
    /// nothing happens.
    pub fn ask(
        &self,
        command: u16,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Message, Errno> {
        let mut replies = self.0.replies.lock();
        replies.last_id = replies.last_id.wrapping_add(1);
        let id = replies.last_id;
        let sent = self.0.outgoing.send(id, command, (0, 0), payload, fds);
        sent.map_err(|_| Errno::CONNRESET)?;
        let reply = replies.received.recv_timeout(TIME_OUT);
        let reply = reply.map_err(|error| match error {
            RecvTimeoutError::Timeout => Errno::TIMEDOUT,
            RecvTimeoutError::Disconnected => Errno::CONNRESET,
        })?;
        match reply.flags {
            // A server that is killed may have its last reply repeated, as a refusal.
            _ if (reply.id, reply.command) != (id, command) => Err(Errno::BADMSG),
            REPLY => Ok(reply),
            _ => Err(reply.errno()),
        }
    }
}

impl Link for Client {
    fn try_read(&self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        let payload = wire::region_access(region, offset, data.len() as u32);
        let reply = self.ask(command::REGION_READ, &payload, &[])?;
        data.copy_from_slice(&reply.payload[16..]);
        Ok(())
    }

    fn try_write(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let access = wire::region_access(region, offset, data.len() as u32);
        let payload = [&access, data].concat();
        self.ask(command::REGION_WRITE, &payload, &[]).map(drop)
    }

    fn lend(&self, ram: &GuestRam) -> Result<(), Errno> {
        self.map((ram.address, ram.bytes), Some(ram.file.as_fd()))
    }
}

impl Registers for Client {
    fn read_register(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        Ok(self.try_read(REGISTERS, offset, data)?)
    }

    fn write_register(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        Ok(self.try_write(REGISTERS, offset, data)?)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Fails if the device has hung up already.
        let _ = self.outgoing.stream.shutdown(Shutdown::Both);
        if let Some(reader) = self.reader.take() {
            let outcome = reader.join();
            assert!(
                outcome.is_ok() || std::thread::panicking(),
                "the client's reader has panicked"
            );
        }
        if let Some(relay) = self.relay.take() {
            let outcome = relay.join();
            assert!(outcome.is_ok() || std::thread::panicking(), "the relay");
        }
    }
}

impl Outgoing {
    /// Answers a request as QEMU does: a read with its data, a write with a header alone.
    fn answer(&self, request: &UpstreamRequest, data: &[u8]) -> io::Result<()> {
        let (command, payload) = match request.data {
            Some(_) => (command::DMA_WRITE, Vec::new()),
            None => {
                let range = quads(&[request.address, request.len as u64]);
                (command::DMA_READ, [&range, data].concat())
            }
        };
        self.send(request.id, command, (REPLY, 0), &payload, &[])
    }

    fn send(
        &self,
        id: u16,
        command: u16,
        status: (u32, u32),
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let bytes = wire::message_with(id, command, status, payload);
        let _turn = self.turn.lock();
        wire::send(&self.stream, &bytes, fds)
    }
}

/// The thread that receives messages.
struct Reader {
    incoming: UnixStream,
    outgoing: Arc<Outgoing>,
    replies: Sender<Message>,
    upstream: Arc<Upstream>,
}

impl Reader {
    fn run(self) {
        while let Ok(Some(message)) = wire::receive(&self.incoming) {
            let outcome = match message.command {
                command::DMA_READ | command::DMA_WRITE if message.is_command() => {
                    self.serve(&message)
                }
                _ => self.replies.send(message).map_err(io::Error::other),
            };
            if outcome.is_err() {
                break;
            }
        }
    }

    fn serve(&self, message: &Message) -> io::Result<()> {
        let (range, data) = message.payload.split_at(16);
        let [address, count] = [0, 8].map(|at| number(&range[at..at + 8]));
        let request = UpstreamRequest {
            id: message.id,
            address,
            len: count as usize,
            data: (message.command == command::DMA_WRITE).then(|| data.to_vec()),
        };
        let mut data = request.data.iter();
        assert!(data.all(|data| data.len() == request.len), "{request:?}");
        let reply = |flags, errno, payload: &[u8]| {
            let status = (flags, errno);
            self.outgoing
                .send(message.id, message.command, status, payload, &[])
        };
        match self.upstream.judge(&request) {
            Answer::Data(data) => self.outgoing.answer(&request, &data),
            Answer::AllAs(byte) => self.outgoing.answer(&request, &vec![byte; request.len]),
            Answer::Refused(errno) => {
                let errno = errno.raw_os_error().unsigned_abs();
                reply(REPLY | ERROR, errno, &[])
            }
            Answer::Nonsense => reply(REPLY, 0, &quads(&[address, count + 1])),
            Answer::Late => Ok(()),
        }
    }
}
