//! Serves one QEMU after another.

use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use peerbar_dma::MemoryError;
use peerbar_host::eventfd::{Event, Signaller};
use peerbar_host::socket_file::SocketFile;
use peerbar_host::socket_file::exhaustion::{BACK_OFF, is_exhaustion};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use thiserror::Error;
use vhost::vhost_user::{BackendReqHandler, Error as ProtocolError};

use crate::device::VsockDevice;

/// The reason why no QEMU can be served any more.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The system refuses a resource that a device needs.
    #[error("cannot make a device")]
    Device(#[source] io::Error),
    /// The system refuses a connection.
    #[error("cannot accept QEMU's connection")]
    Accept(#[source] io::Error),
}

/// The reason why a QEMU is no longer served.
#[derive(Debug, Error)]
enum SessionError {
    #[error("{0}")]
    Request(ProtocolError),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error("cannot wait for its events")]
    Wait(#[source] Errno),
}

/// A socket that listens, and its file.
#[derive(Debug)]
pub struct Listening {
    /// The socket.
    pub socket: UnixListener,
    /// The file, which decides whose connections are served.
    pub file: Arc<SocketFile>,
}

/// Serves the QEMUs that connect to `qemu`, which must be blocking, one after the other, as guest
/// `cid`. Programs of the host connect to `programs`, which must be nonblocking; programs that come
/// before a guest wait for it.
///
/// # Errors
/// A failure that keeps all further QEMUs from being served. A QEMU that violates the protocol, or
/// takes memory away, is only disconnected.
pub fn serve(qemu: &Listening, programs: &Listening, cid: u64) -> Result<Infallible, ServeError> {
    let signaller = Arc::new(Signaller::new().map_err(ServeError::Device)?);
    loop {
        let stream = match qemu.socket.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
            Err(error) if is_exhaustion(&error) => {
                log::warn!("no QEMU can connect: {error}");
                thread::sleep(BACK_OFF);
                continue;
            }
            Err(error) => return Err(ServeError::Accept(error)),
        };
        if let Err(error) = qemu.file.check_peer(&stream) {
            log::warn!("{error}");
            continue;
        }
        let device = programs.socket.try_clone().and_then(|socket| {
            VsockDevice::new(cid, socket, programs.file.clone(), signaller.clone())
        });
        let device = match device {
            Ok(device) => device,
            Err(error) if is_exhaustion(&error) => {
                log::warn!("no device can be made for QEMU, which is left: {error}");
                thread::sleep(BACK_OFF);
                continue;
            }
            Err(error) => return Err(ServeError::Device(error)),
        };
        let Err(error) = serve_one(stream, device);
        match error {
            SessionError::Request(ProtocolError::Disconnected | ProtocolError::SocketBroken(_)) => {
            }
            error => log::warn!("QEMU is left: {error}"),
        }
    }
}

/// Serves the front-end at the other end of `stream` until it leaves.
fn serve_one(stream: UnixStream, device: VsockDevice) -> Result<Infallible, SessionError> {
    let device = Arc::new(Mutex::new(device));
    let mut requests = BackendReqHandler::from_stream(stream, device.clone());
    let socket = requests.try_clone_connection();
    let socket =
        socket.map_err(|error| SessionError::Request(ProtocolError::SocketBroken(error)))?;
    let mut is_busy = false;
    loop {
        if wait(&socket, &lock(&device), is_busy).map_err(SessionError::Wait)? {
            requests.handle_request().map_err(SessionError::Request)?;
        }
        is_busy = lock(&device).serve()?;
    }
}

/// Only one thread uses the device: the crate that receives the requests needs the lock.
fn lock(device: &Mutex<VsockDevice>) -> MutexGuard<'_, VsockDevice> {
    device.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until the device has work, unless it is busy. Returns `true` if there is a request, or the
/// end.
fn wait(socket: &UnixStream, device: &VsockDevice, is_busy: bool) -> Result<bool, Errno> {
    let others = device.kicks().map(Event::as_fd).chain([device.sockets()]);
    let mut polled: Vec<PollFd<'_>> = std::iter::once(socket.as_fd())
        .chain(others)
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    let now = Timespec::default();
    match poll(&mut polled, is_busy.then_some(&now)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error),
    }
    Ok(polled.first().is_some_and(|fd| !fd.revents().is_empty()))
}
