//! See `peerbar_fuzz::parsers::scenario`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| peerbar_fuzz::parsers::scenario::run(data));
