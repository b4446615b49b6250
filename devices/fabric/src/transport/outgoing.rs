//! The requests to one peer that wait for a response, and the times at which they are sent again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::limits::{MAX_DATA, MAX_DESCRIPTORS, MAX_REQUESTS, PEER_TIME_OUT, REQUEST_TIME_OUT};
use crate::link_statistics::LinkStatistics;
use crate::message::Body;
use crate::request::{RequestData, SendError};

/// Time until a request is sent again: while no round-trip time is known, at least, and at most.
const FIRST: Duration = Duration::from_millis(50);
const SHORTEST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_millis(500);

/// A step that is due.
#[derive(Debug)]
pub(super) enum Due<D> {
    /// Send this to the peer.
    Send(Body),
    /// Send this to the peer again: the first one may have been lost, or the peer may be gone.
    SendAgain(Body),
    /// Ask the fabric for the peer.
    Ask,
    /// The request cannot be sent: the peer takes no descriptors.
    Refuse(D),
}

/// A request that waits for its response.
#[derive(Debug)]
struct Pending<D> {
    request: RequestData,
    done: D,
    /// The time at which it was first sent, if it was.
    sent: Option<Instant>,
    is_sent_again: bool,
    /// The time at which it will be sent, and the time until it is sent again.
    next: Instant,
    interval: Duration,
    /// The times at which the peer and the request are given up.
    peer_deadline: Instant,
    last: Instant,
}

/// The requests to one peer.
#[derive(Debug)]
pub(super) struct Outgoing<D> {
    next_tag: u64,
    pending: BTreeMap<u64, Pending<D>>,
    /// A smoothed round-trip time (RFC 6298, 2), of requests that were sent once (3).
    round_trip: Option<Duration>,
    /// Requests are sent at the lowest rate, since no answer has come.
    is_impaired: bool,
}

impl<D> Default for Outgoing<D> {
    fn default() -> Self {
        Self {
            next_tag: 0,
            pending: BTreeMap::new(),
            round_trip: None,
            is_impaired: false,
        }
    }
}

impl<D> Outgoing<D> {
    /// Adds a request, which is due at once.
    pub(super) fn add(
        &mut self,
        request: RequestData,
        done: D,
        now: Instant,
    ) -> Result<(), (D, SendError)> {
        let (bytes, descriptors) = (request.data.len(), request.descriptors.len());
        if bytes > MAX_DATA || descriptors > MAX_DESCRIPTORS {
            return Err((done, SendError::TooLong));
        }
        if self.next_tag - self.oldest() >= MAX_REQUESTS as u64 {
            return Err((done, SendError::Busy));
        }
        let pending = Pending {
            request,
            done,
            sent: None,
            is_sent_again: false,
            next: now,
            interval: self.interval(),
            peer_deadline: now + PEER_TIME_OUT,
            last: now + REQUEST_TIME_OUT,
        };
        self.pending.insert(self.next_tag, pending);
        self.next_tag += 1;
        Ok(())
    }

    /// Returns the lowest tag that waits for a response, or the next one.
    fn oldest(&self) -> u64 {
        let first = self.pending.first_key_value();
        first.map_or(self.next_tag, |(tag, _)| *tag)
    }

    /// Returns the tag before which no response is awaited, if a separate message must tell the
    /// peer because no request will soon.
    pub(super) fn settled(&self) -> Option<u64> {
        self.pending.is_empty().then_some(self.next_tag)
    }

    /// Returns the steps that are due. A request with descriptors waits until it is known whether
    /// the peer takes them.
    pub(super) fn due(
        &mut self,
        takes_descriptors: Option<bool>,
        is_known: bool,
        now: Instant,
        statistics: &mut LinkStatistics,
    ) -> Vec<Due<D>> {
        let oldest = self.oldest();
        let sent_again = statistics.sent_again;
        let mut due = Vec::new();
        let mut refused = Vec::new();
        for (tag, pending) in &mut self.pending {
            let has_descriptors = !pending.request.descriptors.is_empty();
            // A request that was sent may have been executed: it can no longer be refused.
            if has_descriptors && takes_descriptors == Some(false) && pending.sent.is_none() {
                refused.push(*tag);
                continue;
            }
            let waits = !is_known || (has_descriptors && takes_descriptors.is_none());
            let is_unsent = pending.sent.is_none();
            if pending.next > now && (waits || !is_unsent) {
                continue;
            }
            pending.next = now + pending.interval;
            if waits {
                due.push(Due::Ask);
                continue;
            }
            if !is_unsent {
                statistics.count(pending.request.data.len());
                if pending.interval == LONGEST && !self.is_impaired {
                    self.is_impaired = true;
                    statistics.impaired_peers += 1;
                }
            }
            pending.is_sent_again = !is_unsent;
            pending.sent.get_or_insert(now);
            pending.interval = pending.interval.saturating_mul(2).min(LONGEST);
            let body = Body::Request {
                tag: *tag,
                oldest,
                data: pending.request.data.clone(),
                descriptors: pending.request.descriptors.clone(),
            };
            due.push(match is_unsent {
                true => Due::Send(body),
                false => Due::SendAgain(body),
            });
        }
        statistics.time_outs += u64::from(statistics.sent_again > sent_again);
        let refused = refused.iter().filter_map(|tag| self.pending.remove(tag));
        due.extend(refused.map(|pending| Due::Refuse(pending.done)));
        due
    }

    /// Records that the peer works on a request.
    pub(super) fn is_alive(&mut self, tag: u64, now: Instant) {
        if let Some(pending) = self.pending.get_mut(&tag) {
            self.is_impaired = false;
            pending.peer_deadline = now + PEER_TIME_OUT;
            pending.interval = LONGEST;
        }
    }

    /// Handles a response. Returns `None` if its request has already ended.
    pub(super) fn end(&mut self, tag: u64, now: Instant) -> Option<D> {
        let pending = self.pending.remove(&tag)?;
        self.is_impaired = false;
        if let (Some(sent), false) = (pending.sent, pending.is_sent_again) {
            let sample = now.saturating_duration_since(sent);
            let smoothed = |old: Duration| (old.saturating_mul(7).saturating_add(sample)) / 8;
            self.round_trip = Some(self.round_trip.map_or(sample, smoothed));
        }
        Some(pending.done)
    }

    /// Takes out the requests that have waited too long.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<D> {
        let late = |pending: &Pending<D>| pending.peer_deadline.min(pending.last) <= now;
        let tags = self.pending.iter().filter(|(_, pending)| late(pending));
        let tags: Vec<u64> = tags.map(|(tag, _)| *tag).collect();
        let late = tags.iter().filter_map(|tag| self.pending.remove(tag));
        late.map(|pending| pending.done).collect()
    }

    /// Returns the time at which something is due, or a request has waited too long.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let pending = self.pending.values();
        pending
            .map(|pending| pending.next.min(pending.peer_deadline).min(pending.last))
            .min()
    }

    /// Takes all requests, which end.
    pub(super) fn into_all(self) -> impl Iterator<Item = D> {
        self.pending.into_values().map(|pending| pending.done)
    }

    fn interval(&self) -> Duration {
        let twice = self.round_trip.map(|time| time.saturating_mul(2));
        twice.map_or(FIRST, |twice| twice.clamp(SHORTEST, LONGEST))
    }
}
