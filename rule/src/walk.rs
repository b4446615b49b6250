//! The paths from two functions up to their meeting point.

use crate::decision::Redirect;
use crate::pci_tree::{FunctionId, HostBridgeId, Parent, PciTree};

/// The bridges above a function.
#[derive(Debug)]
pub(crate) struct Climb {
    /// The function itself and all bridges above it, in this order.
    pub(crate) functions: Vec<FunctionId>,
    /// The host bridge above all of them.
    pub(crate) host_bridge: HostBridgeId,
}

/// Returns the bridges above `function`, or `None` if it belongs to another tree.
pub(crate) fn climb(tree: &PciTree, function: FunctionId) -> Option<Climb> {
    let mut functions = vec![function];
    let mut at = function;
    loop {
        match tree.parent(at)? {
            Parent::HostBridge(host_bridge) => {
                tree.host_bridge(host_bridge)?;
                return Some(Climb {
                    functions,
                    host_bridge,
                });
            }
            // A parent is added before its child, so this loop terminates.
            Parent::Bridge(bridge) if bridge < at => {
                functions.push(bridge);
                at = bridge;
            }
            Parent::Bridge(_) => return None,
        }
    }
}

/// Returns the number of hops of each climb below the lowest common function. That function may be
/// one of the ends.
pub(crate) fn meeting(provider: &Climb, client: &Climb) -> Option<(usize, usize)> {
    let mut steps = provider.functions.iter().enumerate();
    steps.find_map(|(up, function)| {
        let same = |of_client: &FunctionId| of_client == function;
        let down = client.functions.iter().position(same)?;
        Some((up, down))
    })
}

/// Returns the functions that redirect: from the provider up to the meeting point inclusive, then
/// from the client up to it exclusive.
pub(crate) fn redirects(
    tree: &PciTree,
    provider: &Climb,
    client: &Climb,
    (up, down): (usize, usize),
) -> Vec<Redirect> {
    let of_provider = provider.functions.iter().take(up.saturating_add(1));
    let of_client = client.functions.iter().take(down);
    let redirect = |id: &FunctionId| {
        let bits = tree.function(*id)?.redirecting();
        (!bits.is_empty()).then_some(Redirect { at: *id, bits })
    };
    of_provider.chain(of_client).filter_map(redirect).collect()
}
