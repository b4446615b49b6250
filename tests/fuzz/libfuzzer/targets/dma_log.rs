//! See `peerbar_fuzz::parsers::dma_log`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| peerbar_fuzz::parsers::dma_log::run(data));
