//! Requests and replies between endpoints.

use std::time::Instant;

use super::Switch;
use super::output::Reason;
use crate::link_mode::LinkMode;
use crate::message::{Message, PortId, RequestError, RequestResult};
use crate::requests::RequestId;

impl Switch {
    /// Passes a Read or Write on to its completer.
    pub(super) fn request(
        &mut self,
        from: PortId,
        mut message: Message,
        now: Instant,
    ) -> Result<(), Reason> {
        let (Message::Read { peer, tag, .. } | Message::Write { peer, tag, .. }) = &mut message
        else {
            return Ok(());
        };
        let (completer, id) = (std::mem::replace(peer, from), (from, *tag));
        if !self.requests.open(id, completer, now) {
            return Err(Reason::Violation(
                "too many requests at once, or a tag twice",
            ));
        }
        let peer = self.ports.get(&completer);
        if !self.passes_requests_of(from) {
            self.reply(completer, id, Err(RequestError::Unsupported));
        } else if completer != from && peer.is_some_and(|peer| peer.name.is_some()) {
            self.send(completer, message);
        } else {
            self.reply(completer, id, Err(RequestError::Gone));
        }
        Ok(())
    }

    /// Returns `true` if the link's mode lets any request of this endpoint through. An endpoint
    /// applies its mode itself; this stops an endpoint that does not. A link that redirects lets
    /// translated requests through (PCIe Base 6.0, 6.12.1.1, ACS Direct Translated P2P).
    pub(super) fn passes_requests_of(&self, endpoint: PortId) -> bool {
        let name = self
            .ports
            .get(&endpoint)
            .and_then(|port| port.name.as_ref());
        let mode = name.and_then(|name| self.config.modes.get(name));
        matches!(
            mode.copied().unwrap_or_default(),
            LinkMode::Route | LinkMode::Redirect
        )
    }

    /// Passes a reply back. Drops a reply without a pending request, or from another completer.
    pub(super) fn reply(&mut self, from: PortId, id: RequestId, outcome: RequestResult) {
        if self.requests.close(id, from) {
            self.answer(from, id, outcome);
        }
    }

    pub(super) fn answer(&mut self, peer: PortId, (to, tag): RequestId, outcome: RequestResult) {
        self.send(to, Message::Reply { peer, tag, outcome });
    }
}
