//! A device's registers and configuration space over its vfio-user socket, used as QEMU and a guest
//! would.
//!
//! A device reaches lent memory by itself. Its [`Bus`] answers its other requests; without a bus
//! they fail.

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
use peerbar_vfio_user::CONFIG_REGION;
use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::memory::BusMemory;

/// The BARs with registers and with memory.
const REGISTERS: u32 = 0;
const MEMORY: u32 = 2;
/// PCI Local Bus 3.0, 6.2.2: memory space and bus master.
const COMMAND: (u64, [u8; 2]) = (4, [0b110, 0]);

/// Bytes of the address and the length of an access to memory.
const ACCESS: usize = 16;

/// Commands of vfio-user.
const VERSION: u16 = 1;
const DMA_MAP: u16 = 2;
const REGION_INFO: u16 = 5;
const REGION_READ: u16 = 9;
const REGION_WRITE: u16 = 10;
const DMA_READ: u16 = 11;
const DMA_WRITE: u16 = 12;
/// Flags of a message.
const REPLY: u32 = 1;
const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;
const HEADER: usize = 16;
/// No message is longer.
const LONGEST: usize = 2 << 20;
/// ENODEV, QEMU's answer for an address without memory.
const NO_MEMORY: u32 = 19;

/// The memory at the addresses that a device requests.
pub(crate) trait Bus {
    /// Reads at `address`. Returns `None` if no device answers there.
    fn read(&self, address: u64, data: &mut [u8]) -> anyhow::Result<Option<()>>;

    /// Writes at `address`. Returns `None` if no device answers there.
    fn write(&self, address: u64, data: &[u8]) -> anyhow::Result<Option<()>>;
}

/// The client of a device. When dropped, it disconnects without notice, like a QEMU that is killed.
#[derive(Clone)]
pub(crate) struct DeviceClient(Rc<RefCell<Connection>>);

struct Connection {
    stream: UnixStream,
    last_id: u16,
    /// Offsets of the written registers.
    written: Vec<u64>,
    bus: Option<Rc<dyn Bus>>,
}

/// A message, and the descriptor that came with it.
struct Message {
    id: u16,
    command: u16,
    flags: u32,
    error: u32,
    payload: Vec<u8>,
    descriptor: Option<OwnedFd>,
}

impl DeviceClient {
    /// Connects, and lends the device `ram`.
    pub(crate) fn connect(socket: &Path, ram: &BusMemory, bytes: u64) -> anyhow::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        let mut connection = Connection {
            stream,
            last_id: 0,
            written: Vec::new(),
            bus: None,
        };
        let json = b"{\"capabilities\":{\"max_msg_fds\":16}}\0";
        connection.ask(VERSION, &[&[0; 4], &json[..]].concat(), None)?;
        let map = [words(&[32, 0b11]), quads(&[0, ram.address, bytes])].concat();
        connection.ask(DMA_MAP, &map, Some(ram.file.as_fd()))?;
        let client = Self(Rc::new(RefCell::new(connection)));
        client.write(CONFIG_REGION, COMMAND.0, &COMMAND.1)?;
        Ok(client)
    }

    /// Lets `bus` answer the device's requests from now on.
    pub(crate) fn attach(&self, bus: Rc<dyn Bus>) {
        self.0.borrow_mut().bus = Some(bus);
    }

    /// Announces `bytes` bytes of another device at `address`. Like QEMU, it does not lend them.
    pub(crate) fn map_device(&self, address: u64, bytes: u64) -> anyhow::Result<()> {
        let map = [words(&[32, 0b11]), quads(&[0, address, bytes])].concat();
        self.0.borrow_mut().ask(DMA_MAP, &map, None)?;
        Ok(())
    }

    /// Returns the number of writes to registers from this offset on.
    pub(crate) fn register_writes(&self, from: u64) -> u64 {
        let written = &self.0.borrow().written;
        written.iter().filter(|offset| **offset >= from).count() as u64
    }

    /// Sets the address of the register BAR.
    pub(crate) fn set_register_bar(&self, address: u64) -> anyhow::Result<()> {
        self.set_bar(REGISTERS, address)
    }

    /// Sets the address of the memory BAR. Returns the memory, which the device lends.
    pub(crate) fn set_memory_bar(&self, address: u64) -> anyhow::Result<BusMemory> {
        self.set_bar(MEMORY, address)?;
        let request = [words(&[32, 0, MEMORY, 0]), quads(&[0, 0])].concat();
        let info = self.0.borrow_mut().ask(REGION_INFO, &request, None)?;
        let offset = info.payload.get(24..32).context("a short region info")?;
        let offset = u64::from_le_bytes(offset.try_into()?);
        let lent = info.descriptor.context("the memory is not lent")?;
        Ok(BusMemory::lent(File::from(lent), offset, address))
    }

    /// Answers the requests for memory that have come.
    pub(crate) fn answer_requests(&self) -> anyhow::Result<()> {
        let mut connection = self.0.borrow_mut();
        while connection.is_readable()? {
            let message = connection.receive()?;
            ensure!(connection.answer(&message)?, "an answer without a question");
        }
        Ok(())
    }

    /// Sets the address of a BAR (PCI Local Bus 3.0, 6.2.5).
    pub(crate) fn set_bar(&self, bar: u32, address: u64) -> anyhow::Result<()> {
        let register = 0x10 + 4 * u64::from(bar);
        self.write(CONFIG_REGION, COMMAND.0, &[0, 0])?;
        self.write(CONFIG_REGION, register, &address.to_le_bytes())?;
        self.write(CONFIG_REGION, COMMAND.0, &COMMAND.1)
    }

    fn write(&self, region: u32, offset: u64, data: &[u8]) -> anyhow::Result<()> {
        let header = [quads(&[offset]), words(&[region, length(data)?])].concat();
        let message = [&header, data].concat();
        self.0.borrow_mut().ask(REGION_WRITE, &message, None)?;
        Ok(())
    }

    fn read(&self, region: u32, offset: u64, data: &mut [u8]) -> anyhow::Result<()> {
        let header = [quads(&[offset]), words(&[region, length(data)?])].concat();
        let answer = self.0.borrow_mut().ask(REGION_READ, &header, None)?;
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
        self.0.borrow_mut().written.push(offset);
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
            if self.answer(&message)? {
                continue;
            }
            ensure!(message.id == self.last_id, "an answer to another request");
            match message.flags & ERROR {
                0 => return Ok(message),
                _ => bail!("command {command} fails with errno {}", message.error),
            }
        }
    }

    /// Answers a message that is a request. Returns `false` if it is not one.
    fn answer(&mut self, message: &Message) -> anyhow::Result<bool> {
        let is_request = message.flags & 0xf != REPLY;
        if !is_request {
            return Ok(false);
        }
        let data = self.carry_out(message)?;
        if message.flags & NO_REPLY == 0 {
            let status = match data {
                Some(_) => (REPLY, 0),
                None => (REPLY | ERROR, NO_MEMORY),
            };
            let payload = data.unwrap_or_default();
            self.send((message.id, message.command), status, &payload, None)?;
        }
        Ok(true)
    }

    /// Executes a request on the bus. Returns the payload of its answer, or `None` if it is
    /// refused.
    fn carry_out(&self, message: &Message) -> anyhow::Result<Option<Vec<u8>>> {
        let Some(bus) = &self.bus else {
            return Ok(None);
        };
        let payload = &message.payload;
        let (access, data) = payload
            .split_at_checked(ACCESS)
            .context("a short request")?;
        let (address, length) = access.split_at(8);
        let address = u64::from_le_bytes(address.try_into()?);
        let length = usize::try_from(u64::from_le_bytes(length.try_into()?))?;
        let mut answer = access.to_vec();
        let done = match message.command {
            DMA_READ => {
                ensure!(length <= LONGEST, "a read of {length} bytes");
                answer.resize(ACCESS + length, 0);
                bus.read(address, &mut answer[ACCESS..])?
            }
            DMA_WRITE => bus.write(address, data)?,
            command => bail!("a request {command}"),
        };
        Ok(done.map(|()| answer))
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
        let [low, high, c0, c1, ..] = header;
        let bytes = usize::try_from(word(4))?.checked_sub(HEADER);
        let bytes = bytes.filter(|bytes| *bytes <= LONGEST);
        let mut payload = vec![0; bytes.context("a message of a strange size")?];
        self.stream.read_exact(&mut payload)?;
        Ok(Message {
            id: u16::from_le_bytes([low, high]),
            command: u16::from_le_bytes([c0, c1]),
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
