//! Guest memory, as a client maps it for a device.

use std::fs::File;

use peerbar_pci::{Iova, Range};
use peerbar_vfio_user::{Device, DmaMap};

/// Maps `size` bytes of a memory file, from `offset` on, at `iova`.
pub(crate) fn map(device: &mut dyn Device, iova: u64, size: u64, file: &File, offset: u64) {
    let memory = file.try_clone().expect("a descriptor").into();
    let map = DmaMap {
        range: Range::new(Iova(iova), size).expect("some addresses"),
        readable: true,
        writable: true,
        memory: Some((memory, offset)),
    };
    device.dma_map(map).expect("a map");
}

/// Unmaps `size` bytes at `iova`.
pub(crate) fn unmap(device: &mut dyn Device, iova: u64, size: u64) {
    let range = Range::new(Iova(iova), size).expect("some addresses");
    device.dma_unmap(range).expect("an unmap");
}
