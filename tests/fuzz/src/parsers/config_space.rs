//! Configuration space, written arbitrarily by a guest: read-only bits stay, windows keep to the
//! size of their BAR, and a reset restores the initial state.

use std::sync::OnceLock;

use peerbar_pci::{Bar, ConfigSpace, Identity, MsiX};

const BYTES: usize = 4096;
const IDENTITY: Identity = Identity {
    vendor: 0x1b36,
    device: 0x10,
    subsystem_vendor: 0x1b36,
    subsystem: 0x1100,
    revision: 1,
    class: 0x01_08_02,
};
const MSI_X: MsiX = MsiX {
    vectors: 65,
    bar: 0,
    table: 0x2000,
    pending: 0x3000,
};
/// Belongs to the firmware. A reset keeps it.
const INTERRUPT_LINE: usize = 0x3c;
/// Vendor and device, and revision and class.
const READ_ONLY: [std::ops::Range<usize>; 3] = [0..4, 8..12, 0x2c..0x30];

/// Executes accesses: 2 bytes of offset, whose upper 4 bits are the number of bytes to write,
/// followed by those.
pub fn run(mut data: &[u8]) {
    let mut space = space();
    while let Some((access, rest)) = data.split_first_chunk::<2>() {
        let access = u16::from_le_bytes(*access);
        let (offset, count) = (u64::from(access & 0xfff), usize::from(access >> 12));
        let (bytes, rest) = rest.split_at_checked(count).unwrap_or((rest, &[]));
        data = rest;
        let effects = space.write(offset, bytes);
        if effects.function_reset {
            assert!(!space.bus_master() && !space.ats());
        }
    }
    check(&space);
    space.reset();
    let mut after = state(&space);
    after[INTERRUPT_LINE] = initial()[INTERRUPT_LINE];
    assert!(*after == *initial(), "a reset leaves something behind");
}

fn check(space: &ConfigSpace) {
    let now = state(space);
    for range in READ_ONLY {
        assert_eq!(now[range.clone()], initial()[range]);
    }
    for bar in space.bars() {
        if let Some(window) = space.window(bar) {
            assert!(window.first().is_aligned(bar.size()) && window.size() == bar.size());
        }
    }
}

fn space() -> ConfigSpace {
    let bar = |index, size| Bar::new(index, size, index != 0).expect("a BAR");
    let mut space = ConfigSpace::new(&IDENTITY, &[bar(0, 0x4000), bar(2, 2 << 20)], &MSI_X);
    space.offer_ats();
    space
}

fn state(space: &ConfigSpace) -> Box<[u8; BYTES]> {
    let mut bytes = Box::new([0; BYTES]);
    space.read(0, &mut *bytes);
    bytes
}

fn initial() -> &'static [u8; BYTES] {
    static INITIAL: OnceLock<Box<[u8; BYTES]>> = OnceLock::new();
    INITIAL.get_or_init(|| state(&space()))
}
