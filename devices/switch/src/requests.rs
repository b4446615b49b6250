//! Requests to peers that wait for their reply.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::limits::{ENDPOINT_TIME_OUT, MAX_REQUESTS};
use crate::message::PortId;

/// A request, identified by its requester and the tag that the requester chose.
pub(crate) type RequestId = (PortId, u64);

#[derive(Clone, Debug)]
struct Waiting {
    completer: PortId,
    deadline: Instant,
}

/// All requests that wait for their reply.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests {
    waiting: BTreeMap<RequestId, Waiting>,
}

impl Requests {
    /// Records a request. Returns `false` if the requester has that tag in use, or too many
    /// requests.
    pub(crate) fn open(&mut self, id: RequestId, completer: PortId, now: Instant) -> bool {
        let (requester, _) = id;
        let all = (requester, u64::MIN)..=(requester, u64::MAX);
        if self.waiting.contains_key(&id) || self.waiting.range(all).count() >= MAX_REQUESTS {
            return false;
        }
        let deadline = now + ENDPOINT_TIME_OUT;
        self.waiting.insert(
            id,
            Waiting {
                completer,
                deadline,
            },
        );
        true
    }

    /// Removes a request, if it waits for `completer`. Returns `true` in that case.
    pub(crate) fn close(&mut self, id: RequestId, completer: PortId) -> bool {
        let expected = self
            .waiting
            .get(&id)
            .is_some_and(|waiting| waiting.completer == completer);
        expected && self.waiting.remove(&id).is_some()
    }

    /// Removes all requests of an endpoint, with their completers, and all requests that wait for
    /// it.
    pub(crate) fn leave(&mut self, port: PortId) -> (Vec<(RequestId, PortId)>, Vec<RequestId>) {
        let asked = self.extract(|(requester, _), _| *requester == port);
        let waiting = self.extract(|_, waiting| waiting.completer == port);
        (asked, waiting.into_iter().map(|(id, _)| id).collect())
    }

    /// Removes the requests whose deadline has passed, with their completers.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<(RequestId, PortId)> {
        self.extract(|_, waiting| waiting.deadline <= now)
    }

    /// Returns the earliest deadline.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.waiting.values().map(|waiting| waiting.deadline).min()
    }

    fn extract(
        &mut self,
        which: impl Fn(&RequestId, &Waiting) -> bool,
    ) -> Vec<(RequestId, PortId)> {
        let mut extracted = Vec::new();
        self.waiting.retain(|id, waiting| {
            let stays = !which(id, waiting);
            if !stays {
                extracted.push((*id, waiting.completer));
            }
            stays
        });
        extracted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PortId = PortId(1);
    const B: PortId = PortId(2);
    const C: PortId = PortId(3);

    #[test]
    fn reply_closes_its_own_request_once() {
        let mut requests = Requests::default();
        let now = Instant::now();
        assert!(requests.open((A, 1), B, now));
        assert!(!requests.close((A, 1), C));
        assert!(!requests.close((A, 2), B));
        assert!(requests.close((A, 1), B));
        assert!(!requests.close((A, 1), B));
    }

    #[test]
    fn tag_in_use_and_65th_request_are_refused() {
        let mut requests = Requests::default();
        let now = Instant::now();
        for tag in 0..MAX_REQUESTS as u64 {
            assert!(requests.open((A, tag), B, now));
        }
        assert!(!requests.open((A, 1), B, now));
        assert!(!requests.open((A, u64::MAX), B, now));
        assert!(requests.open((B, u64::MAX), A, now), "others go on");
    }

    #[test]
    fn leaving_closes_requests_of_and_to_an_endpoint() {
        let mut requests = Requests::default();
        let now = Instant::now();
        for id in [(A, 1), (B, 1), (C, 1)] {
            let completer = if id.0 == A { B } else { A };
            assert!(requests.open(id, completer, now));
        }
        assert_eq!(requests.leave(A), (vec![((A, 1), B)], vec![(B, 1), (C, 1)]));
        assert_eq!(requests.deadline(), None);
    }

    #[test]
    fn late_request_expires() {
        let mut requests = Requests::default();
        let now = Instant::now();
        assert!(requests.open((A, 1), B, now));
        assert!(requests.open((A, 2), C, now + ENDPOINT_TIME_OUT));
        assert_eq!(requests.deadline(), Some(now + ENDPOINT_TIME_OUT));
        assert_eq!(requests.expire(now), []);
        assert_eq!(requests.expire(now + ENDPOINT_TIME_OUT), [((A, 1), B)]);
        assert!(requests.close((A, 2), C));
    }
}
