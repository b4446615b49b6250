//! What comes by a tunnel: packets, each in a stream of its own, and the notices of the other side.

use std::sync::Arc;

use quinn::{Connection, RecvStream};
use thiserror::Error;
use tokio::sync::Semaphore;

use super::frame::{Frame, FrameError, MAX_FRAME};
use super::shared::{SharedTunnels, TunnelEvent, TunnelId};

/// The most packets of one other fabric that wait for this one, and as many notices. Packets beyond are dropped, notices are not read.
const MAX_EVENTS: usize = 256;

/// Why a tunnel ended.
#[derive(Debug, Error)]
pub(super) enum TunnelEnd {
    #[error(transparent)]
    Connection(#[from] quinn::ConnectionError),
    #[error(transparent)]
    Read(#[from] quinn::ReadExactError),
    #[error("its other side breaks the protocol: {0}")]
    Frame(#[from] FrameError),
    #[error("this side has ended")]
    Ended,
}

/// Hands over what comes, until the tunnel ends. The first stream of the other side has its notices.
pub(super) async fn receive(
    connection: &Connection,
    id: TunnelId,
    shared: &Arc<SharedTunnels>,
) -> TunnelEnd {
    let first = match connection.accept_uni().await {
        Ok(first) => first,
        Err(error) => return error.into(),
    };
    let mut notices = tokio::spawn(receive_notices(first, id, shared.clone()));
    let permits = Arc::new(Semaphore::new(MAX_EVENTS));
    loop {
        tokio::select! {
            ended = &mut notices => return ended.unwrap_or(TunnelEnd::Ended),
            stream = connection.accept_uni() => match stream {
                Ok(stream) => drop(tokio::spawn(receive_packet(stream, id, shared.clone(), permits.clone()))),
                Err(error) => {
                    notices.abort();
                    return error.into();
                }
            },
        }
    }
}

/// One packet. One that is no packet, or for which there is no permit, is dropped, as a lost one.
async fn receive_packet(
    mut stream: RecvStream,
    id: TunnelId,
    shared: Arc<SharedTunnels>,
    permits: Arc<Semaphore>,
) {
    let Ok(bytes) = stream.read_to_end(MAX_FRAME).await else {
        return;
    };
    match (Frame::decode(&bytes), permits.try_acquire_owned()) {
        (Ok(frame), Ok(permit)) if !frame.is_notice() => {
            shared.note(TunnelEvent::Received(id, frame, permit));
        }
        (Ok(_), _) => log::debug!("a packet from a tunnel is dropped"),
        (Err(error), _) => log::debug!("a packet from a tunnel is dropped: {error}"),
    }
}

/// The notices of the other side, each with its length before it (2 bytes, little-endian).
async fn receive_notices(
    mut stream: RecvStream,
    id: TunnelId,
    shared: Arc<SharedTunnels>,
) -> TunnelEnd {
    let permits = Arc::new(Semaphore::new(MAX_EVENTS));
    loop {
        // QUIC stops the other side while the fabric does not keep up.
        let Ok(permit) = permits.clone().acquire_owned().await else {
            return TunnelEnd::Ended;
        };
        let mut length = [0; 2];
        if let Err(error) = stream.read_exact(&mut length).await {
            return error.into();
        }
        let mut bytes = vec![0; usize::from(u16::from_le_bytes(length))];
        if let Err(error) = stream.read_exact(&mut bytes).await {
            return error.into();
        }
        match Frame::decode(&bytes) {
            Ok(frame) if frame.is_notice() => {
                shared.note(TunnelEvent::Received(id, frame, permit));
            }
            Ok(_) => return FrameError::Kind.into(),
            Err(error) => return error.into(),
        }
    }
}
