//! The settings of a fabric.

use std::path::PathBuf;

use crate::impairment::Impairment;
use crate::record::Record;

/// The settings of a fabric.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// From this and the packets follows which of them are impaired.
    pub seed: u64,
    /// What is done to packets.
    pub impairments: Vec<Impairment>,
    /// What happened.
    pub record: Record,
    /// Where rules are taken meanwhile ([`Impairment`], `clear`, `rules`), if anywhere.
    pub control: Option<PathBuf>,
}
