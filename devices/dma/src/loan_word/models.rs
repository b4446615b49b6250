//! What a lender and a reader do to a word, in every order of events that the memory model allows.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

use super::{State, Word, advance, is, value};

const GENERATION: u32 = 1;

impl Word for AtomicU32 {
    fn load(&self) -> u32 {
        Self::load(self, Ordering::Acquire)
    }

    fn exchange(&self, was: u32, will: u32) -> bool {
        let (acquires, fails) = (Ordering::AcqRel, Ordering::Acquire);
        self.compare_exchange(was, will, acquires, fails).is_ok()
    }
}

/// A page that is lent. A reader that meets its next owner fails the model.
struct Scene {
    word: AtomicU32,
    page: UnsafeCell<u64>,
}

impl Scene {
    fn new() -> Arc<Self> {
        let open = value(GENERATION, State::Open).unwrap();
        Arc::new(Self {
            word: AtomicU32::new(open),
            page: UnsafeCell::default(),
        })
    }

    /// The reader; whether it has copied the page.
    fn read(&self) -> bool {
        let word = &self.word;
        let begins = advance(word, GENERATION, State::Open, State::Copying);
        if begins {
            self.page.with(|_| ());
            assert!(advance(word, GENERATION, State::Copying, State::Done));
        }
        begins
    }

    /// The lender ends the loan, and gives the page to another owner.
    fn end(&self) {
        if !advance(&self.word, GENERATION, State::Open, State::Over) {
            while is(&self.word, GENERATION, State::Copying) {
                thread::yield_now();
            }
        }
        self.page.with_mut(|_| ());
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
        assert_eq!(is(&scene.word, GENERATION, State::Done), has_read);
        assert_eq!(is(&scene.word, GENERATION, State::Over), !has_read);
    });
}

#[test]
fn two_ends_both_wait_for_the_reader() {
    loom::model(|| {
        let scene = Scene::new();
        let [reads, ends] = [(); 2].map(|()| scene.clone());
        let reader = thread::spawn(move || reads.read());
        let ender = thread::spawn(move || {
            advance(&ends.word, GENERATION, State::Open, State::Over);
            while is(&ends.word, GENERATION, State::Copying) {
                thread::yield_now();
            }
        });
        ender.join().unwrap();
        scene.end();
        reader.join().unwrap();
    });
}
