//! Statistics of packets that a link had to send again.

/// Counters of a link since its start, over all of its attachments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStatistics {
    /// Requests and responses that were sent again, each time.
    pub sent_again: u64,
    /// Bytes of data in those.
    pub bytes_sent_again: u64,
    /// Number of time-outs after which requests to a peer were sent again.
    pub time_outs: u64,
    /// Number of silences of a peer that lasted until requests to it were sent at the lowest rate.
    /// One silence counts once.
    pub impaired_peers: u64,
}

impl LinkStatistics {
    /// Counts data that is sent again.
    pub(crate) fn count(&mut self, bytes: usize) {
        self.sent_again += 1;
        self.bytes_sent_again += bytes as u64;
    }
}
