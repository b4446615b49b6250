//! Several hostile clients of a server in this process, which serves all runs. It must continue to
//! serve others, and must not keep descriptors of clients that have left.

use std::fs::{DirEntry, read_dir};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Maximum number of hostile clients, and of all their steps.
const CLIENTS: usize = 8;
const STEPS: usize = 256;
/// Far longer than anything here takes.
pub(super) const LONG: Duration = Duration::from_secs(20);

/// A server, and its invariants.
pub(super) struct Server {
    /// Checks that clients that keep to the protocol are served together with hostile ones, which
    /// may delay it.
    check_beside: fn(),
    /// Checks that clients that keep to the protocol are served alone.
    check_served: fn(),
    /// Returns `true` if an open file of this name, as /proc/self/fd has it, belongs to a client.
    /// libFuzzer's symbolizer has its own pipes.
    is_counted: fn(&str) -> bool,
    /// Number of clients' open files without a hostile client, and of all open files.
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

    /// Lets clients execute steps: the number of a client and its action, or `None` if it leaves.
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

    /// Returns the number of open files of clients.
    fn open(&self) -> usize {
        let is_counted = |target: &PathBuf| (self.is_counted)(&target.to_string_lossy());
        let targets = descriptors().filter_map(|entry| entry.path().read_link().ok());
        targets.filter(|target| is_counted(target)).count()
    }
}

/// Returns the descriptors of this process.
fn descriptors() -> impl Iterator<Item = DirEntry> {
    read_dir("/proc/self/fd").expect("/proc").flatten()
}
