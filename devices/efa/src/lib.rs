//! An Elastic Fabric Adapter (EFA), as Linux' unmodified driver `efa` and rdma-core's provider of that name drive it.
#![forbid(unsafe_code)]

pub mod data;
pub mod memory_bar;
pub mod objects;
