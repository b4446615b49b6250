//! The peers' windows for the server, which a thread of their own lends and takes back.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
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

/// A reason to change the server's mappings.
enum Event {
    Windows(Change),
    /// The link may have gone down.
    Link,
}

/// A change of the peers' windows.
struct Change {
    /// `None` for all peers.
    peer: Option<PeerId>,
    windows: Vec<ObservedWindow>,
    /// The number of its acknowledgement, if that waits for the server.
    unconfirmed: Option<u64>,
}

/// Passes changes of the peers' windows to the thread that lends them.
pub(crate) struct Windows {
    events: Mutex<Sender<Event>>,
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
        let (events, waiting) = channel();
        let confirmed = unconfirmed.clone();
        Builder::new()
            .name("windows".to_owned())
            .spawn(move || follow(&lender, &waiting, &confirmed))?;
        Ok(Self {
            events: Mutex::new(events),
            lenders: Mutex::default(),
            unconfirmed,
        })
    }

    /// Has the thread wait for the link, if that is down.
    pub(crate) fn watch_link(&self) {
        self.send(Event::Link);
    }

    fn send(&self, event: Event) {
        // Fails if the thread has panicked.
        let _ = self.events.lock().send(event);
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
        self.send(Event::Windows(Change {
            peer: Some(peer),
            windows,
            unconfirmed,
        }));
    }

    fn lost(&self) {
        self.lenders.lock().clear();
        self.send(Event::Windows(Change {
            peer: None,
            windows: Vec::new(),
            unconfirmed: None,
        }));
    }
}

fn follow(lender: &Lender<impl Borrower>, events: &Receiver<Event>, unconfirmed: &Unconfirmed) {
    // Also `true` if the link may have gone down since the mappings last followed it.
    let mut is_down = false;
    loop {
        match next(events, is_down) {
            Ok(Event::Windows(change)) => change.apply(lender, unconfirmed),
            Ok(Event::Link) => is_down = true,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        is_down = is_down && lender.follow_faults();
    }
}

/// Waits for the next event, while the link is down for a limited time.
fn next(events: &Receiver<Event>, is_down: bool) -> Result<Event, RecvTimeoutError> {
    match is_down {
        true => events.recv_timeout(LINK_INTERVAL),
        false => events.recv().map_err(RecvTimeoutError::from),
    }
}

impl Change {
    fn apply(self, lender: &Lender<impl Borrower>, unconfirmed: &Unconfirmed) {
        let mut mappings = lender.mappings();
        match self.peer {
            Some(peer) => mappings.set_windows(peer, self.windows),
            None => mappings.close_windows(),
        }
        drop(mappings);
        if let Some(number) = self.unconfirmed {
            unconfirmed.confirm(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use peerbar_dma::Requester;
    use peerbar_pci::Range;
    use peerbar_vfio_user::DmaMap;
    use peerbar_vfio_user::remote::CallError;
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;
    use crate::config::Config;
    use crate::mappings::{Lent, Mappings};

    const LATE: Duration = Duration::from_secs(20);

    /// A server that tells of each mapping with memory, and whose link comes back while it gives
    /// memory back.
    struct Server {
        requester: Arc<Requester>,
        has_memory: Mutex<Sender<bool>>,
    }

    impl Borrower for Server {
        fn map(&self, lent: &Lent) -> Result<(), CallError> {
            self.has_memory.lock().send(lent.memory.is_some()).unwrap();
            Ok(())
        }

        fn unmap(&self, _: &Lent) -> Result<(), CallError> {
            self.requester.set_link_up();
            Ok(())
        }
    }

    #[test]
    fn link_that_comes_back_while_memory_is_taken_back_is_noticed() {
        let requester = Arc::new(Requester::new());
        let (has_memory, mapped) = channel();
        let server = Arc::new(Server {
            requester: requester.clone(),
            has_memory: Mutex::new(has_memory),
        });
        let mut mappings = Mappings::new(server, &Config::default());
        let memory = memfd_create("memory", MemfdFlags::CLOEXEC).unwrap();
        let map = DmaMap {
            range: Range::all(),
            readable: true,
            writable: true,
            memory: Some((memory, 0)),
        };
        let lent = mappings.lend(&map).unwrap();
        mappings.map(lent, None).unwrap();
        let lender = Arc::new(Lender::new(mappings, requester.clone(), false));
        let windows = Windows::start(lender, Arc::default()).unwrap();
        assert_eq!(mapped.recv_timeout(LATE), Ok(true));
        // Only the second time is the thread sure to have started before.
        for _ in 0..2 {
            let rule = "link-down device".parse().unwrap();
            requester.add_fault(rule).unwrap();
            windows.watch_link();
            assert_eq!(mapped.recv_timeout(LATE), Ok(false));
            assert_eq!(mapped.recv_timeout(LATE), Ok(true));
        }
    }
}
