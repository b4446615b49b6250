//! The requests of one peer: which of them have been carried out.

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
    /// How many bytes it keeps, or is going to.
    fn kept(&self) -> usize {
        match self {
            Self::Working => MAX_DATA,
            Self::Done(data) => data.as_ref().map_or(0, |data| data.len()),
        }
    }
}

/// What is to be done with a request that has arrived.
#[derive(Debug)]
pub(super) enum Taken {
    /// Carry it out.
    First,
    /// It came before: answer this.
    Again(Body),
    /// Its requester waits for it no longer, or has no right to send it yet.
    Stale,
}

/// The requests of one peer that it may still wait for.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    oldest: u64,
    served: BTreeMap<u64, Served>,
    /// The bytes of [`Served::kept`] of all of them.
    kept: usize,
}

impl Incoming {
    /// How many bytes are kept for the peer, or are going to be.
    pub(super) fn kept(&self) -> usize {
        self.kept
    }

    /// A request that has arrived. With `is_full`, no further one is carried out for now; it is sent again.
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

    /// Notes the response to a request, which is to be sent; none if the requester waits for it no longer.
    pub(super) fn respond(&mut self, tag: u64, data: Option<ByteBuf>) -> Option<Body> {
        let served = self.served.get_mut(&tag);
        let served = served.filter(|served| matches!(served, Served::Working))?;
        let before = served.kept();
        *served = Served::Done(data.clone());
        self.kept = self.kept - before + served.kept();
        Some(Body::Response { tag, data })
    }
}
