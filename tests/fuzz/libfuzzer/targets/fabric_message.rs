//! See `peerbar_fuzz::parsers::fabric_message`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| peerbar_fuzz::parsers::fabric_message::run(data));
