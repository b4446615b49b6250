//! A function that notes the writes to its registers.

use std::sync::Mutex;

use peerbar_pci::Function;

/// A function that notes the writes to its registers (offset, data). They read as 0x5a.
#[derive(Debug, Default)]
pub struct Notes(pub Mutex<Vec<(u64, Vec<u8>)>>);

impl Function for Notes {
    fn bar_read(&self, _bar: u8, _offset: u64, data: &mut [u8]) {
        data.fill(0x5a);
    }

    fn bar_write(&self, _bar: u8, offset: u64, data: &[u8]) {
        self.0.lock().unwrap().push((offset, data.to_vec()));
    }

    fn reset(&self) {}
}
