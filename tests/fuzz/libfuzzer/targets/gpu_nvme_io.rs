//! See `peerbar_fuzz::devices::gpu_nvme_io`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| peerbar_fuzz::devices::gpu_nvme_io::run(data));
