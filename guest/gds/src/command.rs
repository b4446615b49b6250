//! The GPU's commands.

use std::sync::Arc;
use std::time::Duration;

use crate::driver::Driver;
use crate::span::Span;
use crate::uapi::{OPERANDS, Operand, Submit};
use crate::{Error, Result};

/// Operands of a launch that describe its shape.
const GRID: usize = 11;
const BLOCK: usize = 12;

/// Bytes of a histogram: 256 counters of 4 bytes.
const BINS_BYTES: u64 = 1024;

/// A command. All operands may lie in GPU memory or elsewhere, in any combination.
#[derive(Clone, Copy, Debug)]
pub enum Command<'a> {
    /// Nothing: its fence shows that all earlier commands are done.
    Nop,
    /// Copies between operands of the same length.
    Copy {
        /// The source.
        from: Span<'a>,
        /// The destination.
        to: Span<'a>,
    },
    /// Fills with a pattern of 8 bytes, little-endian, repeated.
    Fill {
        /// The destination.
        to: Span<'a>,
        /// The pattern.
        pattern: u64,
    },
    /// Compares operands of the same length. The result is the offset of the first difference, or
    /// the length.
    Compare {
        /// One.
        first: Span<'a>,
        /// The other.
        second: Span<'a>,
    },
    /// Computes the CRC-32C (Castagnoli, as in iSCSI), which is the result.
    Crc32c {
        /// The data.
        from: Span<'a>,
    },
    /// Runs a kernel in `grid * block` threads. The device accepts blocks of up to 1024 threads,
    /// and 2^24 threads in all.
    Launch {
        /// The kernel that each thread runs.
        kernel: Kernel<'a>,
        /// Number of blocks.
        grid: u32,
        /// Number of threads of a block.
        block: u32,
    },
    /// Writes a word in one access: to memory, or to a register of a peer, such as a doorbell. A
    /// reader that sees the word also sees everything that earlier commands wrote.
    WriteWord {
        /// 4 or 8 bytes, at a multiple of that.
        to: Span<'a>,
        /// The value. For 4 bytes, its low half.
        value: u64,
    },
    /// Waits until `word & mask == value`, but not longer than the limit. The result is the word.
    /// Later commands read memory that is no older than the word.
    Wait {
        /// 4 or 8 bytes, at a multiple of that.
        word: Span<'a>,
        /// The expected value.
        value: u64,
        /// The bits of it that are compared.
        mask: u64,
        /// The time limit, or zero for the GPU's own limit of a command.
        limit: Duration,
    },
}

/// A kernel and its operands. Elements are 4 bytes long, little-endian; thread i works on element i, and threads beyond
/// `elements` do nothing.
#[derive(Clone, Copy, Debug)]
pub enum Kernel<'a> {
    /// `sum[i] = a[i] + b[i]`, f32.
    VectorAdd {
        /// One addend.
        a: Span<'a>,
        /// The other.
        b: Span<'a>,
        /// The sum.
        sum: Span<'a>,
        /// Elements.
        elements: u64,
    },
    /// `y[i] = factor * x[i] + y[i]`, f32.
    Saxpy {
        /// Read.
        x: Span<'a>,
        /// Read and written.
        y: Span<'a>,
        /// Elements.
        elements: u64,
        /// The factor.
        factor: f32,
    },
    /// The result is the sum of u32 elements, in 64 bits.
    Reduce {
        /// Read.
        x: Span<'a>,
        /// Elements.
        elements: u64,
    },
    /// Adds to each of 256 counters (u32) the number of its occurrences among the bytes.
    Histogram {
        /// Read.
        bytes: Span<'a>,
        /// The counters.
        bins: Span<'a>,
    },
    /// Every thread adds `value` to a counter (u64). The result is the counter before the first.
    AtomicAdd {
        /// The counter.
        counter: Span<'a>,
        /// The addend.
        value: u64,
    },
    /// Drives queues of a disk, as [`GpuQueue`](crate::GpuQueue) submits it, for programs that lay
    /// out queues by themselves (devices/gpu/INTERFACE.md describes state, requests and result).
    NvmeIo(NvmeIo<'a>),
}

/// Operands of [`Kernel::NvmeIo`].
#[derive(Clone, Copy, Debug)]
pub struct NvmeIo<'a> {
    /// The submission queue: 64 bytes for each of its entries.
    pub submission: Span<'a>,
    /// The completion queue: 16 bytes for each of its entries.
    pub completion: Span<'a>,
    /// The doorbell of the submission queue's tail: 4 bytes.
    pub tail: Span<'a>,
    /// The doorbell of the completion queue's head: 4 bytes.
    pub head: Span<'a>,
    /// State of the queues: 32 bytes.
    pub state: Span<'a>,
    /// The requests: 32 bytes for each.
    pub requests: Span<'a>,
    /// Limit of the commands in progress, or 0 for as many as the queues take.
    pub depth: u16,
    /// The namespace (NSID).
    pub nsid: u32,
    /// Time limit from one completion to the next, or zero for the GPU's own limit of a command.
    pub limit: Duration,
}

impl NvmeIo<'_> {
    fn encode<'d>(&self, launch: Builder<'d>) -> Result<Builder<'d>> {
        const ENTRY: u64 = 64;
        const COMPLETION: u64 = 16;
        const REQUEST: u64 = 32;
        let submissions = self.submission.length() / ENTRY;
        let completions = self.completion.length() / COMPLETION;
        launch
            .kernel(5)
            .address(0, self.submission, self.submission.length())?
            .address(1, self.completion, self.completion.length())?
            .address(2, self.tail, 4)?
            .address(3, self.head, 4)?
            .address(4, self.state, 32)?
            .address(5, self.requests, self.requests.length())
            .map(|launch| {
                launch
                    .number(6, self.requests.length() / REQUEST)
                    .number(7, completions << 32 | submissions)
                    .number(8, self.depth.into())
                    .number(9, self.nsid.into())
                    .number(10, nanoseconds(self.limit))
            })
    }
}

impl Command<'_> {
    /// Returns the command in the form that `driver` takes.
    pub(crate) fn encode(&self, driver: &Arc<dyn Driver>) -> Result<Submit> {
        let builder = Builder::new(driver);
        let built = match *self {
            Command::Nop => builder.opcode(0),
            Command::Copy { from, to } => {
                let length = one_length(from, to)?;
                builder
                    .opcode(1)
                    .address(0, from, length)?
                    .address(1, to, length)?
                    .number(2, length)
            }
            Command::Fill { to, pattern } => builder
                .opcode(2)
                .address(0, to, to.length())?
                .number(1, to.length())
                .number(2, pattern),
            Command::Compare { first, second } => {
                let length = one_length(first, second)?;
                builder
                    .opcode(3)
                    .address(0, first, length)?
                    .address(1, second, length)?
                    .number(2, length)
            }
            Command::Crc32c { from } => builder
                .opcode(4)
                .address(0, from, from.length())?
                .number(1, from.length()),
            Command::Launch {
                kernel,
                grid,
                block,
            } => kernel
                .encode(builder.opcode(5))?
                .number(GRID, grid.into())
                .number(BLOCK, block.into()),
            Command::WriteWord { to, value } => builder
                .opcode(6)
                .address(0, to, to.length())?
                .number(1, value)
                .number(2, to.length()),
            Command::Wait {
                word,
                value,
                mask,
                limit,
            } => builder
                .opcode(7)
                .address(0, word, word.length())?
                .number(1, value)
                .number(2, word.length())
                .number(3, mask)
                .number(4, nanoseconds(limit)),
        };
        Ok(built.submit)
    }
}

impl Kernel<'_> {
    fn encode<'d>(&self, launch: Builder<'d>) -> Result<Builder<'d>> {
        Ok(match *self {
            Kernel::VectorAdd {
                a,
                b,
                sum,
                elements,
            } => launch
                .kernel(0)
                .address(0, a, bytes_of(elements))?
                .address(1, b, bytes_of(elements))?
                .address(2, sum, bytes_of(elements))?
                .number(3, elements),
            Kernel::Saxpy {
                x,
                y,
                elements,
                factor,
            } => launch
                .kernel(1)
                .address(0, x, bytes_of(elements))?
                .address(1, y, bytes_of(elements))?
                .number(2, elements)
                .number(3, factor.to_bits().into()),
            Kernel::Reduce { x, elements } => launch
                .kernel(2)
                .address(0, x, bytes_of(elements))?
                .number(1, elements),
            Kernel::Histogram { bytes, bins } => launch
                .kernel(3)
                .address(0, bytes, bytes.length())?
                .number(1, bytes.length())
                .address(2, bins, BINS_BYTES)?,
            Kernel::AtomicAdd { counter, value } => launch
                .kernel(4)
                .address(0, counter, size_of::<u64>() as u64)?
                .number(1, value),
            Kernel::NvmeIo(io) => io.encode(launch)?,
        })
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn bytes_of(elements: u64) -> u64 {
    elements.saturating_mul(4)
}

fn one_length(left: Span<'_>, right: Span<'_>) -> Result<u64> {
    if left.length() != right.length() {
        return Err(Error::Lengths {
            left: left.length(),
            right: right.length(),
        });
    }
    Ok(left.length())
}

/// A submission that grows operand by operand.
struct Builder<'a> {
    driver: &'a Arc<dyn Driver>,
    submit: Submit,
}

impl<'a> Builder<'a> {
    fn new(driver: &'a Arc<dyn Driver>) -> Self {
        Builder {
            driver,
            submit: Submit::default(),
        }
    }

    fn opcode(mut self, opcode: u32) -> Self {
        self.submit.opcode = opcode;
        self
    }

    fn kernel(mut self, kernel: u32) -> Self {
        self.submit.kernel = kernel;
        self
    }

    /// Sets `span` as operand `index`. The command touches its first `needed` bytes.
    fn address(mut self, index: usize, span: Span<'_>, needed: u64) -> Result<Self> {
        if needed > span.length() {
            return Err(Error::ShortOperand {
                needed,
                given: span.length(),
            });
        }
        let operand = span.operand(self.driver)?;
        if let Some(length) = self.submit.length.get_mut(index) {
            *length = needed;
        }
        self.submit.address_mask |= 1 << index;
        Ok(self.operand(index, operand))
    }

    fn number(self, index: usize, number: u64) -> Self {
        let operand = Operand {
            offset: number,
            ..Operand::default()
        };
        self.operand(index, operand)
    }

    fn operand(mut self, index: usize, operand: Operand) -> Self {
        debug_assert!(index < OPERANDS, "no operand {index}");
        if let Some(slot) = self.submit.operand.get_mut(index) {
            *slot = operand;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Gpu;
    use crate::buffer_handle::BufferHandle;
    use crate::fake::gpu_with;
    use crate::uapi::Space;

    /// Returns a GPU, and handle 7 of its memory.
    fn lab() -> (Gpu, BufferHandle) {
        let (_, gpu) = gpu_with(1 << 20);
        let vram = BufferHandle::new(&gpu.driver, Space::Vram, 7, 1000);
        (gpu, vram)
    }

    #[test]
    fn a_copy_is_two_addresses_and_a_length() {
        let (gpu, vram) = lab();
        let host = BufferHandle::new(&gpu.driver, Space::Host, 3, 32);
        let submit = Command::Copy {
            from: vram.span(16..48).unwrap(),
            to: host.span(..).unwrap(),
        }
        .encode(&gpu.driver)
        .unwrap();
        assert_eq!((submit.opcode, submit.address_mask), (1, 0b11));
        let operand = |space, handle, offset| Operand {
            space,
            handle,
            offset,
        };
        let (from, to, number) = (operand(0, 7, 16), operand(1, 3, 0), operand(0, 0, 32));
        assert_eq!(submit.operand[..3], [from, to, number]);
        assert_eq!(submit.length[..3], [32, 32, 0]);
    }

    #[test]
    fn a_launch_has_its_shape_in_the_last_operands() {
        let (gpu, vram) = lab();
        let kernel = Kernel::Saxpy {
            x: vram.span(0..400).unwrap(),
            y: vram.span(400..800).unwrap(),
            elements: 100,
            factor: 2.0,
        };
        let submit = Command::Launch {
            kernel,
            grid: 4,
            block: 32,
        }
        .encode(&gpu.driver)
        .unwrap();
        assert_eq!((submit.opcode, submit.kernel), (5, 1));
        assert_eq!(submit.address_mask, 0b11);
        assert_eq!(submit.length[..2], [400, 400]);
        let numbers = [2, 3, 11, 12].map(|index: usize| submit.operand[index].offset);
        assert_eq!(numbers, [100, 0x4000_0000, 4, 32]);
    }

    #[test]
    fn word_has_its_size_behind_its_value() {
        let (gpu, vram) = lab();
        let word = vram.span(8..16).unwrap();
        let write = Command::WriteWord { to: word, value: 9 };
        let wait = Command::Wait {
            word: vram.span(4..8).unwrap(),
            value: 1,
            mask: 3,
            limit: Duration::from_micros(2),
        };
        let encode = |command: Command<'_>| {
            let submit = command.encode(&gpu.driver).unwrap();
            assert_eq!(submit.address_mask, 1);
            (submit.opcode, submit.operand.map(|operand| operand.offset))
        };
        let (opcode, numbers) = encode(write);
        assert_eq!((opcode, &numbers[..3]), (6, &[8, 9, 8][..]));
        let (opcode, numbers) = encode(wait);
        assert_eq!((opcode, &numbers[..5]), (7, &[4, 1, 4, 3, 2000][..]));
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused() {
        let (gpu, vram) = lab();
        let copy = Command::Copy {
            from: vram.span(0..8).unwrap(),
            to: vram.span(8..24).unwrap(),
        };
        assert!(matches!(
            copy.encode(&gpu.driver),
            Err(Error::Lengths { left: 8, right: 16 })
        ));
        let kernel = Kernel::Reduce {
            x: vram.span(0..8).unwrap(),
            elements: u64::MAX,
        };
        let launch = Command::Launch {
            kernel,
            grid: 1,
            block: 1,
        };
        assert!(matches!(
            launch.encode(&gpu.driver),
            Err(Error::ShortOperand { .. })
        ));
    }
}
