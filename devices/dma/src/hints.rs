//! Hints to processor and kernel about memory.

use rustix::mm::{Advice, madvise};

/// Has the processor fetch the cache line at an address, valid or not, while the thread continues.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code)]
pub(crate) fn line(address: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: the instruction gives no value and never faults, whatever the address; every x86-64 processor has it.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
}

/// There is no such hint in stable Rust for other processors.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn line(_address: *const u8) {}

/// Has the kernel back the `len` bytes at `start` by huge pages, where it can.
#[expect(unsafe_code)]
pub(crate) fn huge_pages(start: *mut u8, len: usize) -> rustix::io::Result<()> {
    // SAFETY: the advice changes the size of pages and none of their bytes, whatever is mapped there.
    unsafe { madvise(start.cast(), len, Advice::LinuxHugepage) }
}

/// Gives the pages of the `len` bytes at `start` back to the kernel: they become zeros.
///
/// # Safety
/// The bytes lie in a private mapping that is used by volatile access only.
#[expect(unsafe_code)]
pub(crate) unsafe fn discard(start: *mut u8, len: usize) -> rustix::io::Result<()> {
    // SAFETY: by the function's contract it is as if zeros were written.
    unsafe { madvise(start.cast(), len, Advice::LinuxDontNeed) }
}
