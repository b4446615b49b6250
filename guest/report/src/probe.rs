//! The result of a probe: the outcome of DMA from one device to the memory of another.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Route;

/// The outcome of a probe. A refused or failed transfer is as good an outcome as any other; only
/// success with wrong data is a failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Probed {
    /// The client has written to the provider's memory.
    pub written: Transfer,
    /// The client has read from it.
    pub read: Transfer,
    /// The client's own record of its DMA, if it keeps one.
    pub record: Option<Record>,
    /// Number of lines in the kernel's log during the probe with which an IOMMU reports a fault.
    pub faults: u64,
    /// The first of them.
    pub fault: Option<String>,
}

/// An outcome that the kernel's decision leads to, if all else works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProbeOutcome {
    /// All data went directly between the two devices.
    Peer,
    /// All data went through the root complex.
    HostBridge,
    /// The kernel refused the mapping, and the client did nothing.
    Refused,
}

/// Numbers of the errors with which the kernel rejects a mapping (Linux,
/// include/uapi/asm-generic/errno.h). The driver and the release decide between them.
const EINVAL: i32 = 22;
const EREMOTEIO: i32 = 121;

impl Probed {
    /// Returns the outcome of a probe that has moved `bytes`, or `None` if it is another one or was
    /// not recorded.
    pub fn outcome(&self, bytes: u64) -> Option<ProbeOutcome> {
        let both = [&self.written, &self.read];
        let record = self.record.as_ref();
        if both.iter().all(|transfer| transfer.is_refusal()) {
            return record
                .is_none_or(Record::is_untouched)
                .then_some(ProbeOutcome::Refused);
        }
        if both.iter().any(|transfer| **transfer != Transfer::Right) {
            return None;
        }
        match record?.only_route(bytes)? {
            Route::Peer => Some(ProbeOutcome::Peer),
            Route::Upstream => Some(ProbeOutcome::HostBridge),
            _ => None,
        }
    }
}

impl Transfer {
    /// Returns `true` if the kernel rejected the mapping.
    fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Failed {
                errno: Some(EINVAL | EREMOTEIO),
                ..
            }
        )
    }
}

impl Record {
    /// Returns `true` if the device did nothing.
    fn is_untouched(&self) -> bool {
        self.failures == 0 && self.routes.values().all(|moved| *moved == 0)
    }

    /// Returns the one route that has carried all of `bytes`. A device with both ends in its memory
    /// moves twice as much.
    pub fn only_route(&self, bytes: u64) -> Option<Route> {
        let mut taken = self.routes.iter().filter(|(_, moved)| **moved > 0);
        match (taken.next(), taken.next()) {
            (Some((route, moved)), None) if *moved >= bytes && self.failures == 0 => Some(*route),
            _ => None,
        }
    }
}

/// The end of one transfer, as a program sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Transfer {
    /// With success and the right data.
    Right,
    /// With success and wrong data.
    Wrong {
        /// The difference.
        message: String,
    },
    /// With an error.
    Failed {
        /// The error's number, if the kernel gave one.
        errno: Option<i32>,
        /// The error.
        message: String,
    },
}

/// DMA of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Record {
    /// Payload bytes of successful DMA by route.
    pub routes: BTreeMap<Route, u64>,
    /// DMA requests that failed.
    pub failures: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(transfer: &Transfer, routes: &[(Route, u64)]) -> Option<ProbeOutcome> {
        let record = Record {
            routes: routes.iter().copied().collect(),
            failures: 0,
        };
        let probed = Probed {
            written: transfer.clone(),
            read: transfer.clone(),
            record: Some(record),
            faults: 0,
            fault: None,
        };
        probed.outcome(8192)
    }

    #[test]
    fn route_of_all_data_is_the_outcome() {
        let right = |routes| outcome(&Transfer::Right, routes);
        assert_eq!(right(&[(Route::Peer, 8192)]), Some(ProbeOutcome::Peer));
        assert_eq!(
            right(&[(Route::Upstream, 8192)]),
            Some(ProbeOutcome::HostBridge)
        );
        assert_eq!(right(&[(Route::Peer, 4096)]), None);
        assert_eq!(right(&[(Route::Peer, 8192), (Route::Upstream, 1)]), None);
    }

    #[test]
    fn refusal_is_the_kernels_error_without_dma() {
        let failed = |errno| Transfer::Failed {
            errno: Some(errno),
            message: String::new(),
        };
        let refused = Some(ProbeOutcome::Refused);
        assert_eq!(outcome(&failed(22), &[]), refused);
        assert_eq!(outcome(&failed(121), &[(Route::Peer, 0)]), refused);
        assert_eq!(outcome(&failed(5), &[]), None);
        assert_eq!(outcome(&failed(22), &[(Route::Peer, 512)]), None);
    }
}
