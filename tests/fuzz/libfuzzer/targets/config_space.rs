//! See `peerbar_fuzz::parsers::config_space`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| peerbar_fuzz::parsers::config_space::run(data));
