//! The adapter's own side of every transfer.

use std::sync::Arc;

use peerbar_pci::Interrupts;

use super::statistics::Statistics;
use super::transfers::Transfers;
use crate::objects::Gid;

/// The adapter that the worker belongs to.
pub(super) struct Local {
    pub(super) gid: Gid,
    pub(super) transfers: Transfers,
    pub(super) interrupts: Arc<dyn Interrupts>,
    pub(super) statistics: Statistics,
}
