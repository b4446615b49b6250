//! Starts the devices and the guest of a scenario, runs checks in it, and collects its report and
//! the devices' records.
//!
//! # For tests
//! A [`Lab`] is a running guest with its devices. A test starts one from a scenario file, from TOML
//! or from a [`scenario::ScenarioBuilder`], asks it for checks and commands, and reads the devices'
//! counters and records on the host:
//!
//! ```no_run
//! use peerbar_lab::scenario::{NvmeBuilder, ScenarioBuilder};
//! use peerbar_lab::{Lab, LabError, Verdict};
//!
//! # #[allow(dead_code)]
//! // #[test]
//! fn copy_goes_from_disk_to_disk() -> Result<(), LabError> {
//!     let scenario = ScenarioBuilder::new("my-driver")
//!         .tools()
//!         .switch("switch0")
//!         .nvme(NvmeBuilder::new("disk0").below("switch0").cmb("16M").ram("64M"))
//!         .nvme(NvmeBuilder::new("disk1").below("switch0").ram("64M"))
//!         .build()?;
//!     let mut lab = Lab::start(scenario)?;
//!
//!     let output = lab.command("nvme id-ctrl {disk0}")?;
//!     assert_eq!(output.status, 0, "{}", output.text);
//!
//!     let copy = r#"
//!         kind = "copy"
//!         from = "disk1"
//!         to = "disk0"
//!         through = { p2pmem = "disk0" }
//!         sizes = ["4K", "1M"]
//!         offsets = [0]
//!     "#;
//!     let row = lab.check_table(copy)?;
//!     assert_eq!(row.verdict, Verdict::Pass, "{:?}", row.diagnostics);
//!     println!("{:?}", lab.counters());
//!     println!("{} records", lab.flight_record("disk1")?.records.len());
//!
//!     let finished = lab.shut_down()?;
//!     assert!(finished.is_passed(), "{}", finished.verdict);
//!     Ok(())
//! }
//! # fn main() {}
//! ```
//!
//! A test finds the programs that `scripts/build` makes in its own folder, or in the folder
//! `peerbar` of its target folder. The environment variable `PEERBAR_PROGRAMS`
//! ([`programs::FOLDER`]) names another, which is necessary for a crate outside of peerbar's tree.
//! Each lab leaves a folder like that of `peerbar run`, which `peerbar explain` and `peerbar iommu`
//! can read.
//!
//! # For programs
//! `peerbar` and the benchmarks use the parts: [`artifacts::Artifacts`] are QEMU, kernel and
//! initramfs; a [`topology::Topology`] describes the devices and the ports above them; a
//! [`PreparedLab`] boots from both. The [`guest::Guest`] of its [`Lab`] is followed to its end, and
//! the lab then gives the [`verdict::RunVerdict`].

#![deny(unsafe_code)]

pub mod accel;
pub mod artifacts;
mod bounded_file;
mod bridge_watch;
pub mod child;
pub mod console;
pub mod count;
pub mod counters;
pub mod cpu;
pub mod debugger;
pub mod events;
pub mod exit;
pub mod finished_run;
pub mod firmware;
pub mod folder;
mod foreign_socket;
mod group_check;
mod group_fabric;
mod group_verdict;
pub mod guest;
pub mod guest_access;
pub mod guest_files;
pub mod guest_needs;
pub mod guest_program;
pub mod injecting;
pub mod iommu;
pub mod kernel_iommu;
mod kernel_needs;
pub mod kvm;
mod lab;
mod lab_error;
mod lab_group;
mod lab_options;
pub mod limited;
pub mod module_sources;
mod monitor;
pub mod own_qemu;
pub mod parent_death;
mod pci_holes;
pub mod pci_tree;
pub mod port_error;
pub mod present;
mod processor_time;
mod program_builds;
mod program_streams;
pub mod programs;
pub mod progress;
pub mod qemu;
pub mod report;
pub mod results;
pub mod run_file;
pub mod run_series;
pub mod runs;
pub mod scenario;
pub mod server_arguments;
pub mod servers;
pub mod shell_word;
pub mod signals;
pub mod size;
pub mod socket_folder;
pub mod started;
pub mod survivors;
pub mod table;
pub mod temporary_folder;
pub mod terminal;
pub mod topology;
mod tsc;
pub mod utc;
pub mod verdict;

pub use lab::{CommandOutput, FinishedLab, Lab, PreparedLab, ProgramOutput};
pub use lab_error::LabError;
pub use lab_group::{ConcludedGroup, GUESTS, LabGroup, group_of, guests_of};
pub use lab_options::LabOptions;
// The parameters and results of a lab's methods, so that a test needs no other crate of this
// project.
pub use peerbar_flight::{Event, Flight, FlightError, Header, Record};
pub use peerbar_report::exec::{ProgramRequest, TerminalSize};
pub use peerbar_report::{
    Check, Completer, DeviceCounters, Direction, HostFolder, Measure, Rdma, RdmaChain, RdmaLost,
    RdmaMemory, RdmaRefused, Route, Subtest, Verdict,
};
