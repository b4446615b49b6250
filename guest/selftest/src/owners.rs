//! Reallocated GPU memory is zeroed: no owner sees the data of another. An owner can revoke it at
//! any time. A user leaves channels to others.

mod channels;
mod revoke;

use anyhow::{Context, ensure};
use peerbar_gds::{Buffer, Gpu, Kernel};

use crate::Test;
use crate::expect::{sizes, take_all};
use crate::load::{GPU_PAGE, memory_is_back};

/// The value that the first owner writes.
const MARK: u64 = 0x0ddb_a11a_0ddb_a11a;

/// Threads of a block.
const BLOCK: u32 = 1024;

pub(crate) fn run(test: &Test<'_>) -> anyhow::Result<()> {
    let guest = test.guest;
    let gpu = test.gpu()?;
    memory_is_back(guest, gpu)?;
    let left = leave_marks(&gpu.open()?).context("the first owner")?;
    memory_is_back(guest, gpu).context("after the first owner")?;
    let found = expect_zeros(&gpu.open()?).context("the second owner")?;
    ensure!(
        left == found && left > 0,
        "the first owner had {left} bytes of memory, the second {found}"
    );
    revoke::amid_commands(gpu).context("an owner revokes it amid commands of another")?;
    channels::of_a_user(gpu).context("the channels of a user without rights")?;
    memory_is_back(guest, gpu)
}

fn leave_marks(gpu: &Gpu) -> anyhow::Result<u64> {
    let buffers = take_all(gpu);
    for buffer in &buffers {
        gpu.fill(buffer.span(..)?, MARK)?;
        let (seen, right) = (sum(gpu, buffer)?, (MARK >> 32) * (buffer.size() / 4));
        ensure!(seen == right, "its marks sum up to {seen}, not to {right}");
    }
    Ok(sizes(&buffers))
}

fn expect_zeros(gpu: &Gpu) -> anyhow::Result<u64> {
    let buffers = take_all(gpu);
    for (number, buffer) in buffers.iter().enumerate() {
        let (sum, mut first) = (sum(gpu, buffer)?, [0; 8]);
        buffer.mapping().read(0, &mut first)?;
        ensure!(
            sum == 0 && first == [0; 8],
            "buffer {number} of {} bytes comes with {first:x?} and words that sum up to {sum}",
            buffer.size()
        );
    }
    Ok(sizes(&buffers))
}

/// Returns the sum of all words of a buffer: 0 only if each of them is 0.
fn sum(gpu: &Gpu, buffer: &Buffer) -> anyhow::Result<u64> {
    let elements = buffer.size() / 4;
    let x = buffer.span(..)?;
    let grid = u32::try_from(elements.div_ceil(BLOCK.into()))?;
    Ok(gpu.launch(Kernel::Reduce { x, elements }, grid, BLOCK)?)
}
