//! Properties of every tree, and the rule compared with a slow model.

use std::collections::BTreeSet;

use peerbar_rule::{
    AcsControl, Cpu, Decision, DeviceId, Function, FunctionId, HostBridge, MapType, Parent,
    PciTree, Platform, PortType, Release, Vendor, decide,
};
use proptest::prelude::*;

use crate::trees::{HASWELL_E, ICE_LAKE, Q35};

/// A generated tree: each function has the index of its parent, modulo the number of possible
/// parents.
#[derive(Clone, Debug)]
struct Sketch {
    bridges: Vec<Option<DeviceId>>,
    functions: Vec<(usize, u16)>,
}

impl Sketch {
    fn build(&self, more_acs: u16) -> (PciTree, Vec<FunctionId>) {
        let mut tree = PciTree::default();
        let mut parents: Vec<Parent> = Vec::new();
        for known_by in &self.bridges {
            parents.push(tree.add_host_bridge("bridge", *known_by).into());
        }
        let mut functions = Vec::new();
        for (number, (parent, acs)) in self.functions.iter().enumerate() {
            let control = AcsControl(acs | more_acs);
            let function =
                Function::new(number.to_string(), PortType::Other, Q35).with_acs(control);
            let id = tree.add(parents[parent % parents.len()], function);
            parents.push(id.into());
            functions.push(id);
        }
        (tree, functions)
    }
}

fn sketches() -> impl Strategy<Value = Sketch> {
    let known_by = prop_oneof![
        Just(None),
        Just(Some(Q35)),
        Just(Some(HASWELL_E)),
        Just(Some(ICE_LAKE))
    ];
    let acs = prop_oneof![3 => Just(0), 1 => 0..0x80u16];
    let bridges = prop::collection::vec(known_by, 1..4);
    let functions = prop::collection::vec((any::<usize>(), acs), 1..12);
    (bridges, functions).prop_map(|(bridges, functions)| Sketch { bridges, functions })
}

fn platforms() -> impl Strategy<Value = Platform> {
    let vendor = prop_oneof![Just(Vendor::Amd), Just(Vendor::Intel), Just(Vendor::Other)];
    let kernel = (6..8u32, 0..20u32).prop_map(|(major, minor)| Release::new(major, minor));
    (vendor, 0x10..0x20u32, any::<bool>(), kernel).prop_map(
        |(vendor, family, translates, kernel)| Platform {
            cpu: Cpu { vendor, family },
            translates,
            kernel,
        },
    )
}

/// Returns all functions above one, itself included.
fn above(tree: &PciTree, function: FunctionId) -> BTreeSet<FunctionId> {
    let mut all = BTreeSet::from([function]);
    let mut at = function;
    while let Some(Parent::Bridge(bridge)) = tree.parent(at) {
        all.insert(bridge);
        at = bridge;
    }
    all
}

fn bridge_of(tree: &PciTree, function: FunctionId) -> Option<HostBridge> {
    let top = above(tree, function)
        .into_iter()
        .find_map(|id| match tree.parent(id) {
            Some(Parent::HostBridge(bridge)) => Some(bridge),
            _ => None,
        });
    tree.host_bridge(top?).cloned()
}

/// Makes the same decision by sets: a request stays below the root if there is a common ancestor,
/// and if neither the lowest one nor any function below it redirects.
fn model(tree: &PciTree, platform: &Platform, a: FunctionId, b: FunctionId) -> MapType {
    let (above_a, above_b) = (above(tree, a), above(tree, b));
    // Ids grow downwards, so the greatest common one is the lowest.
    let lowest = above_a.intersection(&above_b).max().copied();
    if let Some(lowest) = lowest {
        let between = above_a.union(&above_b).filter(|id| **id >= lowest);
        let own = |id: &&FunctionId| above_a.contains(id) != above_b.contains(id) || **id == lowest;
        let mut passed = between.filter(own);
        if passed.all(|id| tree.function(*id).unwrap().redirecting().is_empty()) {
            return MapType::BusAddress;
        }
    }
    let root = |above: &BTreeSet<FunctionId>| tree.parent(*above.first().unwrap());
    let same_root = root(&above_a) == root(&above_b);
    let trusted = |function| match bridge_of(tree, function).unwrap().known_by {
        Some(ICE_LAKE) => true,
        Some(HASWELL_E) => same_root,
        _ => false,
    };
    let zen = platform.cpu.vendor == Vendor::Amd && platform.cpu.family >= 0x17;
    match (zen || (trusted(a) && trusted(b)), platform.translates) {
        (false, _) => MapType::NotSupported,
        (true, true) => MapType::ThroughHostBridgeIova,
        (true, false) => MapType::ThroughHostBridgePhysical,
    }
}

proptest! {
    #[test]
    fn decision_equals_the_model(sketch in sketches(), platform in platforms(), a in any::<usize>(), b in any::<usize>()) {
        let (tree, functions) = sketch.build(0);
        let (a, b) = (functions[a % functions.len()], functions[b % functions.len()]);
        let decision = decide(&tree, &platform, a, b).unwrap();
        prop_assert_eq!(decision.verdict, model(&tree, &platform, a, b));
        let ends = [b, a].map(peerbar_rule::Hop::Function);
        prop_assert_eq!([decision.path.first(), decision.path.last()], ends.each_ref().map(Some));
        prop_assert!(decision.path.contains(&decision.decisive().unwrap()));
    }

    #[test]
    fn decision_is_symmetric(sketch in sketches(), platform in platforms(), a in any::<usize>(), b in any::<usize>()) {
        let (tree, functions) = sketch.build(0);
        let (a, b) = (functions[a % functions.len()], functions[b % functions.len()]);
        let (there, back) = (decide(&tree, &platform, a, b).unwrap(), decide(&tree, &platform, b, a).unwrap());
        prop_assert_eq!((there.verdict, there.distance), (back.verdict, back.distance));
    }

    #[test]
    fn more_acs_never_shortens_a_path(sketch in sketches(), platform in platforms(), more in 0..0x80u16, a in any::<usize>(), b in any::<usize>()) {
        let ((before, functions), (after, _)) = (sketch.build(0), sketch.build(more));
        let (a, b) = (functions[a % functions.len()], functions[b % functions.len()]);
        let (before, after) = (decide(&before, &platform, a, b).unwrap().verdict, decide(&after, &platform, a, b).unwrap().verdict);
        prop_assert!(after == before || before == MapType::BusAddress);
    }

    #[test]
    fn zen_refuses_nothing(sketch in sketches(), mut platform in platforms(), a in any::<usize>(), b in any::<usize>()) {
        platform.cpu = Cpu { vendor: Vendor::Amd, family: platform.cpu.family.max(0x17) };
        let (tree, functions) = sketch.build(0);
        let (a, b) = (functions[a % functions.len()], functions[b % functions.len()]);
        prop_assert!(decide(&tree, &platform, a, b).unwrap().verdict.is_supported());
    }

    #[test]
    fn translation_changes_only_the_address(sketch in sketches(), mut platform in platforms(), a in any::<usize>(), b in any::<usize>()) {
        let (tree, functions) = sketch.build(0);
        let (a, b) = (functions[a % functions.len()], functions[b % functions.len()]);
        platform.translates = true;
        let with = decide(&tree, &platform, a, b).unwrap();
        platform.translates = false;
        let without = decide(&tree, &platform, a, b).unwrap();
        let number = |decision: &Decision| decision.verdict.number(platform.kernel);
        prop_assert_eq!(number(&with), number(&without));
        prop_assert_eq!((with.reason, with.path), (without.reason, without.path));
    }
}
