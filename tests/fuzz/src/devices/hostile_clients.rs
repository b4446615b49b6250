//! Several clients that do what they like to a server in this process, which serves all runs: it must go on to serve others, and hold no
//! descriptor of those that have left.

use std::fs::{DirEntry, read_dir};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Hostile clients at once, and steps of all of them.
const CLIENTS: usize = 8;
const STEPS: usize = 256;
/// Far longer than anything here takes.
pub(super) const LONG: Duration = Duration::from_secs(20);

/// A server, and what must hold of it.
pub(super) struct Server {
    /// Clients that keep to the protocol get on beside hostile ones, which may still be waited for.
    check_beside: fn(),
    /// Clients that keep to the protocol get on, alone.
    check_served: fn(),
    /// Whether an open file of this name, as /proc/self/fd has it, is a client's. libFuzzer's symbolizer has pipes of its own.
    is_counted: fn(&str) -> bool,
    /// How many of them are open without a hostile client, and how many files at all.
    at_rest: OnceLock<(usize, usize)>,
}

impl Server {
    pub(super) const fn new(
        check_beside: fn(),
        check_served: fn(),
        is_counted: fn(&str) -> bool,
    ) -> Self {
        Self {
            check_beside,
            check_served,
            is_counted,
            at_rest: OnceLock::new(),
        }
    }

    /// Has clients carry out steps: the number of a client and what it does, or that it leaves.
    pub(super) fn meet<C, A>(
        &self,
        steps: impl IntoIterator<Item = (u8, Option<A>)>,
        connect: fn() -> C,
        act: fn(&mut C, A),
    ) {
        let (at_rest, all) = *self.at_rest.get_or_init(|| {
            (self.check_served)();
            (self.check_served)();
            (self.open(), descriptors().count())
        });
        let mut clients: [Option<C>; CLIENTS] = Default::default();
        for (number, action) in steps.into_iter().take(STEPS) {
            let client = &mut clients[usize::from(number) % CLIENTS];
            match action {
                None => *client = None,
                Some(action) => act(client.get_or_insert_with(connect), action),
            }
        }
        (self.check_beside)();
        drop(clients);
        (self.check_served)();
        let deadline = Instant::now() + LONG;
        // Names take longer to find than numbers.
        while descriptors().count() > all && self.open() > at_rest {
            assert!(Instant::now() < deadline, "the server keeps a descriptor");
            std::thread::yield_now();
        }
    }

    /// How many files of clients are open.
    fn open(&self) -> usize {
        let is_counted = |target: &PathBuf| (self.is_counted)(&target.to_string_lossy());
        let targets = descriptors().filter_map(|entry| entry.path().read_link().ok());
        targets.filter(|target| is_counted(target)).count()
    }
}

/// Those of this process.
fn descriptors() -> impl Iterator<Item = DirEntry> {
    read_dir("/proc/self/fd").expect("/proc").flatten()
}
