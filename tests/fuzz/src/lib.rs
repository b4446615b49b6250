//! Fuzz targets: functions that take any bytes, and panic if a property that they test does not
//! hold.
//!
//! `scripts/fuzz` calls them by libFuzzer, with the programs in `tests/fuzz/libfuzzer`.
//! `tests/targets.rs` calls each of them with its corpus and with changed inputs, on any compiler.
//! An input is bytes, so that the corpus (`tests/fuzz/corpus`) stays valid when a target changes: a
//! target reads the input from the front and ends where it ends.
#![forbid(unsafe_code)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "a panic is what a target has to say"
)]

mod descriptors;
pub mod devices;
mod input;
pub mod parsers;
#[cfg(test)]
mod seed;

/// A function that takes any bytes, and panics if a property that it tests does not hold.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, which is also that of its corpus and of its program.
    pub name: &'static str,
    /// The function.
    pub run: fn(&[u8]),
    /// Number of changed inputs in an ordinary test.
    pub short: u32,
}

macro_rules! targets {
    ($($folder:ident::$name:ident $short:literal,)*) => {
        /// Every target.
        pub const TARGETS: &[Target] = &[$(Target {
            name: stringify!($name),
            run: $folder::$name::run,
            short: $short,
        }),*];
    };
}

targets! {
    devices::efa_adapter 500,
    devices::fabric_adapters 10,
    devices::gpu_commands 100,
    devices::gpu_nvme_io 100,
    devices::nvme_controller 20,
    devices::nvme_disks 50,
    devices::switch_endpoints 10,
    devices::vfio_user_stream 20,
    parsers::config_space 200,
    parsers::dma_log 5_000,
    parsers::exec_messages 5_000,
    parsers::fabric_message 5_000,
    parsers::fabric_rule 5_000,
    parsers::fault_rule 5_000,
    parsers::flight_record 2_000,
    parsers::guest_words 5_000,
    parsers::ktap_report 300,
    parsers::machine_text 500,
    parsers::program_report 1_000,
    parsers::scenario 100,
    parsers::switch_message 5_000,
    parsers::vfio_user_decoder 5_000,
    parsers::vfio_user_framing 2_000,
}
