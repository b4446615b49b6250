//! Guest memory, as a client maps it for a device.

use std::fs::File;

use peerbar_vfio_user::{Device, DmaMap};

/// Maps `size` bytes of a memory file, from `offset` on, at `iova`.
pub(crate) fn map(device: &mut dyn Device, iova: u64, size: u64, file: &File, offset: u64) {
    let memory = file.try_clone().expect("a descriptor").into();
    let map = DmaMap {
        iova,
        size,
        readable: true,
        writable: true,
        memory: Some((memory, offset)),
    };
    device.dma_map(map).expect("a map");
}
