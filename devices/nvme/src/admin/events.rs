//! Asynchronous events (NVMe Base 2.0, 5.2).

use std::collections::VecDeque;

use peerbar_nvme_spec::completion::Status;
use peerbar_nvme_spec::event::{AsyncEvent, kind};
use peerbar_nvme_spec::log::lid;

use super::reply::{Late, Reply};

/// Asynchronous Event Requests that may wait at once.
pub(super) const LIMIT: usize = 4;

/// Requests that wait for an event, and events that wait for a request.
///
/// Once an event has been reported, others of its kind wait until the host has read the log page of
/// that kind.
#[derive(Debug, Default)]
pub(crate) struct Events {
    requests: VecDeque<u16>,
    events: VecDeque<AsyncEvent>,
    masked_kinds: u8,
}

impl Events {
    /// Asynchronous Event Request: waits for an event.
    pub(crate) fn wait(&mut self, cid: u16) -> Result<Reply, Status> {
        if self.requests.len() >= LIMIT {
            return Err(Status::ASYNC_EVENT_LIMIT_EXCEEDED.with_dnr(true));
        }
        self.requests.push_back(cid);
        Ok(Reply::Later)
    }

    /// Records an event, unless the same event already waits to be reported.
    pub(crate) fn raise(&mut self, event: AsyncEvent) {
        if !self.events.contains(&event) {
            self.events.push_back(event);
        }
    }

    /// Allows events of a kind to be reported again: the host has read their log page, `lid`.
    pub(crate) fn clear(&mut self, lid: u8) {
        let kind = match lid {
            lid::ERROR => kind::ERROR,
            lid::SMART => kind::SMART,
            lid::CHANGED_NAMESPACES => kind::NOTICE,
            lid::SANITIZE_STATUS => kind::IO,
            _ => return,
        };
        self.masked_kinds &= !(1 << kind);
    }

    /// Aborts a waiting request. Returns its completion, or `None` if no such request waits.
    pub(crate) fn abort(&mut self, cid: u16) -> Option<Late> {
        let index = self.requests.iter().position(|waiting| *waiting == cid)?;
        self.requests.remove(index)?;
        Some(Late {
            cid,
            dw0: 0,
            status: Status::ABORT_REQUESTED,
        })
    }

    /// Returns the next request that completes.
    pub(crate) fn next(&mut self) -> Option<Late> {
        let masked = self.masked_kinds;
        let index = self
            .events
            .iter()
            .position(|event| masked & (1 << event.kind()) == 0)?;
        let cid = self.requests.pop_front()?;
        let event = self.events.remove(index)?;
        self.masked_kinds |= 1 << event.kind();
        Some(Late {
            cid,
            dw0: event.into_bits(),
            status: Status::SUCCESS,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOORBELL: AsyncEvent = AsyncEvent::INVALID_DOORBELL_VALUE;

    #[test]
    fn an_event_meets_a_request_in_either_order() {
        let mut events = Events::default();
        events.raise(DOORBELL);
        assert_eq!(events.next(), None);
        events.wait(7).unwrap();
        assert_eq!(
            events.next(),
            Some(Late {
                cid: 7,
                dw0: 0x0001_0100,
                status: Status::SUCCESS
            })
        );
        events.wait(8).unwrap();
        events.raise(AsyncEvent::TEMPERATURE_THRESHOLD);
        assert_eq!(
            events.next(),
            Some(Late {
                cid: 8,
                dw0: 0x0002_0101,
                status: Status::SUCCESS
            })
        );
    }

    #[test]
    fn a_kind_is_quiet_until_its_log_page_is_read() {
        let mut events = Events::default();
        for cid in 0..3 {
            events.wait(cid).unwrap();
        }
        events.raise(DOORBELL);
        assert!(events.next().is_some());
        events.raise(DOORBELL);
        events.raise(DOORBELL);
        assert_eq!(events.next(), None);
        events.clear(lid::SMART);
        assert_eq!(events.next(), None);
        events.clear(lid::ERROR);
        assert!(events.next().is_some());
        assert_eq!(events.next(), None, "a repeated event is one");
    }

    #[test]
    fn requests_are_limited_and_can_be_aborted() {
        let mut events = Events::default();
        for cid in 0..4 {
            assert_eq!(events.wait(cid), Ok(Reply::Later));
        }
        assert_eq!(
            events.wait(4),
            Err(Status::ASYNC_EVENT_LIMIT_EXCEEDED.with_dnr(true))
        );
        let aborted = events.abort(2).unwrap();
        assert_eq!((aborted.cid, aborted.status), (2, Status::ABORT_REQUESTED));
        assert_eq!(events.abort(2), None);
        assert_eq!(events.wait(4), Ok(Reply::Later));
    }
}
