//! Devices: what keeps a state from one step of an input to the next.

pub mod gpu_commands;
pub mod nvme_controller;
pub mod nvme_disks;
pub mod switch_endpoints;
pub mod vfio_user_stream;
