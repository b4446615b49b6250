//! See `peerbar_fuzz::parsers::ktap_report`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| peerbar_fuzz::parsers::ktap_report::run(data));
