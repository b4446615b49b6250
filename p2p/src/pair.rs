//! Everything about one pair.

use peerbar_rule::{Hop, Permit, Reason, Way};
use serde::Serialize;

use crate::address::Address;
use crate::changes::{self, Change};
use crate::kernel::{self, KernelVerdict, Outcome};
use crate::machine::{Acs, Kind, Machine, Statement};
use crate::tree::{Tree, host_bridge_name, is_host_bridge_known, root_bus_name};
use crate::warnings;
use crate::wire::{self, Wire};

/// The number of EINVAL (Linux include/uapi/asm-generic/errno-base.h).
const EINVAL: i32 = 22;

/// The verdicts on the requests of a client to the memory of a provider.
#[derive(Clone, Debug, Serialize)]
pub struct Pair {
    /// The device that issues the DMA.
    pub client: Address,
    /// The device that owns the memory.
    pub provider: Address,
    /// The kernel's verdict, or `None` if the machine shows neither a bridge above both nor the
    /// bridges up to their root buses.
    pub kernel: Option<Kernel>,
    /// The way of the TLPs, or `None` for the same reason.
    pub wire: Option<Wire>,
    /// The hops from client to provider on the kernel's way.
    pub path: Vec<PathHop>,
    /// Changes that let the pair do more.
    pub changes: Vec<Change>,
    /// Other obstacles, with their evidence.
    pub warnings: Vec<String>,
    /// The source's own log lines about the verdict.
    pub statements: Vec<String>,
}

/// The kernel's verdict.
#[derive(Clone, Debug, Serialize)]
pub struct Kernel {
    /// The way, if none of the conditions holds.
    pub way: Way,
    /// The reason.
    pub why: String,
    /// The functions at which the kernel finds a redirection.
    pub redirected_at: Vec<Address>,
    /// Facts that the machine does not tell, and the way if they are true.
    pub conditions: Vec<Condition>,
    /// The error with which a refused transfer fails.
    pub error: Option<String>,
    /// The kernel's release, or the one that was assumed.
    pub release: String,
    /// The release was not told.
    pub is_release_assumed: bool,
}

/// An outcome that depends on facts that the machine does not tell.
#[derive(Clone, Debug, Serialize)]
pub struct Condition {
    /// The facts.
    pub when: Vec<String>,
    /// The way if they are true.
    pub way: Way,
}

/// A hop of the way.
#[derive(Clone, Debug, Serialize)]
pub struct PathHop {
    /// Its address, or the name of a root bus.
    pub name: String,
    /// Its type and description.
    pub description: String,
    /// Its ACS control register in `lspci`'s words, or that it is unknown.
    pub acs: Option<String>,
    /// This hop decided.
    pub decides: bool,
}

impl Machine {
    /// Returns the verdicts on DMA of `client` to memory of `provider`.
    pub fn pair(&self, client: Address, provider: Address) -> Pair {
        let verdict = kernel::verdict(self, client, provider);
        let wire = wire::wire(self, client, provider);
        let known = verdict.as_ref();
        Pair {
            client,
            provider,
            path: known.map(|verdict| path(self, verdict)).unwrap_or_default(),
            changes: known
                .map(|verdict| changes::of_pair(self, client, provider, verdict))
                .unwrap_or_default(),
            warnings: wire
                .as_ref()
                .map(|wire| warnings::of_pair(self, client, provider, wire))
                .unwrap_or_default(),
            statements: statements(self, client, provider, known),
            kernel: verdict.map(|verdict| in_words(self, &verdict, [client, provider])),
            wire,
        }
    }
}

impl Pair {
    /// Returns a note on the path if it is not the way on the wire. Linux assumes that any port up
    /// to the common bridge redirects, also the one through which a request leaves it.
    pub(crate) fn path_note(&self) -> Option<&'static str> {
        let is_redirected = !self.kernel.as_ref()?.redirected_at.is_empty();
        let is_direct = self.wire.as_ref()?.is_direct();
        (is_redirected && is_direct).then_some("as Linux assumes it, not the way on the wire")
    }
}

fn in_words(machine: &Machine, verdict: &KernelVerdict, ends: [Address; 2]) -> Kernel {
    let condition = |outcome: &Outcome| Condition {
        when: outcome
            .assumptions
            .iter()
            .map(ToString::to_string)
            .collect(),
        way: outcome.way,
    };
    Kernel {
        way: verdict.first.way,
        why: why(machine, verdict, ends),
        redirected_at: verdict.redirected_at(),
        conditions: verdict.others.iter().map(condition).collect(),
        error: refusal(machine, verdict.first.way, ends[0]),
        release: machine.release().to_string(),
        is_release_assumed: machine.host.release.is_none(),
    }
}

/// Returns the error of a refused transfer of a disk or an adapter: adapters' drivers map a
/// scatterlist, for which every release has the same error.
fn refusal(machine: &Machine, way: Way, client: Address) -> Option<String> {
    let error = match machine.function(client)?.kind() {
        Kind::Nvme if machine.release().refusal_of_nvme() == EINVAL => "EINVAL",
        Kind::Nvme | Kind::Nic => "EREMOTEIO",
        // Its driver's own stack issues the requests.
        _ => return None,
    };
    let is_asked = machine.host.has_p2pdma != Some(false);
    (way == Way::NotSupported && is_asked).then(|| error.to_owned())
}

/// Returns the reason. The rule knows a host bridge by its ID; a text may have shown its name only.
fn why(machine: &Machine, verdict: &KernelVerdict, ends: [Address; 2]) -> String {
    if machine.host.has_p2pdma == Some(false) {
        return "the kernel was built without CONFIG_PCI_P2PDMA".to_owned();
    }
    let decision = &verdict.first.decision;
    let tree = &verdict.tree.tree;
    if let Reason::RootComplex {
        permit: Permit::NotListed(bridge, None),
        ..
    } = &decision.reason
    {
        let bridge = tree.name(Hop::HostBridge(*bridge));
        let mut buses = ends.into_iter().filter_map(|end| machine.root_bus(end));
        let bus = buses.find(|bus| root_bus_name(*bus) == bridge);
        if bus.is_none_or(|bus| !is_host_bridge_known(machine, bus)) {
            return format!(
                "requests go up to the root complex, and the source does not show whether the kernel's list has the \
                 host bridge of {bridge}"
            );
        }
        if let Some(name) = bus.and_then(|bus| host_bridge_name(machine, bus)) {
            return format!(
                "requests go up to the root complex, but host bridge {bridge} ({name}) is not on the kernel's list, nor \
                 is the processor an AMD Zen or later"
            );
        }
    }
    decision.why(tree)
}

fn path(machine: &Machine, verdict: &KernelVerdict) -> Vec<PathHop> {
    let decision = &verdict.first.decision;
    let decisive = decision.decisive();
    let hop = |hop: &Hop| PathHop {
        name: verdict.tree.tree.name(*hop).to_owned(),
        description: describe(machine, &verdict.tree, *hop),
        acs: verdict
            .tree
            .address(*hop)
            .and_then(|address| acs(machine, address)),
        decides: Some(*hop) == decisive,
    };
    decision.path.iter().map(hop).collect()
}

fn describe(machine: &Machine, tree: &Tree, hop: Hop) -> String {
    let Some(address) = tree.address(hop) else {
        return "host bridge".to_owned();
    };
    let Some(function) = machine.function(address) else {
        return String::new();
    };
    let id = function.id.map(|id| id.to_string());
    let words = [
        function.kind_in_words(),
        id,
        Some(function.description.clone())
            .filter(|text| !text.is_empty() && !text.starts_with("Device ")),
    ];
    words.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Returns the ACS bits of a function that has them or may have them.
fn acs(machine: &Machine, address: Address) -> Option<String> {
    let function = machine.function(address)?;
    match function.acs {
        Acs::Control(control) if control.redirecting().is_empty() => {
            Some("redirects nothing".to_owned())
        }
        Acs::Control(control) => Some(control.redirecting().as_lspci()),
        Acs::Absent if function.port_type.is_some_and(|kind| kind.is_port()) => {
            Some("none".to_owned())
        }
        Acs::Unknown if function.port_type.is_some_and(|kind| kind.is_port()) => {
            Some("unknown".to_owned())
        }
        Acs::Absent | Acs::Unknown => None,
    }
}

/// Compares what the kernel's log says about the pair with the verdict.
fn statements(
    machine: &Machine,
    client: Address,
    provider: Address,
    verdict: Option<&KernelVerdict>,
) -> Vec<String> {
    let of_pair = |statement: &Statement| match statement {
        Statement::Refused {
            client: c,
            provider: p,
        } if (*c, *p) == (client, provider) => {
            let agrees = match verdict {
                None => "which the rule cannot judge",
                Some(verdict) if verdict.certain() == Some(Way::NotSupported) => "as the rule says",
                Some(verdict) if verdict.may_be(Way::NotSupported) => {
                    "so the condition for `not supported` holds"
                }
                Some(_) => {
                    "but the rule allows it: the log is of another boot or kernel, or an input is wrong"
                }
            };
            Some(format!(
                "the kernel refused this pair, {agrees}: {statement}"
            ))
        }
        Statement::Redirected {
            client: c,
            provider: p,
        } if (*c, *p) == (client, provider) => {
            Some(format!("the kernel found a redirection: {statement}"))
        }
        Statement::IommuFault { client: c, .. } if *c == client => Some(statement.to_string()),
        _ => None,
    };
    machine.statements.iter().filter_map(of_pair).collect()
}
