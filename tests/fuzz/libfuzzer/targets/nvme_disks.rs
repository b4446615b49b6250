//! See `peerbar_fuzz::devices::nvme_disks`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| peerbar_fuzz::devices::nvme_disks::run(data));
