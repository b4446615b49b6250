//! The PCI functions of a picture.

/// A PCI function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Function {
    /// Its address: `0000:01:00.0`.
    pub address: String,
    /// The address of the bridge above it, or the name of a root bus, such as `pci0000:00`.
    pub parent: String,
    /// The kind of a port; `None` for a device, and for a bridge that is not drawn.
    pub port: Option<Port>,
    /// Its name. A device without a name is not drawn; a port or a switch shows its address.
    pub name: Option<String>,
    /// Lines below the name of a device. The last ones are omitted if they do not fit.
    pub words: Vec<String>,
    /// Everything about it, for a tooltip.
    pub title: Option<String>,
    /// Its effect on requests between peers.
    pub mark: Mark,
    /// NUMA node of its root bus.
    pub socket: Option<u16>,
    /// The device needs room for a line from itself to itself.
    pub has_loop: bool,
}

/// The kind of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// A root port.
    Root,
    /// A switch's upstream port, which is drawn as the switch.
    Upstream,
    /// A switch's downstream port.
    Downstream,
}

/// The effect of a port, or of one function of a device, on requests between peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mark {
    /// It forwards them.
    #[default]
    None,
    /// It redirects them to the root complex.
    Redirects,
    /// It may redirect them.
    Unknown,
}

impl Mark {
    /// Returns the classes of the box of a port, a switch or a device, which is its `kind`.
    pub(crate) fn classes(self, kind: &str) -> String {
        let effect = match self {
            Self::None => "",
            Self::Redirects => " redirects",
            Self::Unknown => " unknown",
        };
        format!("{kind}{effect}")
    }

    /// Returns the sign after a name or an address.
    pub(crate) fn sign(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Redirects => " ↑",
            Self::Unknown => " ?",
        }
    }
}

/// Returns an address without its domain, if that is the first.
pub fn short(address: &str) -> &str {
    address.strip_prefix("0000:").unwrap_or(address)
}
