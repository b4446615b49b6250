//! Suites that boot guests.

pub(crate) mod boot;
pub(crate) mod context;
mod device_time;
mod fio;
pub(crate) mod fio_loads;
pub(crate) mod p2p;
pub(crate) mod rdma;
mod versus;
