//! The settings of a controller with a small disk in memory.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use peerbar_endpoint::Size;
use peerbar_nvme::{Config, Source};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

/// Returns one worker, a disk of 1 MiB, and a CMB of 2 MiB that takes queues.
pub(crate) fn config() -> Config {
    Config {
        serial: "fuzz".to_owned(),
        cmb: Some(Size(2 << 20)),
        cmb_queues: true,
        mdts: 5,
        namespaces: vec![Source::Ram(1 << 20)],
        io_uring: false,
        ..Config::default()
    }
}

/// Makes a file in memory for a Persistent Memory Region. Returns it, and a path that a server
/// opens, after which the file may be closed.
pub(crate) fn region(bytes: u64) -> (File, PathBuf) {
    let file = memfd_create("region", MemfdFlags::CLOEXEC).expect("memory");
    ftruncate(&file, bytes).expect("memory");
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    (file.into(), path.into())
}
