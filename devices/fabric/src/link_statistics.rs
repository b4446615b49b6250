//! What a link has had to send again.

/// Counters of a link since its start, over all of its attachments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStatistics {
    /// Requests and responses that were sent again, each time.
    pub sent_again: u64,
    /// Bytes of data of those.
    pub bytes_sent_again: u64,
    /// How often the time-out of requests to a peer had some of them sent again.
    pub time_outs: u64,
    /// How often a peer was silent until requests to it were sent as rarely as can be. One silence counts once.
    pub impaired_peers: u64,
}

impl LinkStatistics {
    /// Data are sent again.
    pub(crate) fn count(&mut self, bytes: usize) {
        self.sent_again += 1;
        self.bytes_sent_again += bytes as u64;
    }
}
