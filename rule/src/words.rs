//! A decision in words.

use crate::decision::{Ascent, Decision, Hop, Permit, Reason};
use crate::pci_tree::{DeviceId, FunctionId, HostBridgeId, PciTree};

impl PciTree {
    /// Returns the name of `hop`, or an empty text if it belongs to another tree.
    pub fn name(&self, hop: Hop) -> &str {
        match hop {
            Hop::Function(id) => self.function(id).map_or("", |function| &function.name),
            Hop::HostBridge(id) => self.host_bridge(id).map_or("", |bridge| &bridge.name),
        }
    }

    fn function_name(&self, id: FunctionId) -> &str {
        self.name(Hop::Function(id))
    }

    fn bridge_name(&self, id: HostBridgeId) -> &str {
        self.name(Hop::HostBridge(id))
    }
}

impl Decision {
    /// Returns the reason, as a sentence without a full stop, with the names of `tree`.
    pub fn why(&self, tree: &PciTree) -> String {
        match &self.reason {
            Reason::OwnMemory => "the memory is the client's own".to_owned(),
            Reason::CommonBridge(bridge) => format!(
                "{} is above both, and no port on the way redirects",
                tree.function_name(*bridge)
            ),
            Reason::RootComplex { ascent, permit } => {
                let joint = if self.verdict.is_supported() {
                    "and"
                } else {
                    "but"
                };
                format!(
                    "{}, {joint} {}",
                    why_up(ascent, tree),
                    whether(permit, tree)
                )
            }
        }
    }
}

impl Decision {
    /// Returns in a few words the component that refuses, and the reason, or `None` if the client
    /// may reach the provider.
    pub fn refusal(&self, tree: &PciTree) -> Option<String> {
        let Reason::RootComplex { permit, .. } = &self.reason else {
            return None;
        };
        match permit {
            Permit::Cpu(_) | Permit::Listed(_) => None,
            Permit::NotListed(bridge, Some(id)) => Some(format!(
                "host bridge {} ({id}) is not on {}",
                tree.bridge_name(*bridge),
                list_without(*id)
            )),
            Permit::NotListed(bridge, None) => Some(format!(
                "host bridge {} is not on the kernel's list",
                tree.bridge_name(*bridge)
            )),
            Permit::OnlyWithin(bridge, id) => Some(format!(
                "host bridge {} ({id}) is listed for devices below it only",
                tree.bridge_name(*bridge)
            )),
        }
    }
}

fn why_up(ascent: &Ascent, tree: &PciTree) -> String {
    match ascent {
        Ascent::NoCommonBridge => "no bridge is above both".to_owned(),
        Ascent::Redirected(redirects) => {
            let ports = redirects
                .iter()
                .map(|redirect| format!("{} ({})", tree.function_name(redirect.at), redirect.bits));
            let ports: Vec<String> = ports.collect();
            format!(
                "ACS redirects requests to the root complex at {}",
                ports.join(" and ")
            )
        }
    }
}

/// Returns the words for a kernel's list on which a host bridge known by `id` is not.
fn list_without(id: DeviceId) -> String {
    match id.listed_since() {
        Some(release) => format!("the kernel's list before Linux {release:#}"),
        None => "the kernel's list".to_owned(),
    }
}

fn whether(permit: &Permit, tree: &PciTree) -> String {
    match permit {
        Permit::Cpu(_) => {
            "the root complex of this processor, an AMD Zen or later, is trusted".to_owned()
        }
        Permit::Listed(bridge) => format!(
            "host bridge {} is on the kernel's list",
            tree.bridge_name(*bridge)
        ),
        Permit::NotListed(bridge, Some(id)) => format!(
            "host bridge {} ({id}) is not on {}, nor is the processor an AMD Zen or later",
            tree.bridge_name(*bridge),
            list_without(*id)
        ),
        Permit::NotListed(bridge, None) => format!(
            "host bridge {} has no device by which the kernel's list could name it, nor is the processor an AMD Zen or \
             later",
            tree.bridge_name(*bridge)
        ),
        Permit::OnlyWithin(bridge, id) => format!(
            "host bridge {} ({id}) is on the kernel's list for peers that are both below it only",
            tree.bridge_name(*bridge)
        ),
    }
}
