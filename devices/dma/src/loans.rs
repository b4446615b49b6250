//! The loans of a function, and the changes that end them.
//!
//! A change that takes an address of a loan away ends the loan, and waits for nothing but a copy that the other process has begun
//! ([`LoanWords`](crate::LoanWords)).

use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use slab::Slab;

use crate::address::AddressRange;
use crate::loan_words::LoanWord;

/// The loans of a function that have not been given back.
#[derive(Default)]
pub(crate) struct Loans {
    open: Mutex<Slab<OpenLoan>>,
}

pub(crate) struct OpenLoan {
    addresses: Vec<AddressRange>,
    /// The first of its ranges that a change has taken away.
    pub(crate) over: Option<usize>,
    word: Arc<LoanWord>,
}

impl OpenLoan {
    fn meets(&self, range: AddressRange) -> bool {
        self.first_met(range).is_some()
    }

    fn first_met(&self, range: AddressRange) -> Option<usize> {
        self.addresses.iter().position(|own| own.meets(range))
    }
}

impl Loans {
    /// Adds a loan of these addresses; its key.
    pub(crate) fn add(&self, addresses: Vec<AddressRange>, word: Arc<LoanWord>) -> usize {
        self.open.lock().insert(OpenLoan {
            addresses,
            over: None,
            word,
        })
    }

    /// The loans by their keys. No change ends one while they are locked.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Slab<OpenLoan>> {
        self.open.lock()
    }

    /// Ends every loan that meets this range: no copy of it begins any more. To be called with the lock held under which the range is
    /// taken away.
    pub(crate) fn end(&self, range: AddressRange) {
        for (_, loan) in self.open.lock().iter_mut() {
            if let Some(met) = loan.first_met(range) {
                loan.over = Some(loan.over.map_or(met, |over| over.min(met)));
                loan.word.cancel();
            }
        }
    }

    /// Whether memory of this range is being copied under loans that have ended.
    pub(crate) fn are_copied(&self, range: AddressRange) -> bool {
        let open = self.open.lock();
        let mut ended = open.iter().filter(|(_, loan)| loan.over.is_some());
        ended.any(|(_, loan)| loan.meets(range) && loan.word.is_copying())
    }

    /// Waits until nothing of these ranges is copied under loans that have ended. To be called without locks.
    pub(crate) fn wait(&self, ranges: &[AddressRange]) {
        self.wait_since(ranges, Instant::now());
    }

    /// The same, for a change that began to wait at this moment: all readers together get the time of one.
    pub(crate) fn wait_since(&self, ranges: &[AddressRange], began: Instant) {
        let open = self.open.lock();
        let ended = open.iter().filter(|(_, loan)| loan.over.is_some());
        let meets = |loan: &OpenLoan| ranges.iter().any(|range| loan.meets(*range));
        let copied = ended.filter(|(_, loan)| meets(loan) && loan.word.is_copying());
        let copied: Vec<_> = copied.map(|(_, loan)| loan.word.clone()).collect();
        drop(open);
        for word in copied {
            word.wait(began);
        }
    }
}
