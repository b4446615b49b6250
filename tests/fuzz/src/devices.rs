//! Devices: targets that keep state from one step of an input to the next.

pub mod efa_adapter;
pub mod fabric_adapters;
mod gpu_bench;
pub mod gpu_commands;
pub mod gpu_nvme_io;
mod guest_ram;
mod hostile_clients;
pub mod nvme_controller;
pub mod nvme_disks;
mod ram_disk;
pub mod switch_endpoints;
pub mod vfio_user_stream;
