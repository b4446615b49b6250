//! The syncs of a namespace to stable storage, and the record of lost data.
//!
//! The kernel reports a failed writeback to one sync of the file only. Another sync, which began
//! before or after it, may succeed although its data is lost. So a sync has succeeded only when all
//! that were in progress at its end have ended, and none has ever failed.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Condvar, Mutex};

/// The number of a sync, in the order in which they begin.
pub(crate) type Ticket = u64;

/// The syncs of a namespace.
#[derive(Default)]
pub(crate) struct Syncs {
    state: Mutex<SyncsState>,
    ended: Condvar,
    failed: AtomicBool,
}

#[derive(Default)]
struct SyncsState {
    next: Ticket,
    in_progress: BTreeSet<Ticket>,
    /// A command has been deferred until some syncs have ended.
    is_awaited: bool,
}

impl SyncsState {
    fn have_ended(&self, before: Ticket) -> bool {
        self.in_progress
            .first()
            .is_none_or(|first| *first >= before)
    }
}

impl Syncs {
    /// Returns the ticket of the next sync.
    pub(crate) fn next(&self) -> Ticket {
        self.state.lock().next
    }

    /// Begins a sync.
    pub(crate) fn begin(&self) -> Ticket {
        let mut state = self.state.lock();
        let ticket = state.next;
        state.next += 1;
        state.in_progress.insert(ticket);
        ticket
    }

    /// Ends a sync. It has succeeded if those before the returned ticket have, too. Also returns
    /// `true` if a command has been deferred until then.
    pub(crate) fn end(&self, ticket: Ticket, is_ok: bool) -> (Ticket, bool) {
        let mut state = self.state.lock();
        if !is_ok {
            // Stored while the lock is held: a thread that sees this sync ended also sees the
            // failure.
            self.failed.store(true, Ordering::Relaxed);
        }
        state.in_progress.remove(&ticket);
        self.ended.notify_all();
        (state.next, std::mem::take(&mut state.is_awaited))
    }

    /// Returns `true` if all syncs before a ticket have ended. If not, the end of one of them
    /// reports it.
    pub(crate) fn have_ended(&self, before: Ticket) -> bool {
        let mut state = self.state.lock();
        let have_ended = state.have_ended(before);
        state.is_awaited |= !have_ended;
        have_ended
    }

    /// Waits until all syncs before a ticket have ended.
    pub(crate) fn wait(&self, before: Ticket) {
        let mut state = self.state.lock();
        self.ended
            .wait_while(&mut state, |state| !state.have_ended(before));
    }

    /// Forgets earlier failures: the owner has repaired the disk.
    #[cfg(feature = "stepped")]
    pub(crate) fn forgive(&self) {
        self.failed.store(false, Ordering::Relaxed);
    }

    /// Returns `true` if a sync has ever failed: written data may be lost.
    pub(crate) fn have_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sync_waits_for_those_in_progress_at_its_end() {
        let syncs = Syncs::default();
        let [early, first, second] = [(); 3].map(|()| syncs.begin());
        assert_eq!(syncs.end(early, true), (3, false));
        let (before, _) = syncs.end(second, true);
        let late = syncs.begin();
        assert!(!syncs.have_ended(before), "the first may have failed");
        assert_eq!(syncs.end(first, false), (4, true));
        assert!(syncs.have_ended(before) && syncs.have_failed());
        assert_eq!(syncs.end(late, true), (4, false));
        assert!(syncs.have_failed(), "for good");
    }
}
