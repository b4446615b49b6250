//! Errant DMA: whatever address a function uses, only the bytes at that address change.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use peerbar_dma::{
    DmaError, DmaFault, MapAccess, MemoryFile, OwnWindow, OwnWindowMemory, PeerId, PeerMemory,
    PeerWindow, Purpose, Requester, Span, WindowId,
};
use peerbar_pci::{BusAddress, Iova, Range};
use proptest::prelude::*;
use proptest::sample::select;

use crate::no_upstream::NoUpstream;

const PAGE: u64 = 0x1000;
/// Pages of each memory. Only the second and third are lent.
const PAGES: u64 = 4;
/// Addresses at whose edges mistakes are likely: 0, 4 GiB, the limits of IOMMUs and of page tables,
/// the end.
const EDGES: [u64; 8] = [
    0,
    1 << 32,
    1 << 39,
    1 << 48,
    1 << 52,
    1 << 63,
    u64::MAX - 3 * PAGE + 1,
    u64::MAX,
];

/// Part of a memory, and its address for the function.
struct Exposed {
    file: File,
    address: u64,
    writable: bool,
}

/// Makes a memory. Its second and third page are lent.
fn lent() -> (File, Span) {
    let file = Arc::new(MemoryFile::create("test", PAGES * PAGE).unwrap());
    let lent = file.file().try_clone().unwrap();
    (lent, Span { file, offset: PAGE })
}

/// Returns a function with its own memory, a peer's, guest RAM, and read-only RAM, each at its
/// address.
fn requester(own: u64, peer: u64, ram: u64, rom: u64) -> (Requester, Vec<Exposed>) {
    let requester = Requester::new();
    requester.set_bus_master(true);
    requester.set_upstream(Some(Arc::new(NoUpstream)));
    let mut exposed = Vec::new();
    let (file, span) = lent();
    // A window that would wrap around does not open, and so exposes nothing.
    let window = Range::new(BusAddress(own), 2 * PAGE).map(|range| OwnWindow {
        range,
        memory: OwnWindowMemory::Span(span),
    });
    requester.set_window(WindowId::Bar(2), window);
    exposed.push((file, own, true));
    let (file, span) = lent();
    let window = Range::new(BusAddress(peer), 2 * PAGE).map(|range| PeerWindow {
        range,
        claim: 1,
        memory: PeerMemory::Span(span),
    });
    requester.set_peer(PeerId(1), window.into_iter().collect());
    exposed.push((file, peer, true));
    for (address, access) in [(ram, MapAccess::READ_WRITE), (rom, MapAccess::READ_ONLY)] {
        let (file, span) = lent();
        let memory = Some((file.try_clone().unwrap().into(), span.offset));
        // A mapping that overlaps the other is refused, and so exposes nothing.
        let range = Range::new(Iova(address), 2 * PAGE);
        let mapped = range.is_some_and(|range| requester.map(range, access, memory).is_ok());
        exposed.push((file, address, access.writable && mapped));
    }
    let exposed = exposed.into_iter();
    let exposed = exposed.map(|(file, address, writable)| Exposed {
        file,
        address,
        writable,
    });
    (requester, exposed.collect())
}

/// Addresses near an edge, and arbitrary ones.
fn addresses() -> impl Strategy<Value = u64> {
    let near = |shift: u64| (select(&EDGES[..]), 0..shift);
    prop_oneof![
        3 => near(4).prop_map(|(edge, page)| edge.saturating_sub(page * PAGE)),
        3 => near(3 * PAGE).prop_map(|(edge, above)| edge.saturating_add(above)),
        3 => near(3 * PAGE).prop_map(|(edge, below)| edge.saturating_sub(below)),
        1 => any::<u64>(),
    ]
}

/// Addresses at which memory may be: those of pages.
fn page_addresses() -> impl Strategy<Value = u64> {
    addresses().prop_map(|address| address & !(PAGE - 1))
}

fn bytes(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(PAGES * PAGE).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_byte_changes_but_those_that_were_addressed(
        (own, peer, ram, rom) in (page_addresses(), page_addresses(), page_addresses(), page_addresses()),
        address in addresses(),
        len in prop_oneof![1usize..64, 1usize..0x4000],
    ) {
        let (requester, exposed) = requester(own, peer, ram, rom);
        let outcome = requester.write(Purpose::Payload, Iova(address), &vec![0xff; len]);
        let end = u128::from(address) + len as u128;
        let mut written = 0;
        for memory in &exposed {
            for (offset, byte) in (0u64..).zip(bytes(&memory.file)).filter(|(_, byte)| *byte != 0) {
                prop_assert_eq!(byte, 0xff);
                prop_assert!(memory.writable && (PAGE..3 * PAGE).contains(&offset));
                let at = u128::from(memory.address) + u128::from(offset - PAGE);
                prop_assert!((u128::from(address)..end).contains(&at), "{at:#x} is not addressed");
                written += 1;
            }
        }
        match outcome {
            Ok(()) => prop_assert_eq!(written, len, "a write reported as done is done"),
            Err(DmaError { cause: DmaFault::Wraps, .. }) => prop_assert_eq!(written, 0),
            Err(_) => prop_assert!(written < len),
        }
    }

    #[test]
    fn a_read_changes_nothing_and_brings_all_or_fails(
        (own, peer, ram, rom) in (page_addresses(), page_addresses(), page_addresses(), page_addresses()),
        address in addresses(),
        len in prop_oneof![1usize..64, 1usize..0x4000],
    ) {
        let (requester, exposed) = requester(own, peer, ram, rom);
        for memory in &exposed {
            memory.file.write_all_at(&[0x11; 0x2000], PAGE).unwrap();
        }
        let before: Vec<_> = exposed.iter().map(|memory| bytes(&memory.file)).collect();
        let mut data = vec![0xee; len];
        if requester.read(Purpose::Payload, Iova(address), &mut data).is_ok() {
            prop_assert_eq!(data, vec![0x11; len], "no_upstream but what is lent");
        }
        for (memory, before) in exposed.iter().zip(before) {
            prop_assert!(bytes(&memory.file) == before);
        }
    }
}
