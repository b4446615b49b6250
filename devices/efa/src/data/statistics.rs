//! The adapter's statistics, which its driver reads.

use peerbar_efa_spec::completion::CompletionStatus;
use peerbar_efa_spec::work::Operation;

use crate::objects::QueuePairKind;
use crate::work::request::WorkRequest;

/// Counters of an adapter since its start (`efa_admin_*_stats`). Bytes are payload bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Packets sent: messages, parts of RDMA writes, and parts that others read. A packet that the
    /// fabric loses, or that waits for a receive, counts once.
    pub sent_packets: u64,
    /// Bytes sent in them.
    pub sent_bytes: u64,
    /// Packets received.
    pub received_packets: u64,
    /// Bytes received in them.
    pub received_bytes: u64,
    /// Datagrams that were dropped because there was no receive or no queue pair for them.
    pub dropped: u64,
    /// Messages that were refused because of their queue key.
    pub qkey_violations: u64,
    /// Work requests of sends that succeeded.
    pub sends: u64,
    /// Their bytes.
    pub send_bytes: u64,
    /// Messages that were received.
    pub receives: u64,
    /// Their bytes.
    pub receive_bytes: u64,
    /// Work requests of RDMA reads that succeeded.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Work requests of RDMA reads that failed.
    pub read_errors: u64,
    /// Bytes that others have read.
    pub read_response_bytes: u64,
    /// Work requests of RDMA writes that succeeded.
    pub writes: u64,
    /// Their bytes.
    pub write_bytes: u64,
    /// Work requests of RDMA writes that failed.
    pub write_errors: u64,
    /// Bytes that others have written.
    pub write_received_bytes: u64,
    /// Requests that ended because the other adapter was gone, or did not answer in time.
    pub unresponsive_remotes: u64,
    /// Bytes that were copied twice, because not all of the memory is mapped here.
    pub bounced_bytes: u64,
    /// Bytes of payload that were sent to other adapters through staging buffers.
    pub staged_bytes: u64,
    /// Number of times that a staging buffer was given up, so that payload went in packets for a
    /// while.
    pub refused_buffers: u64,
    /// Bytes of payload that were sent to other adapters in packets, which takes several copies.
    pub packet_bytes: u64,
}

impl Statistics {
    pub(super) fn count_sent(&mut self, bytes: u32) {
        self.sent_packets += 1;
        self.sent_bytes += u64::from(bytes);
    }

    pub(super) fn count_received(&mut self, bytes: usize) {
        self.received_packets += 1;
        self.received_bytes += bytes as u64;
    }

    /// Counts a dropped datagram. The sender of any other message learns of the failure.
    pub(super) fn count_dropped(&mut self, kind: QueuePairKind) {
        self.dropped += u64::from(kind == QueuePairKind::Datagram);
    }

    /// Counts a work request that has ended.
    pub(super) fn count_end(&mut self, request: &WorkRequest, status: CompletionStatus) {
        let (requests, bytes, errors) = match request.operation {
            Operation::Send => (&mut self.sends, &mut self.send_bytes, None),
            Operation::RdmaRead => {
                let errors = Some(&mut self.read_errors);
                (&mut self.reads, &mut self.read_bytes, errors)
            }
            Operation::RdmaWrite => {
                let errors = Some(&mut self.write_errors);
                (&mut self.writes, &mut self.write_bytes, errors)
            }
            Operation::FastRegister | Operation::FastInvalidate => return,
        };
        match status {
            CompletionStatus::Ok => {
                *requests += 1;
                *bytes += u64::from(request.bytes);
            }
            CompletionStatus::Flushed => {}
            _ => errors.into_iter().for_each(|errors| *errors += 1),
        }
    }
}
