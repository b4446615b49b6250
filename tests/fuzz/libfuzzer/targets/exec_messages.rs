//! See `peerbar_fuzz::parsers::exec_messages`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| peerbar_fuzz::parsers::exec_messages::run(data));
