//! One tree for each path through the kernel's function.

use peerbar_rule::{
    AcsControl, Ascent, Cpu, Decision, FunctionId, Hop, MapType, PciTree, Permit, Platform,
    PortType, Reason, Release, Vendor, decide,
};

use crate::trees::{
    HASWELL_E, ICE_LAKE, INTEL, Q35, REDIRECTS, ZEN, function, id, platform, slot, switch,
};

/// Returns the names of the hops.
fn hops<'a>(tree: &'a PciTree, decision: &Decision) -> Vec<&'a str> {
    decision.path.iter().map(|hop| tree.name(*hop)).collect()
}

fn decided(
    tree: &PciTree,
    platform: &Platform,
    (provider, client): (FunctionId, FunctionId),
) -> Decision {
    decide(tree, platform, provider, client).unwrap()
}

/// Returns the name of the hop that decided.
fn decisive<'a>(tree: &'a PciTree, decision: &Decision) -> &'a str {
    tree.name(decision.decisive().unwrap())
}

fn one_switch(acs_of_client: Option<AcsControl>) -> (PciTree, (FunctionId, FunctionId)) {
    let mut tree = PciTree::default();
    let root = tree.add_host_bridge("pcie.0", Some(Q35));
    let upstream = switch(&mut tree, root, "switch0");
    let provider = slot(&mut tree, upstream, PortType::DownstreamPort, "gpu", None);
    let client = slot(
        &mut tree,
        upstream,
        PortType::DownstreamPort,
        "disk",
        acs_of_client,
    );
    (tree, (provider, client))
}

fn root_ports(bridges: [peerbar_rule::DeviceId; 2]) -> (PciTree, (FunctionId, FunctionId)) {
    let mut tree = PciTree::default();
    let [a, b] = bridges;
    let first = tree.add_host_bridge("bridge a", Some(a));
    let second = if a == b {
        first
    } else {
        tree.add_host_bridge("bridge b", Some(b))
    };
    let acs = Some(REDIRECTS);
    let provider = slot(&mut tree, first, PortType::RootPort, "gpu", acs);
    let client = slot(&mut tree, second, PortType::RootPort, "disk", acs);
    (tree, (provider, client))
}

#[test]
fn own_memory_is_reached_by_bus_address() {
    let (tree, (provider, _)) = root_ports([Q35, Q35]);
    let decision = decided(&tree, &platform(INTEL), (provider, provider));
    assert_eq!(decision.verdict, MapType::BusAddress);
    assert_eq!(
        (decision.distance, &decision.reason),
        (0, &Reason::OwnMemory)
    );
    assert_eq!(hops(&tree, &decision), ["gpu"]);
    assert_eq!(decisive(&tree, &decision), "gpu");
}

#[test]
fn peers_below_one_switch_use_the_bus_address() {
    let (tree, pair) = one_switch(None);
    let mut platform = platform(INTEL);
    for translates in [false, true] {
        platform.translates = translates;
        let decision = decided(&tree, &platform, pair);
        assert_eq!(decision.verdict, MapType::BusAddress);
        assert_eq!(decision.distance, 4);
        let expected = ["disk", "port of disk", "switch0", "port of gpu", "gpu"];
        assert_eq!(hops(&tree, &decision), expected);
        assert_eq!(decisive(&tree, &decision), "switch0");
        assert_eq!(
            decision.why(&tree),
            "switch0 is above both, and no port on the way redirects"
        );
    }
}

#[test]
fn redirecting_downstream_port_sends_requests_to_the_root() {
    let (tree, pair) = one_switch(Some(AcsControl(0x04)));
    let decision = decided(&tree, &platform(ZEN), pair);
    assert_eq!(decision.verdict, MapType::ThroughHostBridgePhysical);
    assert_eq!(
        decision.distance, 4,
        "the kernel's distance does not change"
    );
    let expected = [
        "disk",
        "port of disk",
        "switch0",
        "root port of switch0",
        "pcie.0",
        "root port of switch0",
        "switch0",
        "port of gpu",
        "gpu",
    ];
    assert_eq!(hops(&tree, &decision), expected);
    assert_eq!(decisive(&tree, &decision), "port of disk");
    assert_eq!(
        decision.why(&tree),
        "ACS redirects requests to the root complex at port of disk (P2P request redirect), and the root complex of this \
         processor, an AMD Zen or later, is trusted"
    );
    let refused = decided(&tree, &platform(INTEL), pair);
    assert_eq!(refused.verdict, MapType::NotSupported);
    assert_eq!(decisive(&tree, &refused), "pcie.0");
}

#[test]
fn only_redirecting_acs_bits_change_the_verdict() {
    let bits = [(0x01, false), (0x02, false), (0x04, true), (0x08, true)];
    for (bit, redirects) in bits
        .into_iter()
        .chain([(0x10, false), (0x20, true), (0x40, false)])
    {
        let (tree, pair) = one_switch(Some(AcsControl(bit)));
        let decision = decided(&tree, &platform(ZEN), pair);
        assert_eq!(
            decision.verdict != MapType::BusAddress,
            redirects,
            "{bit:#x}"
        );
    }
}

#[test]
fn functions_below_one_root_port_depend_on_its_acs() {
    for (acs, verdict) in [
        (None, MapType::BusAddress),
        (Some(REDIRECTS), MapType::NotSupported),
    ] {
        let mut tree = PciTree::default();
        let root = tree.add_host_bridge("pcie.0", Some(Q35));
        let port = tree.add(root, function(PortType::RootPort, "port", acs));
        let provider = tree.add(port, function(PortType::Endpoint, "function 0", None));
        let client = tree.add(port, function(PortType::Endpoint, "function 1", None));
        let decision = decided(&tree, &platform(INTEL), (provider, client));
        assert_eq!((decision.verdict, decision.distance), (verdict, 2));
    }
}

#[test]
fn cascaded_switches_meet_at_the_lowest_common_port() {
    let mut tree = PciTree::default();
    let root = tree.add_host_bridge("pcie.0", Some(Q35));
    let outer = switch(&mut tree, root, "outer");
    let provider = slot(&mut tree, outer, PortType::DownstreamPort, "gpu", None);
    let between = tree.add(outer, function(PortType::DownstreamPort, "between", None));
    let inner = tree.add(between, function(PortType::UpstreamPort, "inner", None));
    let client = slot(&mut tree, inner, PortType::DownstreamPort, "disk", None);
    let decision = decided(&tree, &platform(INTEL), (provider, client));
    assert_eq!(
        (decision.verdict, decision.distance),
        (MapType::BusAddress, 6)
    );
    assert_eq!(decisive(&tree, &decision), "outer");
}

#[test]
fn trusted_processor_decides_before_the_host_bridge_list() {
    let (tree, pair) = root_ports([Q35, Q35]);
    let mut zen = platform(ZEN);
    assert_eq!(
        decided(&tree, &zen, pair).verdict,
        MapType::ThroughHostBridgePhysical
    );
    zen.translates = true;
    let decision = decided(&tree, &zen, pair);
    assert_eq!(decision.verdict, MapType::ThroughHostBridgeIova);
    assert_eq!(decision.distance, 4, "two functions up on both sides");
    let expected = ["disk", "port of disk", "bridge a", "port of gpu", "gpu"];
    assert_eq!(hops(&tree, &decision), expected);
    assert_eq!(decisive(&tree, &decision), "bridge a");
}

#[test]
fn unlisted_host_bridge_is_refused_with_its_id() {
    let (tree, pair) = root_ports([Q35, Q35]);
    let older_amd = Cpu {
        vendor: Vendor::Amd,
        family: 0x15,
    };
    for cpu in [INTEL, older_amd] {
        let decision = decided(&tree, &platform(cpu), pair);
        assert_eq!(decision.verdict, MapType::NotSupported);
        let Some(Hop::HostBridge(bridge)) = decision.decisive() else {
            panic!("{decision:?}")
        };
        let reason = Reason::RootComplex {
            ascent: Ascent::NoCommonBridge,
            permit: Permit::NotListed(bridge, Some(Q35)),
        };
        assert_eq!(decision.reason, reason);
        assert_eq!(
            decision.why(&tree),
            "no bridge is above both, but host bridge bridge a (8086:29c0) is not on the kernel's list, nor is the processor \
             an AMD Zen or later"
        );
    }
}

#[test]
fn same_bridge_entry_refuses_peers_of_another_bridge() {
    let verdict = |bridges| {
        let (tree, pair) = root_ports(bridges);
        decided(&tree, &platform(INTEL), pair).verdict
    };
    let through = MapType::ThroughHostBridgePhysical;
    assert_eq!(verdict([HASWELL_E, HASWELL_E]), through);
    assert_eq!(verdict([ICE_LAKE, ICE_LAKE]), through);
    assert_eq!(verdict([HASWELL_E, ICE_LAKE]), MapType::NotSupported);
    assert_eq!(verdict([ICE_LAKE, id(0x8086, 0x2020)]), through);
    assert_eq!(verdict([ICE_LAKE, Q35]), MapType::NotSupported);
}

#[test]
fn refusal_names_the_refusing_host_bridge() {
    let (tree, pair) = root_ports([ICE_LAKE, Q35]);
    let decision = decided(&tree, &platform(INTEL), pair);
    assert_eq!(decisive(&tree, &decision), "bridge b");
    let (tree, pair) = root_ports([HASWELL_E, ICE_LAKE]);
    let decision = decided(&tree, &platform(INTEL), pair);
    assert_eq!(decisive(&tree, &decision), "bridge a");
    assert!(
        decision
            .why(&tree)
            .ends_with("for peers that are both below it only")
    );
}

#[test]
fn host_bridge_without_an_id_is_refused() {
    let mut tree = PciTree::default();
    let root = tree.add_host_bridge("pcie.0", None);
    let provider = tree.add(root, function(PortType::IntegratedEndpoint, "a", None));
    let client = tree.add(root, function(PortType::IntegratedEndpoint, "b", None));
    let decision = decided(&tree, &platform(INTEL), (provider, client));
    assert_eq!(
        (decision.verdict, decision.distance),
        (MapType::NotSupported, 2)
    );
    let decision = decided(&tree, &platform(ZEN), (provider, client));
    assert_eq!(decision.verdict, MapType::ThroughHostBridgePhysical);
    assert_eq!(hops(&tree, &decision), ["b", "pcie.0", "a"]);
}

#[test]
fn refusal_of_an_older_kernel_names_the_release_that_lists_the_bridge() {
    let google = id(0x1ae0, 0x1);
    let (tree, pair) = root_ports([google, google]);
    let mut platform = platform(INTEL);
    platform.kernel = Release::new(7, 1);
    assert!(decided(&tree, &platform, pair).verdict.is_supported());
    platform.kernel = Release::new(7, 0);
    let refused = decided(&tree, &platform, pair);
    assert!(!refused.verdict.is_supported());
    assert_eq!(
        refused.refusal(&tree).unwrap(),
        "host bridge bridge a (1ae0:0001) is not on the kernel's list before Linux 7.1"
    );
}

#[test]
fn zen_is_trusted_and_redirection_seen_in_every_release() {
    let (tree, pair) = one_switch(Some(AcsControl(0x04)));
    for (major, minor) in [(6, 2), (6, 12), (6, 19), (7, 0), (7, 3)] {
        let kernel = Release::new(major, minor);
        let verdict = |cpu| {
            let platform = Platform {
                kernel,
                ..platform(cpu)
            };
            decided(&tree, &platform, pair).verdict
        };
        assert_eq!(verdict(ZEN), MapType::ThroughHostBridgePhysical, "{kernel}");
        assert_eq!(verdict(INTEL), MapType::NotSupported, "{kernel}");
    }
}

#[test]
fn map_types_have_the_numbers_of_their_release() {
    let mut platform = platform(INTEL);
    for (major, minor, [refused, bus, through]) in [
        (6, 2, [1, 2, 3]),
        (6, 15, [1, 2, 3]),
        (6, 16, [2, 3, 4]),
        (7, 3, [2, 3, 4]),
    ] {
        platform.kernel = Release::new(major, minor);
        for (map_type, number, translates) in [
            (MapType::NotSupported, refused, false),
            (MapType::BusAddress, bus, false),
            (MapType::ThroughHostBridgePhysical, through, false),
            (MapType::ThroughHostBridgeIova, through, true),
        ] {
            platform.translates = translates;
            assert_eq!(map_type.number(platform.kernel), number);
            assert_eq!(MapType::from_number(number, &platform), Some(map_type));
        }
        // Neither unknown, nor an ordinary mapping, nor a number beyond the last is a decision.
        for number in [0, refused - 1, through + 1] {
            assert_eq!(MapType::from_number(number, &platform), None, "{number}");
        }
    }
}

#[test]
fn function_of_another_tree_yields_none() {
    let (tree, (provider, client)) = one_switch(None);
    assert_eq!(
        decide(&PciTree::default(), &platform(ZEN), provider, client),
        None
    );
    assert!(decide(&tree, &platform(ZEN), provider, client).is_some());
}
