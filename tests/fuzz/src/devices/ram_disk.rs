//! The settings of a controller with a small disk in memory.

use peerbar_nvme::{Config, PollPolicy, Source};

/// One worker, a disk of 1 MiB, a CMB of 2 MiB that takes queues.
pub(crate) fn config() -> Config {
    Config {
        serial: "fuzz".to_owned(),
        cmb_bytes: Some(2 << 20),
        cmb_queues: true,
        pmr: None,
        block_bytes: 512,
        mdts: 5,
        namespaces: vec![Source::Ram(1 << 20)],
        workers: 1,
        poll: PollPolicy::Adaptive,
        io_uring: false,
        seeded_faults: Vec::new(),
    }
}
