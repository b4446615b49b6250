//! What the switch has its daemon do.

use thiserror::Error;

use crate::message::{Message, PortId, Refusal};
use crate::requests::RequestId;

/// A step for the daemon, to be carried out in order.
#[derive(Clone, Debug)]
pub(crate) enum Output {
    /// The count of changes, for all endpoints to see.
    Count(u64),
    /// Send it.
    Send(PortId, Message),
    /// Do not send this endpoint that request of a peer, if it is not sent yet.
    Withdraw(PortId, RequestId),
    /// Ask what the ports forward. The question has this number.
    AskForBridgeWindows(u64),
    /// Close the connection, after the steps before. The switch has forgotten it already.
    CutOff(PortId, Reason),
}

/// Why an endpoint is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Reason {
    /// It may not attach.
    #[error("it is refused: {0}")]
    Refused(#[source] Refusal),
    /// It has connected and sent no Hello.
    #[error("it sends no Hello")]
    Silent,
    /// It breaks the protocol.
    #[error("it breaks the protocol: {0}")]
    Violation(&'static str),
}
