//! See `peerbar_fuzz::devices::efa_adapter`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| peerbar_fuzz::devices::efa_adapter::run(data));
