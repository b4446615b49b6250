//! See `peerbar_fuzz::devices::switch_endpoints`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| peerbar_fuzz::devices::switch_endpoints::run(data));
