//! See `peerbar_fuzz::devices::gpu_commands`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| peerbar_fuzz::devices::gpu_commands::run(data));
