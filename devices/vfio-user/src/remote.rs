//! A client of a server that another project may have written.
//!
//! [`RemoteDevice`] is the session with one server. Any number of threads call it; each call waits
//! for its reply, for a limited time. One thread receives, and another one answers the server's
//! requests for DMA ([`RemoteHandler`]), also while calls wait. Nothing that the server sends or
//! omits is trusted: replies are checked against their commands, descriptors that belong to no
//! message are closed, and a server that does not answer in time loses the session.

mod connection;
mod dma;
mod error;
mod info;
mod receiver;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use peerbar_pci::{Iova, Range};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use crate::device::{DeviceInfo, Irq, IrqAction};
use crate::version::{self, Capabilities, MAX_TRANSFER};
use crate::wire::{self, command};

use connection::{Answered, Connection, PostedReply, Request};
use dma::Requests;
use info::Description;

pub use connection::{PostedWrites, Turn};
pub use error::{CallError, ConnectError, RemoteEnd, SessionStartError};
pub use info::{RemoteMapping, RemoteRegion};

/// The longest wait for a connection and for a reply, unless the caller says otherwise.
pub const TIME_OUT: Duration = Duration::from_secs(10);

/// Receives the server's requests.
pub trait RemoteHandler: Send + Sync {
    /// vfio-user, DMA_READ. Called in the order of the requests, from one thread.
    fn dma_read(&self, address: Iova, data: &mut [u8]) -> Result<(), Errno>;
    /// vfio-user, DMA_WRITE. Called like [`RemoteHandler::dma_read`].
    fn dma_write(&self, address: Iova, data: &[u8]) -> Result<(), Errno>;
    /// The session has ended, and not by [`RemoteDevice::close`] or its drop.
    fn ended(&self, reason: RemoteEnd);
}

/// Memory that the server may use (vfio-user, DMA_MAP).
#[derive(Clone, Copy, Debug)]
pub struct Lending<'a> {
    /// Its addresses.
    pub range: Range<Iova>,
    /// The server may read it.
    pub readable: bool,
    /// The server may write it.
    pub writable: bool,
    /// The memory and the offset of the range in it, unless the server is to ask for each access.
    pub memory: Option<(BorrowedFd<'a>, u64)>,
}

/// A session with a server, and its device. It ends when this is dropped.
pub struct RemoteDevice {
    connection: Arc<Connection>,
    /// The queue of the server's requests, while the session lasts.
    requests: Weak<Requests>,
    description: Description,
    /// The most data of one message, in bytes.
    most_data: usize,
    /// The most descriptors of one message.
    most_descriptors: usize,
    /// The replies to the mappings that were posted, by their first address.
    posted_maps: Mutex<BTreeMap<Iova, PostedReply>>,
    threads: Vec<JoinHandle<()>>,
}

impl RemoteDevice {
    /// Connects to the server at `path`, agrees on a version, and asks for the device's description.
    /// `time_out` is the longest wait for each reply.
    ///
    /// # Errors
    /// [`ConnectError`]
    pub fn connect(
        path: &Path,
        handler: Arc<dyn RemoteHandler>,
        time_out: Duration,
    ) -> Result<Self, ConnectError> {
        let stream = connected(path, time_out).map_err(|errno| match errno {
            Errno::CONNREFUSED if !is_socket(path) => ConnectError::NotASocket(path.to_owned()),
            Errno::NOENT | Errno::CONNREFUSED => ConnectError::NotThere(path.to_owned()),
            errno => ConnectError::Socket {
                path: path.to_owned(),
                source: errno.into(),
            },
        })?;
        Self::start(stream, handler, time_out).map_err(|source| ConnectError::Server {
            path: path.to_owned(),
            source,
        })
    }

    /// Begins a session at this end of a stream. Otherwise like [`RemoteDevice::connect`].
    ///
    /// # Errors
    /// [`SessionStartError`]
    pub fn start(
        stream: UnixStream,
        handler: Arc<dyn RemoteHandler>,
        time_out: Duration,
    ) -> Result<Self, SessionStartError> {
        let connection = Arc::new(Connection::new(stream, time_out));
        let (requests, waiting) = dma::queue();
        let requests = Arc::new(requests);
        let mut device = Self {
            connection: connection.clone(),
            requests: Arc::downgrade(&requests),
            description: Description::default(),
            most_data: 0,
            most_descriptors: 1,
            posted_maps: Mutex::default(),
            threads: Vec::new(),
        };
        let (answering, dma_handler) = (connection.clone(), handler.clone());
        device.spawn("remote-dma", move || {
            dma::serve(&answering, dma_handler.as_ref(), &waiting);
        })?;
        device.spawn("remote", move || {
            match receiver::run(&connection, &requests) {
                RemoteEnd::Closed => {}
                reason => handler.ended(reason),
            }
        })?;
        device.agree()?;
        device.description = Description::read(&device.connection)?;
        Ok(device)
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread = Builder::new().name(name.to_owned()).spawn(run)?;
        self.threads.push(thread);
        Ok(())
    }

    /// vfio-user, VERSION.
    fn agree(&mut self) -> Result<(), SessionStartError> {
        let proposal = version::proposal();
        let agreed = self.call(command::VERSION, [&proposal, &[]], &[]);
        let answer = agreed
            .and_then(|agreed| version::parse(&agreed.payload).map_err(|_| CallError::Malformed));
        let Capabilities {
            max_data_xfer_size,
            max_msg_fds,
            ..
        } = answer.map_err(SessionStartError::Version)?;
        let most = usize::try_from(max_data_xfer_size).unwrap_or(usize::MAX);
        self.most_data = most.min(MAX_TRANSFER as usize);
        self.most_descriptors = max_msg_fds.min(crate::MAX_DESCRIPTORS);
        Ok(())
    }

    /// Ends the session. All calls fail with [`CallError::Gone`], now and later.
    pub fn close(&self) {
        self.connection.end(RemoteEnd::Closed);
    }

    /// Returns the reason for which the session has ended, if it has.
    pub fn ended(&self) -> Option<RemoteEnd> {
        self.connection.ended()
    }

    /// vfio-user, DEVICE_GET_INFO.
    pub fn info(&self) -> DeviceInfo {
        self.description.info()
    }

    /// Returns the most data, in bytes, and the most descriptors of one message to the server.
    pub fn limits(&self) -> (usize, usize) {
        (self.most_data, self.most_descriptors)
    }

    /// vfio-user, DEVICE_GET_REGION_INFO. Returns `None` if there is no such region.
    pub fn region(&self, index: u32) -> Option<&RemoteRegion> {
        self.description.regions.get(usize::try_from(index).ok()?)
    }

    /// vfio-user, DEVICE_GET_IRQ_INFO. Returns `None` if there is no such interrupt.
    pub fn irq(&self, index: u32) -> Option<Irq> {
        self.description
            .irqs
            .get(usize::try_from(index).ok()?)
            .copied()
    }

    /// vfio-user, REGION_READ, as many messages as the server's limit demands. On failure the
    /// contents of `data` are undefined.
    ///
    /// # Errors
    /// [`CallError`]
    pub fn region_read(&self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), CallError> {
        self.read_by((region, offset), data, |request| {
            self.connection.call(request)
        })
    }

    /// Like [`RemoteDevice::region_read`], but the whole access waits at most for this time. A server
    /// that is late then does not lose the session. [`RemoteDevice::post_writes`] does not wait for
    /// this call.
    ///
    /// # Errors
    /// [`CallError`]
    pub fn region_read_within(
        &self,
        limit: Duration,
        region: u32,
        offset: u64,
        data: &mut [u8],
    ) -> Result<(), CallError> {
        self.read_by((region, offset), data, self.calls_within(limit))
    }

    /// Returns a function that sends a command and waits for its reply. All of its calls together
    /// wait at most for this time.
    fn calls_within(
        &self,
        limit: Duration,
    ) -> impl Fn(Request<'_>) -> Result<Answered, CallError> + '_ {
        let deadline = Instant::now() + limit;
        move |request| {
            let rest = deadline.saturating_duration_since(Instant::now());
            self.connection.call_within(request, rest)
        }
    }

    fn read_by(
        &self,
        (region, mut at): (u32, u64),
        data: &mut [u8],
        call: impl Fn(Request<'_>) -> Result<Answered, CallError>,
    ) -> Result<(), CallError> {
        for part in data.chunks_mut(self.most_data) {
            let asked = access(region, at, part.len())?;
            let answered = call(Request {
                command: command::REGION_READ,
                payload: [asked.as_bytes(), &[]],
                descriptors: &[],
            })?;
            let came = answered.payload.strip_prefix(asked.as_bytes());
            let came = came.filter(|came| came.len() == part.len());
            part.copy_from_slice(came.ok_or(CallError::Malformed)?);
            at = at.saturating_add(part.len() as u64);
        }
        Ok(())
    }

    /// vfio-user, REGION_WRITE, as many messages as the server's limit demands. While a
    /// [`PostedWrites`] exists, it does not wait for the replies.
    ///
    /// # Errors
    /// [`CallError`]
    pub fn region_write(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), CallError> {
        self.write_by((region, offset), data, |request| {
            self.connection.post(request).map(drop)
        })
    }

    /// Like [`RemoteDevice::region_write`], but always waits for the replies.
    ///
    /// # Errors
    /// [`CallError`]
    pub fn region_write_unposted(
        &self,
        region: u32,
        offset: u64,
        data: &[u8],
    ) -> Result<(), CallError> {
        self.write_by((region, offset), data, |request| {
            self.connection.call(request).map(drop)
        })
    }

    /// Like [`RemoteDevice::region_write`], with the limit of [`RemoteDevice::region_read_within`].
    ///
    /// # Errors
    /// [`CallError`]
    pub fn region_write_within(
        &self,
        limit: Duration,
        region: u32,
        offset: u64,
        data: &[u8],
    ) -> Result<(), CallError> {
        let call = self.calls_within(limit);
        self.write_by((region, offset), data, |request| call(request).map(drop))
    }

    fn write_by(
        &self,
        (region, mut at): (u32, u64),
        data: &[u8],
        call: impl Fn(Request<'_>) -> Result<(), CallError>,
    ) -> Result<(), CallError> {
        for part in data.chunks(self.most_data) {
            let asked = access(region, at, part.len())?;
            call(Request {
                command: command::REGION_WRITE,
                payload: [asked.as_bytes(), part],
                descriptors: &[],
            })?;
            at = at.saturating_add(part.len() as u64);
        }
        Ok(())
    }

    /// Lets writes to regions return without their replies from now on, then waits for at most
    /// `limit` until all calls without a limit that have begun before are done. Returns `None` if
    /// they are not.
    ///
    /// A client of ours (QEMU) may hold its own lock until its access is answered, and the server
    /// may ask for DMA before it answers that access. Such DMA can be passed to the client only
    /// after the access. Mappings are posted like writes, and so is the end of a mapping without
    /// memory.
    pub fn post_writes(&self, limit: Duration) -> Option<PostedWrites<'_>> {
        self.connection.post_writes(limit)
    }

    /// vfio-user, DEVICE_SET_IRQS. Event descriptors are sent in as many messages as the server's
    /// limit demands.
    ///
    /// # Errors
    /// [`CallError`]
    pub fn set_irqs(
        &self,
        index: u32,
        start: u32,
        count: u32,
        action: &IrqAction,
    ) -> Result<(), CallError> {
        use wire::set_irqs::{DATA_EVENTFD, DATA_NONE, MASK, TRIGGER, UNMASK};
        let flags = match action {
            IrqAction::Mask => DATA_NONE | MASK,
            IrqAction::Unmask => DATA_NONE | UNMASK,
            IrqAction::Trigger | IrqAction::Disable => DATA_NONE | TRIGGER,
            IrqAction::Events(_) => DATA_EVENTFD | TRIGGER,
        };
        let IrqAction::Events(events) = action else {
            let count = match action {
                IrqAction::Disable => 0,
                _ => count,
            };
            return self.send_irqs(flags, [index, start, count], &[]);
        };
        let events: Vec<BorrowedFd<'_>> = events.iter().flatten().map(AsFd::as_fd).collect();
        if events.is_empty() {
            return self.send_irqs(flags, [index, start, count], &[]);
        }
        let mut at = start;
        for part in events.chunks(self.most_descriptors) {
            let count = u32::try_from(part.len()).map_err(|_| CallError::Malformed)?;
            self.send_irqs(flags, [index, at, count], part)?;
            at = at.saturating_add(count);
        }
        Ok(())
    }

    fn send_irqs(
        &self,
        flags: u32,
        [index, start, count]: [u32; 3],
        events: &[BorrowedFd<'_>],
    ) -> Result<(), CallError> {
        let asked = wire::SetIrqs {
            argsz: size_in_bytes::<wire::SetIrqs>(),
            flags: U32::new(flags),
            index: U32::new(index),
            start: U32::new(start),
            count: U32::new(count),
        };
        self.call(command::DEVICE_SET_IRQS, [asked.as_bytes(), &[]], events)
            .map(drop)
    }

    /// Has [`RemoteDevice::post_writes`] wait until the returned value is dropped: the client waits
    /// for something other than a call.
    pub fn client_waits(&self) -> Turn<'_> {
        self.connection.begin()
    }

    /// vfio-user, DMA_MAP. While a [`PostedWrites`] exists, it does not wait for the reply. A mapping
    /// that the server then refuses is to be taken back like any other.
    ///
    /// # Errors
    /// [`CallError`]
    pub fn dma_map(&self, lent: &Lending<'_>) -> Result<(), CallError> {
        let allowed = |is_allowed, flag| if is_allowed { flag } else { 0 };
        let flags = allowed(lent.readable, wire::dma_map::READ)
            | allowed(lent.writable, wire::dma_map::WRITE);
        let asked = wire::DmaMap {
            argsz: size_in_bytes::<wire::DmaMap>(),
            flags: U32::new(flags),
            offset: U64::new(lent.memory.map_or(0, |(_, offset)| offset)),
            iova: U64::new(lent.range.first().0),
            size: U64::new(lent.range.size()),
        };
        let memory = lent.memory.map(|(fd, _)| fd);
        let posted = self.connection.post(Request {
            command: command::DMA_MAP,
            payload: [asked.as_bytes(), &[]],
            descriptors: memory.as_slice(),
        })?;
        let posted = posted.map(|reply| (lent.range.first(), reply));
        self.posted_maps.lock().extend(posted);
        Ok(())
    }

    /// vfio-user, DMA_UNMAP of exactly one mapping. A server that refuses it loses the session, since
    /// it may keep the memory, unless it has refused the mapping, which was posted.
    ///
    /// A mapping without memory, to which the server has no access by itself, is taken back without
    /// a wait for the reply while a [`PostedWrites`] exists. Otherwise a [`PostedWrites`] waits for
    /// this only if the caller holds a [`Turn`].
    ///
    /// # Errors
    /// [`CallError`]
    pub fn dma_unmap(&self, range: Range<Iova>, has_memory: bool) -> Result<(), CallError> {
        let asked = wire::DmaUnmap {
            argsz: size_in_bytes::<wire::DmaUnmap>(),
            flags: U32::new(0),
            iova: U64::new(range.first().0),
            size: U64::new(range.size()),
        };
        let request = Request {
            command: command::DMA_UNMAP,
            payload: [asked.as_bytes(), &[]],
            descriptors: &[],
        };
        let unmapped = match has_memory {
            true => self.connection.call_apart(request).map(drop),
            false => self.connection.post(request).map(drop),
        };
        let posted = self.posted_maps.lock().remove(&range.first());
        match unmapped {
            // The server answers in order.
            Err(CallError::Refused(_)) if posted.is_some_and(|map| map.is_refusal()) => Ok(()),
            unmapped => unmapped.inspect_err(|_| self.connection.end(RemoteEnd::KeepsMapping)),
        }
    }

    /// vfio-user, DEVICE_RESET, if the device supports it. The server's requests before its reply may
    /// still wait ([`RemoteDevice::finish_requests`]).
    ///
    /// # Errors
    /// [`CallError`]
    pub fn reset(&self) -> Result<(), CallError> {
        if !self.description.can_reset {
            return Ok(());
        }
        self.call(command::DEVICE_RESET, [&[], &[]], &[]).map(drop)
    }

    /// Waits at most for this time until the requests for DMA that have come from the server are
    /// answered.
    ///
    /// # Errors
    /// [`CallError::TimedOut`] or [`CallError::Gone`]
    pub fn finish_requests(&self, limit: Duration) -> Result<(), CallError> {
        let _turn = self.client_waits();
        let requests = self.requests.upgrade().ok_or(CallError::Gone)?;
        requests.finish(limit)
    }

    fn call(
        &self,
        command: u16,
        payload: [&[u8]; 2],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Answered, CallError> {
        self.connection.call(Request {
            command,
            payload,
            descriptors,
        })
    }
}

impl Drop for RemoteDevice {
    fn drop(&mut self) {
        self.close();
        for thread in self.threads.drain(..).rev() {
            // The last reference may be dropped while the handler runs.
            let is_own = thread.thread().id() == std::thread::current().id();
            if !is_own && thread.join().is_err() {
                log::error!("a thread of the session with a server has panicked");
            }
        }
    }
}

fn access(region: u32, offset: u64, len: usize) -> Result<wire::RegionAccess, CallError> {
    Ok(wire::RegionAccess {
        offset: U64::new(offset),
        region: U32::new(region),
        count: U32::new(u32::try_from(len).map_err(|_| CallError::Malformed)?),
    })
}

/// Returns the argsz of a command without data.
fn size_in_bytes<T>() -> U32 {
    U32::new(u32::try_from(size_of::<T>()).unwrap_or(u32::MAX))
}

fn is_socket(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

fn connected(path: &Path, time_out: Duration) -> Result<UnixStream, Errno> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    // It also limits the wait for a place among the connections that the server has not accepted.
    set_socket_timeout(&socket, Timeout::Send, Some(time_out))?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}
