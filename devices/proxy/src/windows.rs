//! The peers' windows for the server, which a thread of their own lends and takes back.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use parking_lot::Mutex;
use peerbar_dma::PeerId;
use peerbar_endpoint::{Acknowledgement, ObservedWindow, WindowObserver};

use crate::lender::Lender;
use crate::mappings::Borrower;
use crate::unconfirmed::Unconfirmed;

/// Time between two looks at a link that is down. A fault says for how long it stays so.
const LINK_INTERVAL: Duration = Duration::from_millis(20);

/// The reasons to change the server's mappings that the thread has yet to see. They stay few, even if
/// a peer changes its windows faster than the server follows.
#[derive(Default)]
struct Pending {
    /// All peers have lost their windows, before the changes.
    is_lost: bool,
    /// All windows of each peer that has changed, as of its newest change.
    changes: BTreeMap<PeerId, Vec<ObservedWindow>>,
    /// The number of the last acknowledgement that waits for the server. No earlier one does.
    unconfirmed: Option<u64>,
    /// The link may have gone down.
    watches_link: bool,
}

/// Passes changes of the peers' windows to the thread that lends them.
pub(crate) struct Windows {
    pending: Arc<Mutex<Pending>>,
    /// Wakes the thread.
    wake: SyncSender<()>,
    /// The peers whose memory the server may use.
    lenders: Mutex<HashSet<PeerId>>,
    unconfirmed: Arc<Unconfirmed>,
}

impl Windows {
    /// Starts the thread, which ends when this is dropped.
    pub(crate) fn start<S: Borrower + Send + Sync + 'static>(
        lender: Arc<Lender<S>>,
        unconfirmed: Arc<Unconfirmed>,
    ) -> io::Result<Self> {
        let pending = Arc::<Mutex<Pending>>::default();
        let (wake, woken) = sync_channel(1);
        let (seen, confirmed) = (pending.clone(), unconfirmed.clone());
        Builder::new()
            .name("windows".to_owned())
            .spawn(move || follow(&lender, &woken, &seen, &confirmed))?;
        Ok(Self {
            pending,
            wake,
            lenders: Mutex::default(),
            unconfirmed,
        })
    }

    /// Has the thread wait for the link, if that is down.
    pub(crate) fn watch_link(&self) {
        self.add(|pending| pending.watches_link = true);
    }

    /// Has the thread lend these windows of a peer, and none of its others.
    fn change(&self, peer: PeerId, windows: Vec<ObservedWindow>, unconfirmed: Option<u64>) {
        self.add(|pending| {
            pending.changes.insert(peer, windows);
            pending.unconfirmed = unconfirmed.or(pending.unconfirmed);
        });
    }

    fn add(&self, add: impl FnOnce(&mut Pending)) {
        add(&mut self.pending.lock());
        // Fails if the thread has already been woken, or has panicked.
        let _ = self.wake.try_send(());
    }

    /// Returns `true` if the change may take memory of the peer from the server.
    fn takes_memory(&self, peer: PeerId, windows: &[ObservedWindow]) -> bool {
        let mut lenders = self.lenders.lock();
        let had_memory = lenders.remove(&peer);
        if windows.iter().any(|window| window.memory.is_some()) {
            lenders.insert(peer);
        }
        had_memory
    }
}

impl WindowObserver for Windows {
    fn windows(
        &self,
        peer: PeerId,
        windows: Vec<ObservedWindow>,
        acknowledgement: Acknowledgement,
    ) {
        let takes_memory = self.takes_memory(peer, &windows);
        let unconfirmed = takes_memory.then(|| self.unconfirmed.begin(acknowledgement));
        self.change(peer, windows, unconfirmed);
    }

    fn lost(&self) {
        self.lenders.lock().clear();
        self.add(|pending| {
            pending.is_lost = true;
            pending.changes.clear();
        });
    }
}

fn follow(
    lender: &Lender<impl Borrower>,
    woken: &Receiver<()>,
    pending: &Mutex<Pending>,
    unconfirmed: &Unconfirmed,
) {
    // Also `true` if the link may have gone down since the mappings last followed it.
    let mut is_down = false;
    while wait(woken, is_down) {
        let seen = std::mem::take(&mut *pending.lock());
        is_down |= seen.watches_link;
        seen.apply(lender, unconfirmed);
        is_down = is_down && lender.follow_faults();
    }
}

/// Waits until the thread is woken, while the link is down for a limited time. Returns `false` if
/// the thread has to end.
fn wait(woken: &Receiver<()>, is_down: bool) -> bool {
    match is_down {
        true => woken.recv_timeout(LINK_INTERVAL) != Err(RecvTimeoutError::Disconnected),
        false => woken.recv().is_ok(),
    }
}

impl Pending {
    fn apply(self, lender: &Lender<impl Borrower>, unconfirmed: &Unconfirmed) {
        if self.is_lost {
            lender.mappings().close_windows();
        }
        for (peer, windows) in self.changes {
            lender.mappings().set_windows(peer, windows);
        }
        if let Some(number) = self.unconfirmed {
            unconfirmed.confirm(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use peerbar_dma::Requester;
    use peerbar_pci::{BusAddress, Iova, Range};
    use peerbar_vfio_user::DmaMap;
    use peerbar_vfio_user::remote::CallError;
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;
    use crate::config::Config;
    use crate::mappings::{Lent, Mappings};

    const LATE: Duration = Duration::from_secs(20);

    /// A server that tells of each mapping, and whose link comes back while it gives memory back.
    struct Server {
        requester: Arc<Requester>,
        /// The first address, and `true` if there is memory.
        maps: Mutex<Sender<(Iova, bool)>>,
    }

    impl Borrower for Server {
        fn map(&self, lent: &Lent) -> Result<(), CallError> {
            let mapped = (lent.range.first(), lent.memory.is_some());
            self.maps.lock().send(mapped).unwrap();
            Ok(())
        }

        fn unmap(&self, _: &Lent) -> Result<(), CallError> {
            self.requester.set_link_up();
            Ok(())
        }
    }

    struct Rig {
        requester: Arc<Requester>,
        lender: Arc<Lender<Server>>,
        windows: Windows,
        maps: Receiver<(Iova, bool)>,
    }

    impl Rig {
        fn new() -> Self {
            let requester = Arc::new(Requester::new());
            let (sender, maps) = channel();
            let server = Arc::new(Server {
                requester: requester.clone(),
                maps: Mutex::new(sender),
            });
            let mappings = Mappings::new(server, &Config::default());
            let lender = Arc::new(Lender::new(mappings, requester.clone(), false));
            let windows = Windows::start(lender.clone(), Arc::default()).unwrap();
            Self {
                requester,
                lender,
                windows,
                maps,
            }
        }

        /// Opens the only window of a peer, in place of its former one.
        fn open(&self, peer: u32, at: u64) {
            let window = ObservedWindow {
                range: Range::new(BusAddress(at), 0x1000).unwrap(),
                claim: peer.into(),
                memory: None,
            };
            self.windows.change(PeerId(peer), vec![window], None);
        }

        fn next_map(&self) -> (Iova, bool) {
            let mapped = self.maps.recv_timeout(LATE);
            mapped.expect("the server gets no mapping")
        }
    }

    #[test]
    fn link_that_comes_back_while_memory_is_taken_back_is_noticed() {
        let rig = Rig::new();
        let memory = memfd_create("memory", MemfdFlags::CLOEXEC).unwrap();
        let map = DmaMap {
            range: Range::all(),
            readable: true,
            writable: true,
            memory: Some((memory, 0)),
        };
        let mut mappings = rig.lender.mappings();
        let lent = mappings.lend(&map).unwrap();
        mappings.map(lent, None).unwrap();
        drop(mappings);
        assert_eq!(rig.next_map(), (Iova(0), true));
        // Only the second time is the thread sure to have started before.
        for _ in 0..2 {
            let rule = "link-down device".parse().unwrap();
            rig.requester.add_fault(rule).unwrap();
            rig.windows.watch_link();
            assert_eq!(rig.next_map(), (Iova(0), false));
            assert_eq!(rig.next_map(), (Iova(0), true));
        }
    }

    #[test]
    fn server_that_is_slow_gets_the_newest_windows_of_each_peer() {
        let rig = Rig::new();
        let slow = rig.lender.mappings();
        for at in 1..1000 {
            rig.open(1, at * 0x1000);
        }
        rig.open(2, 0x10_0000_0000);
        drop(slow);
        let mut maps = 1;
        while rig.next_map().0 != Iova(0x10_0000_0000) {
            maps += 1;
        }
        assert!(maps <= 3, "{maps} mappings: more than one early change");
    }

    #[test]
    fn windows_of_lost_peers_are_not_lent() {
        let rig = Rig::new();
        rig.open(1, 0x1000);
        assert_eq!(rig.next_map(), (Iova(0x1000), false));
        let slow = rig.lender.mappings();
        rig.windows.lost();
        rig.open(2, 0x1000);
        drop(slow);
        assert_eq!(rig.next_map(), (Iova(0x1000), false));
    }
}
