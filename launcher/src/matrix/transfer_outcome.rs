//! The outcome of a transfer: by the kernel's rule, and as observed.

use peerbar_report::{Probed, Record, Route, Transfer};
use peerbar_results::TransferOutcome;
use peerbar_rule::{Decision, MapType, Reason};

/// Numbers of the errors with which the kernel rejects a mapping (Linux,
/// include/uapi/asm-generic/errno.h). The driver and the release decide between them
/// ([`peerbar_rule::Release::refusal_of_nvme`]).
const EINVAL: i32 = 22;
const EREMOTEIO: i32 = 121;

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
    if both.iter().all(|transfer| **transfer == Transfer::Right) {
        return probed
            .record
            .as_ref()
            .map_or(TransferOutcome::Unrecorded, |record| {
                recorded(record, bytes)
            });
    }
    let untouched = probed.record.as_ref().is_none_or(is_untouched);
    if both.iter().all(|transfer| is_refusal(transfer)) && untouched {
        return TransferOutcome::Refused;
    }
    TransferOutcome::Failed
}

/// Returns the way by the record: one route that has carried all of the data. A device with both
/// ends in its memory moves twice as much.
fn recorded(record: &Record, bytes: u64) -> TransferOutcome {
    let mut taken = record.routes.iter().filter(|(_, moved)| **moved > 0);
    match (taken.next(), taken.next()) {
        (Some((route, moved)), None) if *moved >= bytes && record.failures == 0 => match route {
            Route::OwnBar => TransferOutcome::OwnMemory,
            Route::Peer => TransferOutcome::Peer,
            Route::Upstream => TransferOutcome::HostBridge,
            _ => TransferOutcome::Mixed,
        },
        _ => TransferOutcome::Mixed,
    }
}

fn is_untouched(record: &Record) -> bool {
    record.failures == 0 && record.routes.values().all(|moved| *moved == 0)
}

fn is_refusal(transfer: &Transfer) -> bool {
    matches!(
        transfer,
        Transfer::Failed {
            errno: Some(EINVAL | EREMOTEIO),
            ..
        }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

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
