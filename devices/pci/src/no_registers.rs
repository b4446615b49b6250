//! A function for tests.

use crate::function::Function;

/// A function without registers.
#[derive(Clone, Copy, Debug)]
pub struct NoRegisters;

impl Function for NoRegisters {
    fn bar_read(&self, _bar: u8, _offset: u64, data: &mut [u8]) {
        data.fill(0xff);
    }

    fn bar_write(&self, _bar: u8, _offset: u64, _data: &[u8]) {}

    fn reset(&self) {}
}
