//! A client that sends arbitrary messages and bytes, with any descriptors, to a controller's
//! session, and continues to change what it has handed over. The server must end the session or go
//! on, and must not panic, hang or leak a descriptor.

use std::fs::File;
use std::io::{IoSlice, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use arbitrary::{Arbitrary, Unstructured};
use peerbar_host::socket_file::descriptors::{MAX_DESCRIPTORS, send, wait_until};
use peerbar_nvme::{Config, Controller};
use peerbar_vfio_user::{CONFIG_REGION, Options, Stop, serve};
use rustix::event::{EventfdFlags, PollFlags, epoll, eventfd};
use rustix::fs::{MemfdFlags, OFlags, SealFlags, inotify};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};

use super::ram_disk;

/// Time limit to close a session's descriptors after its end.
const TIME_OUT: Duration = Duration::from_secs(20);
const REGISTERS: u32 = 0;

/// A step of the client.
#[derive(Arbitrary, Debug)]
enum Step {
    /// Sends arbitrary bytes.
    Bytes(Vec<u8>, Vec<Kind>),
    /// Sends a message with a valid header.
    Message(u8, bool, Vec<u8>, Vec<Kind>),
    /// DMA_MAP.
    Map(u8, u32, Span, Vec<Kind>),
    /// DMA_UNMAP.
    Unmap(u8, Span, Vec<Kind>),
    /// DEVICE_GET_REGION_INFO.
    RegionInfo(u16, u8),
    /// DEVICE_SET_IRQS.
    Irqs(u8, u8, u8, u8, Vec<u8>, Vec<Kind>),
    /// REGION_READ.
    Read(u8, u16, u16),
    /// REGION_WRITE.
    Write(u8, u16, u64),
    /// Enables the controller, with its admin queues at 0x1000 and 0x2000.
    Enable,
    /// DEVICE_RESET.
    Reset,
    /// Changes the length of something that is handed over.
    Resize(u8, u16),
    /// Writes into something that is handed over, without ever blocking.
    Fill(u8, u64),
}

/// A span that is usually small and low.
#[derive(Arbitrary, Debug)]
enum Span {
    Pages(u8, u8),
    Any(u64, u64),
}

/// The kind of a descriptor's file.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Kind {
    SealedMemory,
    Memory,
    EmptyMemory,
    SparseMemory,
    HugeMemory,
    File,
    ReadOnlyFile,
    Event,
    FullEvent,
    PipeRead,
    PipeWrite,
    Socket,
    Epoll,
    Directory,
    Path,
    Null,
    Zero,
    Timer,
    Inotify,
    Process,
    Packets,
}

impl Kind {
    fn open(self) -> Result<OwnedFd, Errno> {
        let memory = |bytes, seals| {
            let fd = rustix::fs::memfd_create("fuzz", MemfdFlags::ALLOW_SEALING)?;
            rustix::fs::ftruncate(&fd, bytes)?;
            rustix::fs::fcntl_add_seals(&fd, seals)?;
            Ok(fd)
        };
        let open = |path, flags| rustix::fs::open(path, flags, 0o600.into());
        match self {
            Self::SealedMemory => memory(1 << 16, SealFlags::SHRINK),
            Self::Memory => memory(1 << 16, SealFlags::empty()),
            Self::EmptyMemory => memory(0, SealFlags::empty()),
            Self::SparseMemory => memory(1 << 46, SealFlags::empty()),
            Self::HugeMemory => {
                let fd = rustix::fs::memfd_create("fuzz", MemfdFlags::HUGETLB)?;
                rustix::fs::ftruncate(&fd, 2 << 20)?;
                Ok(fd)
            }
            Self::File => Ok(temporary_file()?.into()),
            Self::ReadOnlyFile => open("/proc/self/exe", OFlags::RDONLY),
            Self::Event => eventfd(0, EventfdFlags::empty()),
            Self::FullEvent => {
                let event = eventfd(0, EventfdFlags::empty())?;
                rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes())?;
                Ok(event)
            }
            Self::PipeRead => Ok(rustix::pipe::pipe()?.0),
            Self::PipeWrite => Ok(rustix::pipe::pipe()?.1),
            Self::Socket => Ok(UnixStream::pair().map_err(|_| Errno::MFILE)?.0.into()),
            Self::Epoll => epoll::create(epoll::CreateFlags::CLOEXEC),
            Self::Directory => open("/", OFlags::DIRECTORY),
            Self::Path => open("/", OFlags::PATH),
            Self::Null => open("/dev/null", OFlags::RDWR),
            Self::Zero => open("/dev/zero", OFlags::RDWR),
            Self::Timer => timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC),
            Self::Inotify => inotify::init(inotify::CreateFlags::CLOEXEC),
            Self::Process => pidfd_open(getpid(), PidfdFlags::empty()),
            Self::Packets => {
                let flags = SocketFlags::CLOEXEC;
                Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?.0)
            }
        }
    }
}

/// Returns a file of a file system, without a name.
fn temporary_file() -> Result<File, Errno> {
    let folder = std::env::temp_dir();
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let file = rustix::fs::open(folder, flags, 0o600.into())?;
    rustix::fs::ftruncate(&file, 1 << 16)?;
    Ok(file.into())
}

struct Client {
    stream: UnixStream,
    /// Everything that was handed over.
    handed: Vec<(Kind, OwnedFd)>,
}

impl Client {
    /// Executes a step. Returns `false` once the server has hung up.
    fn carry_out(&mut self, step: &Step) -> bool {
        match step {
            Step::Bytes(bytes, kinds) => self.send(bytes, kinds),
            Step::Message(command, no_reply, payload, kinds) => {
                let flags = if *no_reply { 1 << 4 } else { 0 };
                self.message(u16::from(*command), flags, payload, kinds)
            }
            Step::Map(flags, offset, span, kinds) => {
                let offset = u64::from(*offset) << 8;
                let (iova, size) = span.bytes();
                let ask = [
                    words(&[32, (flags & 7).into()]),
                    quads(&[offset, iova, size]),
                ];
                self.message(2, 0, &ask.concat(), kinds)
            }
            Step::Unmap(flags, span, kinds) => {
                let (iova, size) = span.bytes();
                let ask = [words(&[24, (flags & 3).into()]), quads(&[iova, size])];
                self.message(3, 0, &ask.concat(), kinds)
            }
            Step::RegionInfo(argsz, index) => {
                let ask = words(&[(*argsz).into(), 0, (*index).into(), 0, 0, 0, 0, 0]);
                self.message(5, 0, &ask, &[])
            }
            Step::Irqs(flags, index, start, count, data, kinds) => {
                let fields = [*flags, index % 6, *start, *count].map(u32::from);
                let ask = [&words(&[20]), &words(&fields), data.as_slice()].concat();
                self.message(8, 0, &ask, kinds)
            }
            Step::Read(region, offset, count) => self.access(
                9,
                (region % 10).into(),
                (*offset).into(),
                (*count).into(),
                &[],
            ),
            Step::Write(region, offset, value) => {
                let data = value.to_le_bytes();
                let data = if offset % 8 == 0 {
                    &data[..]
                } else {
                    &data[..4]
                };
                self.write((region % 10).into(), (*offset).into(), data)
            }
            Step::Enable => {
                self.write(CONFIG_REGION, 4, &[6, 0])
                    && self.write(REGISTERS, 0x24, &0x000f_000f_u32.to_le_bytes())
                    && self.write(REGISTERS, 0x28, &0x1000_u64.to_le_bytes())
                    && self.write(REGISTERS, 0x30, &0x2000_u64.to_le_bytes())
                    && self.write(REGISTERS, 0x14, &0x0046_0001_u32.to_le_bytes())
            }
            Step::Reset => self.message(13, 0, &[], &[]),
            Step::Resize(which, kilobytes) => {
                if let Some((_, fd)) = self.which(*which) {
                    // Fails for something that has no length, or is sealed.
                    let _ = rustix::fs::ftruncate(fd, u64::from(*kilobytes) << 10);
                }
                true
            }
            Step::Fill(which, value) => {
                // A write to a socket or a pipe may raise SIGPIPE.
                let fillable = self.which(*which).filter(|(kind, _)| {
                    !matches!(kind, Kind::Socket | Kind::Packets | Kind::PipeWrite)
                });
                if let Some((_, fd)) = fillable {
                    let set = |flags| rustix::fs::fcntl_setfl(fd, flags);
                    // As much as can be written without blocking.
                    let _ = set(OFlags::NONBLOCK)
                        .and_then(|()| rustix::io::write(fd, &value.to_ne_bytes()))
                        .and_then(|_| set(OFlags::empty()));
                }
                true
            }
        }
    }

    fn which(&self, which: u8) -> Option<&(Kind, OwnedFd)> {
        let index = usize::from(which).checked_rem(self.handed.len())?;
        self.handed.get(index)
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> bool {
        let count = u32::try_from(data.len()).unwrap_or(0);
        self.access(10, region, offset, count, data)
    }

    fn access(&mut self, command: u16, region: u32, offset: u64, count: u32, data: &[u8]) -> bool {
        let ask = [&quads(&[offset]), &words(&[region, count]), data].concat();
        self.message(command, 0, &ask, &[])
    }

    fn message(&mut self, command: u16, flags: u32, payload: &[u8], kinds: &[Kind]) -> bool {
        let size = u32::try_from(16 + payload.len()).unwrap_or(u32::MAX);
        let header = words(&[7 | u32::from(command) << 16, size, flags, 0]);
        self.send(&[&header, payload].concat(), kinds)
    }

    fn send(&mut self, bytes: &[u8], kinds: &[Kind]) -> bool {
        let kinds = kinds.iter().take(MAX_DESCRIPTORS);
        let opened = kinds.filter_map(|kind| Some((*kind, kind.open().ok()?)));
        let fds: Vec<(Kind, OwnedFd)> = opened.collect();
        let mut borrowed: Vec<_> = fds.iter().map(|(_, fd)| fd.as_fd()).collect();
        let mut left = bytes;
        while !left.is_empty() {
            match send(&self.stream, &[IoSlice::new(left)], &borrowed) {
                Ok(sent) => {
                    left = &left[sent..];
                    borrowed.clear();
                }
                Err(Errno::AGAIN) => {
                    let deadline = Instant::now() + Duration::from_secs(20);
                    let either = PollFlags::IN | PollFlags::OUT;
                    wait_until(&self.stream, either, Some(deadline)).expect("a server at work");
                }
                Err(_) => return false,
            }
            self.take_replies();
        }
        drop(borrowed);
        self.handed.extend(fds);
        true
    }

    /// Takes the server's output so far, so that it never waits for this client.
    fn take_replies(&self) {
        let mut replies = [0; 4096];
        while recv(&self.stream, &mut replies, RecvFlags::DONTWAIT).is_ok_and(|(some, _)| some > 0)
        {
        }
    }
}

impl Span {
    fn bytes(&self) -> (u64, u64) {
        match *self {
            Self::Pages(first, count) => (u64::from(first) << 12, u64::from(count) << 12),
            Self::Any(iova, size) => (iova, size),
        }
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn quads(quads: &[u64]) -> Vec<u8> {
    quads.iter().flat_map(|quad| quad.to_le_bytes()).collect()
}

/// A thread with a controller that serves one session after the other.
struct Sessions {
    streams: Sender<UnixStream>,
    /// Gets a message once the controller exists, and at each session's end.
    ended: Receiver<()>,
}

fn sessions() -> &'static Mutex<Sessions> {
    static SESSIONS: OnceLock<Mutex<Sessions>> = OnceLock::new();
    SESSIONS.get_or_init(|| {
        let (streams, next) = channel();
        let (end, ended) = channel();
        thread::spawn(move || {
            let config = Config {
                io_uring: true,
                ..ram_disk::config()
            };
            let mut controller = Controller::start(&config).expect("a controller");
            let options = Options::new(Stop::new().expect("an eventfd"));
            end.send(()).expect("it is waited for");
            for stream in next {
                // The session ends by itself, successfully or not.
                let _ = serve(stream, &mut controller.endpoint, &options);
                end.send(()).expect("it is waited for");
            }
        });
        ended.recv().expect("a controller");
        Mutex::new(Sessions { streams, ended })
    })
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc").count()
}

/// Executes the steps of `data`.
pub fn run(data: &[u8]) {
    let steps = Vec::<Step>::arbitrary_take_rest(Unstructured::new(data)).unwrap_or_default();
    let sessions = sessions().lock().expect("no earlier panic");
    let before = descriptors();
    let (stream, server) = UnixStream::pair().expect("sockets");
    sessions.streams.send(server).expect("no earlier panic");
    let mut client = Client {
        stream,
        handed: Vec::new(),
    };
    // VERSION 0.0, so that the server reads on.
    if client.message(1, 0, &[0; 4], &[]) {
        // Ends early if the server has hung up.
        let _ = steps.iter().all(|step| client.carry_out(step));
    }
    let _ = client.stream.shutdown(Shutdown::Write);
    // Fails if the server has hung up with messages unread.
    let _ = client.stream.read_to_end(&mut Vec::new());
    sessions.ended.recv().expect("a session that ends");
    drop(client);
    // A separate thread soon closes the files that may block.
    let end = Instant::now() + TIME_OUT;
    while descriptors() > before {
        assert!(Instant::now() < end, "a descriptor has leaked");
        thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::{Seed, names};

    const STEPS: u32 = 12;
    const KINDS: u32 = 21;

    /// Adds a list of one descriptor.
    fn descriptor(seed: Seed, kind: Kind) -> Seed {
        seed.step(kind as u32, KINDS).end()
    }

    /// Adds a span of pages.
    fn pages(seed: Seed, first: u8, count: u8) -> Seed {
        seed.variant(0, 2).bytes(&[first, count])
    }

    #[test]
    fn seed_of_a_session_reads_as_its_steps() {
        let seed = Seed::default().step(2, STEPS).bytes(&[3]).u32(0);
        let seed = descriptor(pages(seed, 0, 16), Kind::SealedMemory);
        let seed = seed.step(8, STEPS);
        let seed = seed.step(4, STEPS).u16(32).bytes(&[0]);
        // One MSI-X vector by an eventfd.
        let seed = seed.step(5, STEPS).bytes(&[0x24, 2, 0, 1]).list(&[]);
        let seed = descriptor(seed, Kind::Event);
        let seed = seed.step(6, STEPS).bytes(&[0]).u16(0x1c).u16(4);
        let seed = seed.step(7, STEPS).bytes(&[0]).u16(0x1000).u64(1);
        let seed = seed.step(10, STEPS).bytes(&[0]).u16(4);
        let seed = seed.step(11, STEPS).bytes(&[1]).u64(1);
        let seed = pages(seed.step(3, STEPS).bytes(&[0]), 0, 16).end();
        let seed = seed.step(9, STEPS);
        let seed = seed.step(1, STEPS).bytes(&[13, 1]).list(&[]).end();
        let seed = seed.step(0, STEPS).list(&[1, 0, 9, 0, 16, 0, 0, 0]);
        let seed = seed.end().end().in_corpus("vfio_user_stream", "session");
        let read: Vec<Step> = Vec::arbitrary_take_rest(Unstructured::new(&seed)).expect("steps");
        let expected = [
            "Map",
            "Enable",
            "RegionInfo",
            "Irqs",
            "Read",
            "Write",
            "Resize",
            "Fill",
            "Unmap",
            "Reset",
            "Message",
            "Bytes",
        ];
        assert_eq!(names(&read), expected);
        assert!(matches!(
            &read[0],
            Step::Map(3, 0, Span::Pages(0, 16), kinds) if matches!(kinds[..], [Kind::SealedMemory])
        ));
    }
}
