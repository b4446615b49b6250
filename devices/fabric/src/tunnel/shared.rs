//! What the fabric's thread and that of the tunnels share.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;
use peerbar_eventfd::EventFd;
use quinn::Connection;
use rustls::pki_types::CertificateDer;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc;

use super::frame::Frame;
use crate::limits::MAX_TUNNELS_OF_ONE;

/// Number of a tunnel. Never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TunnelId(u64);

/// What happened to a tunnel.
#[derive(Debug)]
pub(crate) enum TunnelEvent {
    Up(TunnelId, SocketAddr),
    /// A frame, and its permit to wait, which is returned once this is dropped.
    Received(TunnelId, Frame, OwnedSemaphorePermit),
    Down(TunnelId, String),
}

#[derive(Debug)]
pub(super) struct SharedTunnels {
    pub(super) state: Mutex<LockedTunnels>,
    /// Readable while there are events.
    pub(super) wake: EventFd,
}

#[derive(Debug, Default)]
pub(super) struct LockedTunnels {
    last: u64,
    pub(super) open: BTreeMap<TunnelId, Sending>,
    pub(super) events: VecDeque<TunnelEvent>,
}

/// The way to the tasks that send by one tunnel.
#[derive(Clone, Debug)]
pub(super) struct Sending {
    pub(super) connection: Connection,
    /// The certificate of the other side.
    pub(super) certificate: Option<Vec<u8>>,
    pub(super) packets: mpsc::Sender<Vec<u8>>,
    /// What the fabrics say to each other, which is not lost.
    pub(super) notices: mpsc::Sender<Vec<u8>>,
    /// Whether the fabric has packets that did not fit into `packets`.
    pub(super) is_full: Arc<AtomicBool>,
}

impl SharedTunnels {
    /// Keeps a new tunnel's way to send; the number of the tunnel.
    pub(super) fn open(&self, sending: Sending) -> TunnelId {
        let mut state = self.state.lock();
        state.last += 1;
        let id = TunnelId(state.last);
        state.open.insert(id, sending);
        id
    }

    /// Whether the other side has not too many tunnels: fabrics of other certificates find room.
    pub(super) fn takes_one_more_of(&self, connection: &Connection) -> bool {
        let certificate = certificate(connection);
        let state = self.state.lock();
        let same = state
            .open
            .values()
            .filter(|it| it.certificate == certificate);
        same.count() < MAX_TUNNELS_OF_ONE
    }

    pub(super) fn note(&self, event: TunnelEvent) {
        self.state.lock().events.push_back(event);
        self.wake.signal();
    }
}

/// The certificate of the other side.
pub(super) fn certificate(connection: &Connection) -> Option<Vec<u8>> {
    let identity = connection.peer_identity()?;
    let chain = identity.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    chain.first().map(|certificate| certificate.to_vec())
}
