//! The outcome of a transfer: by the kernel's rule, and as observed.

use peerbar_report::{ProbeOutcome, Probed, Route, Transfer};
use peerbar_results::TransferOutcome;
use peerbar_rule::{Decision, MapType, Reason};

/// Returns the outcome by the kernel's rule.
pub(super) fn ruled(decision: &Decision) -> TransferOutcome {
    match (decision.verdict, &decision.reason) {
        (MapType::BusAddress, Reason::OwnMemory) => TransferOutcome::OwnMemory,
        (MapType::BusAddress, _) => TransferOutcome::Peer,
        (MapType::ThroughHostBridgeIova | MapType::ThroughHostBridgePhysical, _) => {
            TransferOutcome::HostBridge
        }
        (MapType::NotSupported, _) => TransferOutcome::Refused,
    }
}

/// Returns the observed outcome, where `bytes` have moved.
pub(super) fn seen(probed: &Probed, bytes: u64) -> TransferOutcome {
    let both = [&probed.written, &probed.read];
    if both
        .iter()
        .any(|transfer| matches!(transfer, Transfer::Wrong { .. }))
    {
        return TransferOutcome::Wrong;
    }
    match probed.outcome(bytes) {
        Some(ProbeOutcome::Peer) => return TransferOutcome::Peer,
        Some(ProbeOutcome::HostBridge) => return TransferOutcome::HostBridge,
        Some(ProbeOutcome::Refused) => return TransferOutcome::Refused,
        None => {}
    }
    if both.iter().any(|transfer| **transfer != Transfer::Right) {
        return TransferOutcome::Failed;
    }
    let Some(record) = &probed.record else {
        return TransferOutcome::Unrecorded;
    };
    match record.only_route(bytes) {
        Some(Route::OwnBar) => TransferOutcome::OwnMemory,
        _ => TransferOutcome::Mixed,
    }
}

#[cfg(test)]
mod tests {
    use peerbar_report::Record;

    use super::*;

    /// Numbers of the errors with which kernels reject a mapping.
    const EINVAL: i32 = 22;
    const EREMOTEIO: i32 = 121;

    fn probed(outcome: Transfer, routes: &[(Route, u64)], failures: u64) -> Probed {
        Probed {
            written: outcome.clone(),
            read: outcome,
            record: Some(Record {
                routes: routes.iter().copied().collect(),
                failures,
            }),
            faults: 0,
            fault: None,
        }
    }

    fn failed(errno: i32) -> Transfer {
        Transfer::Failed {
            errno: Some(errno),
            message: String::new(),
        }
    }

    #[test]
    fn right_data_takes_the_outcome_of_its_route() {
        let seen_by = |routes: &[(Route, u64)], failures| {
            seen(&probed(Transfer::Right, routes, failures), 8192)
        };
        assert_eq!(seen_by(&[(Route::Peer, 8192)], 0), TransferOutcome::Peer);
        assert_eq!(
            seen_by(&[(Route::Upstream, 8192)], 0),
            TransferOutcome::HostBridge
        );
        assert_eq!(
            seen_by(&[(Route::OwnBar, 16384)], 0),
            TransferOutcome::OwnMemory
        );
        assert_eq!(seen_by(&[(Route::Peer, 4096)], 0), TransferOutcome::Mixed);
        assert_eq!(seen_by(&[(Route::Peer, 8192)], 1), TransferOutcome::Mixed);
        assert_eq!(
            seen_by(&[(Route::Peer, 8192), (Route::Upstream, 1)], 0),
            TransferOutcome::Mixed
        );
        assert_eq!(
            seen_by(&[(Route::GuestRam, 8192)], 0),
            TransferOutcome::Mixed
        );
        assert_eq!(seen_by(&[], 0), TransferOutcome::Mixed);
        let mut unwitnessed = probed(Transfer::Right, &[], 0);
        unwitnessed.record = None;
        assert_eq!(seen(&unwitnessed, 8192), TransferOutcome::Unrecorded);
    }

    #[test]
    fn error_without_dma_counts_as_refused() {
        let refused = probed(failed(EINVAL), &[], 0);
        assert_eq!(seen(&refused, 0), TransferOutcome::Refused);
        assert_eq!(
            seen(&probed(failed(EREMOTEIO), &[], 0), 0),
            TransferOutcome::Refused
        );
        assert_eq!(seen(&probed(failed(5), &[], 0), 0), TransferOutcome::Failed);
        assert_eq!(
            seen(&probed(failed(EINVAL), &[], 1), 0),
            TransferOutcome::Failed
        );
        let half = Probed {
            read: Transfer::Right,
            ..refused
        };
        assert_eq!(seen(&half, 4096), TransferOutcome::Failed);
    }

    #[test]
    fn wrong_data_outweighs_all_else() {
        let wrong = Transfer::Wrong {
            message: String::new(),
        };
        let mut probed = probed(failed(EINVAL), &[(Route::Peer, 8192)], 0);
        probed.read = wrong;
        assert_eq!(seen(&probed, 8192), TransferOutcome::Wrong);
    }
}
