//! Starts the devices and the guest of a scenario, runs checks in it, and collects its report and the devices' records.
//!
//! A [`scenario::Scenario`] says what there is. [`artifacts::Artifacts`] are what it is started from: QEMU, a kernel, an
//! initramfs. A [`guest::Guest`] is started from both, and followed to its [`verdict::Verdict`].

#![deny(unsafe_code)]

pub mod accel;
pub mod artifacts;
pub mod child;
pub mod console;
pub mod counters;
pub mod cpu;
pub mod events;
pub mod exit;
pub mod firmware;
pub mod folder;
pub mod guest;
pub mod iommu;
pub mod parent_death;
pub mod pci_tree;
pub mod programs;
pub mod progress;
pub mod qemu;
pub mod report;
pub mod scenario;
pub mod server_arguments;
pub mod servers;
pub mod signals;
pub mod size;
pub mod socket_folder;
pub mod terminal;
pub mod timeout;
pub mod topology;
mod tsc;
pub mod verdict;
