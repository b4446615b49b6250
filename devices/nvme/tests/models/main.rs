//! What the controller's threads say to each other, in every order of events that the memory model allows.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
#![allow(
    dead_code,
    missing_docs,
    reason = "files of the controller are included whole"
)]

mod completions;
mod sleep;

/// What the included files share their state by.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
    pub(crate) use loom::sync::{Mutex, MutexGuard};

    pub(crate) use crate::bell::Bell;
    pub(crate) use crate::guest_memory::Session;
}

mod bell;
mod doorbells;
mod guest_memory;

#[path = "../../src/alarm.rs"]
mod alarm;
#[allow(unreachable_pub, reason = "it is public there")]
#[path = "../../src/cmb.rs"]
mod cmb;
#[path = "../../src/coalescing.rs"]
mod coalescing;
#[path = "../../src/mailbox.rs"]
mod mailbox;
#[path = "../../src/messages.rs"]
mod messages;
#[path = "../../src/outbox.rs"]
mod outbox;
#[path = "../../src/pending.rs"]
mod pending;
#[path = "../../src/queues.rs"]
mod queues;
#[path = "../../src/registers.rs"]
mod registers;
#[path = "../../src/shadow.rs"]
mod shadow;

/// Tries a scene in every order of events that takes a thread off at most so many times where it could have gone on.
fn every_order(preemptions: usize, scene: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(scene);
}
