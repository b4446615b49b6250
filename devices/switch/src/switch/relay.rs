//! Requests and replies between endpoints.

use std::time::Instant;

use super::Switch;
use super::output::Reason;
use crate::message::{Message, PortId, Status};
use crate::requests::RequestId;

impl Switch {
    pub(super) fn request(
        &mut self,
        id: RequestId,
        completer: PortId,
        message: Message,
        now: Instant,
    ) -> Result<(), Reason> {
        if !self.requests.open(id, completer, now) {
            return Err(Reason::Violation(
                "too many requests at once, or a tag twice",
            ));
        }
        let (requester, _) = id;
        let peer = self.ports.get(&completer);
        if completer != requester && peer.is_some_and(|peer| peer.name.is_some()) {
            self.send(completer, message);
        } else {
            self.reply(completer, id, Status::Gone, Vec::new());
        }
        Ok(())
    }

    /// Passes a reply back. One to no pending request, or of another completer, is dropped.
    pub(super) fn reply(&mut self, from: PortId, id: RequestId, status: Status, data: Vec<u8>) {
        if self.requests.close(id, from) {
            self.answer(from, id, status, data);
        }
    }

    pub(super) fn answer(
        &mut self,
        peer: PortId,
        (to, tag): RequestId,
        status: Status,
        data: Vec<u8>,
    ) {
        let reply = Message::Reply {
            peer,
            tag,
            status,
            data,
        };
        self.send(to, reply);
    }
}
