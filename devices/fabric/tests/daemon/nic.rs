//! An adapter with a link, and the events that it receives.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use peerbar_host::eventfd::EventFd;

use peerbar_fabric::{
    Attachment, Gid, Link, LinkSender, PacketHandler, Reply, RequestError, SendError,
};

use rustix::event::{PollFd, PollFlags, poll};

use crate::raw::{LONG, gid};

/// An event that an adapter has received.
pub(crate) enum Event {
    Datagram(Gid, Vec<u8>),
    Request(Gid, Vec<u8>, Vec<OwnedFd>, Reply),
    Gone(Gid),
    Lost,
}

struct Handler(Mutex<Sender<Event>>);

impl Handler {
    fn note(&self, event: Event) {
        // The test may have ended.
        let _ = self.0.lock().unwrap().send(event);
    }
}

impl PacketHandler for Handler {
    fn datagram(&self, from: Gid, data: &[u8]) {
        self.note(Event::Datagram(from, data.to_vec()));
    }

    fn request(&self, from: Gid, data: Vec<u8>, descriptors: Vec<OwnedFd>, reply: Reply) {
        self.note(Event::Request(from, data, descriptors, reply));
    }

    fn gone(&self, peer: Gid) {
        self.note(Event::Gone(peer));
    }

    fn lost(&self) {
        self.note(Event::Lost);
    }
}

/// Receives packets on direct connections until it is dropped.
struct DirectReceiver {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl DirectReceiver {
    fn start(sender: LinkSender, handler: Arc<Handler>) -> Self {
        let stop = Arc::new(EventFd::new().unwrap());
        let thread = std::thread::spawn({
            let stop = stop.clone();
            move || {
                while !stop.take() {
                    sender.receive(handler.as_ref());
                    let fds = [stop.as_ref().as_fd(), sender.as_fd()];
                    poll(
                        &mut fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)),
                        None,
                    )
                    .unwrap();
                }
            }
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for DirectReceiver {
    fn drop(&mut self) {
        self.stop.signal();
        self.thread.take().unwrap().join().unwrap();
    }
}

pub(crate) struct Nic {
    pub(crate) link: Link,
    pub(crate) events: Receiver<Event>,
    _direct: DirectReceiver,
}

impl Nic {
    pub(crate) fn attach(path: &Path, number: u8) -> Self {
        let (sender, events) = channel();
        let attachment = Attachment::new(path, &format!("nic{number}"), gid(number)).unwrap();
        let handler = Arc::new(Handler(Mutex::new(sender)));
        let link = attachment.start(handler.clone()).unwrap();
        Self {
            _direct: DirectReceiver::start(link.sender(), handler),
            link,
            events,
        }
    }

    pub(crate) fn event(&self) -> Event {
        self.events.recv_timeout(LONG).unwrap()
    }

    /// Returns the next request, which must come.
    pub(crate) fn request(&self) -> (Gid, Vec<u8>, Vec<OwnedFd>, Reply) {
        loop {
            if let Event::Request(from, data, descriptors, reply) = self.event() {
                return (from, data, descriptors, reply);
            }
        }
    }

    pub(crate) fn ask(
        &self,
        to: u8,
        data: &[u8],
        descriptors: Vec<Arc<OwnedFd>>,
    ) -> Receiver<RequestResult> {
        ask(&self.link.sender(), to, data, descriptors).unwrap()
    }
}

pub(crate) type RequestResult = Result<Vec<u8>, RequestError>;

pub(crate) fn ask(
    sender: &LinkSender,
    to: u8,
    data: &[u8],
    descriptors: Vec<Arc<OwnedFd>>,
) -> Result<Receiver<RequestResult>, SendError> {
    let (done, outcome) = channel();
    sender.request(gid(to), data, descriptors, move |outcome| {
        // The test may have ended.
        let _ = done.send(outcome);
    })?;
    Ok(outcome)
}

pub(crate) fn outcome(of: &Receiver<RequestResult>) -> RequestResult {
    of.recv_timeout(LONG).unwrap()
}

/// Returns the outcome of a request, which the peer answers if it comes.
pub(crate) fn carried_out(one: &Nic, (to, other): (u8, &Nic)) -> RequestResult {
    let Ok(answer) = ask(&one.link.sender(), to, b"again", Vec::new()) else {
        std::thread::yield_now();
        return Err(RequestError::Gone);
    };
    loop {
        if let Ok(Event::Request(_, data, _, reply)) =
            other.events.recv_timeout(Duration::from_millis(10))
        {
            reply.send(data);
        }
        if let Ok(outcome) = answer.try_recv() {
            return outcome;
        }
    }
}
