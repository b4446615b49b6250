//! Messages of vfio-user as bytes, by the numbers of its specification: no code is shared with the
//! servers under test.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Flags of a message.
pub const REPLY: u32 = 1;
/// The sender of a command wants no reply.
pub const NO_REPLY: u32 = 1 << 4;
/// A reply with an errno in place of its data.
pub const ERROR: u32 = 1 << 5;
/// The bits of the flags that distinguish commands and replies.
const KIND: u32 = 0xf;

/// The region of configuration space (VFIO_PCI_CONFIG_REGION_INDEX).
pub const CONFIG: u32 = 7;
/// The interrupt index of INTx (VFIO_PCI_INTX_IRQ_INDEX).
pub const INTX: u32 = 0;
/// The interrupt index of MSI-X (VFIO_PCI_MSIX_IRQ_INDEX).
pub const MSI_X: u32 = 2;

/// The capabilities that QEMU sends with its version.
pub const CAPABILITIES: &str =
    r#"{"capabilities":{"max_msg_fds":16,"max_data_xfer_size":1048576}}"#;

const HEADER: usize = 16;
/// No message of a server is longer.
const LONGEST: usize = 2 << 20;

/// Numbers of the commands.
pub mod command {
    /// VERSION.
    pub const VERSION: u16 = 1;
    /// DMA_MAP.
    pub const DMA_MAP: u16 = 2;
    /// DMA_UNMAP.
    pub const DMA_UNMAP: u16 = 3;
    /// DEVICE_GET_INFO.
    pub const INFO: u16 = 4;
    /// DEVICE_GET_REGION_INFO.
    pub const REGION_INFO: u16 = 5;
    /// DEVICE_GET_REGION_IO_FDS.
    pub const REGION_IO_FDS: u16 = 6;
    /// DEVICE_GET_IRQ_INFO.
    pub const IRQ_INFO: u16 = 7;
    /// DEVICE_SET_IRQS.
    pub const SET_IRQS: u16 = 8;
    /// REGION_READ.
    pub const REGION_READ: u16 = 9;
    /// REGION_WRITE.
    pub const REGION_WRITE: u16 = 10;
    /// DMA_READ, a command of the server.
    pub const DMA_READ: u16 = 11;
    /// DMA_WRITE, a command of the server.
    pub const DMA_WRITE: u16 = 12;
    /// DEVICE_RESET.
    pub const RESET: u16 = 13;
    /// REGION_WRITE_MULTI.
    pub const REGION_WRITE_MULTI: u16 = 15;
    /// DEVICE_FEATURE.
    pub const FEATURE: u16 = 16;
    /// MIG_DATA_READ.
    pub const MIG_DATA_READ: u16 = 17;
}

/// A message from the wire.
#[derive(Debug)]
pub struct Message {
    /// Its identifier, which a reply repeats.
    pub id: u16,
    /// Its command.
    pub command: u16,
    /// Its flags.
    pub flags: u32,
    /// The errno of a reply with [`ERROR`].
    pub error: u32,
    /// The bytes after the header.
    pub payload: Vec<u8>,
    /// The descriptors that came with the header.
    pub descriptors: Vec<OwnedFd>,
}

impl Message {
    /// Returns `true` if it is a command, not a reply.
    pub fn is_command(&self) -> bool {
        self.flags & KIND == 0
    }
}

/// Returns the bytes of a message without an errno.
pub fn message(id: u16, command: u16, flags: u32, payload: &[u8]) -> Vec<u8> {
    message_with(id, command, (flags, 0), payload)
}

/// Returns the bytes of a message with these flags and this errno.
pub fn message_with(id: u16, command: u16, (flags, errno): (u32, u32), payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(HEADER.saturating_add(payload.len())).unwrap_or(u32::MAX);
    let mut bytes = [id.to_le_bytes(), command.to_le_bytes()].concat();
    bytes.extend(words(&[size, flags, errno]));
    bytes.extend(payload);
    bytes
}

/// Sends bytes, and descriptors with the first of them.
pub fn send(stream: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let sent = send_part(stream, bytes, descriptors)?;
    let mut stream = stream;
    stream.write_all(bytes.get(sent..).unwrap_or_default())
}

/// Sends bytes and descriptors by one sendmsg(2). Returns the number of bytes.
pub fn send_part(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(64))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::TOOBIG);
    }
    let parts = [IoSlice::new(bytes)];
    sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL)
}

/// Receives bytes and descriptors by one recvmsg(2). Returns the number of bytes.
pub fn receive_part(
    socket: impl AsFd,
    bytes: &mut [u8],
    flags: RecvFlags,
) -> Result<(usize, Vec<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(64))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(bytes)];
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(socket, &mut parts, &mut control, flags)?;
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    Ok((received.bytes, descriptors.flatten().collect()))
}

/// Receives the next message. Returns `None` if the server has hung up instead.
///
/// # Errors
/// The message is incomplete or too long, or the stream's read time-out has passed for its header
/// or its payload ([`io::ErrorKind::WouldBlock`]).
pub fn receive(stream: &UnixStream) -> io::Result<Option<Message>> {
    let Some((mut message, size)) = receive_header(stream, RecvFlags::WAITALL)? else {
        return Ok(None);
    };
    message.payload.resize(size, 0);
    fill(stream, &mut message.payload)?;
    Ok(Some(message))
}

/// Receives all of `data` within the stream's read time-out, however slowly it comes.
fn fill(mut stream: &UnixStream, data: &mut [u8]) -> io::Result<()> {
    let time_out = stream.read_timeout()?;
    let deadline = time_out.map(|time_out| Instant::now() + time_out);
    let mut rest = data;
    while !rest.is_empty() {
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        match stream.read(rest)? {
            0 => return Err(incomplete("a message ends inside its payload")),
            count => rest = rest.get_mut(count..).unwrap_or_default(),
        }
    }
    Ok(())
}

fn incomplete(reason: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, reason.into())
}

/// Receives the next message without its payload. Returns it and the size of the payload, or `None`
/// if the server has hung up instead.
pub fn receive_header(
    stream: &UnixStream,
    flags: RecvFlags,
) -> io::Result<Option<(Message, usize)>> {
    let mut header = [0; HEADER];
    let (received, descriptors) = receive_part(stream, &mut header, flags)?;
    match received {
        0 => return Ok(None),
        HEADER => {}
        _ => return Err(incomplete(format!("a header ends after {received} bytes"))),
    }
    let word = |at| u32_at(&header, at).unwrap_or_default();
    let size = usize::try_from(word(4)).unwrap_or(usize::MAX);
    let length = size.checked_sub(HEADER).filter(|_| size <= LONGEST);
    let length = length.ok_or_else(|| {
        let reason = format!("a message announces {size} bytes");
        io::Error::new(io::ErrorKind::InvalidData, reason)
    })?;
    let message = Message {
        id: u16_at(&header, 0).unwrap_or_default(),
        command: u16_at(&header, 2).unwrap_or_default(),
        flags: word(8),
        error: word(12),
        payload: Vec::new(),
        descriptors,
    };
    Ok(Some((message, length)))
}

/// Returns the payload of VERSION.
pub fn version(major: u16, minor: u16, json: &str) -> Vec<u8> {
    let numbers = [major.to_le_bytes(), minor.to_le_bytes()].concat();
    [&numbers, json.as_bytes(), b"\0"].concat()
}

/// Returns the payload of REGION_READ, or the start of that of REGION_WRITE.
pub fn region_access(region: u32, offset: u64, count: u32) -> Vec<u8> {
    [quads(&[offset]), words(&[region, count])].concat()
}

/// Returns the payload of DMA_MAP.
pub fn dma_map(flags: u32, offset: u64, iova: u64, size: u64) -> Vec<u8> {
    [words(&[32, flags]), quads(&[offset, iova, size])].concat()
}

/// Returns the payload of DMA_UNMAP.
pub fn dma_unmap(flags: u32, iova: u64, size: u64) -> Vec<u8> {
    [words(&[24, flags]), quads(&[iova, size])].concat()
}

/// Returns the payload of DEVICE_SET_IRQS.
pub fn set_irqs(flags: u32, index: u32, start: u32, count: u32) -> Vec<u8> {
    words(&[20, flags, index, start, count])
}

/// Returns numbers of 4 bytes, little-endian.
pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Returns numbers of 8 bytes, little-endian.
pub fn quads(quads: &[u64]) -> Vec<u8> {
    quads.iter().flat_map(|quad| quad.to_le_bytes()).collect()
}

/// Returns the little-endian number of 2 bytes at this offset, if there are so many.
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_le_bytes(*bytes))
}

/// Returns the little-endian number of 4 bytes at this offset, if there are so many.
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

/// Returns the little-endian number of 8 bytes at this offset, if there are so many.
pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

/// Returns a little-endian number of up to 8 bytes.
pub fn number(bytes: &[u8]) -> u64 {
    let bytes = bytes.iter().rev();
    bytes.fold(0, |number, byte| number << 8 | u64::from(*byte))
}
