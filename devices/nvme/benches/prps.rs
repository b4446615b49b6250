//! The cost of locating a command's data: `cargo bench -p peerbar-nvme`.

#![allow(clippy::unwrap_used, reason = "a benchmark panics if it fails")]

#[allow(unused, reason = "the tests of the module are run in its crate")]
#[path = "../src/prp.rs"]
mod prp;

use divan::{Bencher, black_box};
use prp::{PAGE, PAGE_BYTES, walk};

use peerbar_pci::Iova;

/// Bytes of data: without a list, with one, and with one that is full.
const SIZES: [usize; 5] = [4 << 10, 8 << 10, 128 << 10, 1 << 20, 2 << 20];

fn main() {
    divan::main();
}

/// Data in pages, each `stride` pages after the one before.
fn pages(bencher: Bencher<'_, '_>, len: usize, stride: u64) {
    let address_of = |page: u64| (1 << 32) + page * stride * PAGE;
    let pages = u64::try_from(len).unwrap() / PAGE;
    let list: Vec<u8> = (1..pages)
        .flat_map(|page| address_of(page).to_le_bytes())
        .collect();
    let second = if pages == 2 { address_of(1) } else { PAGE };
    let mut segments = Vec::new();
    let mut buffer = [0; PAGE_BYTES];
    bencher.bench_local(|| {
        let prps = black_box((Iova(address_of(0)), Iova(second)));
        walk(prps, len, &mut segments, &mut buffer, |_, entries| {
            entries.copy_from_slice(list.get(..entries.len()).unwrap());
            Ok(())
        })
        .unwrap();
        segments.len()
    });
    let expected = if stride == 1 { 1 } else { pages };
    assert_eq!(u64::try_from(segments.len()).unwrap(), expected);
}

#[divan::bench(args = SIZES)]
fn of_pages_side_by_side(bencher: Bencher<'_, '_>, len: usize) {
    pages(bencher, len, 1);
}

#[divan::bench(args = SIZES)]
fn of_pages_far_apart(bencher: Bencher<'_, '_>, len: usize) {
    pages(bencher, len, 3);
}
