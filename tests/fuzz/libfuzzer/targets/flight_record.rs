//! See `peerbar_fuzz::parsers::flight_record`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| peerbar_fuzz::parsers::flight_record::run(data));
