//! The page of a large server in a browser.

use std::fs;
use std::process::Command;

use peerbar_picture::browser::{rendered, seen};
use serde_json::json;

/// Control registers of ACS, as `lspci` shows them.
const FORWARDS: &str = "SrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl-";
const REDIRECTS: &str = "SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl-";

/// `lspci`'s output on a server.
struct Paste {
    text: String,
}

impl Paste {
    /// Adds a function with these lines.
    fn function(&mut self, bus: u8, device: u8, what: &str, lines: &[String]) {
        let lines = lines.join("\n\t");
        self.text += &format!("0000:{bus:02x}:{device:02x}.0 {what}\n\t{lines}\n\n");
    }

    fn bridge(&mut self, (bus, device): (u8, u8), below: (u8, u8), kind: &str, acs: &str) {
        let (first, last) = below;
        let lines = [
            format!(
                "Bus: primary={bus:02x}, secondary={first:02x}, subordinate={last:02x}, sec-latency=0"
            ),
            format!("Capabilities: [68] Express (v2) {kind}, MSI 00"),
            "Capabilities: [148 v1] Access Control Services".to_owned(),
            format!("\tACSCtl:\t{acs}"),
        ];
        let what = "PCI bridge [0604]: Broadcom / LSI PEX890xx <Switch> [1000:c030]";
        self.function(bus, device, what, &lines);
    }

    /// Adds a host bridge with a switch, and below it two GPUs, two network adapters and four
    /// disks.
    fn host_bridge(&mut self, root: u8, node: u8, acs: &str) {
        let what = "System peripheral [0880]: Intel Corporation Ice Lake [8086:09a2]";
        self.function(root, 0, what, &[format!("NUMA node: {node}")]);
        let last = root + 10;
        self.bridge((root, 1), (root + 1, last), "Root Port (Slot+)", REDIRECTS);
        self.bridge((root + 1, 0), (root + 2, last), "Upstream Port", FORWARDS);
        for port in 0..8 {
            let bus = root + 3 + port;
            self.bridge((root + 2, port), (bus, bus), "Downstream Port (Slot+)", acs);
            let (what, size) = match port {
                0 | 1 => (
                    "3D controller [0302]: NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330]",
                    "128G",
                ),
                2 | 3 => (
                    "Infiniband controller [0207]: Mellanox MT2910 [ConnectX-7] [15b3:1021]",
                    "32M",
                ),
                _ => (
                    "Non-Volatile memory controller [0108]: Samsung PM9A3 [144d:a80a]",
                    "16K",
                ),
            };
            let bar = format!(
                "Region 0: Memory at {bus:02x}0000000000 (64-bit, prefetchable) [size={size}]"
            );
            self.function(
                bus,
                0,
                what,
                &[
                    bar,
                    "Capabilities: [60] Express (v2) Endpoint, MSI 00".to_owned(),
                ],
            );
        }
    }
}

/// Returns `lspci`'s output on a server with two sockets and four switches. ACS redirects below the
/// second switch.
fn server() -> String {
    let mut paste = Paste {
        text: "$ uname -r\n6.8.0\n$ lspci -vvv -nn -D\n".to_owned(),
    };
    paste.host_bridge(0x10, 0, FORWARDS);
    paste.host_bridge(0x50, 0, REDIRECTS);
    paste.host_bridge(0x90, 1, FORWARDS);
    paste.host_bridge(0xd0, 1, FORWARDS);
    paste.text
}

/// A description of the visible parts of the page, in JavaScript.
const LOOK: &str = r##"({
    names: all("svg .name").map(element => element.textContent).sort(),
    redirecting: all("svg .node.redirects").length,
    sockets: all("svg [data-at^=node]").length,
    cells: all(".matrix a").length,
    lit: all("svg .lit, svg .top").map(part => part.dataset.at),
    pairs: all(".pair").map(pair => pair.id),
})"##;

#[test]
#[ignore = "needs a browser; scripts/test runs it"]
fn large_server_is_readable_on_a_laptop_and_on_a_phone() {
    let folder = tempfile::tempdir().unwrap();
    let (paste, page) = (folder.path().join("paste"), folder.path().join("page.html"));
    fs::write(&paste, server()).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_peerbar-p2p"))
        .arg("--from")
        .arg(&paste)
        .arg("--html")
        .arg(&page)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );

    let source = fs::read_to_string(&page).unwrap();
    assert!(source.contains("&lt;Switch&gt;") && !source.contains("<Switch>"));
    for part in ["http:", "https:", "url(", "<script src"] {
        assert!(!source.contains(part), "the page has {part}");
    }
    let mut names: Vec<String> = [("gpu", 8), ("nic", 8), ("nvme", 16)]
        .into_iter()
        .flat_map(|(kind, count)| (0..count).map(move |number| format!("{kind}{number}")))
        .collect();
    names.sort();
    // The browser complains if the page's policy does not allow the page's own script.
    rendered(&page, 1280).unwrap();
    for width in [400, 1280] {
        let seen = seen(&page, width, "location.hash = 'nvme0-to-gpu1'", LOOK).unwrap();
        let expected = json!({
            "width": width, "names": names, "cut": [], "wide": [], "redirecting": 8, "sockets": 2, "cells": 8 * 31,
            "lit": ["0000:11:00.0", "0000:12:01.0", "0000:14:00.0", "0000:12:04.0", "0000:17:00.0"],
            "pairs": ["nvme0-to-gpu1"],
        });
        assert_eq!(seen, expected, "{seen:#}");
    }
}
