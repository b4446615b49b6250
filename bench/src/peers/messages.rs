//! A client that is asked for memory by messages, as QEMU is: it stands between our driver and a server, passes on what
//! either says to the other, and answers DMA_READ and DMA_WRITE from memory of its own, as fast as it can.

use std::io::IoSlice;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use peerbar_vfio_user::{Deframer, Header, Message, Payload, receive, send};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tempfile::TempDir;
use zerocopy::IntoBytes;

use crate::Error;
use crate::memory::SharedMemory;

/// Numbers of the commands that are looked at (vfio-user, Commands).
const DMA_MAP: u16 = 2;
const DMA_READ: u16 = 11;
const DMA_WRITE: u16 = 12;
/// Address and count, with which a DMA_READ or DMA_WRITE begins.
const ACCESS_BYTES: usize = 16;
/// Where in a DMA_MAP the address is: behind argsz, flags and the offset in the file.
const MAP_ADDRESS: usize = 16;
/// Flags of a reply, and of one that tells of a failure.
const REPLY: u32 = 1;
const FAILURE: u32 = REPLY | 1 << 5;
/// A payload longer than this is nothing that server or driver send.
const LIMIT: usize = (1 << 20) + 4096;
/// How long either side may leave its messages unread.
const PATIENCE: Duration = Duration::from_secs(20);

/// Memory that the server has to ask for, and where.
pub(crate) struct Asked {
    pub(crate) address: u64,
    pub(crate) memory: Arc<SharedMemory>,
}

/// The client in between, until the driver or the server hangs up.
pub(crate) struct Messages {
    folder: TempDir,
}

impl Messages {
    /// Stands before the server at `server`. Of what the driver maps where something is `asked`, the server gets to know no
    /// descriptor.
    pub(crate) fn before(server: &Path, asked: Vec<Asked>) -> Result<Self, Error> {
        let folder = TempDir::new().map_err(Error::system("create a folder for a socket"))?;
        let door = UnixListener::bind(folder.path().join("socket"))
            .map_err(Error::system("listen at a socket"))?;
        let server = UnixStream::connect(server).map_err(Error::system("connect to a server"))?;
        thread::spawn(move || {
            // If it fails, the driver cannot connect.
            if let Ok((driver, _)) = door.accept() {
                let between = Between {
                    driver,
                    server,
                    turn: Mutex::new(()),
                    asked,
                };
                between.run();
            }
        });
        Ok(Self { folder })
    }

    /// Where the driver connects instead.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }
}

struct Between {
    driver: UnixStream,
    server: UnixStream,
    /// Held while a message is sent to the server.
    turn: Mutex<()>,
    asked: Vec<Asked>,
}

impl Between {
    fn run(&self) {
        let pass = |from: &UnixStream, message: &dyn Fn(Message) -> Result<(), Errno>| {
            // Whatever goes wrong, both sides find that the other has hung up.
            let _ = messages(from, message);
            for stream in [&self.driver, &self.server] {
                let _ = stream.shutdown(Shutdown::Both);
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| pass(&self.driver, &|message| self.down(message)));
            pass(&self.server, &|message| self.up(message));
        });
    }

    /// Something from the driver.
    fn down(&self, message: Message) -> Result<(), Errno> {
        let data = bytes(&message)?;
        let asked = |address| self.asked.iter().any(|asked| asked.address == address);
        let hidden =
            message.header.command.get() == DMA_MAP && number(data, MAP_ADDRESS).is_some_and(asked);
        let descriptor = message.descriptors.kept.first().filter(|_| !hidden);
        self.tell_server(&message.header, data, &[], descriptor)
    }

    /// Something from the server.
    fn up(&self, message: Message) -> Result<(), Errno> {
        let data = bytes(&message)?;
        let header = message.header;
        match header.command.get() {
            DMA_READ | DMA_WRITE if !header.is_reply() => self.answer(header, data),
            _ => tell(
                &self.driver,
                &header,
                data,
                &[],
                message.descriptors.kept.first(),
            ),
        }
    }

    fn answer(&self, mut header: Header, data: &[u8]) -> Result<(), Errno> {
        let (access, data) = data.split_at_checked(ACCESS_BYTES).ok_or(Errno::PROTO)?;
        let writes = header.command.get() == DMA_WRITE;
        let came = if writes {
            self.write(access, data).map(|()| Vec::new())
        } else {
            self.read(access)
        };
        header.flags = if came.is_some() { REPLY } else { FAILURE }.into();
        header.error = if came.is_some() { 0 } else { 19 }.into();
        let came = came.unwrap_or_default();
        let access = if writes { &[] } else { access };
        let size = size_of::<Header>() + access.len() + came.len();
        header.size = u32::try_from(size).map_err(|_| Errno::MSGSIZE)?.into();
        self.tell_server(&header, access, &came, None)
    }

    fn write(&self, access: &[u8], data: &[u8]) -> Option<()> {
        let (memory, offset) = self.place(access)?;
        let place = memory.slice(offset, data.len()).ok()?;
        place.copy_from(data);
        Some(())
    }

    fn read(&self, access: &[u8]) -> Option<Vec<u8>> {
        let (memory, offset) = self.place(access)?;
        let count = usize::try_from(number(access, 8)?).ok()?;
        let place = memory.slice(offset, count).ok()?;
        let mut data = vec![0; count];
        place.copy_to(data.as_mut_slice());
        Some(data)
    }

    /// The memory at an address, and where in it that is.
    fn place(&self, access: &[u8]) -> Option<(&SharedMemory, usize)> {
        let address = number(access, 0)?;
        self.asked.iter().find_map(|asked| {
            let offset = usize::try_from(address.checked_sub(asked.address)?).ok()?;
            (offset < asked.memory.bytes()).then_some((&*asked.memory, offset))
        })
    }

    fn tell_server(
        &self,
        header: &Header,
        first: &[u8],
        second: &[u8],
        descriptor: Option<&OwnedFd>,
    ) -> Result<(), Errno> {
        let _turn = self.turn.lock();
        tell(&self.server, header, first, second, descriptor)
    }
}

fn tell(
    stream: &UnixStream,
    header: &Header,
    first: &[u8],
    second: &[u8],
    descriptor: Option<&OwnedFd>,
) -> Result<(), Errno> {
    let mut parts = [header.as_bytes(), first, second].map(IoSlice::new);
    let descriptor = descriptor.map(AsFd::as_fd);
    send(stream, &mut parts, descriptor, Instant::now() + PATIENCE)
}

/// Takes the messages of a stream, until it ends.
fn messages(stream: &UnixStream, take: &dyn Fn(Message) -> Result<(), Errno>) -> Result<(), Errno> {
    let mut deframer = Deframer::new(LIMIT);
    loop {
        while let Some(message) = deframer.next_message().map_err(|_| Errno::PROTO)? {
            take(message)?;
        }
        let received = match receive(stream, deframer.space()) {
            Err(Errno::AGAIN) => {
                poll(&mut [PollFd::new(stream, PollFlags::IN)], None)?;
                continue;
            }
            received => received?,
        };
        if received.bytes == 0 {
            return Ok(());
        }
        deframer.filled(received.bytes, received.descriptors);
    }
}

fn bytes(message: &Message) -> Result<&[u8], Errno> {
    match &message.payload {
        Payload::Whole(data) => Ok(data),
        Payload::TooLong => Err(Errno::MSGSIZE),
    }
}

fn number(data: &[u8], at: usize) -> Option<u64> {
    let (word, _) = data.get(at..)?.split_first_chunk()?;
    Some(u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use zerocopy::FromZeros;

    use super::*;
    use crate::memory::PAGE;

    const AT: u64 = 1 << 40;

    fn message(command: u16, words: &[u64], data: &[u8]) -> Vec<u8> {
        let mut header = Header::new_zeroed();
        header.id = 7.into();
        header.command = command.into();
        let size = size_of::<Header>() + 8 * words.len() + data.len();
        header.size = u32::try_from(size).unwrap().into();
        let words = words.iter().flat_map(|word| word.to_le_bytes());
        let words: Vec<u8> = words.collect();
        [header.as_bytes(), &words, data].concat()
    }

    /// What comes from a stream: one message, and whether there was a descriptor with it.
    fn next(stream: &UnixStream) -> (Vec<u8>, bool) {
        let came = std::cell::Cell::new(None);
        let _ = messages(stream, &|message| {
            let whole = [message.header.as_bytes(), bytes(&message)?].concat();
            came.set(Some((whole, !message.descriptors.kept.is_empty())));
            Err(Errno::CANCELED)
        });
        came.take().unwrap()
    }

    fn say(stream: &UnixStream, message: &[u8], descriptor: bool) {
        let file = std::fs::File::open("/dev/null").unwrap();
        let descriptor = descriptor.then_some(file.as_fd());
        let deadline = Instant::now() + PATIENCE;
        send(stream, &mut [IoSlice::new(message)], descriptor, deadline).unwrap();
    }

    #[test]
    fn dma_is_answered_and_all_else_is_passed_on() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("server");
        let door = UnixListener::bind(&path).unwrap();
        let memory = Arc::new(SharedMemory::create(PAGE).unwrap().0);
        let asked = Asked {
            address: AT,
            memory: memory.clone(),
        };
        let between = Messages::before(&path, vec![asked]).unwrap();
        let driver = UnixStream::connect(between.socket()).unwrap();
        let (mut server, _) = door.accept().unwrap();

        // argsz and flags, the offset, the address, the size.
        for (address, seen) in [(AT, false), (AT + 4096, true)] {
            let map = message(DMA_MAP, &[32, 0, address, 4096], &[]);
            say(&driver, &map, true);
            assert_eq!(next(&server), (map, seen));
        }
        let mut reply = message(9, &[], b"data");
        reply[8] = 1;
        say(&server, &reply, true);
        assert_eq!(next(&driver), (reply, true));

        say(&server, &message(DMA_WRITE, &[AT + 8, 4], b"abcd"), false);
        let (written, _) = next(&server);
        assert_eq!((written.len(), written[8]), (16, 1));
        assert_eq!(memory.load32(8).unwrap().to_le_bytes(), *b"abcd");
        say(&server, &message(DMA_READ, &[AT + 8, 4], &[]), false);
        let mut read = message(DMA_READ, &[AT + 8, 4], b"abcd");
        read[8] = 1;
        assert_eq!(next(&server), (read, false));
        say(&server, &message(DMA_READ, &[AT + 4094, 4], &[]), false);
        assert_eq!(next(&server).0[8..16], [0x21, 0, 0, 0, 19, 0, 0, 0]);

        drop(driver);
        assert_eq!(server.read(&mut [0]).unwrap(), 0, "it hangs up, too");
    }
}
