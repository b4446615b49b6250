//! The settings of a proxy, and the reasons why it cannot serve.

use std::path::PathBuf;

use peerbar_endpoint::StartError;
use peerbar_vfio_user::remote::{CallError, ConnectError, RemoteEnd};
use thiserror::Error;

/// The settings of a proxy.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Config {
    /// Socket of the vfio-user server whose device is served
    #[arg(long, value_name = "PATH")]
    pub server: PathBuf,
    /// Lend the server no memory, so that all of its DMA comes by messages and is counted
    #[arg(long)]
    pub count_all: bool,
    /// Lend memory for reads and writes, also where the client permits only one of them: some
    /// servers require both
    #[arg(long)]
    pub read_write: bool,
}

/// The reason for which a device is not served, or no longer served.
#[derive(Debug, Error)]
pub enum ProxyError {
    /// ATS was asked for.
    #[error("--ats is for devices of our own: the server's device decides if it offers ATS")]
    Ats,
    /// There is no usable server.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The device's configuration space cannot be read.
    #[error("cannot read the configuration space of the device at {}", path.display())]
    ConfigSpace {
        /// Path of the server.
        path: PathBuf,
        /// The cause.
        source: CallError,
    },
    /// The session has ended.
    #[error("lost the vfio-user server at {}: {reason}", path.display())]
    Lost {
        /// Path of the server.
        path: PathBuf,
        /// The reason of the end.
        reason: RemoteEnd,
    },
}

impl From<ProxyError> for StartError<ProxyError> {
    fn from(error: ProxyError) -> Self {
        Self::Config(error)
    }
}
