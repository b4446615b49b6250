//! See `peerbar_fuzz::parsers::fabric_rule`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| peerbar_fuzz::parsers::fabric_rule::run(data));
