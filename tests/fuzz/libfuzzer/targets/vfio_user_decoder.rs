//! See `peerbar_fuzz::parsers::vfio_user_decoder`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| peerbar_fuzz::parsers::vfio_user_decoder::run(data));
