//! The wire to other adapters: sends packets, and keeps those that arrive for the worker.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use peerbar_fabric::{
    LinkSender, LinkStatistics, MAX_REQUESTS, PacketHandler, Reply, RequestError, SendError,
};

use crate::doorbells::Doorbells;
use crate::objects::Gid;

/// Limit of one adapter's requests that wait for the worker: as many as it may have outstanding.
/// Further requests are refused.
const MAX_WAITING_REQUESTS: usize = MAX_REQUESTS;
/// Limit of the waiting datagrams. Further ones are lost.
const MAX_WAITING_DATAGRAMS: usize = 1024;

/// Identifies a request of this adapter until it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Token(pub(super) u64);

/// The outcome of a request.
pub(super) type Answer = Result<Vec<u8>, RequestError>;

/// A way to other adapters. It never waits, and loses datagrams, but no requests.
pub(super) trait Wire: Send + Sync {
    /// Sends a datagram, which may be lost.
    fn datagram(&self, to: Gid, data: &[u8]) -> Result<(), SendError>;

    /// Sends a request, with descriptors if there are any. The mailbox gets its answer, or the
    /// reason for its absence.
    fn request(
        &self,
        to: Gid,
        data: &[u8],
        descriptors: Vec<Arc<OwnedFd>>,
        token: Token,
    ) -> Result<(), SendError>;

    /// Returns `true` if memory may be shared with an adapter.
    fn shares_memory(&self, to: Gid) -> bool;

    /// Returns the counts of retransmissions.
    fn statistics(&self) -> LinkStatistics;

    /// Moves packets that the worker itself must receive into the mailbox.
    fn receive(&self) {}

    /// Returns a descriptor that is readable while there is something for [`Wire::receive`], or
    /// `None` if there never is.
    fn readable(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A packet of another adapter.
pub(super) struct Arrival {
    pub(super) from: Gid,
    pub(super) data: Vec<u8>,
    pub(super) descriptors: Vec<OwnedFd>,
    /// Takes the answer, if one is wanted. Dropping it refuses the request.
    pub(super) reply: Option<Box<dyn FnOnce(Vec<u8>) + Send>>,
}

/// Mail from the fabric, in order.
pub(super) enum Mail {
    /// A packet.
    Packet(Arrival),
    /// An adapter is gone, or all of them if it is `None`.
    Gone(Option<Gid>),
}

/// Mail for the worker.
pub(crate) struct Mailbox {
    waiting: Mutex<Waiting>,
    doorbells: Arc<Doorbells>,
}

#[derive(Default)]
struct Waiting {
    mail: VecDeque<Mail>,
    /// The number of requests among them, by sender, and the number of datagrams.
    requests: HashMap<Gid, usize>,
    datagrams: usize,
    answers: VecDeque<(Token, Answer)>,
}

impl Mailbox {
    /// Makes an empty mailbox, which wakes the worker through these doorbells.
    pub(super) fn new(doorbells: Arc<Doorbells>) -> Self {
        Self {
            waiting: Mutex::default(),
            doorbells,
        }
    }

    /// Takes a packet.
    pub(super) fn arrive(&self, arrival: Arrival) {
        let mut waiting = self.waiting.lock();
        let is_request = arrival.reply.is_some();
        let (count, limit) = match is_request {
            true => (
                waiting.requests.entry(arrival.from).or_default(),
                MAX_WAITING_REQUESTS,
            ),
            false => (&mut waiting.datagrams, MAX_WAITING_DATAGRAMS),
        };
        if *count >= limit {
            drop(waiting);
            log::debug!(
                "a packet of {} is dropped: too many are waiting",
                arrival.from
            );
            return;
        }
        *count += 1;
        waiting.mail.push_back(Mail::Packet(arrival));
        drop(waiting);
        self.doorbells.wake_worker();
    }

    /// Takes the outcome of a request. Each sent request has one.
    pub(super) fn answer(&self, token: Token, answer: Answer) {
        self.waiting.lock().answers.push_back((token, answer));
        self.doorbells.wake_worker();
    }

    /// Notes that an adapter, or all of them, are gone.
    pub(super) fn note_gone(&self, gone: Option<Gid>) {
        self.waiting.lock().mail.push_back(Mail::Gone(gone));
        self.doorbells.wake_worker();
    }

    pub(super) fn next_mail(&self) -> Option<Mail> {
        let mut waiting = self.waiting.lock();
        let mail = waiting.mail.pop_front()?;
        let Mail::Packet(arrival) = &mail else {
            return Some(mail);
        };
        if arrival.reply.is_none() {
            waiting.datagrams -= 1;
        } else if let Entry::Occupied(mut requests) = waiting.requests.entry(arrival.from) {
            *requests.get_mut() -= 1;
            if *requests.get() == 0 {
                requests.remove();
            }
        }
        Some(mail)
    }

    pub(super) fn next_answer(&self) -> Option<(Token, Answer)> {
        self.waiting.lock().answers.pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        let waiting = self.waiting.lock();
        waiting.mail.is_empty() && waiting.answers.is_empty()
    }
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").finish_non_exhaustive()
    }
}

impl PacketHandler for Mailbox {
    fn datagram(&self, from: Gid, data: &[u8]) {
        self.arrive(Arrival {
            from,
            data: data.to_vec(),
            descriptors: Vec::new(),
            reply: None,
        });
    }

    fn request(&self, from: Gid, data: Vec<u8>, descriptors: Vec<OwnedFd>, reply: Reply) {
        self.arrive(Arrival {
            from,
            data,
            descriptors,
            reply: Some(Box::new(|answer| reply.send(answer))),
        });
    }

    fn gone(&self, peer: Gid) {
        self.note_gone(Some(peer));
    }

    fn lost(&self) {
        self.note_gone(None);
    }
}

/// The wire of a fabric.
pub(super) struct FabricWire {
    pub(super) sender: LinkSender,
    pub(super) mailbox: Arc<Mailbox>,
}

impl Wire for FabricWire {
    fn datagram(&self, to: Gid, data: &[u8]) -> Result<(), SendError> {
        self.sender.datagram(to, data)
    }

    fn request(
        &self,
        to: Gid,
        data: &[u8],
        descriptors: Vec<Arc<OwnedFd>>,
        token: Token,
    ) -> Result<(), SendError> {
        let mailbox = self.mailbox.clone();
        let done = move |answer| mailbox.answer(token, answer);
        self.sender.request(to, data, descriptors, done)
    }

    fn shares_memory(&self, to: Gid) -> bool {
        self.sender.takes_descriptors(to) != Some(false)
    }

    fn statistics(&self) -> LinkStatistics {
        self.sender.statistics()
    }

    fn receive(&self) {
        self.sender.receive(self.mailbox.as_ref());
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        Some(self.sender.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_that_wait_keep_out_none_of_another_adapter() {
        let mailbox = Mailbox::new(Arc::new(Doorbells::new().unwrap()));
        let arrive = |from: u8, wants_answer: bool| {
            let reply: Box<dyn FnOnce(Vec<u8>) + Send> = Box::new(drop);
            mailbox.arrive(Arrival {
                from: Gid([from; 16]),
                data: Vec::new(),
                descriptors: Vec::new(),
                reply: wants_answer.then_some(reply),
            });
        };
        (0..2 * MAX_WAITING_DATAGRAMS).for_each(|_| arrive(1, false));
        (0..2 * MAX_WAITING_REQUESTS).for_each(|_| arrive(1, true));
        (0..MAX_WAITING_REQUESTS).for_each(|_| arrive(2, true));
        let arrivals = || {
            let mail = std::iter::from_fn(|| mailbox.next_mail());
            mail.filter_map(|mail| match mail {
                Mail::Packet(arrival) => Some(arrival),
                Mail::Gone(_) => None,
            })
        };
        let requests = arrivals().filter(|it| it.reply.is_some()).count();
        assert_eq!(
            requests,
            2 * MAX_WAITING_REQUESTS,
            "none keeps out another's"
        );
        assert!(mailbox.waiting.lock().requests.is_empty());
        (0..2 * MAX_WAITING_DATAGRAMS).for_each(|_| arrive(1, false));
        assert_eq!(arrivals().count(), MAX_WAITING_DATAGRAMS);
        assert!(mailbox.is_empty());
    }
}
