//! Commands: their layout, and their decoded and checked form.

use std::time::Duration;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use peerbar_pci::Iova;

use crate::faults::FaultCode;
use crate::gpu_memory::GpuAddress;
use crate::nvme_queue::NvmeIo;
use crate::word::{Wait, Word, WordSize};

/// Bytes of a ring's entry.
pub(crate) const ENTRY_BYTES: u64 = size_of::<Entry>() as u64;

/// The most bytes that one operand of a command spans: 1 GiB.
const LENGTH_LIMIT: u64 = 1 << 30;
/// The most threads of a launch.
const THREAD_LIMIT: u64 = 1 << 24;
/// The most threads of a block.
const BLOCK_LIMIT: u64 = 1024;
/// A fence is written in two aligned halves.
const FENCE_ALIGNMENT: u64 = 16;

const FLAG_FENCE: u8 = 1 << 0;
const FLAG_INTERRUPT: u8 = 1 << 1;
const FLAG_FENCE_IN_VRAM: u8 = 1 << 2;

/// A command as stored in its ring.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Entry {
    pub(crate) opcode: u8,
    pub(crate) flags: u8,
    pub(crate) spaces: U16,
    pub(crate) kernel: U32,
    pub(crate) fence: U64,
    pub(crate) fence_value: U64,
    pub(crate) operands: [U64; 13],
}

const _: () = assert!(size_of::<Entry>() == 128);

/// The operation of a command.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Operation {
    Nop,
    Copy {
        source: GpuAddress,
        destination: GpuAddress,
        length: u64,
    },
    Fill {
        destination: GpuAddress,
        length: u64,
        pattern: [u8; 8],
    },
    Compare {
        first: GpuAddress,
        second: GpuAddress,
        length: u64,
    },
    Crc32c {
        source: GpuAddress,
        length: u64,
    },
    Launch(Launch),
    WriteWord {
        word: Word,
        value: u64,
    },
    Wait(Wait),
}

/// A kernel with its operands. A count is the number of elements for which there is a thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Launch {
    VectorAdd {
        a: GpuAddress,
        b: GpuAddress,
        c: GpuAddress,
        count: u64,
    },
    Saxpy {
        x: GpuAddress,
        y: GpuAddress,
        count: u64,
        factor: f32,
    },
    Reduction {
        x: GpuAddress,
        count: u64,
    },
    Histogram {
        bytes: GpuAddress,
        count: u64,
        bins: GpuAddress,
    },
    AtomicAdd {
        counter: GpuAddress,
        value: u64,
        threads: u64,
    },
    NvmeIo(NvmeIo),
}

/// A command that is valid, except that its memory is not checked yet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Command {
    pub(crate) operation: Operation,
    /// The address of the fence, and its value.
    pub(crate) fence: Option<(GpuAddress, u64)>,
    /// Raise the channel's vector when the command is complete.
    pub(crate) interrupt: bool,
}

impl Command {
    /// A command without effect or report.
    pub(crate) const NOTHING: Self = Self {
        operation: Operation::Nop,
        fence: None,
        interrupt: false,
    };

    /// Returns `true` if the command, or its fence, needs DMA.
    pub(crate) fn uses_bus(&self) -> bool {
        self.operation.uses_bus()
            || self
                .fence
                .is_some_and(|(fence_address, _)| fence_address.is_bus())
    }
}

impl Operation {
    fn uses_bus(&self) -> bool {
        match *self {
            Self::Nop => false,
            Self::Copy {
                source,
                destination,
                ..
            } => source.is_bus() || destination.is_bus(),
            Self::Fill { destination, .. } => destination.is_bus(),
            Self::Compare { first, second, .. } => first.is_bus() || second.is_bus(),
            Self::Crc32c { source, .. } => source.is_bus(),
            Self::Launch(ref launch) => launch.uses_bus(),
            Self::WriteWord { word, .. } | Self::Wait(Wait { word, .. }) => word.address().is_bus(),
        }
    }
}

impl Launch {
    fn uses_bus(&self) -> bool {
        match *self {
            Self::VectorAdd { a, b, c, .. } => a.is_bus() || b.is_bus() || c.is_bus(),
            Self::Saxpy { x, y, .. } => x.is_bus() || y.is_bus(),
            Self::Reduction { x, .. } => x.is_bus(),
            Self::Histogram { bytes, bins, .. } => bytes.is_bus() || bins.is_bus(),
            Self::AtomicAdd { counter, .. } => counter.is_bus(),
            // Doorbells are registers.
            Self::NvmeIo(_) => true,
        }
    }
}

impl Entry {
    /// Returns an empty entry.
    pub(crate) fn empty() -> Self {
        Self::new_zeroed()
    }

    /// Returns the decoded command.
    pub(crate) fn decode(&self) -> Result<Command, FaultCode> {
        let operation = match self.opcode {
            0 => Operation::Nop,
            1 => self.copy()?,
            2 => Operation::Fill {
                destination: self.address(0),
                length: limited(self.number(1), 1)?,
                pattern: self.number(2).to_le_bytes(),
            },
            3 => Operation::Compare {
                first: self.address(0),
                second: self.address(1),
                length: limited(self.number(2), 1)?,
            },
            4 => Operation::Crc32c {
                source: self.address(0),
                length: limited(self.number(1), 1)?,
            },
            5 => Operation::Launch(self.launch()?),
            6 => Operation::WriteWord {
                word: self.word()?,
                value: self.number(1),
            },
            7 => Operation::Wait(Wait {
                word: self.word()?,
                value: self.number(1),
                mask: self.number(3),
                limit: time_limit(self.number(4)),
            }),
            _ => return Err(FaultCode::BadCommand),
        };
        Ok(Command {
            operation,
            fence: self.fence()?,
            interrupt: self.flags & FLAG_INTERRUPT != 0,
        })
    }

    fn copy(&self) -> Result<Operation, FaultCode> {
        let (source, destination) = (self.address(0), self.address(1));
        let length = limited(self.number(2), 1)?;
        if overlap(source, destination, length) {
            return Err(FaultCode::BadCommand);
        }
        Ok(Operation::Copy {
            source,
            destination,
            length,
        })
    }

    fn launch(&self) -> Result<Launch, FaultCode> {
        let threads = self.threads()?;
        // Threads beyond the number of elements do nothing, and elements beyond the number of
        // threads stay unchanged.
        let elements = |operand, bytes| Ok(limited(self.number(operand), bytes)?.min(threads));
        Ok(match self.kernel.get() {
            0 => Launch::VectorAdd {
                a: self.address(0),
                b: self.address(1),
                c: self.address(2),
                count: elements(3, 4)?,
            },
            1 => Launch::Saxpy {
                x: self.address(0),
                y: self.address(1),
                count: elements(2, 4)?,
                factor: f32::from_bits(low_half(self.number(3))),
            },
            2 => Launch::Reduction {
                x: self.address(0),
                count: elements(1, 4)?,
            },
            3 => Launch::Histogram {
                bytes: self.address(0),
                count: elements(1, 1)?,
                bins: self.address(2),
            },
            4 => Launch::AtomicAdd {
                counter: self.address(0),
                value: self.number(1),
                threads,
            },
            5 => Launch::NvmeIo(self.nvme_io(threads)?),
            _ => return Err(FaultCode::BadCommand),
        })
    }

    /// Returns the operands of the kernel `nvme io`.
    fn nvme_io(&self, threads: u64) -> Result<NvmeIo, FaultCode> {
        let entries = self.number(7);
        let requests = u16::try_from(self.number(6))
            .ok()
            .filter(|requests| *requests < u16::MAX)
            .ok_or(FaultCode::TooLong)?;
        let doorbell = |operand| {
            let word = Word::new(self.address(operand), WordSize::Four);
            word.ok_or(FaultCode::BadCommand)
        };
        let io = NvmeIo {
            submission: self.address(0),
            completion: self.address(1),
            doorbells: [doorbell(2)?, doorbell(3)?],
            state: self.address(4),
            requests: self.address(5),
            count: u16::try_from(threads).map_or(requests, |threads| threads.min(requests)),
            submission_entries: low_half(entries),
            completion_entries: low_half(entries >> 32),
            depth: self.number(8),
            nsid: low_half(self.number(9)),
            limit: time_limit(self.number(10)),
        };
        io.is_possible().then_some(io).ok_or(FaultCode::BadCommand)
    }

    /// Returns the word that operands 0 and 2 describe.
    fn word(&self) -> Result<Word, FaultCode> {
        let size = match self.number(2) {
            4 => WordSize::Four,
            8 => WordSize::Eight,
            _ => return Err(FaultCode::BadCommand),
        };
        Word::new(self.address(0), size).ok_or(FaultCode::BadCommand)
    }

    fn threads(&self) -> Result<u64, FaultCode> {
        let (grid, block) = (self.number(11), self.number(12));
        if block > BLOCK_LIMIT {
            return Err(FaultCode::BadCommand);
        }
        grid.checked_mul(block)
            .filter(|threads| *threads <= THREAD_LIMIT)
            .ok_or(FaultCode::TooLong)
    }

    fn fence(&self) -> Result<Option<(GpuAddress, u64)>, FaultCode> {
        if self.flags & FLAG_FENCE == 0 {
            return Ok(None);
        }
        let address = self.fence.get();
        if address % FENCE_ALIGNMENT != 0 {
            return Err(FaultCode::BadCommand);
        }
        let fence_address = if self.flags & FLAG_FENCE_IN_VRAM != 0 {
            GpuAddress::Vram(address)
        } else {
            GpuAddress::Bus(Iova(address))
        };
        Ok(Some((fence_address, self.fence_value.get())))
    }

    fn number(&self, operand: usize) -> u64 {
        self.operands.get(operand).map_or(0, |number| number.get())
    }

    fn address(&self, operand: usize) -> GpuAddress {
        if self.spaces.get() & 1 << operand != 0 {
            GpuAddress::Vram(self.number(operand))
        } else {
            GpuAddress::Bus(Iova(self.number(operand)))
        }
    }
}

/// Returns a count of elements of `bytes` bytes each, if it is within the limit.
fn limited(count: u64, bytes: u64) -> Result<u64, FaultCode> {
    if count > LENGTH_LIMIT / bytes {
        return Err(FaultCode::TooLong);
    }
    Ok(count)
}

/// Returns a time of this many nanoseconds; 0 means only the limit of every command.
fn time_limit(nanoseconds: u64) -> Option<Duration> {
    (nanoseconds != 0).then(|| Duration::from_nanos(nanoseconds))
}

/// Returns `true` if two ranges of the same space overlap without being equal.
fn overlap(first: GpuAddress, second: GpuAddress, length: u64) -> bool {
    let distance = first.raw().abs_diff(second.raw());
    first.is_bus() == second.is_bus() && distance != 0 && distance < length
}

fn low_half(number: u64) -> u32 {
    let [a, b, c, d, ..] = number.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn entry(opcode: u8, spaces: u16, operands: &[u64]) -> Entry {
        let mut entry = Entry::empty();
        entry.opcode = opcode;
        entry.spaces = spaces.into();
        for (to, from) in entry.operands.iter_mut().zip(operands) {
            *to = (*from).into();
        }
        entry
    }

    fn launch(kernel: u32, operands: &[u64], grid: u64, block: u64) -> Result<Launch, FaultCode> {
        let mut entry = entry(5, 0, operands);
        entry.kernel = kernel.into();
        entry.operands[11] = grid.into();
        entry.operands[12] = block.into();
        entry.decode().map(|command| match command.operation {
            Operation::Launch(launch) => launch,
            other => panic!("{other:?}"),
        })
    }

    fn refused(entry: &Entry) -> FaultCode {
        entry.decode().unwrap_err()
    }

    #[test]
    fn bytes_of_an_entry_are_where_the_interface_says() {
        let mut bytes = [0; 128];
        bytes[0] = 1;
        bytes[1] = 0b111;
        bytes[2] = 0b10;
        bytes[9] = 0x10;
        bytes[16] = 7;
        bytes[24..32].copy_from_slice(&0x1_0000_0000u64.to_le_bytes());
        bytes[32] = 0x40;
        bytes[40] = 5;
        let command = Entry::read_from_bytes(&bytes).unwrap().decode().unwrap();
        assert_eq!(
            command,
            Command {
                operation: Operation::Copy {
                    source: GpuAddress::Bus(Iova(0x1_0000_0000)),
                    destination: GpuAddress::Vram(0x40),
                    length: 5
                },
                fence: Some((GpuAddress::Vram(0x1000), 7)),
                interrupt: true,
            }
        );
    }

    #[test]
    fn unknown_opcodes_and_kernels_are_bad_commands() {
        for opcode in 8..=u8::MAX {
            assert_eq!(refused(&entry(opcode, 0, &[])), FaultCode::BadCommand);
        }
        for kernel in [6, u32::MAX] {
            assert_eq!(launch(kernel, &[], 1, 1), Err(FaultCode::BadCommand));
        }
        assert_eq!(launch(2, &[], 1, 1025), Err(FaultCode::BadCommand));
    }

    #[test]
    fn more_than_a_gib_or_2_to_the_24_threads_is_too_long() {
        for (opcode, at) in [(1, 2), (2, 1), (3, 2), (4, 1)] {
            let mut operands = [0; 3];
            operands[at] = GIB;
            assert!(entry(opcode, 0, &operands).decode().is_ok());
            operands[at] = GIB + 1;
            assert_eq!(refused(&entry(opcode, 0, &operands)), FaultCode::TooLong);
        }
        assert_eq!(launch(2, &[0, GIB / 4 + 1], 1, 1), Err(FaultCode::TooLong));
        assert!(launch(4, &[], 1 << 14, 1024).is_ok());
        assert_eq!(launch(4, &[], (1 << 14) + 1, 1024), Err(FaultCode::TooLong));
        assert_eq!(launch(4, &[], u64::MAX, 1024), Err(FaultCode::TooLong));
    }

    #[test]
    fn only_as_many_elements_as_threads_are_met() {
        let count = |n, grid, block| match launch(2, &[0, n], grid, block) {
            Ok(Launch::Reduction { count, .. }) => count,
            other => panic!("{other:?}"),
        };
        assert_eq!(count(100, 1, 1024), 100);
        assert_eq!(count(5000, 2, 1000), 2000);
        assert_eq!(count(5000, 0, 1000), 0);
    }

    #[test]
    fn a_copy_onto_a_part_of_itself_is_a_bad_command() {
        for (spaces, source, destination, length, bad) in [
            (0b11, 0, 8, 16, true),
            (0b00, 8, 0, 16, true),
            (0b11, 8, 8, 16, false),
            (0b11, 0, 16, 16, false),
            (0b01, 0, 8, 16, false),
        ] {
            let entry = entry(1, spaces, &[source, destination, length]);
            assert_eq!(entry.decode().is_err(), bad, "{source} {destination}");
        }
    }

    #[test]
    fn a_fence_off_its_boundary_is_a_bad_command() {
        let mut entry = entry(0, 0, &[]);
        entry.fence = 8.into();
        assert_eq!(entry.decode().unwrap().fence, None);
        entry.flags = 1;
        assert_eq!(refused(&entry), FaultCode::BadCommand);
    }

    #[test]
    fn word_of_4_or_8_bytes_at_its_alignment_is_taken() {
        for opcode in [6, 7] {
            for (address, size, good) in [
                (0x1004, 4, true),
                (0x1008, 8, true),
                (0x1002, 4, false),
                (0x1004, 8, false),
                (0x1000, 2, false),
                (0x1000, 0, false),
            ] {
                let entry = entry(opcode, 0, &[address, 1, size, 1]);
                assert_eq!(entry.decode().is_ok(), good, "{opcode} {address:#x}+{size}");
            }
        }
    }

    #[test]
    fn impossible_queue_is_a_bad_command() {
        // Queues of 16 and 32 entries in VRAM, doorbells at bus addresses.
        let good = [
            0x1000,
            0x2000,
            0x8000_1008,
            0x8000_100c,
            0x40,
            0x80,
            9,
            32 << 32 | 16,
            0,
            1,
        ];
        let launch = |operands: &[u64], spaces| {
            let mut entry = entry(5, spaces, operands);
            entry.kernel = 5.into();
            entry.operands[11] = 1.into();
            entry.operands[12] = 1000.into();
            entry.decode().err()
        };
        assert_eq!(launch(&good, 0b11_0011), None);
        for (operand, value, fault) in [
            (0, 0x1001, FaultCode::BadCommand),
            (1, 0x2008, FaultCode::BadCommand),
            (2, 0x8000_100a, FaultCode::BadCommand),
            (4, 0x44, FaultCode::BadCommand),
            (5, 0x81, FaultCode::BadCommand),
            (6, 0xffff, FaultCode::TooLong),
            (7, 32 << 32 | 1, FaultCode::BadCommand),
            (7, 0x1_0001 << 32 | 16, FaultCode::BadCommand),
        ] {
            let mut bad = good;
            bad[operand] = value;
            assert_eq!(launch(&bad, 0b11_0011), Some(fault), "operand {operand}");
        }
        for spaces in [0b11_0111, 0b11_1011, 0b10_0011, 0b01_0011] {
            let fault = launch(&good, spaces);
            assert_eq!(fault, Some(FaultCode::BadCommand), "{spaces:#b}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_command_or_a_fault(bytes in any::<[[u8; 32]; 4]>()) {
            let entry = Entry::read_from_bytes(bytes.as_flattened()).unwrap();
            if let Ok(Command { operation: Operation::Copy { length, .. }, .. }) = entry.decode() {
                prop_assert!(length <= GIB);
            }
        }
    }
}
