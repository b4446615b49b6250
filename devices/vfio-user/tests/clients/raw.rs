//! A client that encodes the protocol's bytes itself and shares no code with the server.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

pub(crate) const REPLY: u32 = 1;
pub(crate) const NO_REPLY: u32 = 0x10;
pub(crate) const ERROR: u32 = 0x20;

pub(crate) const EIO: u32 = 5;
pub(crate) const E2BIG: u32 = 7;
pub(crate) const EINVAL: u32 = 22;
pub(crate) const EMFILE: u32 = 24;
pub(crate) const EEXIST: u32 = 17;
pub(crate) const EMSGSIZE: u32 = 90;
pub(crate) const ENOTSUP: u32 = 95;

/// A message from the wire.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) id: u16,
    pub(crate) command: u16,
    pub(crate) flags: u32,
    pub(crate) error: u32,
    pub(crate) payload: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

impl Wire {
    /// Returns the payload of a success.
    #[track_caller]
    pub(crate) fn ok(self) -> Vec<u8> {
        assert_eq!((self.flags, self.error), (REPLY, 0));
        self.payload
    }

    /// Returns the errno of a failure, which carries nothing else.
    #[track_caller]
    pub(crate) fn errno(self) -> u32 {
        assert_eq!(self.flags, REPLY | ERROR);
        assert!(self.payload.is_empty() && self.descriptors.is_empty());
        self.error
    }
}

pub(crate) struct RawClient {
    pub(crate) stream: UnixStream,
    next_id: u16,
}

impl Drop for RawClient {
    /// Hangs up at once. A process that another test is about to start has copies of all descriptors for a moment.
    fn drop(&mut self) {
        // Fails if the server has hung up.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl RawClient {
    /// Longest wait of any test.
    const TIME_OUT: Duration = Duration::from_secs(20);

    pub(crate) fn new(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(Self::TIME_OUT)).unwrap();
        stream.set_write_timeout(Some(Self::TIME_OUT)).unwrap();
        Self {
            stream,
            next_id: 0x100,
        }
    }

    /// Agrees on a version, with QEMU's capabilities.
    pub(crate) fn agree(&mut self) {
        let json = r#"{"capabilities":{"max_msg_fds":16,"max_data_xfer_size":1048576}}"#;
        self.ask(1, &version(0, 0, json)).ok();
    }

    /// Sends a command and takes its reply.
    #[track_caller]
    pub(crate) fn ask(&mut self, command: u16, payload: &[u8]) -> Wire {
        self.ask_with(command, payload, &[])
    }

    /// Sends a command with descriptors and takes its reply.
    #[track_caller]
    pub(crate) fn ask_with(
        &mut self,
        command: u16,
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Wire {
        let id = self.take_id();
        self.send_with(&message(id, command, 0, payload), descriptors);
        let reply = self.receive();
        assert_eq!((reply.id, reply.command), (id, command));
        reply
    }

    /// Sends a command that wants no reply.
    pub(crate) fn post(&mut self, command: u16, payload: &[u8]) {
        let id = self.take_id();
        self.send(&message(id, command, NO_REPLY, payload));
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends bytes that fit into the socket buffer, and descriptors with the first of them.
    pub(crate) fn send_with(&mut self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(64))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        let parts = [IoSlice::new(bytes)];
        let sent = sendmsg(&self.stream, &parts, &mut control, SendFlags::empty()).unwrap();
        assert_eq!(sent, bytes.len());
    }

    #[track_caller]
    pub(crate) fn receive(&mut self) -> Wire {
        let mut header = [0; 16];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut header)];
        let flags = RecvFlags::WAITALL | RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.stream, &mut parts, &mut control, flags).unwrap();
        assert_eq!(received.bytes, 16, "the server has hung up");
        let descriptors = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(rights) => Some(rights),
                _ => None,
            })
            .flatten()
            .collect();
        let mut payload = vec![0; number(&header[4..8]) as usize - 16];
        self.stream.read_exact(&mut payload).unwrap();
        Wire {
            id: number(&header[0..2]) as u16,
            command: number(&header[2..4]) as u16,
            flags: number(&header[8..12]) as u32,
            error: number(&header[12..16]) as u32,
            payload,
            descriptors,
        }
    }

    /// Returns `true` if the server has hung up without sending anything first.
    pub(crate) fn is_hung_up_on(&mut self) -> bool {
        matches!(self.stream.read(&mut [0]), Ok(0))
    }

    /// Returns `true` if there is data to read.
    pub(crate) fn is_readable(&self) -> bool {
        let mut polled = [PollFd::new(&self.stream, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec::default())).unwrap() > 0
    }

    fn take_id(&mut self) -> u16 {
        self.next_id = self.next_id.wrapping_add(1);
        self.next_id
    }
}

/// A whole message.
pub(crate) fn message(id: u16, command: u16, flags: u32, payload: &[u8]) -> Vec<u8> {
    let size = 16 + payload.len() as u32;
    let mut bytes = [id.to_le_bytes(), command.to_le_bytes()].concat();
    bytes.extend(words(&[size, flags, 0]));
    bytes.extend(payload);
    bytes
}

pub(crate) fn version(major: u16, minor: u16, json: &str) -> Vec<u8> {
    [
        &major.to_le_bytes(),
        &minor.to_le_bytes(),
        json.as_bytes(),
        b"\0",
    ]
    .concat()
}

pub(crate) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub(crate) fn quads(quads: &[u64]) -> Vec<u8> {
    quads.iter().flat_map(|quad| quad.to_le_bytes()).collect()
}

/// The payload of REGION_READ, or the start of that of REGION_WRITE.
pub(crate) fn region_access(region: u32, offset: u64, count: u32) -> Vec<u8> {
    [quads(&[offset]), words(&[region, count])].concat()
}

/// The payload of DMA_MAP.
pub(crate) fn dma_map(flags: u32, offset: u64, iova: u64, size: u64) -> Vec<u8> {
    [words(&[32, flags]), quads(&[offset, iova, size])].concat()
}

/// The payload of DMA_UNMAP.
pub(crate) fn dma_unmap(flags: u32, iova: u64, size: u64) -> Vec<u8> {
    [words(&[24, flags]), quads(&[iova, size])].concat()
}

/// The payload of DEVICE_SET_IRQS.
pub(crate) fn set_irqs(flags: u32, index: u32, start: u32, count: u32) -> Vec<u8> {
    words(&[20, flags, index, start, count])
}

/// A little-endian number of up to 8 bytes.
pub(crate) fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}
