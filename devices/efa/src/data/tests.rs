//! The data path between queue pairs of one adapter, as user space sees it.

mod bus_mastering;
mod connected;
mod counters;
mod errors;
mod event_counters;
mod events;
mod fast_regions;
mod fixture;
mod messages;
mod order;
mod rdma;
mod remote;
mod reuse;
mod speed;
mod staging;
mod two_adapters;

use std::sync::Arc;

use peerbar_dma::{MemoryFile, Requester};

use super::{DataPath, Setup};
use crate::memory_bar;

#[test]
fn data_path_with_a_thread_of_its_own_ends_when_it_is_dropped() {
    let bar = Arc::new(MemoryFile::create("bar", memory_bar::BAR_BYTES).unwrap());
    let path = DataPath::start(Setup {
        gid: fixture::GID,
        requester: Arc::new(Requester::new()),
        interrupts: Arc::new(fixture::Raised::default()),
        bar_memory: bar.clone(),
        seed: None,
    });
    let path = path.unwrap();
    let uar = path.objects().create_uar().unwrap();
    path.doorbell(uar, memory_bar::Doorbell::Send(0), 1);
    path.reset();
    assert!(path.objects().destroy_uar(uar).is_err());
    drop(path);
    assert_eq!(Arc::strong_count(&bar), 1, "the worker has ended");
}
