//! What threads share their state by. The models (`tests/models`) put other types of the same names in its place, with
//! which every order of events is tried.

pub(crate) use std::sync::atomic::{AtomicBool, Ordering, fence};

pub(crate) use crate::bell::Bell;
