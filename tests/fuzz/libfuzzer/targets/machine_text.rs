//! See `peerbar_fuzz::parsers::machine_text`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| peerbar_fuzz::parsers::machine_text::run(data));
