//! Memory that other adapters read at the moment, for which queue pair, and of which memory regions.

use std::collections::HashMap;

use peerbar_dma::Loan;
use peerbar_efa_spec::work::LOCAL_KEY_MASK;

use super::{Need, Objects};

/// The open loans by their numbers. One whose queue pair or memory region goes is gone, so what is read under it is of no use.
#[derive(Default)]
pub(super) struct Loans(HashMap<u64, HeldLoan>);

struct HeldLoan {
    pair: u16,
    /// Local keys of its memory regions.
    regions: Vec<u32>,
    loan: Loan,
}

impl Loans {
    /// The memory region of this local key is removed.
    pub(super) fn end_those_of_region(&mut self, local_key: u32) {
        self.end(|held| held.regions.contains(&local_key));
    }

    /// What a queue pair has in progress is dropped.
    pub(super) fn end_those_of_pair(&mut self, pair: u16) {
        self.end(|held| held.pair == pair);
    }

    fn end(&mut self, is_over: impl Fn(&HeldLoan) -> bool) {
        let all = std::mem::take(&mut self.0);
        let (over, held): (HashMap<_, _>, _) = all.into_iter().partition(|(_, held)| is_over(held));
        self.0 = held;
        Loan::drop_all(over.into_values().map(|held| held.loan));
    }
}

impl Drop for Loans {
    fn drop(&mut self) {
        self.end(|_| true);
    }
}

impl Objects {
    /// Keeps a loan of a queue pair, by a number of its own, of memory regions that are named by these keys.
    pub(crate) fn hold_loan(
        &mut self,
        number: u64,
        loan: Loan,
        (pair, need): (u16, Need),
        keys: impl IntoIterator<Item = u32>,
    ) {
        let local = |key: u32| match need {
            Need::LocalRead | Need::LocalWrite => Some(key & LOCAL_KEY_MASK),
            Need::RemoteRead | Need::RemoteWrite => self.remote_keys.get(&key).copied(),
        };
        let held = HeldLoan {
            pair,
            regions: keys.into_iter().filter_map(local).collect(),
            loan,
        };
        self.loans.0.insert(number, held);
    }

    /// Takes out a loan that is given back. `None` if its queue pair or a memory region of it is gone.
    pub(crate) fn take_loan(&mut self, number: u64) -> Option<Loan> {
        self.loans.0.remove(&number).map(|held| held.loan)
    }

    /// A queue pair is in error.
    pub(crate) fn end_loans_of_pair(&mut self, pair: u16) {
        self.loans.end_those_of_pair(pair);
    }

    /// How many loans are open.
    #[cfg(test)]
    pub(crate) fn loan_count(&self) -> usize {
        self.loans.0.len()
    }
}
