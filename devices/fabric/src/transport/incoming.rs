//! The requests of one peer: which of them have been carried out.

use std::collections::BTreeMap;

use serde_bytes::ByteBuf;

use crate::limits::MAX_REQUESTS;
use crate::message::Body;

/// A request that its requester may send again.
#[derive(Debug)]
enum Served {
    /// No response yet.
    Working,
    /// The response.
    Done(Option<ByteBuf>),
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
}

impl Incoming {
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
            self.served = self.served.split_off(&oldest);
        }
    }

    /// Notes the response to a request, which is to be sent; none if nobody waits for it.
    pub(super) fn respond(&mut self, tag: u64, data: Option<ByteBuf>) -> Option<Body> {
        let served = self.served.get_mut(&tag);
        let served = served.filter(|served| matches!(served, Served::Working))?;
        *served = Served::Done(data.clone());
        Some(Body::Response { tag, data })
    }
}
