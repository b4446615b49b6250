//! What the switch knows of each endpoint.

use std::time::Instant;

use super::updates::Updates;
use crate::message::LinkTiming;
use crate::window::{BarWindow, Descriptor};

#[derive(Clone, Debug)]
pub(super) struct Port {
    pub(super) connected: Instant,
    /// `None` until its Hello.
    pub(super) name: Option<String>,
    pub(super) link: Option<LinkTiming>,
    pub(super) windows: Vec<BarWindow>,
    pub(super) leases: Descriptor,
    pub(super) updates: Updates,
    pub(super) announcing: Option<Announcing>,
}

/// An announcement that not all others have acknowledged yet.
#[derive(Clone, Debug)]
pub(super) struct Announcing {
    pub(super) sequence: u64,
    pub(super) epoch: u64,
    pub(super) deadline: Instant,
}

/// An endpoint that vanished while it had windows.
#[derive(Clone, Debug)]
pub(super) struct Vanished {
    pub(super) name: String,
    pub(super) windows: Vec<BarWindow>,
}
