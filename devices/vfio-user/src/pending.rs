//! The requests to the client that are not answered yet, by message id.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::mpsc::Sender;

use parking_lot::Mutex;

use crate::framing::{Descriptors, Payload};
use crate::request_error::RequestError;
use crate::wire::Header;

/// The reply to one request.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) header: Header,
    pub(crate) payload: Payload,
    /// Only replies of a server have any.
    pub(crate) descriptors: Descriptors,
}

/// The outcome of one message of a call: its number within the call, and its reply.
pub(crate) type Arrival = (usize, Result<Reply, RequestError>);

/// The calls that wait for replies, by message id.
#[derive(Debug)]
pub(crate) struct Pending {
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    open: bool,
    next_id: u16,
    /// An entry stays until its reply comes, even if its call has timed out, so that a late reply
    /// cannot reach another call.
    waiting: HashMap<u16, (usize, Sender<Arrival>)>,
}

impl Pending {
    pub(crate) fn new() -> Self {
        Self {
            table: Mutex::new(Table {
                open: true,
                next_id: 0,
                waiting: HashMap::new(),
            }),
        }
    }

    /// Reserves a message id for message `number` of the call that receives on `call`.
    pub(crate) fn register(
        &self,
        number: usize,
        call: &Sender<Arrival>,
    ) -> Result<u16, RequestError> {
        let mut table = self.table.lock();
        if !table.open {
            return Err(RequestError::Gone);
        }
        for _ in 0..=u16::MAX {
            let id = table.next_id;
            table.next_id = id.wrapping_add(1);
            if let Entry::Vacant(entry) = table.waiting.entry(id) {
                entry.insert((number, call.clone()));
                return Ok(id);
            }
        }
        // All 65536 requests are unanswered.
        Err(RequestError::TimedOut)
    }

    /// Passes `reply` to the call that waits for it. Returns `false` if no call does.
    pub(crate) fn complete(&self, reply: Reply) -> bool {
        let waiter = self.table.lock().waiting.remove(&reply.header.id.get());
        waiter.is_some_and(|(number, call)| call.send((number, Ok(reply))).is_ok())
    }

    /// Fails all calls, present and future, with [`RequestError::Gone`].
    pub(crate) fn close(&self) {
        let mut table = self.table.lock();
        table.open = false;
        for (_, (number, call)) in table.waiting.drain() {
            // Fails if the call has timed out.
            let _ = call.send((number, Err(RequestError::Gone)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use zerocopy::FromZeros;

    use super::*;

    fn reply(id: u16) -> Reply {
        let mut header = Header::new_zeroed();
        header.id.set(id);
        Reply {
            header,
            payload: Payload::Whole(Vec::new()),
            descriptors: Descriptors::default(),
        }
    }

    #[test]
    fn id_without_reply_is_not_reused() {
        let pending = Pending::new();
        let (call, arrivals) = channel();
        for id in 0..=u16::MAX {
            assert_eq!(pending.register(id.into(), &call), Ok(id));
        }
        assert_eq!(pending.register(0, &call), Err(RequestError::TimedOut));
        assert!(pending.complete(reply(777)));
        assert_eq!(arrivals.recv().unwrap().0, 777);
        assert_eq!(pending.register(0, &call), Ok(777));
    }

    #[test]
    fn reply_without_a_waiting_call_is_reported() {
        let pending = Pending::new();
        assert!(!pending.complete(reply(0)));
        let (call, arrivals) = channel();
        let id = pending.register(0, &call).unwrap();
        drop(arrivals);
        assert!(!pending.complete(reply(id)));
    }

    #[test]
    fn close_fails_present_and_future_calls() {
        let pending = Pending::new();
        let (call, arrivals) = channel();
        pending.register(3, &call).unwrap();
        pending.close();
        let (number, outcome) = arrivals.recv().unwrap();
        assert_eq!((number, outcome.unwrap_err()), (3, RequestError::Gone));
        assert_eq!(pending.register(0, &call), Err(RequestError::Gone));
    }
}
