//! The resources that a daemon uses, and may use (proc(5)).

use std::fs;
use std::time::Instant;

use rustix::process::{Resource, Rlimit, prlimit};

use crate::{Daemon, TIME_OUT};

impl Daemon {
    /// Returns the number of its open descriptors.
    pub fn open_descriptors(&self) -> usize {
        fs::read_dir(self.proc_path("fd")).unwrap().count()
    }

    /// Waits until it has this number of descriptors open, since it notices gradually that clients
    /// have gone.
    ///
    /// # Panics
    /// If it has more after 20 s, or fewer.
    #[track_caller]
    pub fn wait_for_open_descriptors(&self, count: usize) {
        let start = Instant::now();
        while self.open_descriptors() > count && start.elapsed() < TIME_OUT {
            std::thread::yield_now();
        }
        assert_eq!(self.open_descriptors(), count);
    }

    /// Returns its resident memory in bytes.
    pub fn resident_bytes(&self) -> u64 {
        self.status_bytes("VmRSS:")
    }

    /// Returns the size of its address space in bytes.
    pub fn address_space_bytes(&self) -> u64 {
        self.status_bytes("VmSize:")
    }

    /// Limits its open descriptors to this number, or with `None` to its hard limit.
    pub fn limit_descriptors(&self, most: Option<u64>) {
        let limits = fs::read_to_string(self.proc_path("limits")).unwrap();
        let mut lines = limits.lines();
        let hard = lines.find_map(|line| line.strip_prefix("Max open files"));
        let hard = hard.unwrap().split_whitespace().nth(1).unwrap();
        let maximum = Some(hard.parse().unwrap());
        let current = most.or(maximum);
        prlimit(
            Some(self.pid()),
            Resource::Nofile,
            Rlimit { current, maximum },
        )
        .unwrap();
    }

    /// Returns the path of this file or folder of its process in /proc.
    pub fn proc_path(&self, name: &str) -> String {
        format!("/proc/{}/{name}", self.pid())
    }

    fn status_bytes(&self, key: &str) -> u64 {
        let status = fs::read_to_string(self.proc_path("status")).unwrap();
        let mut lines = status.lines();
        let size = lines.find_map(|line| line.strip_prefix(key)).unwrap();
        let kib = size.trim().strip_suffix(" kB").unwrap();
        kib.parse::<u64>().unwrap() << 10
    }
}
