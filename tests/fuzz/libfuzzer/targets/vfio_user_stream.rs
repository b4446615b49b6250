//! See `peerbar_fuzz::devices::vfio_user_stream`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| peerbar_fuzz::devices::vfio_user_stream::run(data));
