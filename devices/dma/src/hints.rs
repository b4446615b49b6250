//! Hints about memory for the processor and the kernel.

use rustix::mm::{Advice, madvise};

/// Prefetches the cache line at an address, which may be invalid.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code)]
pub(crate) fn line(address: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: the instruction returns no value and never faults, regardless of the address. Every
    // x86-64 processor supports it.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
}

/// Stable Rust has no such hint for other processors.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn line(_address: *const u8) {}

/// Asks the kernel to back the `len` bytes at `start` by huge pages.
#[expect(unsafe_code)]
pub(crate) fn huge_pages(start: *mut u8, len: usize) -> rustix::io::Result<()> {
    // SAFETY: the advice changes the size of pages and none of their bytes, regardless of what is
    // mapped there.
    unsafe { madvise(start.cast(), len, Advice::LinuxHugepage) }
}

/// Returns the pages of the `len` bytes at `start` to the kernel: they become zeros.
///
/// # Safety
/// The bytes lie in a private mapping that is used by volatile access only.
#[expect(unsafe_code)]
pub(crate) unsafe fn discard(start: *mut u8, len: usize) -> rustix::io::Result<()> {
    // SAFETY: by the function's contract the effect is that of writing zeros.
    unsafe { madvise(start.cast(), len, Advice::LinuxDontNeed) }
}
