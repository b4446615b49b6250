//! The steps that the switch gives to its daemon.

use thiserror::Error;

use crate::message::{Message, PortId, Refusal};
use crate::requests::RequestId;

/// A step for the daemon. Steps are executed in order.
#[derive(Clone, Debug)]
pub(crate) enum Output {
    /// Publish the count of changes to all endpoints.
    Count(u64),
    /// Send this message.
    Send(PortId, Message),
    /// Do not send this endpoint that request of a peer, unless it is sent already.
    Withdraw(PortId, RequestId),
    /// Ask for the windows that the ports forward. The question has this number.
    AskForBridgeWindows(u64),
    /// Close the connection, after the previous steps. The switch has already forgotten it.
    CutOff(PortId, Reason),
}

/// The reason why an endpoint is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Reason {
    /// The endpoint may not attach.
    #[error("it is refused: {0}")]
    Refused(#[source] Refusal),
    /// The endpoint has connected and sent no Hello.
    #[error("it sends no Hello")]
    Silent,
    /// The endpoint violates the protocol.
    #[error("it breaks the protocol: {0}")]
    Violation(&'static str),
}
