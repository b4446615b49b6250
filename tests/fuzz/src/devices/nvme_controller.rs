//! A guest that fills its memory arbitrarily, and writes any register, doorbell and configuration
//! register. The controller must not panic, and must work again after a reset.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, OnceLock};

use arbitrary::{Arbitrary, Unstructured};
use peerbar_nvme::{Config, SteppedController};
use peerbar_pci::{Iova, Range};
use peerbar_vfio_user::{CONFIG_REGION, Device};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::{guest_ram, ram_disk};

const RAM: u64 = 1 << 20;
const REGISTERS: u32 = 0;
/// Addresses of the admin queues and of one pair of I/O queues.
const ASQ: u64 = 0x1000;
const ACQ: u64 = 0x2000;
const SQ: u64 = 0x3000;
const CQ: u64 = 0x4000;
/// Address of a segment of an SGL.
const SEGMENT: u64 = 0x7000;
/// From here on, the input sets the memory.
const DATA: u64 = 0x8000;

/// A step of the guest.
#[derive(Arbitrary, Debug)]
enum Step {
    /// Puts a command on the admin queue.
    Admin(Command),
    /// Puts a command on the I/O queue.
    Io(Command),
    /// Writes a register or doorbell.
    Register(u16, u64, bool),
    /// Writes a register of the Persistent Memory Region.
    Region(u8, u32),
    /// Sanitize, of any kind.
    Sanitize(u8, bool),
    /// Reads a register.
    Read(u16, bool),
    /// Writes configuration space.
    Config(u16, u32),
    /// Writes memory.
    Memory(u32, u64),
    /// Unmaps a part of memory.
    Unmap(u32, u32),
    /// Resets the function.
    Reset,
    /// Puts a command with an SGL on the I/O queue: its first descriptor, and those of a segment.
    Sgl(u8, Descriptor, Vec<Descriptor>),
}

/// A descriptor of an SGL.
#[derive(Arbitrary, Debug)]
struct Descriptor {
    /// Type and sub type.
    id: u8,
    /// Its address is that of the segment.
    links: bool,
    address: u32,
    length: u16,
}

impl Descriptor {
    fn bytes(&self) -> [u8; 16] {
        let data = DATA + u64::from(self.address) % RAM;
        let address = if self.links { SEGMENT } else { data };
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&address.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.length.to_le_bytes());
        bytes[15] = self.id;
        bytes
    }
}

/// A command whose addresses are usually inside memory.
#[derive(Arbitrary, Debug)]
struct Command {
    opcode: u8,
    flags: u8,
    nsid: u8,
    prp1: u32,
    prp2: u32,
    wild: bool,
    dwords: [u32; 6],
}

impl Command {
    fn bytes(&self, cid: u16) -> [u8; 64] {
        let address = |value: u32| {
            let value = u64::from(value);
            if self.wild {
                value << 20 | value
            } else {
                (value % RAM) & !3
            }
        };
        let mut bytes = [0; 64];
        bytes[0] = self.opcode;
        bytes[1] = self.flags;
        bytes[2..4].copy_from_slice(&cid.to_le_bytes());
        bytes[4] = self.nsid;
        bytes[24..32].copy_from_slice(&address(self.prp1).to_le_bytes());
        bytes[32..40].copy_from_slice(&address(self.prp2).to_le_bytes());
        for (field, dword) in bytes[40..].chunks_exact_mut(4).zip(self.dwords) {
            field.copy_from_slice(&dword.to_le_bytes());
        }
        bytes
    }
}

/// The guest's side: memory, and the positions in the queues.
struct Guest {
    controller: SteppedController,
    memory: File,
    tails: [u16; 2],
}

impl Guest {
    fn new() -> Self {
        let memory = memfd_create("guest", MemfdFlags::ALLOW_SEALING).expect("memory");
        ftruncate(&memory, RAM).expect("memory");
        fcntl_add_seals(&memory, SealFlags::SHRINK).expect("memory");
        let (_region, path) = ram_disk::region(2 << 20);
        let config = Config {
            pmr: Some(path),
            sgl: true,
            ..ram_disk::config()
        };
        let controller = SteppedController::start(&config, Vec::new()).expect("a controller");
        Self {
            controller,
            memory: memory.into(),
            tails: [0; 2],
        }
    }

    fn write(&mut self, region: u32, offset: u64, bytes: &[u8]) {
        let _ = self.controller.endpoint.region_write(region, offset, bytes);
    }

    fn csts(&mut self) -> u8 {
        let mut csts = [0; 4];
        let _ = self
            .controller
            .endpoint
            .region_read(REGISTERS, 0x1c, &mut csts);
        csts[0]
    }

    /// Brings the controller from any state to enabled, with one pair of I/O queues.
    fn bring_up(&mut self) {
        self.controller.endpoint.reset().expect("a reset");
        let unmapped = self.controller.endpoint.dma_unmap(Range::all());
        unmapped.expect("an unmap");
        guest_ram::map(&mut self.controller.endpoint, 0, RAM, &self.memory, 0);
        self.memory.write_all_at(&[0; 0x8000], 0).expect("memory");
        self.write(CONFIG_REGION, 4, &[6, 0]);
        self.write(REGISTERS, 0x24, &0x000f_000f_u32.to_le_bytes());
        self.write(REGISTERS, 0x28, &ASQ.to_le_bytes());
        self.write(REGISTERS, 0x30, &ACQ.to_le_bytes());
        self.write(REGISTERS, 0x14, &0x0046_0001_u32.to_le_bytes());
        self.controller.work();
        assert_eq!(self.csts() & 1, 1, "not ready after a reset");
        self.tails = [0; 2];
        self.put(0, queue_command(0x05, CQ, 1));
        self.put(0, queue_command(0x01, SQ, 1 | 1 << 16));
    }

    fn put(&mut self, queue: usize, bytes: [u8; 64]) {
        let base = if queue == 0 { ASQ } else { SQ };
        let tail = self.tails[queue];
        let _ = self
            .memory
            .write_all_at(&bytes, base + u64::from(tail) * 64);
        let tail = (tail + 1) % 16;
        self.tails[queue] = tail;
        self.write(
            REGISTERS,
            0x1000 + queue as u64 * 8,
            &u32::from(tail).to_le_bytes(),
        );
        // The guest takes completions blindly, so that no queue stays full.
        self.write(
            REGISTERS,
            0x1004 + queue as u64 * 8,
            &u32::from(tail).to_le_bytes(),
        );
        self.controller.work();
    }

    fn take(&mut self, step: &Step, number: u16) {
        match step {
            Step::Admin(command) => self.put(0, command.bytes(number)),
            Step::Io(command) => self.put(1, command.bytes(number)),
            Step::Register(offset, value, wide) => {
                let offset = u64::from(*offset % 0x1ff8);
                self.write(
                    REGISTERS,
                    offset,
                    &value.to_le_bytes()[..if *wide { 8 } else { 4 }],
                );
            }
            Step::Region(which, value) => {
                let offset = 0xe00 + u64::from(which % 7) * 4;
                self.write(REGISTERS, offset, &value.to_le_bytes());
            }
            Step::Sanitize(control, no_deallocate) => {
                let mut bytes = [0; 64];
                bytes[0] = 0x84;
                bytes[2..4].copy_from_slice(&number.to_le_bytes());
                bytes[40..42].copy_from_slice(&[*control, u8::from(*no_deallocate) << 1]);
                self.put(0, bytes);
            }
            Step::Read(offset, wide) => {
                let mut data = [0; 8];
                let data = &mut data[..if *wide { 8 } else { 1 }];
                let _ = self.controller.endpoint.region_read(
                    REGISTERS,
                    u64::from(*offset % 0x3ff8),
                    data,
                );
            }
            Step::Config(offset, value) => self.write(
                CONFIG_REGION,
                u64::from(*offset % 0xffc),
                &value.to_le_bytes(),
            ),
            Step::Memory(offset, value) => {
                let offset = DATA + u64::from(*offset) % (RAM - DATA - 8);
                let _ = self.memory.write_all_at(&value.to_le_bytes(), offset & !7);
            }
            Step::Unmap(iova, len) => {
                let iova = u64::from(*iova) % RAM;
                let range = Range::new(Iova(iova), u64::from(*len) + 1);
                let range = range.expect("some addresses");
                let _ = self.controller.endpoint.dma_unmap(range);
            }
            Step::Reset => {
                let _ = self.controller.endpoint.reset();
            }
            Step::Sgl(opcode, first, segment) => {
                let segment = segment.iter().take(256).flat_map(Descriptor::bytes);
                let segment: Vec<u8> = segment.collect();
                let _ = self.memory.write_all_at(&segment, SEGMENT);
                let mut bytes = [0; 64];
                bytes[..2].copy_from_slice(&[*opcode, 0x40]);
                bytes[2..4].copy_from_slice(&number.to_le_bytes());
                bytes[4] = 1;
                bytes[24..40].copy_from_slice(&first.bytes());
                bytes[48] = 7;
                self.put(1, bytes);
            }
        }
    }
}

/// Returns a command that creates I/O queue 1 with 16 entries, physically contiguous.
fn queue_command(opcode: u8, base: u64, cdw11: u32) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[0] = opcode;
    bytes[24..32].copy_from_slice(&base.to_le_bytes());
    bytes[40..44].copy_from_slice(&0x000f_0001_u32.to_le_bytes());
    bytes[44..48].copy_from_slice(&cdw11.to_le_bytes());
    bytes
}

/// Executes the steps of `data`.
pub fn run(data: &[u8]) {
    let steps = Vec::<Step>::arbitrary_take_rest(Unstructured::new(data)).unwrap_or_default();
    static GUEST: OnceLock<Mutex<Guest>> = OnceLock::new();
    let guest = GUEST.get_or_init(|| Mutex::new(Guest::new()));
    let mut guest = guest.lock().expect("no earlier panic");
    guest.bring_up();
    for (number, step) in (0..).zip(&steps) {
        guest.take(step, number);
        // Registers also change faster than the engine looks at them.
        if number % 4 != 3 {
            guest.controller.work();
        }
    }
    guest.bring_up();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::{Seed, names};

    const STEPS: u32 = 11;

    /// Adds an admin command (0) or an I/O command (1) with its data at [`DATA`].
    fn command(seed: Seed, queue: u32, opcode: u8, dwords: [u32; 3]) -> Seed {
        let seed = seed.step(queue, STEPS).bytes(&[opcode, 0, 1]);
        let seed = seed.u32(DATA as u32).u32(0).bytes(&[0]);
        let seed = dwords.into_iter().fold(seed, Seed::u32);
        [0; 3].into_iter().fold(seed, Seed::u32)
    }

    fn steps(seed: &[u8]) -> Vec<Step> {
        Vec::arbitrary_take_rest(Unstructured::new(seed)).expect("steps")
    }

    #[test]
    fn seed_of_commands_reads_as_its_steps() {
        let seed = command(Seed::default(), 0, 0x06, [1, 0, 0]);
        let seed = command(seed, 0, 0x02, [127 << 16 | 2, 0, 0]);
        let seed = command(seed, 0, 0x09, [6, 0, 0]);
        let seed = command(seed, 1, 0x01, [8, 0, 7]);
        let seed = command(seed, 1, 0x02, [8, 0, 7]);
        let seed = command(seed, 1, 0x00, [0; 3]);
        let seed = seed.step(7, STEPS).u32(0).u64(8 << 32);
        let seed = command(seed, 1, 0x09, [0, 4, 0]);
        let seed = seed.step(8, STEPS).u32(DATA as u32).u32(0xfff);
        let seed = command(seed, 1, 0x02, [8, 0, 7]);
        let seed = seed.step(9, STEPS).end();
        let read = steps(&seed.in_corpus("nvme_controller", "commands"));
        let expected = [
            "Admin", "Admin", "Admin", "Io", "Io", "Io", "Memory", "Io", "Unmap", "Io", "Reset",
        ];
        assert_eq!(names(&read), expected);
        let Step::Io(write) = &read[3] else {
            panic!("{read:?}");
        };
        assert_eq!((write.opcode, write.nsid, write.dwords[2]), (1, 1, 7));
    }

    #[test]
    fn seed_of_sgls_reads_as_its_steps() {
        let descriptor =
            |seed: Seed, id: u8, links: u8, length| seed.bytes(&[id, links]).u32(0).u16(length);
        let sgl = |seed: Seed, opcode: u8| seed.step(10, STEPS).bytes(&[opcode]);
        // Blocks 0 to 7, in one data block, and in three parts.
        let seed = descriptor(sgl(Seed::default(), 1), 0, 0, 4096).end();
        let mut seed = descriptor(sgl(seed, 2), 0x30, 1, 48);
        for (id, length) in [(0, 1000), (0x10, 2000), (0, 1096)] {
            seed = descriptor(seed.bytes(&[1]), id, 0, length);
        }
        // A segment that refers to itself.
        let seed = descriptor(sgl(seed.end(), 2), 0x20, 1, 16);
        let seed = descriptor(seed.bytes(&[1]), 0x20, 1, 16).end().end();
        let read = steps(&seed.in_corpus("nvme_controller", "sgls"));
        assert_eq!(names(&read), ["Sgl", "Sgl", "Sgl"]);
        let Step::Sgl(2, first, segment) = &read[1] else {
            panic!("{read:?}");
        };
        assert_eq!(
            (first.bytes()[15], first.length, segment.len()),
            (0x30, 48, 3)
        );
    }

    #[test]
    fn seed_of_the_region_reads_as_its_steps() {
        let register =
            |seed: Seed, which: u8, value| seed.step(3, STEPS).bytes(&[which]).u32(value);
        let sanitize = |seed: Seed, control: u8| seed.step(4, STEPS).bytes(&[control, 0]);
        let seed = register(Seed::default(), 6, 0x70);
        let seed = register(seed, 5, 2);
        let seed = register(seed, 1, 1);
        let seed = sanitize(seed, 2);
        let seed = register(seed, 1, 0);
        let seed = sanitize(seed, 2 | 1 << 3);
        let seed = command(seed, 0, 0x02, [127 << 16 | 0x81, 0, 0]);
        let seed = seed.step(5, STEPS).u16(0xe08).bytes(&[0]).end();
        let read = steps(&seed.in_corpus("nvme_controller", "region"));
        let expected = [
            "Region", "Region", "Region", "Sanitize", "Region", "Sanitize", "Admin", "Read",
        ];
        assert_eq!(names(&read), expected);
    }
}
