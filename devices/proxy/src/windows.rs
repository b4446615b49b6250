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
    pub(crate) fn start(lender: Arc<Lender>, unconfirmed: Arc<Unconfirmed>) -> io::Result<Self> {
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

fn follow(lender: &Lender, events: &Receiver<Event>, unconfirmed: &Unconfirmed) {
    let mut was_down = false;
    loop {
        let is_down = !lender.link_is_up();
        if std::mem::replace(&mut was_down, is_down) && !is_down {
            lender.follow_faults();
        }
        match next(events, is_down) {
            Ok(Event::Windows(change)) => change.apply(lender, unconfirmed),
            Ok(Event::Link) => lender.follow_faults(),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
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
    fn apply(self, lender: &Lender, unconfirmed: &Unconfirmed) {
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
