//! A server that passes messages to another one, and changes the answers.

use std::collections::VecDeque;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

use peerbar_rig::ServerThread;
use peerbar_vfio_user_check::wire::{self, ERROR, Message, REPLY, u32_at};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::RecvFlags;

/// The ways in which a server is wrong.
#[derive(Clone, Copy)]
pub(crate) struct Lie {
    /// The tests that find it.
    pub(crate) tests: &'static [&'static str],
    /// Changes a request, as far as it was received at once, with this number of descriptors.
    pub(crate) request: fn(&mut Vec<u8>, usize),
    /// Changes a reply.
    pub(crate) reply: fn(&mut Answer),
    /// The connection stays open when the server closes it.
    pub(crate) keeps_open: bool,
    /// The client's descriptors stay open, and are written to at each request of another client.
    pub(crate) keeps_descriptors: bool,
    /// Number of clients that are served.
    pub(crate) clients: usize,
    /// A client ends the connection of the one before it.
    pub(crate) replaces: bool,
}

/// The truth.
pub(crate) const TRUTH: Lie = Lie {
    tests: &[],
    request: |_, _| {},
    reply: |_| {},
    keeps_open: false,
    keeps_descriptors: false,
    clients: usize::MAX,
    replaces: false,
};

/// A reply on its way.
pub(crate) struct Answer {
    pub(crate) message: Message,
    /// The bytes that the client has sent last.
    pub(crate) request: Vec<u8>,
    /// Number of the client, from 0.
    pub(crate) client: usize,
    pub(crate) fate: Fate,
}

/// The end of a reply.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Sent,
    Lost,
    SentTwice,
    /// It comes after the next one.
    Overtaken,
    /// Half of its header is sent, then the connection ends.
    Cut,
}

impl Answer {
    /// Returns `true` if it is a success of this command.
    pub(crate) fn is(&self, command: u16) -> bool {
        self.message.command == command && !self.is_error()
    }

    pub(crate) fn is_error(&self) -> bool {
        self.message.flags & ERROR != 0
    }

    /// Makes it an error.
    pub(crate) fn fail(&mut self, errno: u32) {
        self.message.flags = REPLY | ERROR;
        self.message.error = errno;
        self.message.payload.clear();
        self.message.descriptors.clear();
    }

    /// Makes an error a success with this payload.
    pub(crate) fn succeed(&mut self, payload: &[u8]) {
        if self.is_error() {
            self.message.flags = REPLY;
            self.message.error = 0;
            self.message.payload = payload.to_vec();
        }
    }

    /// Returns a word of the payload.
    pub(crate) fn word(&self, at: usize) -> u32 {
        u32_at(&self.message.payload, at).unwrap_or_default()
    }

    /// Sets a word of the payload, if it is so long.
    pub(crate) fn set_word(&mut self, at: usize, word: u32) {
        set_word(&mut self.message.payload, at, word);
    }
}

/// Sets a word of some bytes, if there are so many.
pub(crate) fn set_word(bytes: &mut [u8], at: usize, word: u32) {
    if let Some(place) = bytes.get_mut(at..at + 4) {
        place.copy_from_slice(&word.to_le_bytes());
    }
}

/// Starts a server that lies about the one at `truth`.
pub(crate) fn start(truth: PathBuf, lie: Lie) -> ServerThread {
    ServerThread::start(move |path, stop, ready| {
        let listener = UnixListener::bind(path).unwrap();
        ready().unwrap();
        let kept = Arc::new(Mutex::new(Vec::new()));
        let mut last: Option<UnixStream> = None;
        for client in 0.. {
            let mut polled = [&stop.as_fd(), &listener.as_fd()]
                .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN));
            poll(&mut polled, None).unwrap();
            let [stopped, _] = polled;
            if !stopped.revents().is_empty() {
                break;
            }
            let stream = listener.accept().unwrap().0;
            if client >= lie.clients {
                continue;
            }
            if let Some(last) = last.filter(|_| lie.replaces) {
                let _ = last.shutdown(Shutdown::Both);
            }
            last = Some(stream.try_clone().unwrap());
            pass(&truth, lie, client, stream, &kept);
        }
    })
}

type Kept = Arc<Mutex<Vec<OwnedFd>>>;

/// Passes the messages of a client in two threads, which end with it.
fn pass(truth: &Path, lie: Lie, client: usize, stream: UnixStream, kept: &Kept) {
    let server = UnixStream::connect(truth).unwrap();
    let ends = [stream.try_clone().unwrap(), server.try_clone().unwrap()];
    let request = Arc::new(Mutex::new(Vec::new()));
    let asked = request.clone();
    let kept = kept.clone();
    thread::spawn(move || {
        pass_requests(lie, client, (&stream, &server), (&asked, &kept));
        let _ = server.shutdown(Shutdown::Write);
    });
    thread::spawn(move || {
        let [stream, server] = ends;
        pass_replies(lie, client, (&server, &stream), &request);
        if !lie.keeps_open {
            let _ = stream.shutdown(Shutdown::Both);
        }
    });
}

fn pass_requests(
    lie: Lie,
    client: usize,
    (from, to): (&UnixStream, &UnixStream),
    (asked, kept): (&Mutex<Vec<u8>>, &Kept),
) {
    let mut space = vec![0; 1 << 20];
    while let Ok((count @ 1.., descriptors)) =
        wire::receive_part(from, &mut space, RecvFlags::empty())
    {
        let mut bytes = space.get(..count).unwrap_or_default().to_vec();
        (lie.request)(&mut bytes, descriptors.len());
        asked.lock().unwrap().clone_from(&bytes);
        let mut kept = kept.lock().unwrap();
        if lie.keeps_descriptors {
            if client > 0 {
                for fd in kept.iter() {
                    let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
                }
            }
            kept.extend(descriptors.iter().map(|fd| fd.try_clone().unwrap()));
        }
        let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        if wire::send(to, &bytes, &borrowed).is_err() {
            break;
        }
    }
}

fn pass_replies(
    lie: Lie,
    client: usize,
    (from, to): (&UnixStream, &UnixStream),
    asked: &Mutex<Vec<u8>>,
) {
    let mut waiting = VecDeque::new();
    while let Ok(Some(message)) = wire::receive(from) {
        let mut answer = Answer {
            message,
            request: asked.lock().unwrap().clone(),
            client,
            fate: Fate::Sent,
        };
        (lie.reply)(&mut answer);
        let fate = answer.fate;
        match fate {
            Fate::Lost => continue,
            Fate::Cut => {
                let header = bytes(&answer.message);
                let _ = wire::send(to, header.get(..8).unwrap_or_default(), &[]);
                break;
            }
            Fate::Overtaken if waiting.is_empty() => {
                waiting.push_back(answer.message);
                continue;
            }
            _ => {}
        }
        let first = send(to, &answer.message);
        let rest = waiting.drain(..).all(|message| send(to, &message));
        let again = fate != Fate::SentTwice || send(to, &answer.message);
        if !(first && rest && again) {
            break;
        }
    }
}

fn send(to: &UnixStream, message: &Message) -> bool {
    let descriptors: Vec<_> = message.descriptors.iter().map(AsFd::as_fd).collect();
    wire::send(to, &bytes(message), &descriptors).is_ok()
}

fn bytes(message: &Message) -> Vec<u8> {
    let status = (message.flags, message.error);
    wire::message_with(message.id, message.command, status, &message.payload)
}
