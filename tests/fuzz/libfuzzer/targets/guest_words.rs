//! See `peerbar_fuzz::parsers::guest_words`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| peerbar_fuzz::parsers::guest_words::run(data));
