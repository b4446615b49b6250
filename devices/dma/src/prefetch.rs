//! A hint to the processor: the only unsafe code of the crate.

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
