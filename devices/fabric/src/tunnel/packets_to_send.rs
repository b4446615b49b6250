//! The packets that wait to be sent by a tunnel, each in a stream of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quinn::Connection;
use tokio::sync::mpsc;

use super::shared::SharedTunnels;

/// The packets for a tunnel.
pub(super) struct PacketsToSend {
    pub(super) packets: mpsc::Receiver<Vec<u8>>,
    pub(super) is_full: Arc<AtomicBool>,
    pub(super) shared: Arc<SharedTunnels>,
}

impl PacketsToSend {
    /// The next one. The fabric is woken if it may send more.
    async fn next(&mut self) -> Option<Vec<u8>> {
        let packet = self.packets.recv().await;
        if self.is_full.swap(false, Ordering::SeqCst) {
            self.shared.wake.signal();
        }
        packet
    }
}

/// Sends packets until there are no more, or the tunnel has ended.
pub(super) async fn send_packets(connection: Connection, mut packets: PacketsToSend) {
    while let Some(packet) = packets.next().await {
        let Ok(mut stream) = connection.open_uni().await else {
            return;
        };
        if stream.write_all(&packet).await.is_err() {
            return;
        }
        // It fails if the stream has ended.
        let _ = stream.finish();
    }
}
