//! What a lender and a reader do to a word, in every order of events that the memory model allows.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

use super::{LoanState, Word, abandon, advance, cancel, is, value};

const GENERATION: u32 = 1;

impl_word!(AtomicU32);

/// A page that is lent. A reader that meets its next owner fails the model.
struct Scene {
    word: AtomicU32,
    page: UnsafeCell<u64>,
}

impl Scene {
    fn new() -> Arc<Self> {
        let open = value(GENERATION, LoanState::Open).unwrap();
        Arc::new(Self {
            word: AtomicU32::new(open),
            page: UnsafeCell::default(),
        })
    }

    /// The reader; whether it has copied the page.
    fn read(&self) -> bool {
        let word = &self.word;
        let begins = advance(word, GENERATION, LoanState::Open, LoanState::Copying);
        if begins {
            self.page.with(|_| ());
            assert!(advance(
                word,
                GENERATION,
                LoanState::Copying,
                LoanState::Done
            ));
        }
        begins
    }

    /// The lender ends the loan, waits for a copy, and gives the page to another owner.
    fn end(&self) {
        self.wait();
        self.page.with_mut(|_| ());
    }

    /// The lender ends the loan, and waits for a copy.
    fn wait(&self) {
        cancel(&self.word, GENERATION);
        while is(&self.word, GENERATION, LoanState::Copying) {
            thread::yield_now();
        }
    }
}

#[test]
fn reader_meets_no_next_owner_of_the_page() {
    loom::model(|| {
        let scene = Scene::new();
        let other = scene.clone();
        let reader = thread::spawn(move || other.read());
        scene.end();
        let has_read = reader.join().unwrap();
        assert_eq!(is(&scene.word, GENERATION, LoanState::Done), has_read);
        assert_eq!(is(&scene.word, GENERATION, LoanState::Over), !has_read);
    });
}

#[test]
fn two_ends_both_wait_for_the_reader() {
    loom::model(|| {
        let scene = Scene::new();
        let [reads, ends] = [(); 2].map(|()| scene.clone());
        let reader = thread::spawn(move || reads.read());
        let ender = thread::spawn(move || ends.wait());
        ender.join().unwrap();
        scene.end();
        reader.join().unwrap();
    });
}

/// The lender has waited for long enough. The copy may still read the page, so only its success is at stake.
#[test]
fn abandoned_copy_succeeds_exactly_if_it_was_done() {
    loom::model(|| {
        let open = value(GENERATION, LoanState::Open).unwrap();
        let word = Arc::new(AtomicU32::new(open));
        let read = word.clone();
        let reader = thread::spawn(move || {
            let begins = advance(&*read, GENERATION, LoanState::Open, LoanState::Copying);
            begins && advance(&*read, GENERATION, LoanState::Copying, LoanState::Done)
        });
        cancel(&*word, GENERATION);
        let is_abandoned = abandon(&*word, GENERATION);
        let is_done = is(&*word, GENERATION, LoanState::Done);
        let has_succeeded = reader.join().unwrap();
        assert_eq!(is_done, has_succeeded);
        assert!(!(is_abandoned && has_succeeded));
        let over = is(&*word, GENERATION, LoanState::Over);
        assert_eq!(over, !has_succeeded);
    });
}
