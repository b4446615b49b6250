//! The sending half of a session, shared by the thread that answers and the threads that make
//! requests: one whole message at a time.

use std::io::IoSlice;
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::socket;
use crate::wire::Header;

/// Sends whole messages until the first failure, which closes it permanently.
#[derive(Debug)]
pub(crate) struct Writer {
    state: Mutex<State>,
    disconnected: AtomicBool,
    time_out: Duration,
}

#[derive(Debug)]
enum State {
    Open(Arc<UnixStream>),
    /// The writer is closed, with the failure that closed it, if there was one.
    Closed(Option<Errno>),
}

/// The writer is closed: no more messages are sent.
#[derive(Debug)]
pub(crate) struct Closed;

impl Writer {
    pub(crate) fn new(stream: Arc<UnixStream>, time_out: Duration) -> Self {
        Self {
            state: Mutex::new(State::Open(stream)),
            disconnected: AtomicBool::new(false),
            time_out,
        }
    }

    /// Sends one message. Between two messages of one sender every waiting sender has its turn. A failure ends the session:
    /// its reader wakes and finds the end of the stream.
    pub(crate) fn send(
        &self,
        header: &Header,
        payload: [&[u8]; 2],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), Closed> {
        self.send_by(header, payload, descriptors, self.deadline())
    }

    /// Returns the deadline of a message that is sent now.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.time_out
    }

    /// Like [`Writer::send`]; it fails if there is no free space for the message by `deadline`.
    pub(crate) fn send_by(
        &self,
        header: &Header,
        payload: [&[u8]; 2],
        descriptors: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> Result<(), Closed> {
        let mut state = self.state.lock();
        let State::Open(stream) = &*state else {
            return Err(Closed);
        };
        let [first, second] = payload;
        let mut parts = [header.as_bytes(), first, second].map(IoSlice::new);
        if let Err(error) = socket::send(stream, &mut parts, descriptors, deadline) {
            // Fails only if the other side has closed the socket already.
            let _ = stream.shutdown(Shutdown::Both);
            *state = State::Closed(Some(error));
            return Err(Closed);
        }
        MutexGuard::unlock_fair(state);
        Ok(())
    }

    /// Ends the session: the client can send no more, and the session's reader wakes. Messages that
    /// the client has sent can still be answered.
    pub(crate) fn disconnect(&self) {
        self.disconnected.store(true, Ordering::SeqCst);
        if let State::Open(stream) = &*self.state.lock() {
            // Fails only if the other side has closed the socket already.
            let _ = stream.shutdown(Shutdown::Read);
        }
    }

    pub(crate) fn is_disconnected(&self) -> bool {
        self.disconnected.load(Ordering::SeqCst)
    }

    /// Closes the writer. Returns the failure that had closed it before. A send in progress must
    /// have been cut off by shutting the stream down.
    pub(crate) fn close(&self) -> Option<Errno> {
        match std::mem::replace(&mut *self.state.lock(), State::Closed(None)) {
            State::Open(_) => None,
            State::Closed(failure) => failure,
        }
    }
}
