//! Typical trees for the tests.

use peerbar_rule::{
    AcsControl, Cpu, DeviceId, Function, FunctionId, HostBridgeId, Parent, PciTree, Platform,
    PortType, Release, Vendor,
};

/// QEMU's q35.
pub(crate) const Q35: DeviceId = id(0x8086, 0x29c0);
/// A Xeon whose host bridge is trusted with peers below itself only.
pub(crate) const HASWELL_E: DeviceId = id(0x8086, 0x2f00);
/// A Xeon whose host bridge is trusted.
pub(crate) const ICE_LAKE: DeviceId = id(0x8086, 0x09a2);
/// The bits that Linux sets in a root port of QEMU behind an IOMMU.
pub(crate) const REDIRECTS: AcsControl = AcsControl(0x1d);

pub(crate) const INTEL: Cpu = Cpu {
    vendor: Vendor::Intel,
    family: 6,
};
pub(crate) const ZEN: Cpu = Cpu {
    vendor: Vendor::Amd,
    family: 0x17,
};

pub(crate) const fn id(vendor: u16, device: u16) -> DeviceId {
    DeviceId { vendor, device }
}

/// Returns the newest known kernel on this processor, without an IOMMU.
pub(crate) fn platform(cpu: Cpu) -> Platform {
    Platform {
        cpu,
        translates: false,
        kernel: Release::NEWEST,
    }
}

pub(crate) fn function(kind: PortType, name: &str, acs: Option<AcsControl>) -> Function {
    let plain = Function::new(name, kind, id(0x1b36, 0x10));
    Function { acs, ..plain }
}

/// Adds a port of this kind, or uses the bus of a host bridge, and adds an endpoint below it.
pub(crate) fn slot(
    tree: &mut PciTree,
    parent: impl Into<Parent>,
    kind: PortType,
    name: &str,
    acs: Option<AcsControl>,
) -> FunctionId {
    let port = tree.add(parent, function(kind, &format!("port of {name}"), acs));
    tree.add(port, function(PortType::Endpoint, name, None))
}

/// Adds a root port and a switch below it. Returns the switch's upstream port.
pub(crate) fn switch(tree: &mut PciTree, root: HostBridgeId, name: &str) -> FunctionId {
    let port = function(
        PortType::RootPort,
        &format!("root port of {name}"),
        Some(REDIRECTS),
    );
    let port = tree.add(root, port);
    tree.add(port, function(PortType::UpstreamPort, name, None))
}
