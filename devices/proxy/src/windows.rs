//! The peers' windows for the server, which a thread of their own lends and takes back.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;
use std::time::Duration;

use parking_lot::Mutex;
use peerbar_dma::PeerId;
use peerbar_endpoint::{ObservedWindow, WindowObserver};

use crate::mappings::Mappings;

/// The longest wait for the server before a peer's change is acknowledged. The owner of a window
/// that closes waits for 250 ms ([`peerbar_dma::Lease`] ends before).
const LONGEST: Duration = Duration::from_millis(200);

/// A change of the peers' windows. The sender is dropped once the server has confirmed it.
struct Change {
    /// `None` for all peers.
    peer: Option<PeerId>,
    windows: Vec<ObservedWindow>,
    _confirmed: Sender<()>,
}

/// Passes changes of the peers' windows to the thread that lends them.
pub(crate) struct Windows(Mutex<Sender<Change>>);

impl Windows {
    /// Starts the thread, which ends when this is dropped.
    pub(crate) fn start(mappings: Arc<Mutex<Mappings>>) -> io::Result<Self> {
        let (sender, changes) = channel();
        Builder::new()
            .name("windows".to_owned())
            .spawn(move || lend(&mappings, &changes))?;
        Ok(Self(Mutex::new(sender)))
    }

    /// The thread that calls this may not wait for the server for long: the server may be waiting
    /// for the endpoint.
    fn change(&self, peer: Option<PeerId>, windows: Vec<ObservedWindow>) {
        let (_confirmed, confirmation) = channel();
        let change = Change {
            peer,
            windows,
            _confirmed,
        };
        let is_sent = self.0.lock().send(change).is_ok();
        let waited = confirmation.recv_timeout(LONGEST);
        if !is_sent || waited == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            log::warn!(
                "the server has not confirmed a change of the peers' windows in {LONGEST:?}"
            );
        }
    }
}

impl WindowObserver for Windows {
    fn windows(&self, peer: PeerId, windows: Vec<ObservedWindow>) {
        self.change(Some(peer), windows);
    }

    fn lost(&self) {
        self.change(None, Vec::new());
    }
}

fn lend(mappings: &Mutex<Mappings>, changes: &Receiver<Change>) {
    for change in changes {
        let mut mappings = mappings.lock();
        match change.peer {
            Some(peer) => mappings.set_windows(peer, change.windows),
            None => mappings.close_windows(),
        }
    }
}
