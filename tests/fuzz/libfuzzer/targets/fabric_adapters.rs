//! See `peerbar_fuzz::devices::fabric_adapters`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| peerbar_fuzz::devices::fabric_adapters::run(data));
