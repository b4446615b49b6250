//! The vendor log page of DMA counters, which a program in the guest reads from a device. A page
//! that is parsed and encoded again parses to the same.

use peerbar_dma_log::{encode, parse};

/// Reads `data`.
pub fn run(data: &[u8]) {
    if let Ok(entries) = parse(data) {
        // Without the entries that count nothing, by kind.
        let page = encode(entries);
        let again = parse(&page).expect("a page");
        assert_eq!(encode(again), page);
    }
}
