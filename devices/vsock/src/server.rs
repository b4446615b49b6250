//! Serves one QEMU after another.

use std::io;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex};

use peerbar_socket_file::SocketFile;
use thiserror::Error;
use vhost::vhost_user::{Error as ProtocolError, Listener};
use vhost_user_backend::{Error as DaemonError, VhostUserDaemon};
use vm_memory::{GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;

use crate::device::{SOCKETS, VsockDevice};

/// Why no QEMU can be served any more.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The system refuses what a device needs.
    #[error("cannot make a device")]
    Device(#[source] io::Error),
    /// vhost-user cannot be served.
    #[error("cannot serve vhost-user: {0}")]
    Daemon(String),
}

/// Serves the QEMUs that connect to `qemu`, one after the other, as guest `cid`. Programs of the host connect to `programs`,
/// which does not block and has the socket file `file`; those that come before a guest wait for it.
///
/// # Errors
/// What keeps all further QEMUs from being served. One that breaks the protocol is left.
pub fn serve(
    qemu: UnixListener,
    programs: &UnixListener,
    file: &Arc<SocketFile>,
    cid: u64,
) -> Result<(), ServeError> {
    let mut qemu = Listener::from(qemu);
    loop {
        let programs = programs.try_clone().map_err(ServeError::Device)?;
        let device = VsockDevice::new(cid, programs, file.clone()).map_err(ServeError::Device)?;
        let sockets = device.sockets();
        let device = Arc::new(Mutex::new(device));
        let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
        let mut daemon =
            VhostUserDaemon::new("vhost-user".to_owned(), device, memory).map_err(unserved)?;
        for handler in daemon.get_epoll_handlers() {
            let registered = handler.register_listener(sockets, EventSet::IN, SOCKETS);
            registered.map_err(ServeError::Device)?;
        }
        daemon.start(&mut qemu).map_err(unserved)?;
        match daemon.wait() {
            Ok(()) => {}
            Err(DaemonError::HandleRequest(ProtocolError::Disconnected)) => {}
            Err(error) => log::warn!("QEMU is left: {error}"),
        }
    }
}

fn unserved(error: DaemonError) -> ServeError {
    ServeError::Daemon(error.to_string())
}
