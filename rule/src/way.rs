//! The way of a transfer, without the form of the address.

use std::fmt;

use serde::Serialize;

use crate::decision::MapType;

/// The way of a transfer, without the form of the address, which the IOMMU's mode decides. The
/// variants are in order from the worst to the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Refused: `PCI_P2PDMA_MAP_NOT_SUPPORTED`.
    NotSupported,
    /// Through the host bridge: `PCI_P2PDMA_MAP_THRU_HOST_BRIDGE`.
    ThroughHostBridge,
    /// Direct, by bus address: `PCI_P2PDMA_MAP_BUS_ADDR`.
    BusAddress,
}

impl From<MapType> for Way {
    fn from(map_type: MapType) -> Self {
        match map_type {
            MapType::NotSupported => Self::NotSupported,
            MapType::BusAddress => Self::BusAddress,
            MapType::ThroughHostBridgeIova | MapType::ThroughHostBridgePhysical => {
                Self::ThroughHostBridge
            }
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::NotSupported => "not supported",
            Self::ThroughHostBridge => "through the host bridge",
            Self::BusAddress => "bus address",
        })
    }
}
