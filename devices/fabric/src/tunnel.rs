//! Tunnels to the fabrics of other machines, by QUIC (RFC 9000) with certificates on both sides.
//!
//! All tunnels are served by one thread, beside that of the fabric. Each packet of an adapter is a stream of its own, so a lost one delays no
//! other; what the fabrics say to each other goes over one ordered stream in each direction. Before the handshake of TLS is complete on both
//! sides, no byte is read of a stream. A tunnel that ends is made again by the side that made it.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use peerbar_eventfd::EventFd;
use quinn::{
    ClientConfig, Connection, ConnectionError, Endpoint, EndpointConfig, IdleTimeout, ServerConfig,
    TokioRuntime, TransportConfig, VarInt,
};
use thiserror::Error;
use tokio::sync::Semaphore;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::certificates::{CertificateError, Identity, SERVER_NAME};
use crate::limits::{MAX_TUNNELS, MAX_TUNNELS_OF_ONE};
use crate::tunnel::frame::MAX_FRAME;
use crate::tunnel::handshakes::{Handshakes, MAX_HANDSHAKES};
use crate::tunnel::packets_to_send::{PacketsToSend, send_packets};
use crate::tunnel::receive::receive;
use crate::tunnel::shared::{Sending, SharedTunnels, certificate};

pub(crate) use self::frame::Frame;
pub(crate) use self::shared::{TunnelEvent, TunnelId};

mod frame;
mod handshakes;
mod packets_to_send;
mod receive;
mod shared;

/// A tunnel has ended once no packet has come for this time.
const IDLE: Duration = Duration::from_secs(4);
/// How often a packet is sent at least.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// Between two attempts to make a tunnel.
const RETRY: Duration = Duration::from_secs(1);
/// The most packets that are read or written at once, and that wait to be written.
const MAX_STREAMS: u32 = 256;
const MAX_QUEUED: usize = 16;
/// The most notices that wait to be written. One that does not read them loses its tunnel.
const MAX_NOTICES: usize = 1024;
/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// Where other fabrics are.
#[derive(Clone, Debug)]
pub struct TunnelConfig {
    /// A folder of certificates.
    pub certificates: PathBuf,
    /// Where others make tunnels to this fabric, if they may.
    pub listen: Option<SocketAddr>,
    /// The fabrics to make tunnels to.
    pub connect: Vec<SocketAddr>,
}

/// Why there are no tunnels.
#[derive(Debug, Error)]
pub enum TunnelError {
    /// The certificates are missing or wrong.
    #[error(transparent)]
    Certificates(#[from] CertificateError),
    /// The address is in use, or no address of this machine.
    #[error("cannot receive at {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// Their thread cannot be started.
    #[error("cannot start the thread of the tunnels")]
    Thread(#[from] io::Error),
}

/// All tunnels. They end when this is dropped.
#[derive(Debug)]
pub(crate) struct Tunnels {
    shared: Arc<SharedTunnels>,
    /// Where others make tunnels to this fabric.
    listen: Option<SocketAddr>,
    /// Dropped, it ends the thread.
    _stop: tokio::sync::oneshot::Sender<()>,
}

impl Tunnels {
    /// Starts the thread of the tunnels, which binds its sockets before this returns.
    pub(crate) fn start(config: &TunnelConfig) -> Result<Self, TunnelError> {
        let identity = Identity::read(&config.certificates)?;
        let shared = Arc::new(SharedTunnels {
            state: Mutex::default(),
            wake: EventFd::new().map_err(io::Error::from)?,
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let mut tasks: Vec<std::pin::Pin<Box<dyn Future<Output = ()> + Send>>> = Vec::new();
        let mut listen = None;
        {
            let _inside = runtime.enter();
            if let Some(address) = config.listen {
                let endpoint = endpoint(address, Some(&identity))?;
                listen = endpoint.local_addr().ok();
                tasks.push(Box::pin(accept(endpoint, shared.clone())));
            }
            for address in &config.connect {
                let any = if address.is_ipv4() {
                    SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))
                } else {
                    SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))
                };
                let mut endpoint = endpoint(any, None)?;
                let mut client = ClientConfig::new(identity.client.clone());
                client.transport_config(transport());
                endpoint.set_default_client_config(client);
                tasks.push(Box::pin(connect(endpoint, *address, shared.clone())));
            }
        }
        let (stop, stopped) = tokio::sync::oneshot::channel();
        std::thread::Builder::new()
            .name("tunnels".to_owned())
            .spawn(move || {
                tasks.into_iter().for_each(|task| drop(runtime.spawn(task)));
                // It ends when the other end is dropped.
                let _ = runtime.block_on(stopped);
            })?;
        Ok(Self {
            shared,
            listen,
            _stop: stop,
        })
    }

    /// Where others make tunnels to this fabric, if they may.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.listen
    }

    /// What has happened since the last call.
    pub(crate) fn take_events(&self) -> VecDeque<TunnelEvent> {
        self.shared.wake.take();
        std::mem::take(&mut self.shared.state.lock().events)
    }

    /// How many packets a tunnel takes now. If it is none, there is an event once it takes more.
    pub(crate) fn free_packets(&self, tunnel: TunnelId) -> usize {
        let state = self.shared.state.lock();
        let Some(sending) = state.open.get(&tunnel) else {
            return 0;
        };
        // Before the capacity is read, so that no change of it is missed.
        sending.is_full.store(true, Ordering::SeqCst);
        sending.packets.capacity()
    }

    /// Sends a packet; [`Tunnels::free_packets`] is not 0.
    pub(crate) fn send_packet(&self, tunnel: TunnelId, packet: &Frame) {
        if let Some(sending) = self.shared.state.lock().open.get(&tunnel) {
            // It fails if the tunnel has ended.
            let _ = sending.packets.try_send(packet.encode());
        }
    }

    /// Sends a notice. If too many wait, the tunnel ends: its other side does not read.
    pub(crate) fn send_notice(&self, tunnel: TunnelId, notice: &Frame) {
        if let Some(sending) = self.shared.state.lock().open.get(&tunnel)
            && let Err(TrySendError::Full(_)) = sending.notices.try_send(notice.encode())
        {
            sending.connection.close(VarInt::from_u32(1), b"cut off");
        }
    }

    /// Ends a tunnel whose other side breaks the protocol.
    pub(crate) fn cut_off(&self, tunnel: TunnelId) {
        if let Some(sending) = self.shared.state.lock().open.remove(&tunnel) {
            sending.connection.close(VarInt::from_u32(1), b"cut off");
        }
    }
}

impl AsFd for Tunnels {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.wake.as_fd()
    }
}

/// A socket for tunnels.
fn endpoint(address: SocketAddr, server: Option<&Identity>) -> Result<Endpoint, TunnelError> {
    let bind = || {
        let socket = UdpSocket::bind(address)?;
        let server = server.map(|identity| {
            let mut config = ServerConfig::with_crypto(identity.server.clone());
            config.transport_config(transport());
            config.max_incoming(MAX_HANDSHAKES);
            config
        });
        Endpoint::new(
            EndpointConfig::default(),
            server,
            socket,
            Arc::new(TokioRuntime),
        )
    };
    bind().map_err(|source| TunnelError::Bind { address, source })
}

fn transport() -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    let longest = VarInt::from_u32(u32::try_from(MAX_FRAME).unwrap_or(u32::MAX));
    config
        .max_idle_timeout(IdleTimeout::try_from(IDLE).ok())
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(MAX_STREAMS))
        .stream_receive_window(longest)
        .datagram_receive_buffer_size(None);
    Arc::new(config)
}

/// Takes tunnels of others.
async fn accept(endpoint: Endpoint, shared: Arc<SharedTunnels>) {
    let handshakes = Arc::new(Handshakes::default());
    let tunnels = Arc::new(Semaphore::new(MAX_TUNNELS));
    while let Some(incoming) = endpoint.accept().await {
        // A client that cannot receive at its address is not answered further (RFC 9000, 8.1).
        if !incoming.remote_address_validated() {
            if let Err(error) = incoming.retry() {
                log::debug!("{error}");
            }
            continue;
        }
        let Some(handshake) = handshakes.begin(incoming.remote_address().ip()) else {
            incoming.refuse();
            continue;
        };
        let (shared, tunnels) = (shared.clone(), tunnels.clone());
        tokio::spawn(async move {
            let connection = match tokio::time::timeout(HANDSHAKE, incoming).await {
                Ok(Ok(connection)) => connection,
                Ok(Err(error)) => {
                    return log::warn!("a tunnel is refused: {error}{}", advice(&error));
                }
                Err(_) => return log::warn!("a tunnel is refused: no handshake in {HANDSHAKE:?}"),
            };
            drop(handshake);
            let tunnel = tunnels.try_acquire_owned();
            match tunnel
                .ok()
                .filter(|_| shared.takes_one_more_of(&connection))
            {
                Some(_tunnel) => serve(connection, &shared).await,
                None => {
                    log::warn!(
                        "a tunnel beyond the limit of {MAX_TUNNELS}, or of {MAX_TUNNELS_OF_ONE} with one certificate, is refused"
                    );
                    connection.close(VarInt::from_u32(1), b"too many tunnels");
                }
            }
        });
    }
}

/// Keeps a tunnel to one other fabric.
async fn connect(endpoint: Endpoint, address: SocketAddr, shared: Arc<SharedTunnels>) {
    loop {
        match endpoint.connect(address, SERVER_NAME) {
            Ok(connecting) => match connecting.await {
                Ok(connection) => serve(connection, &shared).await,
                Err(error) => log::warn!("no tunnel to {address} yet: {error}{}", advice(&error)),
            },
            Err(error) => log::warn!("no tunnel to {address}: {error}"),
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// What to do where the two ends do not trust each other, or do not speak the same protocol.
fn advice(error: &ConnectionError) -> &'static str {
    /// Code of TLS' alert 0 (RFC 9001, 4.8).
    const ALERT: u64 = 0x100;
    let code = match error {
        ConnectionError::TransportError(error) => error.code,
        ConnectionError::ConnectionClosed(close) => close.error_code,
        _ => return "",
    };
    let Some(alert) = u64::from(code).checked_sub(ALERT) else {
        return "";
    };
    match alert {
        // From bad_certificate to illegal_parameter and unknown_ca; decrypt_error; certificate_required (RFC 8446, 6.2).
        42..=48 | 51 | 116 => {
            ": give both machines folders that one `peerbar-fabric certificates` made"
        }
        // no_application_protocol (RFC 7301, 3.2).
        120 => ": run the same version of peerbar on both machines",
        _ => "",
    }
}

/// Serves one tunnel until it ends.
async fn serve(connection: Connection, shared: &Arc<SharedTunnels>) {
    let (packets, packets_to_send) = mpsc::channel(MAX_QUEUED);
    let (notices, notices_to_send) = mpsc::channel(MAX_NOTICES);
    let is_full = Arc::new(AtomicBool::new(false));
    let id = shared.open(Sending {
        connection: connection.clone(),
        certificate: certificate(&connection),
        packets,
        notices,
        is_full: is_full.clone(),
    });
    shared.note(TunnelEvent::Up(id, connection.remote_address()));
    let packets = PacketsToSend {
        packets: packets_to_send,
        is_full,
        shared: shared.clone(),
    };
    let sender = tokio::spawn(send(connection.clone(), notices_to_send, packets));
    let end = receive(&connection, id, shared).await;
    connection.close(VarInt::from_u32(0), b"");
    sender.abort();
    shared.state.lock().open.remove(&id);
    shared.note(TunnelEvent::Down(id, end.to_string()));
}

/// Sends notices and packets until the fabric cuts the tunnel off. The stream of notices is opened first, and so the first that the other
/// side accepts.
async fn send(
    connection: Connection,
    mut notices: mpsc::Receiver<Vec<u8>>,
    packets: PacketsToSend,
) {
    let Ok(mut stream) = connection.open_uni().await else {
        return;
    };
    let sender = tokio::spawn(send_packets(connection.clone(), packets));
    while let Some(notice) = notices.recv().await {
        let length = u16::try_from(notice.len()).unwrap_or(0).to_le_bytes();
        if stream.write_all(&length).await.is_err() || stream.write_all(&notice).await.is_err() {
            break;
        }
    }
    sender.abort();
    connection.close(VarInt::from_u32(1), b"cut off");
}

#[cfg(test)]
mod tests {
    use quinn::TransportErrorCode;

    use super::*;

    #[test]
    fn advice_is_for_what_the_peer_refuses() {
        let refused = |alert| {
            let error = TransportErrorCode::crypto(alert).into();
            advice(&ConnectionError::TransportError(error))
        };
        for alert in [42, 48, 116] {
            assert!(refused(alert).contains("certificates"), "{alert}");
        }
        assert!(refused(120).contains("same version"));
        assert_eq!([refused(80), advice(&ConnectionError::TimedOut)], ["", ""]);
    }
}
