//! The peers' windows for the server, which a thread of their own lends and takes back.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;

use parking_lot::Mutex;
use peerbar_dma::PeerId;
use peerbar_endpoint::{Acknowledgement, ObservedWindow, WindowObserver};

use crate::mappings::Mappings;
use crate::unconfirmed::Unconfirmed;

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
    changes: Mutex<Sender<Change>>,
    /// The peers whose memory the server may use.
    lenders: Mutex<HashSet<PeerId>>,
    unconfirmed: Arc<Unconfirmed>,
}

impl Windows {
    /// Starts the thread, which ends when this is dropped.
    pub(crate) fn start(
        mappings: Arc<Mutex<Mappings>>,
        unconfirmed: Arc<Unconfirmed>,
    ) -> io::Result<Self> {
        let (changes, waiting) = channel();
        let confirmed = unconfirmed.clone();
        Builder::new()
            .name("windows".to_owned())
            .spawn(move || lend(&mappings, &waiting, &confirmed))?;
        Ok(Self {
            changes: Mutex::new(changes),
            lenders: Mutex::default(),
            unconfirmed,
        })
    }

    fn change(&self, change: Change) {
        // Fails if the thread has panicked.
        let _ = self.changes.lock().send(change);
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
        self.change(Change {
            peer: Some(peer),
            windows,
            unconfirmed,
        });
    }

    fn lost(&self) {
        self.lenders.lock().clear();
        self.change(Change {
            peer: None,
            windows: Vec::new(),
            unconfirmed: None,
        });
    }
}

fn lend(mappings: &Mutex<Mappings>, changes: &Receiver<Change>, unconfirmed: &Unconfirmed) {
    for change in changes {
        let mut mappings = mappings.lock();
        match change.peer {
            Some(peer) => mappings.set_windows(peer, change.windows),
            None => mappings.close_windows(),
        }
        drop(mappings);
        if let Some(number) = change.unconfirmed {
            unconfirmed.confirm(number);
        }
    }
}
