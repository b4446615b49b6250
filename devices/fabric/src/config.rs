//! The settings of a fabric.

use std::path::PathBuf;

use crate::impairment::Impairment;
use crate::record::Record;

/// The settings of a fabric.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Seed that, together with the packets, determines which of them are impaired.
    pub seed: u64,
    /// Rules for the impairment of packets.
    pub impairments: Vec<Impairment>,
    /// The record of events.
    pub record: Record,
    /// Path of the control socket, if there is one, which accepts rules while the fabric is served
    /// ([`Impairment`], `clear`, `rules`).
    pub control: Option<PathBuf>,
}
