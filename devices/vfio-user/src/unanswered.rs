//! A client's requests that have no answer yet, in memory that outlives the server, and the answers
//! to them if the server is killed.
//!
//! QEMU waits for an answer even if the connection is closed during the wait. It holds its own
//! lock, so the guest is stopped. QEMU 11.1 also aborts if one of its messages is unread when the
//! socket of the server closes: its next read fails with ECONNRESET, for which `vfio_user_recv_hdr`
//! sets an error that qio has already set (hw/vfio-user/proxy.c). So the process that cleans up
//! after a server ([`peerbar_host::socket_file::SocketFile::hold`]) answers in its place, and empties the
//! socket.
//!
//! Limits: a request gets two answers if the server was killed just after it had sent its own. A
//! request gets no answer if the server was killed while it received the request right after a
//! reply, or if it had received only a part of the header. A message of the server that was cut off
//! stays cut off, and the answers are taken for its rest. Each id may belong to only one
//! outstanding request, as with QEMU.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use peerbar_host::socket_file::descriptors;
use rustix::event::PollFlags;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, Shutdown, recv, shutdown};
use vm_memory::{FileOffset, MmapRegion, VolatileMemory};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromZeros, IntoBytes};

use crate::wire::{HEADER_SIZE, Header, flags};

/// More requests than one reception can bring.
const SLOTS: u64 = 1024;
/// The numbers by their index in words of 8 bytes: requests received, requests answered, and
/// missing bytes of the message that is being received. The requests follow, the n-th at n modulo
/// [`SLOTS`]: the id and the command.
const RECEIVED: u64 = 0;
const ANSWERED: u64 = 1;
const MISSING: u64 = 2;
const REQUESTS: u64 = 3;
const BYTES: u64 = (REQUESTS + SLOTS) * 8;

/// Time that the client of a killed server has to read the answers.
const TIME_OUT: Duration = Duration::from_secs(10);
/// The client is disconnected once it has sent nothing for `QUIET`, or has kept sending for `BUSY`.
const QUIET: Duration = Duration::from_millis(100);
const BUSY: Duration = Duration::from_millis(500);

/// The fields that an answer repeats from its request.
#[derive(Clone, Copy, PartialEq, Eq)]
struct UnansweredRequest {
    id: U16,
    command: U16,
}

impl UnansweredRequest {
    fn of(header: &Header) -> Self {
        Self {
            id: header.id,
            command: header.command,
        }
    }

    fn word(self) -> u64 {
        u64::from(self.command.get()) << 16 | u64::from(self.id.get())
    }

    fn from_word(word: u64) -> Self {
        let [a, b, c, d, ..] = word.to_le_bytes();
        Self {
            id: U16::from_bytes([a, b]),
            command: U16::from_bytes([c, d]),
        }
    }
}

/// The requests of one session at a time. They are answered in the order in which they arrive.
#[derive(Debug)]
pub(crate) struct Unanswered {
    memory: MmapRegion,
}

impl Unanswered {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create(c"peerbar-unanswered", flags)?;
        ftruncate(&file, BYTES)?;
        // A server that an attacker has taken over cannot take its pages away.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let size = usize::try_from(BYTES).map_err(io::Error::other)?;
        let memory = MmapRegion::from_file(FileOffset::new(File::from(file), 0), size);
        Ok(Self {
            memory: memory.map_err(io::Error::other)?,
        })
    }

    /// Begins a session.
    pub(crate) fn clear(&self) {
        self.set(ANSWERED, self.get(RECEIVED));
        self.set(MISSING, 0);
    }

    /// Records that a message that needs an answer was received.
    pub(crate) fn received(&self, header: &Header) {
        let number = self.get(RECEIVED);
        self.set(
            REQUESTS + number % SLOTS,
            UnansweredRequest::of(header).word(),
        );
        self.set(RECEIVED, number.wrapping_add(1));
    }

    /// Records that the first message that was received was answered.
    pub(crate) fn answered(&self) {
        self.set(ANSWERED, self.get(ANSWERED).wrapping_add(1));
    }

    /// Records that `bytes` bytes of the last message are missing, and that all others are
    /// complete; 0 if all are.
    pub(crate) fn set_missing(&self, bytes: usize) {
        self.set(MISSING, u64::try_from(bytes).unwrap_or(u64::MAX));
    }

    /// Answers all requests of `client` with ENODEV, also those that are still in the socket. Later
    /// sends fail on the client's side. Allocates no memory and takes no lock.
    pub(crate) fn refuse(&self, client: &OwnedFd) {
        let busy = Instant::now() + BUSY;
        self.refuse_while(client, QUIET, || Instant::now() < busy);
    }

    /// The same, as long as `may_send` permits, or until the client has sent nothing for `quiet`.
    fn refuse_while(&self, client: &OwnedFd, quiet: Duration, may_send: impl Fn() -> bool) {
        let deadline = Instant::now() + TIME_OUT;
        let listed = self
            .requests()
            .try_for_each(|request| refuse(client, request, deadline));
        let mut outcome = listed.and_then(|()| skip(client, self.get(MISSING), deadline));
        // QEMU no longer reads answers once it cannot send, so data that waits for space in the
        // socket must come first.
        while outcome.is_ok() && may_send() {
            outcome = self.refuse_all(client, &may_send, deadline);
            let until = Some(Instant::now() + quiet);
            if descriptors::wait_until(client, PollFlags::IN, until).is_err() {
                break;
            }
        }
        // Fails only if the other side has closed the socket already.
        let _ = shutdown(client, Shutdown::Read);
        if outcome.is_ok() {
            // It fails at the end of the stream. Unread data would end the connection with
            // ECONNRESET.
            let _ = self.refuse_all(client, || Instant::now() < deadline, deadline);
        }
        let _ = skip(client, u64::MAX, deadline);
    }

    /// Answers messages until the socket is empty, or until the client may send no more.
    fn refuse_all(
        &self,
        client: &OwnedFd,
        may_send: impl Fn() -> bool,
        deadline: Instant,
    ) -> Result<(), Errno> {
        while may_send() {
            match self.refuse_next(client, deadline) {
                Err(Errno::AGAIN) => return Ok(()),
                outcome => outcome?,
            }
        }
        Ok(())
    }

    /// Answers the next message in the socket, if it needs an answer and is not listed. Fails at
    /// the end of the stream.
    fn refuse_next(&self, client: &OwnedFd, deadline: Instant) -> Result<(), Errno> {
        let mut header = Header::new_zeroed();
        fill(client, header.as_mut_bytes(), false, deadline)?;
        let payload = usize::try_from(header.size.get()).unwrap_or(usize::MAX);
        let payload = payload.checked_sub(HEADER_SIZE).ok_or(Errno::BADMSG)?;
        skip(client, u64::try_from(payload).unwrap_or(u64::MAX), deadline)?;
        let request = UnansweredRequest::of(&header);
        match wants_answer(&header) && !self.requests().any(|listed| listed == request) {
            true => refuse(client, request, deadline),
            false => Ok(()),
        }
    }

    /// Returns the listed requests.
    fn requests(&self) -> impl Iterator<Item = UnansweredRequest> {
        let (answered, received) = (self.get(ANSWERED), self.get(RECEIVED));
        let listed = received.wrapping_sub(answered).min(SLOTS);
        (0..listed).map(move |number| {
            let index = REQUESTS + answered.wrapping_add(number) % SLOTS;
            UnansweredRequest::from_word(self.get(index))
        })
    }

    #[cfg(test)]
    pub(crate) fn ids(&self) -> Vec<u16> {
        self.requests().map(|request| request.id.get()).collect()
    }

    fn get(&self, index: u64) -> u64 {
        self.word(index)
            .map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn set(&self, index: u64, value: u64) {
        if let Some(word) = self.word(index) {
            word.store(value, Ordering::Release);
        }
    }

    /// Returns the word at `index`. All indexes above are valid.
    fn word(&self, index: u64) -> Option<&AtomicU64> {
        let at = usize::try_from(index).ok()?.checked_mul(8)?;
        self.memory.get_atomic_ref(at).ok()
    }
}

/// Returns `true` if the server answers a message.
pub(crate) fn wants_answer(header: &Header) -> bool {
    !header.is_reply() && !header.no_reply()
}

fn refuse(client: &OwnedFd, request: UnansweredRequest, deadline: Instant) -> Result<(), Errno> {
    let size = u32::try_from(HEADER_SIZE).map_err(|_| Errno::MSGSIZE)?;
    let header = Header {
        id: request.id,
        command: request.command,
        size: U32::new(size),
        flags: U32::new(flags::REPLY | flags::ERROR),
        error: U32::new(Errno::NODEV.raw_os_error().unsigned_abs()),
    };
    // A message this short is sent whole.
    while let Err(error) = descriptors::send(client, &[io::IoSlice::new(header.as_bytes())], &[]) {
        match error {
            Errno::AGAIN => descriptors::wait_until(client, PollFlags::OUT, Some(deadline))?,
            Errno::INTR => {}
            error => return Err(error),
        }
    }
    Ok(())
}

/// Receives bytes until `space` is full. Waits for the rest of a message that has begun; otherwise
/// fails with [`Errno::AGAIN`] if the socket is empty.
fn fill(
    client: &OwnedFd,
    mut space: &mut [u8],
    mut has_begun: bool,
    deadline: Instant,
) -> Result<(), Errno> {
    while !space.is_empty() {
        // The kernel drops descriptors that come with the bytes.
        match retry_on_intr(|| recv(client, &mut *space, RecvFlags::DONTWAIT)) {
            Ok((0, _)) => return Err(Errno::PIPE),
            Ok((received, _)) => space = space.get_mut(received..).unwrap_or_default(),
            Err(Errno::AGAIN) if has_begun => {
                descriptors::wait_until(client, PollFlags::IN, Some(deadline))?;
            }
            Err(error) => return Err(error),
        }
        has_begun = true;
    }
    Ok(())
}

/// Receives and discards `count` bytes, the rest of a message.
fn skip(client: &OwnedFd, mut count: u64, deadline: Instant) -> Result<(), Errno> {
    let mut space = [0; 4096];
    while count > 0 && Instant::now() < deadline {
        let most = usize::try_from(count).map_or(space.len(), |count| count.min(space.len()));
        let part = space.get_mut(..most).unwrap_or_default();
        fill(client, part, true, deadline)?;
        count = count.saturating_sub(most as u64);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use super::*;

    fn header(id: u16, payload: usize, flags: u32) -> Header {
        Header {
            id: U16::new(id),
            command: U16::new(9),
            size: U32::new(u32::try_from(HEADER_SIZE + payload).unwrap()),
            flags: U32::new(flags),
            error: U32::new(0),
        }
    }

    /// Returns the ids of the refusals that a client receives, up to the end of the stream.
    fn refused(mut client: UnixStream) -> Vec<u16> {
        let mut bytes = Vec::new();
        client.read_to_end(&mut bytes).unwrap();
        assert!(bytes.len() % HEADER_SIZE == 0, "{bytes:?}");
        let each = bytes.chunks(HEADER_SIZE).map(|bytes| {
            let mut found = Header::new_zeroed();
            found.as_mut_bytes().copy_from_slice(bytes);
            assert!(found.is_reply() && found.is_error());
            assert_eq!((found.command.get(), found.error.get()), (9, 19));
            found.id.get()
        });
        each.collect()
    }

    #[test]
    fn what_was_received_and_what_is_in_the_socket_is_refused() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let unanswered = Unanswered::new().unwrap();
        unanswered.clear();
        for id in 0..2000 {
            unanswered.received(&header(id, 0, 0));
            unanswered.answered();
        }
        for id in [1, 2, 4] {
            unanswered.received(&header(id, 8, 0));
        }
        unanswered.answered();
        unanswered.answered();
        unanswered.set_missing(3);
        client.write_all(&[0xff; 3]).unwrap();
        // Listed, and not received.
        client.write_all(header(4, 0, 0).as_bytes()).unwrap();
        for (id, flags) in [(5, 0), (6, flags::REPLY), (7, flags::NO_REPLY), (8, 0)] {
            client
                .write_all(header(id, 5000, flags).as_bytes())
                .unwrap();
            client.write_all(&[0xff; 5000]).unwrap();
        }
        // The last one is incomplete.
        client.write_all(header(9, 5000, 0).as_bytes()).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let server = OwnedFd::from(server);
        unanswered.refuse(&server);
        drop(server);
        assert_eq!(refused(client), [4, 5, 8]);
    }

    #[test]
    fn stream_without_framing_is_read_to_its_end() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let unanswered = Unanswered::new().unwrap();
        client.write_all(&[0; 10_000]).unwrap();
        let server = OwnedFd::from(server);
        unanswered.refuse(&server);
        let late = client.write(b"late").unwrap_err();
        assert_eq!(late.kind(), ErrorKind::BrokenPipe);
        drop(server);
        assert!(refused(client).is_empty(), "and not ECONNRESET");
    }

    #[test]
    fn next_session_begins_without_requests() {
        let (client, server) = UnixStream::pair().unwrap();
        let unanswered = Unanswered::new().unwrap();
        unanswered.received(&header(1, 0, 0));
        unanswered.clear();
        let server = OwnedFd::from(server);
        unanswered.refuse(&server);
        drop(server);
        assert!(refused(client).is_empty());
    }

    #[test]
    fn client_that_goes_on_sending_is_answered_and_left() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let server = OwnedFd::from(server);
        let unanswered = Unanswered::new().unwrap();
        let mut reader = client.try_clone().unwrap();
        client.write_all(header(1, 0, 0).as_bytes()).unwrap();
        let sent = Arc::new(AtomicU64::new(0));
        let sending = sent.clone();
        let sender = std::thread::spawn(move || {
            // The answer to the first request is there before the second one is sent.
            reader.read_exact(&mut [0; HEADER_SIZE]).unwrap();
            client.write_all(header(2, 0, 0).as_bytes()).unwrap();
            let message = header(3, 0, flags::NO_REPLY);
            while client.write_all(message.as_bytes()).is_ok() {
                sending.fetch_add(1, Ordering::Relaxed);
            }
            reader
        });
        let start = Instant::now();
        // The client never stops sending.
        unanswered.refuse_while(&server, TIME_OUT, || sent.load(Ordering::Relaxed) < 1000);
        assert!(start.elapsed() < TIME_OUT);
        drop(server);
        assert_eq!(refused(sender.join().unwrap()), [2]);
    }
}
