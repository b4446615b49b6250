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
