//! Statistics.

use peerbar_efa_spec::admin::Status;
use peerbar_efa_spec::admin::statistics::{
    Basic, GetStats, Messages, Network, RdmaRead, RdmaWrite, kind, scope,
};

use super::{answer, possible};
use crate::admin_queue::{Answer, Command};
use crate::engine::Engine;

impl Engine {
    pub(super) fn get_statistics(&mut self, command: &Command) -> Result<Answer, Status> {
        let parameters = command.view::<GetStats>()?;
        possible(parameters.scope == scope::ALL)?;
        let now = self.data.statistics();
        Ok(match parameters.kind {
            kind::BASIC => answer(&Basic {
                sent_bytes: now.sent_bytes.into(),
                sent_packets: now.sent_packets.into(),
                received_bytes: now.received_bytes.into(),
                received_packets: now.received_packets.into(),
                dropped: now.dropped.into(),
                qkey_violations: now.qkey_violations.into(),
            }),
            kind::MESSAGES => answer(&Messages {
                sent_bytes: now.send_bytes.into(),
                sends: now.sends.into(),
                received_bytes: now.receive_bytes.into(),
                receives: now.receives.into(),
            }),
            kind::RDMA_READ => answer(&RdmaRead {
                reads: now.reads.into(),
                bytes: now.read_bytes.into(),
                errors: now.read_errors.into(),
                response_bytes: now.read_response_bytes.into(),
            }),
            kind::RDMA_WRITE => answer(&RdmaWrite {
                writes: now.writes.into(),
                bytes: now.write_bytes.into(),
                errors: now.write_errors.into(),
                received_bytes: now.write_received_bytes.into(),
            }),
            kind::NETWORK => {
                let link = self.data.link_statistics();
                answer(&Network {
                    retransmitted_bytes: link.bytes_sent_again.into(),
                    retransmitted_packets: link.sent_again.into(),
                    timeouts: link.time_outs.into(),
                    unresponsive: now.unresponsive_remotes.into(),
                    impaired: link.impaired_peers.into(),
                })
            }
            _ => return Err(Status::IllegalParameter),
        })
    }
}
