//! What becomes of a transfer: by the kernel's rule, and as it was seen.

use std::fmt;

use peerbar_report::{Probed, Record, Route, Transfer};
use peerbar_rule::{Decision, Reason, Verdict};
use serde::Serialize;

/// Numbers of the errors with which the kernel refuses a mapping: newer kernels', older ones' and that of drivers (Linux,
/// include/uapi/asm-generic/errno.h).
const EINVAL: i32 = 22;
const EREMOTEIO: i32 = 121;

/// The path of data between two devices, or why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TransferOutcome {
    /// Inside the device whose own memory it is.
    OwnMemory,
    /// Straight from device to device below a switch.
    Peer,
    /// Up, through the host bridge or bridges, and down.
    HostBridge,
    /// The kernel refuses it: an error reaches the program, and no DMA is tried.
    Refused,
    /// The data is right, and there is no record of its route.
    Unrecorded,
    /// The data is right, but it took more than one way, or another than these.
    Mixed,
    /// An error reaches the program.
    Failed,
    /// Success reaches the program, with wrong data.
    Wrong,
    /// Not tried.
    NotRun,
}

impl TransferOutcome {
    /// What the kernel's rule says.
    pub(super) fn ruled(decision: &Decision) -> Self {
        match (decision.verdict, &decision.reason) {
            (Verdict::BusAddress, Reason::OwnMemory) => Self::OwnMemory,
            (Verdict::BusAddress, _) => Self::Peer,
            (Verdict::ThroughHostBridgeIova | Verdict::ThroughHostBridgePhysical, _) => {
                Self::HostBridge
            }
            (Verdict::NotSupported, _) => Self::Refused,
        }
    }

    /// What has happened, where `bytes` have moved.
    pub(super) fn seen(probed: &Probed, bytes: u64) -> Self {
        let both = [&probed.written, &probed.read];
        if both
            .iter()
            .any(|transfer| matches!(transfer, Transfer::Wrong { .. }))
        {
            return Self::Wrong;
        }
        if both.iter().all(|transfer| **transfer == Transfer::Right) {
            return probed
                .record
                .as_ref()
                .map_or(Self::Unrecorded, |record| recorded(record, bytes));
        }
        let untouched = probed.record.as_ref().is_none_or(is_untouched);
        if both.iter().all(|transfer| is_refusal(transfer)) && untouched {
            return Self::Refused;
        }
        Self::Failed
    }

    /// As a table calls it.
    pub(super) fn symbol(self) -> &'static str {
        match self {
            Self::OwnMemory => "OWN",
            Self::Peer => "PEER",
            Self::HostBridge => "PHB",
            Self::Refused => "NO",
            Self::Unrecorded => "ok",
            Self::Mixed => "MIXED",
            Self::Failed => "ERROR",
            Self::Wrong => "WRONG",
            Self::NotRun => "-",
        }
    }
}

impl fmt::Display for TransferOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OwnMemory => "the device's own memory, never left",
            Self::Peer => "straight from device to device below their switch",
            Self::HostBridge => "up and through the host bridge",
            Self::Refused => {
                "refused by the kernel: an error reaches the program, and nothing moves"
            }
            Self::Unrecorded => "right data, by a way of which there is no record",
            Self::Mixed => "right data, by more than one way or none of the known ones",
            Self::Failed => "an error reaches the program",
            Self::Wrong => "success reaches the program, with wrong data",
            Self::NotRun => "not tried",
        })
    }
}

/// The way by the record: one route that has carried all of the data. A device with its own memory at both ends moves twice
/// as much.
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
        let seen = |routes: &[(Route, u64)], failures| {
            TransferOutcome::seen(&probed(Transfer::Right, routes, failures), 8192)
        };
        assert_eq!(seen(&[(Route::Peer, 8192)], 0), TransferOutcome::Peer);
        assert_eq!(
            seen(&[(Route::Upstream, 8192)], 0),
            TransferOutcome::HostBridge
        );
        assert_eq!(
            seen(&[(Route::OwnBar, 16384)], 0),
            TransferOutcome::OwnMemory
        );
        assert_eq!(seen(&[(Route::Peer, 4096)], 0), TransferOutcome::Mixed);
        assert_eq!(seen(&[(Route::Peer, 8192)], 1), TransferOutcome::Mixed);
        assert_eq!(
            seen(&[(Route::Peer, 8192), (Route::Upstream, 1)], 0),
            TransferOutcome::Mixed
        );
        assert_eq!(seen(&[(Route::GuestRam, 8192)], 0), TransferOutcome::Mixed);
        assert_eq!(seen(&[], 0), TransferOutcome::Mixed);
        let mut unwitnessed = probed(Transfer::Right, &[], 0);
        unwitnessed.record = None;
        assert_eq!(
            TransferOutcome::seen(&unwitnessed, 8192),
            TransferOutcome::Unrecorded
        );
    }

    #[test]
    fn error_without_dma_counts_as_refused() {
        let refused = probed(failed(EINVAL), &[], 0);
        assert_eq!(TransferOutcome::seen(&refused, 0), TransferOutcome::Refused);
        assert_eq!(
            TransferOutcome::seen(&probed(failed(EREMOTEIO), &[], 0), 0),
            TransferOutcome::Refused
        );
        assert_eq!(
            TransferOutcome::seen(&probed(failed(5), &[], 0), 0),
            TransferOutcome::Failed
        );
        assert_eq!(
            TransferOutcome::seen(&probed(failed(EINVAL), &[], 1), 0),
            TransferOutcome::Failed
        );
        let half = Probed {
            read: Transfer::Right,
            ..refused
        };
        assert_eq!(TransferOutcome::seen(&half, 4096), TransferOutcome::Failed);
    }

    #[test]
    fn wrong_data_outweighs_all_else() {
        let wrong = Transfer::Wrong {
            message: String::new(),
        };
        let mut probed = probed(failed(EINVAL), &[(Route::Peer, 8192)], 0);
        probed.read = wrong;
        assert_eq!(TransferOutcome::seen(&probed, 8192), TransferOutcome::Wrong);
    }
}
