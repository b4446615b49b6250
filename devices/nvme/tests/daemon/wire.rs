//! A vfio-user client of hand-made bytes. It also answers the device's requests for memory.

use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use rustix::cmsg_space;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::TIMEOUT;
use crate::driver::Link;
use crate::upstream::{Answer, Upstream, UpstreamRequest};

const REPLY: u32 = 1;
const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;

const VERSION: u16 = 1;
const DMA_MAP: u16 = 2;
const DMA_UNMAP: u16 = 3;
const SET_IRQS: u16 = 8;
const REGION_READ: u16 = 9;
const REGION_WRITE: u16 = 10;
const DMA_READ: u16 = 11;
const DMA_WRITE: u16 = 12;
const RESET: u16 = 13;

/// The device's access to a mapping: read and write.
const ACCESS: u32 = 1 | 2;

/// A message from the wire.
#[derive(Debug)]
struct Message {
    id: u16,
    command: u16,
    flags: u32,
    error: u32,
    payload: Vec<u8>,
}

/// The side of the stream that both threads write to, a whole message at a time.
#[derive(Debug)]
struct Outgoing {
    stream: UnixStream,
    turn: Mutex<()>,
}

/// A client.
#[derive(Debug)]
pub(crate) struct Wire {
    outgoing: Arc<Outgoing>,
    replies: Receiver<Message>,
    reader: Option<JoinHandle<()>>,
    next_id: u16,
    pub(crate) upstream: Arc<Upstream>,
}

impl Wire {
    /// Connects and agrees on a version.
    #[track_caller]
    pub(crate) fn connect(socket: &Path) -> Self {
        let mut wire = Self::connect_silently(socket);
        let json = r#"{"capabilities":{"max_msg_fds":16,"max_data_xfer_size":1048576}}"#;
        wire.ask(VERSION, &[&[0; 4], json.as_bytes(), &[0]].concat(), &[])
            .unwrap();
        wire
    }

    /// Connects and sends no message.
    pub(crate) fn connect_silently(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        let incoming = stream.try_clone().unwrap();
        let outgoing = Arc::new(Outgoing {
            stream,
            turn: Mutex::new(()),
        });
        let upstream = Arc::new(Upstream::new());
        let (found, replies) = channel();
        let reader = Reader {
            incoming,
            outgoing: outgoing.clone(),
            replies: found,
            upstream: upstream.clone(),
        };
        Self {
            outgoing,
            replies,
            reader: Some(std::thread::spawn(move || reader.run())),
            next_id: 0,
            upstream,
        }
    }

    /// Sends DMA_MAP, with or without a descriptor of the memory. Returns the answer's errno if it
    /// is an error.
    #[track_caller]
    pub(crate) fn map(
        &mut self,
        (iova, size): (u64, u64),
        memory: Option<BorrowedFd<'_>>,
    ) -> Result<(), u32> {
        let fds: Vec<_> = memory.into_iter().collect();
        let payload = [words(&[32, ACCESS]), quads(&[0, iova, size])].concat();
        self.ask(DMA_MAP, &payload, &fds).map(drop)
    }

    /// DMA_UNMAP.
    #[track_caller]
    pub(crate) fn unmap(&mut self, span: (u64, u64)) {
        self.try_unmap(span).unwrap();
    }

    /// Sends DMA_UNMAP without requesting a reply.
    pub(crate) fn post_unmap(&mut self, (iova, size): (u64, u64)) {
        let payload = [words(&[24, 0]), quads(&[iova, size])].concat();
        let sent = self
            .outgoing
            .send(0, DMA_UNMAP, (NO_REPLY, 0), &payload, &[]);
        sent.unwrap();
    }

    /// Sends DMA_UNMAP. Returns the answer's errno if it is an error.
    #[track_caller]
    pub(crate) fn try_unmap(&mut self, (iova, size): (u64, u64)) -> Result<(), u32> {
        let payload = [words(&[24, 0]), quads(&[iova, size])].concat();
        self.ask(DMA_UNMAP, &payload, &[]).map(drop)
    }

    /// DEVICE_SET_IRQS: sets `event` as the signal of the first vector of an interrupt index.
    #[track_caller]
    pub(crate) fn signal_by(&mut self, index: u32, event: BorrowedFd<'_>) {
        /// VFIO_IRQ_SET_DATA_EVENTFD and VFIO_IRQ_SET_ACTION_TRIGGER.
        const EVENTFD_TRIGGER: u32 = 1 << 2 | 1 << 5;
        let payload = words(&[20, EVENTFD_TRIGGER, index, 0, 1]);
        self.ask(SET_IRQS, &payload, &[event]).unwrap();
    }

    /// DEVICE_SET_IRQS: sets `event` to unmask INTx.
    #[track_caller]
    pub(crate) fn unmask_by(&mut self, event: BorrowedFd<'_>) {
        /// VFIO_IRQ_SET_DATA_EVENTFD and VFIO_IRQ_SET_ACTION_UNMASK.
        const EVENTFD_UNMASK: u32 = 1 << 2 | 1 << 4;
        let payload = words(&[20, EVENTFD_UNMASK, 0, 0, 1]);
        self.ask(SET_IRQS, &payload, &[event]).unwrap();
    }

    /// DEVICE_RESET.
    #[track_caller]
    pub(crate) fn reset(&mut self) {
        self.ask(RESET, &[], &[]).unwrap();
    }

    /// Answers every request that waits for it, the last one first. Reads return only `byte`.
    pub(crate) fn answer_late(&self, byte: u8) {
        for request in self.upstream.take_late().into_iter().rev() {
            let data = vec![byte; request.len];
            self.outgoing.answer(&request, &data).unwrap();
        }
    }

    /// Hangs up.
    pub(crate) fn hang_up(&self) {
        self.outgoing.stream.shutdown(Shutdown::Both).unwrap();
    }

    /// Waits until the device hangs up. Returns `true` if it has.
    pub(crate) fn is_hung_up_on(&self) -> bool {
        matches!(
            self.replies.recv_timeout(TIMEOUT),
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected)
        )
    }

    #[track_caller]
    fn ask(
        &mut self,
        command: u16,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Message, u32> {
        self.next_id = self.next_id.wrapping_add(1);
        let id = self.next_id;
        let sent = self.outgoing.send(id, command, (0, 0), payload, fds);
        let reply = sent
            .ok()
            .and_then(|()| self.replies.recv_timeout(TIMEOUT).ok());
        let reply = reply.unwrap_or_else(|| panic!("no answer to command {command}"));
        assert_eq!((reply.id, reply.command), (id, command));
        if reply.flags == REPLY {
            Ok(reply)
        } else {
            Err(reply.error)
        }
    }
}

impl Link for Wire {
    fn read(&mut self, region: u32, offset: u64, data: &mut [u8]) {
        let payload = [quads(&[offset]), words(&[region, data.len() as u32])].concat();
        let reply = self.ask(REGION_READ, &payload, &[]).unwrap();
        data.copy_from_slice(&reply.payload[16..]);
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        let access = [quads(&[offset]), words(&[region, data.len() as u32])].concat();
        self.ask(REGION_WRITE, &[&access, data].concat(), &[])
            .unwrap();
    }
}

impl Drop for Wire {
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
    }
}

impl Outgoing {
    /// Answers a request as QEMU does: a read with its data, a write with a header alone.
    fn answer(&self, request: &UpstreamRequest, data: &[u8]) -> io::Result<()> {
        let (command, payload) = match request.data {
            Some(_) => (DMA_WRITE, Vec::new()),
            None => {
                let range = quads(&[request.address, request.len as u64]);
                (DMA_READ, [&range, data].concat())
            }
        };
        self.send(request.id, command, (REPLY, 0), &payload, &[])
    }

    fn send(
        &self,
        id: u16,
        command: u16,
        (flags, error): (u32, u32),
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let size = 16 + payload.len() as u32;
        let mut bytes = [id.to_le_bytes(), command.to_le_bytes()].concat();
        bytes.extend(words(&[size, flags, error]));
        bytes.extend(payload);
        let _turn = self.turn.lock();
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(64))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        let sent = sendmsg(
            self.stream.as_fd(),
            &[IoSlice::new(&bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        )?;
        io::Write::write_all(&mut &self.stream, &bytes[sent..])
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
    fn run(mut self) {
        while let Some(message) = self.receive() {
            let outcome = match message.command {
                DMA_READ | DMA_WRITE if message.flags & 0xf == 0 => self.serve(&message),
                _ => self.replies.send(message).map_err(io::Error::other),
            };
            if outcome.is_err() {
                break;
            }
        }
    }

    /// Receives the next message. Drops descriptors that come with it.
    fn receive(&mut self) -> Option<Message> {
        let mut header = [0; 16];
        self.incoming.read_exact(&mut header).ok()?;
        let mut payload = vec![0; number(&header[4..8]) as usize - 16];
        self.incoming.read_exact(&mut payload).ok()?;
        Some(Message {
            id: number(&header[0..2]) as u16,
            command: number(&header[2..4]) as u16,
            flags: number(&header[8..12]) as u32,
            error: number(&header[12..16]) as u32,
            payload,
        })
    }

    fn serve(&self, message: &Message) -> io::Result<()> {
        let count = number(&message.payload[8..16]);
        let request = UpstreamRequest {
            id: message.id,
            address: number(&message.payload[0..8]),
            len: count as usize,
            data: (message.command == DMA_WRITE).then(|| message.payload[16..].to_vec()),
        };
        assert!(
            request.data.iter().all(|data| data.len() == request.len),
            "{request:?}"
        );
        match self.upstream.judge(&request) {
            Answer::Data(data) => self.outgoing.answer(&request, &data),
            Answer::AllAs(byte) => self.outgoing.answer(&request, &vec![byte; request.len]),
            Answer::Refused(errno) => {
                let flags = (REPLY | ERROR, errno);
                self.outgoing
                    .send(message.id, message.command, flags, &[], &[])
            }
            Answer::Nonsense => {
                let payload = quads(&[request.address, count + 1]);
                self.outgoing
                    .send(message.id, message.command, (REPLY, 0), &payload, &[])
            }
            Answer::Late => Ok(()),
        }
    }
}

/// Numbers of 4 bytes, little-endian.
fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Numbers of 8 bytes, little-endian.
fn quads(quads: &[u64]) -> Vec<u8> {
    quads.iter().flat_map(|quad| quad.to_le_bytes()).collect()
}

/// A little-endian number of up to 8 bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}
