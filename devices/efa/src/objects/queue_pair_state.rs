//! The transport of a queue pair, and its states.

/// The transport of a queue pair (`efa_admin_qp_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePairKind {
    /// Unreliable datagrams.
    Datagram = 1,
    /// Scalable reliable datagrams: messages arrive once, in any order.
    ReliableDatagram = 2,
}

/// The state of a queue pair (`efa_admin_qp_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum QueuePairState {
    /// Just created: it neither sends nor receives.
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Ready to receive.
    ReadyToReceive = 2,
    /// Ready to send.
    ReadyToSend = 3,
    /// Send queue drained: it receives only.
    SendQueueDrained = 4,
    /// Send queue in error. Not used: a failure on this adapter affects the whole queue pair.
    SendQueueError = 5,
    /// In error: posted requests are flushed.
    Error = 6,
}

impl QueuePairState {
    const ALL: [Self; 7] = [
        Self::Reset,
        Self::Init,
        Self::ReadyToReceive,
        Self::ReadyToSend,
        Self::SendQueueDrained,
        Self::SendQueueError,
        Self::Error,
    ];

    /// Returns the state of this number, or `None` if the number is invalid.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|state| *state as u32 == number)
    }

    /// Returns `true` if a driver may move a queue pair from this state to that one.
    pub(super) fn may_become(self, next: Self) -> bool {
        use QueuePairState as S;
        match next {
            S::Reset => true,
            S::Error => self != S::Reset,
            S::Init => matches!(self, S::Reset | S::Init),
            S::ReadyToReceive => self == S::Init,
            S::ReadyToSend => matches!(
                self,
                S::ReadyToReceive | S::ReadyToSend | S::SendQueueDrained
            ),
            S::SendQueueDrained => matches!(self, S::ReadyToSend | S::SendQueueDrained),
            S::SendQueueError => false,
        }
    }

    /// Returns `true` if work requests in progress continue.
    pub(crate) fn continues(self) -> bool {
        matches!(self, Self::ReadyToSend | Self::SendQueueDrained)
    }

    /// Returns `true` if it takes messages and requests of others.
    pub(crate) fn receives(self) -> bool {
        !matches!(self, Self::Reset | Self::Init | Self::Error)
    }
}
