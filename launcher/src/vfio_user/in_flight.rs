//! The requests that are not answered yet.

use std::collections::VecDeque;

use peerbar_vfio_user::decode::Fields;
use peerbar_vfio_user::relay::{DescriptorInfo, Side};

/// Requests of one side that may wait for their replies. Beyond that, the oldest is forgotten.
const MOST: usize = 4096;

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Request {
    /// Counts the requests of both sides.
    pub(super) number: u64,
    /// Time in nanoseconds of CLOCK_MONOTONIC.
    pub(super) at: u64,
    pub(super) from: Side,
    pub(super) id: u16,
    pub(super) command: u16,
    pub(super) fields: Fields,
    pub(super) descriptors: Vec<DescriptorInfo>,
    /// The sender wants a reply.
    pub(super) wants_reply: bool,
}

/// A reply, with the request that it answers.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub(super) at: u64,
    pub(super) from: Side,
    pub(super) id: u16,
    pub(super) command: u16,
    /// The fields, or the errno of a failure.
    pub(super) outcome: Result<Fields, u32>,
    pub(super) descriptors: Vec<DescriptorInfo>,
    /// `None` if no request has this id.
    pub(super) request: Option<Request>,
}

impl Reply {
    /// Returns the time since its request, in nanoseconds.
    pub(super) fn duration(&self) -> Option<u64> {
        let request = self.request.as_ref()?;
        Some(self.at.saturating_sub(request.at))
    }
}

/// Requests in the order in which they were sent.
#[derive(Default)]
pub(super) struct InFlight {
    client: VecDeque<Request>,
    server: VecDeque<Request>,
}

impl InFlight {
    fn of(&mut self, side: Side) -> &mut VecDeque<Request> {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }

    /// Adds a request. Returns one that will not be found any more, if there are too many.
    pub(super) fn add(&mut self, request: Request) -> Option<Request> {
        let requests = self.of(request.from);
        let oldest = if requests.len() >= MOST {
            requests.pop_front()
        } else {
            None
        };
        requests.push_back(request);
        oldest
    }

    /// Takes the request of `side` that a reply with this id and command answers. A sender may use
    /// one id for several requests at once (vfio-user, Header), which are answered in their order.
    pub(super) fn take(&mut self, side: Side, id: u16, command: u16) -> Option<Request> {
        let requests = self.of(side);
        let same = |request: &Request| request.id == id && request.command == command;
        let found = requests.iter().position(same);
        let found = found.or_else(|| requests.iter().position(|request| request.id == id));
        requests.remove(found?)
    }

    /// Returns the requests that were never answered.
    pub(super) fn rest(self) -> impl Iterator<Item = Request> {
        self.client.into_iter().chain(self.server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(number: u64, from: Side, id: u16, command: u16) -> Request {
        Request {
            number,
            at: 0,
            from,
            id,
            command,
            fields: Fields::default(),
            descriptors: Vec::new(),
            wants_reply: true,
        }
    }

    #[test]
    fn replies_are_matched_by_side_id_command_and_order() {
        let mut in_flight = InFlight::default();
        let all = [
            (Side::Client, 7, 9),
            (Side::Server, 7, 11),
            (Side::Client, 7, 10),
            (Side::Client, 7, 9),
        ];
        for (number, (from, id, command)) in (0..).zip(all) {
            assert!(in_flight.add(request(number, from, id, command)).is_none());
        }
        let mut take = |side, id, command| {
            let found = in_flight.take(side, id, command);
            found.map(|request| request.number)
        };
        assert_eq!(take(Side::Client, 7, 10), Some(2));
        assert_eq!(take(Side::Client, 7, 9), Some(0));
        assert_eq!(take(Side::Client, 7, 9), Some(3));
        assert_eq!(take(Side::Client, 7, 9), None);
        assert_eq!(take(Side::Server, 8, 11), None);
        assert_eq!(take(Side::Server, 7, 99), Some(1), "with a wrong command");
    }

    #[test]
    fn side_that_is_never_answered_loses_its_oldest_requests() {
        let mut in_flight = InFlight::default();
        let lost: Vec<u64> = (0..MOST as u64 + 2)
            .filter_map(|number| in_flight.add(request(number, Side::Server, 1, 11)))
            .map(|request| request.number)
            .collect();
        assert_eq!(lost, [0, 1]);
        assert_eq!(in_flight.rest().count(), MOST);
    }
}
