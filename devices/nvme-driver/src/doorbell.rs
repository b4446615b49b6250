//! Doorbells: registers, or words in the shadow doorbell buffers.

use std::io;
use std::sync::atomic::{Ordering, fence};

use crate::access::{DmaMemory, Registers};

/// A doorbell's words in the shadow doorbell buffers (NVMe Base 2.0, 5.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shadow {
    /// Address of the value, which is written instead of the register.
    pub value: u64,
    /// Address of the event index: the controller waits for a register write that passes it.
    pub event: u64,
}

/// A doorbell.
#[derive(Clone, Debug)]
pub struct Doorbell<R, M> {
    registers: R,
    memory: M,
    /// Offset of the register.
    offset: u64,
    shadow: Option<Shadow>,
    last: u16,
}

impl<R: Registers, M: DmaMemory> Doorbell<R, M> {
    /// Makes a doorbell whose register is at `offset`, with the value 0.
    pub fn new(registers: R, memory: M, offset: u64, shadow: Option<Shadow>) -> Self {
        Self {
            registers,
            memory,
            offset,
            shadow,
            last: 0,
        }
    }

    /// Passes a new value to the controller. A register is written even if the value has not
    /// changed.
    pub fn write(&mut self, value: u16) -> io::Result<()> {
        self.store(value)?;
        fence(Ordering::SeqCst);
        self.notify(value)
    }

    /// Stores a new value in the shadow buffer, if there is one.
    fn store(&self, value: u16) -> io::Result<()> {
        let store = |shadow: &Shadow| self.memory.store32(shadow.value, value.into());
        self.shadow.iter().try_for_each(store)
    }

    /// Writes the register, if the controller waits for it.
    fn notify(&mut self, value: u16) -> io::Result<()> {
        let last = std::mem::replace(&mut self.last, value);
        if let Some(shadow) = &self.shadow {
            let event = self.memory.load32(shadow.event)?;
            if !passes(event, value, last) {
                return Ok(());
            }
        }
        self.registers.write_doorbell(self.offset, value.into())
    }
}

/// Passes the new values of a queue pair's doorbells to the controller. Their words are adjacent:
/// both are stored before the fence, so that the controller, which polls the first, does not take
/// their cache line between the two stores.
pub(crate) fn write_both<R: Registers, M: DmaMemory>(
    doorbells: &mut [Doorbell<R, M>; 2],
    values: [u16; 2],
) -> io::Result<()> {
    for (doorbell, value) in doorbells.iter().zip(values) {
        if value != doorbell.last {
            doorbell.store(value)?;
        }
    }
    // The controller writes its event index before it reads the value a last time: at least one
    // side sees the other's store.
    fence(Ordering::SeqCst);
    for (doorbell, value) in doorbells.iter_mut().zip(values) {
        if value != doorbell.last {
            doorbell.notify(value)?;
        }
    }
    Ok(())
}

/// Returns `true` if one of the values after `last` up to `value` is the one that follows the event
/// index (NVMe Base 2.0, annex B.5; indexes wrap).
fn passes(event: u32, value: u16, last: u16) -> bool {
    let [low, high, ..] = event.to_le_bytes();
    let event = u16::from_le_bytes([low, high]);
    value.wrapping_sub(event).wrapping_sub(1) < value.wrapping_sub(last)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    /// Registers and memory that are plain bytes.
    #[derive(Clone, Debug)]
    pub(crate) struct Bytes(Rc<RefCell<Vec<u8>>>);

    impl Bytes {
        pub(crate) fn new() -> Self {
            Self(Rc::new(RefCell::new(vec![0; 0x4000])))
        }

        fn put(&self, at: u64, data: &[u8]) {
            let at = usize::try_from(at).unwrap();
            self.0.borrow_mut()[at..at + data.len()].copy_from_slice(data);
        }
    }

    impl Registers for Bytes {
        fn read_register(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
            self.read(offset, data)
        }

        fn write_register(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.put(offset, data);
            Ok(())
        }
    }

    impl DmaMemory for Bytes {
        fn read(&self, address: u64, data: &mut [u8]) -> io::Result<()> {
            let at = usize::try_from(address).unwrap();
            data.copy_from_slice(&self.0.borrow()[at..at + data.len()]);
            Ok(())
        }

        fn write(&self, address: u64, data: &[u8]) -> io::Result<()> {
            self.put(address, data);
            Ok(())
        }
    }

    /// A queue's doorbells with registers at 8 and 12, values at 16 and 20, event indexes at 32 and 36.
    fn doorbells() -> ([Doorbell<Bytes, Bytes>; 2], Bytes, Bytes) {
        let (registers, memory) = (Bytes::new(), Bytes::new());
        let doorbells = [0, 4].map(|at| {
            let shadow = Shadow {
                value: 16 + at,
                event: 32 + at,
            };
            Doorbell::new(registers.clone(), memory.clone(), 8 + at, Some(shadow))
        });
        (doorbells, registers, memory)
    }

    #[test]
    fn register_with_polling_controller_is_not_written() {
        let (mut doorbells, registers, memory) = doorbells();
        memory.store32(32, 5).unwrap();
        let words = |bytes: &Bytes, at| [at, at + 4].map(|at| bytes.load32(at).unwrap());
        for (values, expected) in [([5, 0], [0, 0]), ([6, 0], [6, 0]), ([6, 1], [6, 1])] {
            write_both(&mut doorbells, values).unwrap();
            assert_eq!(words(&memory, 16), values.map(u32::from));
            assert_eq!(words(&registers, 8), expected);
        }
    }

    #[test]
    fn register_without_shadow_is_written_each_time() {
        let (registers, memory) = (Bytes::new(), Bytes::new());
        let mut doorbell = Doorbell::new(registers.clone(), memory, 8, None);
        for _ in 0..2 {
            registers.store32(8, 0).unwrap();
            doorbell.write(7).unwrap();
            assert_eq!(registers.load32(8).unwrap(), 7);
        }
    }

    #[test]
    fn event_index_is_passed_by_the_value_behind_it() {
        assert!(passes(0, 1, 0));
        assert!(passes(3, 10, 3));
        assert!(!passes(10, 10, 3));
        assert!(!passes(2, 10, 3));
        assert!(passes(1023, 2, 1020), "a queue's index starts again");
    }
}
