//! A device's registers and configuration space over its vfio-user socket, as QEMU and a guest would use them.
//!
//! Requests of the device for memory are refused: all memory that there is was lent.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, bail, ensure};
use peerbar_nvme_driver::Registers;
use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::memory::BusMemory;

/// The BARs with registers and with memory, and VFIO_PCI_CONFIG_REGION_INDEX.
const REGISTERS: u32 = 0;
const MEMORY: u32 = 2;
const CONFIG: u32 = 7;
/// PCI Local Bus 3.0, 6.2.2: memory space and bus master.
const COMMAND: (u64, [u8; 2]) = (4, [0b110, 0]);

/// Commands of vfio-user.
const VERSION: u16 = 1;
const DMA_MAP: u16 = 2;
const REGION_INFO: u16 = 5;
const REGION_READ: u16 = 9;
const REGION_WRITE: u16 = 10;
/// Flags of a message.
const REPLY: u32 = 1;
const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;
const HEADER: usize = 16;
/// No message is longer.
const LONGEST: usize = 2 << 20;
/// ENODEV, as QEMU answers for an address without memory.
const NO_MEMORY: u32 = 19;

/// The client of a device. Dropped, it disconnects without a word, as a QEMU that is killed.
#[derive(Clone)]
pub(crate) struct DeviceClient(Rc<RefCell<Connection>>);

struct Connection {
    stream: UnixStream,
    last_id: u16,
}

/// A message, and the descriptor that came with it.
struct Message {
    id: u16,
    flags: u32,
    error: u32,
    payload: Vec<u8>,
    descriptor: Option<OwnedFd>,
}

impl DeviceClient {
    /// Connects, and lends the device `ram`.
    pub(crate) fn connect(socket: &Path, ram: &BusMemory, bytes: u64) -> anyhow::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        let mut connection = Connection { stream, last_id: 0 };
        let json = b"{\"capabilities\":{\"max_msg_fds\":16}}\0";
        connection.ask(VERSION, &[&[0; 4], &json[..]].concat(), None)?;
        let map = [words(&[32, 0b11]), quads(&[0, ram.address, bytes])].concat();
        connection.ask(DMA_MAP, &map, Some(ram.file.as_fd()))?;
        let client = Self(Rc::new(RefCell::new(connection)));
        client.write(CONFIG, COMMAND.0, &COMMAND.1)?;
        Ok(client)
    }

    /// Has the memory BAR answer at `address` (PCI Local Bus 3.0, 6.2.5).
    pub(crate) fn place_memory(&self, address: u64) -> anyhow::Result<BusMemory> {
        let register = 0x10 + 4 * u64::from(MEMORY);
        self.write(CONFIG, COMMAND.0, &[0, 0])?;
        self.write(CONFIG, register, &address.to_le_bytes())?;
        self.write(CONFIG, COMMAND.0, &COMMAND.1)?;
        let request = [words(&[32, 0, MEMORY, 0]), quads(&[0, 0])].concat();
        let info = self.0.borrow_mut().ask(REGION_INFO, &request, None)?;
        let offset = info.payload.get(24..32).context("a short region info")?;
        let offset = u64::from_le_bytes(offset.try_into()?);
        let lent = info.descriptor.context("the memory is not lent")?;
        Ok(BusMemory::lent(File::from(lent), offset, address))
    }

    /// Refuses the requests for memory that have come.
    pub(crate) fn refuse_requests(&self) -> anyhow::Result<()> {
        let mut connection = self.0.borrow_mut();
        while connection.is_readable()? {
            let message = connection.receive()?;
            ensure!(connection.refuse(&message)?, "an answer without a question");
        }
        Ok(())
    }

    fn write(&self, region: u32, offset: u64, data: &[u8]) -> anyhow::Result<()> {
        let place = [quads(&[offset]), words(&[region, length(data)?])].concat();
        let message = [&place, data].concat();
        self.0.borrow_mut().ask(REGION_WRITE, &message, None)?;
        Ok(())
    }

    fn read(&self, region: u32, offset: u64, data: &mut [u8]) -> anyhow::Result<()> {
        let place = [quads(&[offset]), words(&[region, length(data)?])].concat();
        let answer = self.0.borrow_mut().ask(REGION_READ, &place, None)?;
        let read = answer.payload.get(16..16 + data.len());
        data.copy_from_slice(read.context("a short read")?);
        Ok(())
    }
}

impl Registers for DeviceClient {
    fn read_register(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.read(REGISTERS, offset, data).map_err(io::Error::other)
    }

    fn write_register(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write(REGISTERS, offset, data)
            .map_err(io::Error::other)
    }
}

impl Connection {
    /// Sends a request and waits for its answer.
    fn ask(
        &mut self,
        command: u16,
        payload: &[u8],
        descriptor: Option<BorrowedFd<'_>>,
    ) -> anyhow::Result<Message> {
        self.last_id = self.last_id.wrapping_add(1);
        self.send((self.last_id, command), (0, 0), payload, descriptor)?;
        loop {
            let message = self.receive()?;
            if self.refuse(&message)? {
                continue;
            }
            ensure!(message.id == self.last_id, "an answer to another request");
            match message.flags & ERROR {
                0 => return Ok(message),
                _ => bail!("command {command} fails with errno {}", message.error),
            }
        }
    }

    /// Answers a message that is a request; whether it is one.
    fn refuse(&mut self, message: &Message) -> anyhow::Result<bool> {
        let is_request = message.flags & 0xf != REPLY;
        if is_request && message.flags & NO_REPLY == 0 {
            let answer = (REPLY | ERROR, NO_MEMORY);
            self.send((message.id, 0), answer, &[], None)?;
        }
        Ok(is_request)
    }

    fn send(
        &self,
        (id, command): (u16, u16),
        (flags, error): (u32, u32),
        payload: &[u8],
        descriptor: Option<BorrowedFd<'_>>,
    ) -> anyhow::Result<()> {
        let size = u32::try_from(HEADER + payload.len())?;
        let mut bytes = [id.to_le_bytes(), command.to_le_bytes()].concat();
        bytes.extend(words(&[size, flags, error]));
        bytes.extend(payload);
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors: Vec<_> = descriptor.into_iter().collect();
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        let sent = sendmsg(
            &self.stream,
            &[IoSlice::new(&bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        )?;
        ensure!(sent == bytes.len(), "a message is cut");
        Ok(())
    }

    fn receive(&mut self) -> anyhow::Result<Message> {
        let mut header = [0; HEADER];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(16))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut header)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
        let received = recvmsg(&self.stream, &mut parts, &mut control, flags)?;
        ensure!(received.bytes == HEADER, "the server hangs up");
        let descriptors = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let descriptor = descriptors.flatten().next();
        let word = |at: usize| {
            let word = header.get(at..at + 4).and_then(|word| word.try_into().ok());
            word.map_or(0, u32::from_le_bytes)
        };
        let [low, high, ..] = header;
        let bytes = usize::try_from(word(4))?.checked_sub(HEADER);
        let bytes = bytes.filter(|bytes| *bytes <= LONGEST);
        let mut payload = vec![0; bytes.context("a message of a strange size")?];
        self.stream.read_exact(&mut payload)?;
        Ok(Message {
            id: u16::from_le_bytes([low, high]),
            flags: word(8),
            error: word(12),
            payload,
            descriptor,
        })
    }

    fn is_readable(&self) -> anyhow::Result<bool> {
        let mut polled = [PollFd::new(&self.stream, PollFlags::IN)];
        Ok(poll(&mut polled, Some(&Timespec::default()))? > 0)
    }
}

fn length(data: &[u8]) -> anyhow::Result<u32> {
    Ok(u32::try_from(data.len())?)
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn quads(quads: &[u64]) -> Vec<u8> {
    quads.iter().flat_map(|quad| quad.to_le_bytes()).collect()
}
