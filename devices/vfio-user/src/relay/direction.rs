//! One direction of a relay.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use peerbar_host::socket_file::descriptors;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::ReturnFlags;

use super::framer::{Framer, Step};
use super::outbox::{Outbox, SPACE};
use super::{DescriptorInfo, Notice, Observer, PassedMessage, Side, now, twin};
use crate::unanswered::wants_answer;
use crate::wire::Header;

/// Maximum number of descriptors of one message that are described to the observer.
const MOST_DESCRIPTORS: usize = 1024;

/// The messages of one side, on their way to the other.
#[derive(Debug)]
pub(super) struct Direction {
    from: Side,
    framer: Framer,
    /// Those of the message that is being received.
    descriptors: Vec<DescriptorInfo>,
    outbox: Outbox,
    buffer: Box<[u8]>,
    state: State,
    /// The second socket that the last message has offered: the ends for the client and the server.
    twin: Option<(UnixStream, UnixStream)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// The sender has closed. The rest waits to be sent.
    Closing,
    /// Everything that the sender had sent was passed on.
    Closed,
    /// The receiver takes no more, or the relay was stopped.
    Broken(Unpassed),
}

/// The first message that could not be passed on, if it had begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unpassed {
    /// Its header, if it needs an answer.
    pub(super) request: Option<Header>,
    /// Number of its bytes that are still in the sender's socket, or will be.
    pub(super) missing: usize,
}

impl Direction {
    pub(super) fn new(from: Side, kept: usize) -> Self {
        Self {
            from,
            framer: Framer::new(kept),
            descriptors: Vec::new(),
            outbox: Outbox::default(),
            buffer: vec![0; SPACE].into_boxed_slice(),
            state: State::Open,
            twin: None,
        }
    }

    /// Returns the ends of the second socket that the last message has offered, once.
    pub(super) fn take_twin(&mut self) -> Option<(UnixStream, UnixStream)> {
        self.twin.take()
    }

    /// Returns `true` if nothing more will be passed on.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::Closed | State::Broken(_))
    }

    /// Returns the message that was not passed on, if the receiver ended before the sender.
    pub(super) fn unpassed(&self) -> Option<Unpassed> {
        match self.state {
            State::Broken(unpassed) => Some(unpassed),
            _ => None,
        }
    }

    /// Returns the event of the sender's socket for which the direction waits.
    pub(super) fn reads(&self) -> PollFlags {
        match self.state == State::Open && self.outbox.is_empty() {
            true => PollFlags::IN,
            false => PollFlags::empty(),
        }
    }

    /// Returns the event of the receiver's socket for which the direction waits.
    pub(super) fn writes(&self) -> PollFlags {
        match self.outbox.is_empty() {
            true => PollFlags::empty(),
            false => PollFlags::OUT,
        }
    }

    /// Returns `true` if the direction can go on after these events of its sockets.
    pub(super) fn is_ready(&self, sender: PollFlags, receiver: PollFlags) -> bool {
        let ends = PollFlags::HUP | PollFlags::ERR;
        let reads = !self.reads().is_empty() && sender.intersects(PollFlags::IN | ends);
        let writes = !self.writes().is_empty() && receiver.intersects(PollFlags::OUT | ends);
        reads || writes
    }

    /// Passes on the data that is available, at most one message.
    pub(super) fn pass(
        &mut self,
        sender: &UnixStream,
        receiver: &UnixStream,
        observer: &mut dyn Observer,
    ) {
        let mut complete = None;
        if self.outbox.is_empty() && self.state == State::Open {
            complete = self.receive(sender, observer);
        }
        let twin = complete.and_then(|_| self.follow_twin());
        if let Err(error) = self.outbox.flush(sender, receiver) {
            if ![Errno::PIPE, Errno::CONNRESET].contains(&error) {
                observer.notice(self.from, now(), Notice::Undeliverable(error));
            }
            self.end(sender, receiver);
        }
        if let Some(at) = complete {
            self.show(at, observer);
            if let Some(notice) = twin {
                observer.notice(self.from, at, notice);
            }
        }
        if self.state == State::Closing && self.outbox.is_empty() {
            self.state = State::Closed;
            // A sender that has closed both directions ends the other one, too, in which the
            // receiver may still get answers.
            if !has_hung_up(sender) {
                // Fails only if the other side has closed the socket already.
                let _ = receiver.shutdown(Shutdown::Write);
            }
        }
    }

    /// Receives up to the end of a message, as much as is there and fits. Returns the time at which
    /// the message was complete.
    fn receive(&mut self, sender: &UnixStream, observer: &mut dyn Observer) -> Option<u64> {
        while self.outbox.space() > 0 {
            let most = self.framer.wanted().min(self.outbox.space());
            let space = self.buffer.get_mut(..most).unwrap_or_default();
            let received = match descriptors::receive_all(sender, space) {
                Ok(received) if received.bytes > 0 => received,
                Err(Errno::AGAIN) => return None,
                Err(Errno::INTR) => continue,
                // The end, or a failure that is like it: the sender left unread data (ECONNRESET).
                Ok(_) | Err(_) => {
                    self.close(observer);
                    return None;
                }
            };
            if received.flags.contains(ReturnFlags::CTRUNC) {
                observer.notice(self.from, now(), Notice::DescriptorsLost);
            }
            let free = MOST_DESCRIPTORS.saturating_sub(self.descriptors.len());
            let infos = received.descriptors.iter().take(free);
            self.descriptors.extend(infos.map(DescriptorInfo::of));
            let bytes = self.buffer.get(..received.bytes).unwrap_or_default();
            self.outbox.push(bytes, received.descriptors);
            match self.framer.take(bytes) {
                Step::Part => {}
                Step::Message => return Some(now()),
                Step::Unframed(size) => observer.notice(self.from, now(), Notice::Unframed(size)),
            }
        }
        None
    }

    /// Takes the place of the client at the second socket, if the server's message offers one.
    fn follow_twin(&mut self) -> Option<Notice> {
        let (header, payload, _) = self
            .framer
            .message()
            .filter(|_| self.from == Side::Server)?;
        let index = twin::index(&header, payload)?;
        self.twin = self.outbox.descriptor(index).and_then(twin::interpose);
        match self.twin {
            Some(_) => Some(Notice::TwinSocket),
            None => Some(Notice::TwinSocketUnseen),
        }
    }

    fn close(&mut self, observer: &mut dyn Observer) {
        let at = now();
        self.state = State::Closing;
        if self.framer.missing() > 0 {
            let missing = Notice::CutShort(self.framer.missing());
            observer.notice(self.from, at, missing);
        }
        observer.notice(self.from, at, Notice::Closed);
    }

    fn show(&mut self, at: u64, observer: &mut dyn Observer) {
        if let Some((header, payload, length)) = self.framer.message() {
            let message = PassedMessage {
                at,
                header,
                payload,
                length,
                descriptors: &self.descriptors,
            };
            observer.message(self.from, &message);
        }
        self.descriptors.clear();
    }

    /// Passes on nothing more. Later sends fail on the sender's side, and the receiver gets the end
    /// of the stream.
    pub(super) fn end(&mut self, sender: &UnixStream, receiver: &UnixStream) {
        if self.is_over() {
            return;
        }
        let cut = !self.outbox.is_empty() || self.framer.missing() > 0;
        let header = self.framer.begun().filter(|_| cut);
        self.state = State::Broken(Unpassed {
            request: header.filter(wants_answer),
            missing: self.framer.missing(),
        });
        self.outbox.clear(sender);
        // Each fails only if the other side has closed the socket already.
        let _ = sender.shutdown(Shutdown::Read);
        let _ = receiver.shutdown(Shutdown::Write);
    }
}

/// Returns `true` if the other side has closed both directions.
fn has_hung_up(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::empty())];
    let polled = poll(&mut fds, Some(&Timespec::default()));
    polled.is_ok() && fds.iter().any(|fd| fd.revents().contains(PollFlags::HUP))
}
