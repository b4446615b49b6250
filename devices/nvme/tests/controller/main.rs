//! The NVMe controller from the view of a driver: through its regions, interrupts and DMA mappings,
//! written from the specifications and from the needs of Linux and nvme-cli.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "tests"
)]

mod blocks;
mod bus_mastering;
mod cmb;
mod coalescing;
mod create_queues;
mod dma_log;
mod driver;
mod events;
mod failures;
mod faults;
mod faulty_disk;
mod features;
mod garbage;
mod habits;
mod identify;
mod logs;
mod loop_device;
mod machine;
mod mapped;
mod pin;
mod pmr;
mod prps;
mod queues;
mod reset;
mod sanitize;
mod scattered;
mod sgls;
mod shadow;
mod shutdown;
mod torn;
