//! The requests of one peer, and whether they have been executed.

use std::collections::BTreeMap;

use serde_bytes::ByteBuf;

use crate::limits::{MAX_DATA, MAX_REQUESTS};
use crate::message::Body;

/// A request that its requester may send again.
#[derive(Debug)]
enum Served {
    /// No response yet.
    Working,
    /// The response.
    Done(Option<ByteBuf>),
}

impl Served {
    /// Returns the bytes that it keeps, or will keep.
    fn kept(&self) -> usize {
        match self {
            Self::Working => MAX_DATA,
            Self::Done(data) => data.as_ref().map_or(0, |data| data.len()),
        }
    }
}

/// The action for a request that has arrived.
#[derive(Debug)]
pub(super) enum Taken {
    /// Execute it.
    First,
    /// It came before: send this answer.
    Again(Body),
    /// Its requester no longer waits for it, or may not send it yet.
    Stale,
}

/// The requests of one peer for which it may still wait.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    oldest: u64,
    served: BTreeMap<u64, Served>,
    /// The bytes of [`Served::kept`] of all of them.
    kept: usize,
}

impl Incoming {
    /// Returns the bytes that are kept for the peer, or will be.
    pub(super) fn kept(&self) -> usize {
        self.kept
    }

    /// Takes a request that has arrived. With `is_full`, no further request is executed for now; it
    /// will be sent again.
    pub(super) fn take(&mut self, tag: u64, oldest: u64, is_full: bool) -> Taken {
        self.settle(oldest);
        let ahead = tag.checked_sub(self.oldest);
        if ahead.is_none_or(|ahead| ahead >= MAX_REQUESTS as u64) {
            return Taken::Stale;
        }
        match self.served.get(&tag) {
            None if is_full => Taken::Stale,
            None => {
                self.served.insert(tag, Served::Working);
                self.kept += Served::Working.kept();
                Taken::First
            }
            Some(Served::Working) => Taken::Again(Body::Working { tag }),
            Some(Served::Done(data)) => {
                let data = data.clone();
                Taken::Again(Body::Response { tag, data })
            }
        }
    }

    /// Forgets the requests before `oldest`.
    pub(super) fn settle(&mut self, oldest: u64) {
        if oldest > self.oldest {
            self.oldest = oldest;
            let left = self.served.split_off(&oldest);
            let gone = std::mem::replace(&mut self.served, left);
            self.kept -= gone.values().map(Served::kept).sum::<usize>();
        }
    }

    /// Records the response to a request. Returns the message to send, or `None` if the requester
    /// no longer waits for it.
    pub(super) fn respond(&mut self, tag: u64, data: Option<ByteBuf>) -> Option<Body> {
        let served = self.served.get_mut(&tag);
        let served = served.filter(|served| matches!(served, Served::Working))?;
        let before = served.kept();
        *served = Served::Done(data.clone());
        self.kept = self.kept - before + served.kept();
        Some(Body::Response { tag, data })
    }
}
