//! The options that every device's program has.

use std::path::{Path, PathBuf};

use peerbar_dma::{Bandwidth, Latency, Link, LinkSpeed, MemoryError};
use peerbar_fault::{AddError, Faults, Rule};
use peerbar_host::socket_file::line_server::{LineServer, LineServerError};
use peerbar_pci::Function;
use peerbar_sandbox::{Connections, SandboxOptions};
use peerbar_switch::AttachError;
use thiserror::Error;

use crate::Endpoint;
use crate::control;
use crate::recording::Recording;
use crate::running::FaultObserver;

/// The options that every device's program has.
#[derive(Clone, Debug, clap::Args)]
pub struct DeviceOptions {
    /// Socket for QEMU
    #[arg(long, value_name = "PATH")]
    pub(crate) socket_path: PathBuf,
    #[command(flatten)]
    pub(crate) link: LinkOptions,
    #[command(flatten)]
    pub(crate) recording: Recording,
    /// Inject a fault, such as "delay dma read by=10ms every=100"; repeat it for more. ACTION is
    /// fail, delay, drop, duplicate, reorder, corrupt, remove, link-down or lose-power; SUBJECT is
    /// dma, interrupt or mapping, for a disk also command, completion, data or admin-command, for a
    /// GPU gpu-command or submission-entry
    #[arg(long = "fault", value_name = "ACTION SUBJECT KEY=VALUE...")]
    faults: Vec<Rule>,
    /// Socket for further fault rules while the device is served [default: none]
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) sandbox: SandboxOptions,
}

/// The reason why a device does not accept a fault rule.
#[derive(Debug, Error)]
#[error("`{rule}` {cause}")]
pub(crate) struct FaultError {
    rule: Box<Rule>,
    cause: AddError,
}

impl DeviceOptions {
    /// Returns `true` if each DMA is to be recorded.
    pub fn records_all(&self) -> bool {
        self.recording.is_of_all()
    }

    /// Returns `true` if the device is to offer ATS.
    pub fn offers_ats(&self) -> bool {
        self.link.ats
    }

    /// Makes the control socket, if one is configured.
    pub(crate) fn control<F: Function>(
        &self,
        endpoint: &Endpoint<F>,
        changed: FaultObserver,
    ) -> Result<Option<LineServer>, LineServerError> {
        let path = self.control.as_deref();
        path.map(|path| control::start(path, endpoint.requester(), changed))
            .transpose()
    }

    /// Adds the fault rules.
    pub(crate) fn add_faults<F: Function>(&self, endpoint: &Endpoint<F>) -> Result<(), FaultError> {
        self.faults.iter().try_for_each(|rule| {
            let added =
                Faults::check_before_client(rule).and_then(|()| endpoint.add_fault(rule.clone()));
            added.map_err(|cause| FaultError {
                rule: Box::new(rule.clone()),
                cause,
            })
        })
    }
}

/// The device's PCIe link: a part of every daemon's command line.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LinkOptions {
    /// Socket of the peerbar-switch above the device [default: none]
    #[arg(long, value_name = "PATH")]
    switch: Option<PathBuf>,
    /// Unique name of the device at the switch [default: that of its socket, without the extension]
    #[arg(long, value_name = "NAME", requires = "switch")]
    port_name: Option<String>,
    /// Time that every transfer takes on the device's link, such as 2us [default: none]
    #[arg(long, value_name = "TIME")]
    link_latency: Option<Latency>,
    /// Bandwidth of the device's link in each direction, such as 4GiB/s [default: unlimited]
    #[arg(long, value_name = "RATE")]
    link_bandwidth: Option<Bandwidth>,
    /// Offer Address Translation Services (ATS): the device requests and caches translations if the
    /// guest enables it
    #[arg(long)]
    ats: bool,
}

/// The reason why a device's link cannot be set up.
#[derive(Debug, Error)]
pub(crate) enum LinkError {
    /// The link's meters could not be made.
    #[error("cannot make the meters of the link")]
    Link(#[from] MemoryError),
    /// The device cannot attach to its switch.
    #[error(transparent)]
    Switch(#[from] AttachError),
}

impl LinkOptions {
    /// Returns the kinds of connections that the device makes while it is served.
    pub(crate) fn connections(&self) -> Connections {
        match self.switch {
            Some(_) => Connections::Unix,
            None => Connections::None,
        }
    }

    /// Sets up the link of a device that will be served at `socket_path`.
    pub(crate) fn apply<F: Function + 'static>(
        &self,
        endpoint: &mut Endpoint<F>,
        socket_path: &Path,
    ) -> Result<(), LinkError> {
        let speed = LinkSpeed {
            latency: self.link_latency.unwrap_or_default(),
            bandwidth: self.link_bandwidth,
        };
        if speed.takes_time() {
            endpoint.set_link(Link::new(speed)?);
        }
        if self.ats {
            endpoint.offer_ats();
        }
        let Some(switch) = &self.switch else {
            return Ok(());
        };
        let name = self.port_name.clone().unwrap_or_else(|| {
            let stem = socket_path.file_stem().unwrap_or_default();
            stem.to_string_lossy().into_owned()
        });
        Ok(endpoint.attach_to_switch(switch, &name)?)
    }
}
