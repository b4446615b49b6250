//! What the switch knows of each endpoint.

use std::time::Instant;

use crate::message::LinkTiming;
use crate::window::BarWindow;

#[derive(Clone, Debug)]
pub(super) struct Port {
    pub(super) connected: Instant,
    /// `None` until its Hello.
    pub(super) name: Option<String>,
    pub(super) link: Option<LinkTiming>,
    pub(super) windows: Vec<BarWindow>,
    /// The last change that it has acknowledged, or that it received when it attached.
    pub(super) acknowledged: u64,
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
