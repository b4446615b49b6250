//! A program that sends invalid requests to the driver: they are refused, or the command ends with
//! the device's fault code, and the program's next command succeeds.

use anyhow::{Context, bail, ensure};
use peerbar_agent::gpus;
use peerbar_gds::Error;
use peerbar_gds::uapi::{Operand, Submit};
use rustix::io::Errno;

use super::requests::Node;
use crate::channel::Channel;

/// Size of the program's buffer in bytes.
const BYTES: u64 = 64 << 10;

/// Bytes that are filled through a dma-buf, and thus by a bus address. Nothing else is counted.
pub(super) const IMPORTED_BYTES: u64 = BYTES;

const COPY: u32 = 1;
const FILL: u32 = 2;
const LAUNCH: u32 = 5;
const WRITE_WORD: u32 = 6;
const WAIT: u32 = 7;
const REDUCTION: u32 = 2;
const ATOMIC_ADD: u32 = 4;
const NVME_IO: u32 = 5;

/// Operands that describe a launch's shape.
const GRID: usize = 11;
const BLOCK: usize = 12;

const BAD_COMMAND: u32 = 4;
const TOO_LONG: u32 = 6;

pub(super) fn run(gpu: &gpus::Gpu, channel: &Channel) -> anyhow::Result<()> {
    let node = Node::open(gpu)?;
    let handle = node.allocate(BYTES).context("cannot allocate VRAM")?;
    for (name, submit, errno) in refused(handle) {
        match node.submit(&submit) {
            Err(error) if error == errno => {}
            other => bail!("{name} should have been refused with {errno:?}, but: {other:?}"),
        }
    }
    for (name, submit, code) in faulted(handle) {
        let before = channel.faults()?;
        let fence = node
            .submit(&submit)
            .with_context(|| format!("{name} is refused"))?;
        let behind = node.submit(&fill(handle))?;
        let (error, next) = (node.wait(fence)?, node.wait(behind)?);
        let faults = channel.faults()?.wrapping_sub(before);
        ensure!(
            (error, next, faults) == (code, 0, 1),
            "{name} should have ended with fault {code}, but it ended with {error}, the command behind it with {next}, and the GPU \
             has recorded {faults} faults"
        );
    }
    overlap_in_parts_is_refused(gpu).context("a copy onto a part of itself, in parts")?;
    revoked_import_is_refused(gpu).context("a dma-buf that was revoked")
}

/// Returns an operand that is an address: an offset in the buffer.
fn address(handle: u32, offset: u64) -> Operand {
    Operand {
        space: 0,
        handle,
        offset,
    }
}

fn number(offset: u64) -> Operand {
    Operand {
        offset,
        ..Operand::default()
    }
}

/// Makes a command with these first operands. Those in `mask` are addresses.
fn command<const N: usize>(opcode: u32, operands: [Operand; N], mask: u32) -> Submit {
    let mut submit = Submit {
        opcode,
        address_mask: mask,
        ..Submit::default()
    };
    for (slot, operand) in submit.operand.iter_mut().zip(operands) {
        *slot = operand;
    }
    submit
}

/// Makes a valid command.
fn fill(handle: u32) -> Submit {
    command(FILL, [address(handle, 0), number(BYTES), number(1)], 1)
}

fn launch(handle: u32, kernel: u32, elements: u64, shape: (u64, u64)) -> Submit {
    let mut submit = command(LAUNCH, [address(handle, 0), number(elements)], 1);
    submit.kernel = kernel;
    for (at, value) in [(GRID, shape.0), (BLOCK, shape.1)] {
        if let Some(slot) = submit.operand.get_mut(at) {
            slot.offset = value;
        }
    }
    submit
}

/// Returns the commands that the driver must not pass to the device.
fn refused(handle: u32) -> Vec<(String, Submit, Errno)> {
    let unaddressed = (1..=WAIT).map(|opcode| {
        let name = format!("opcode {opcode} with numbers of the program's for addresses");
        (name, command(opcode, [], 0), Errno::INVAL)
    });
    let fill_at = |offset, length| {
        command(
            FILL,
            [address(handle, offset), number(length), number(0)],
            1,
        )
    };
    let word_at = |offset| {
        let operands = [address(handle, offset), number(0), number(8)];
        command(WRITE_WORD, operands, 1)
    };
    let mut host = fill(handle);
    if let Some(operand) = host.operand.first_mut() {
        operand.space = 1;
    }
    // Otherwise a program could find out bus addresses by reading its own memory.
    let mut summand = launch(handle, ATOMIC_ADD, 0, (1, 1));
    summand.address_mask = 0b11;
    if let Some(operand) = summand.operand.get_mut(1) {
        *operand = address(handle, 0);
    }
    // As above, with kernel 5.
    let mut queues = command(LAUNCH, [], 0);
    queues.kernel = NVME_IO;
    let pattern = [address(handle, 0), number(8), address(handle, 0)];
    let invalid = [
        ("VRAM as if it were host memory", host),
        (
            "a pattern that is an address",
            command(FILL, pattern, 0b101),
        ),
        ("a summand that is an address", summand),
        ("queues and doorbells at addresses of the program's", queues),
        ("an opcode of more than a byte", command(256, [], 0)),
        ("more operands than there are", command(0, [], 1 << 13)),
    ];
    let out_of_range = [
        ("a fill beyond its buffer", fill_at(0, BYTES + 1)),
        ("a fill that starts at its buffer's end", fill_at(BYTES, 1)),
        ("an offset that wraps around", fill_at(u64::MAX, 2)),
        ("a length that wraps around", fill_at(8, u64::MAX)),
        ("a word that its buffer has half of", word_at(BYTES - 4)),
        (
            "queues that are longer than their buffer",
            longer_queues(handle),
        ),
    ];
    let missing = [("a buffer that is not there", fill(handle + 1000))];
    let with = |errno| move |(name, submit): (&str, Submit)| (name.to_owned(), submit, errno);
    let others = invalid.into_iter().map(with(Errno::INVAL));
    let others = others.chain(out_of_range.map(with(Errno::RANGE)));
    let others = others.chain(missing.map(with(Errno::NOENT)));
    unaddressed.chain(others).collect()
}

/// Makes a command with a pair of queues for whose first entries only the buffer has room,
/// regardless of the length that the program states.
fn longer_queues(handle: u32) -> Submit {
    const ENTRIES: u64 = BYTES / 64 + 1;
    let at = address(handle, 0);
    let operands = [at, at, at, at, at, at, number(1), number(2 << 32 | ENTRIES)];
    let mut submit = command(LAUNCH, operands, 0b11_1111);
    submit.kernel = NVME_IO;
    submit
}

/// Returns the commands whose mistake the device itself must find.
fn faulted(handle: u32) -> Vec<(&'static str, Submit, u32)> {
    let overlap = [address(handle, 0), address(handle, 8), number(64)];
    let reduction = |shape| launch(handle, REDUCTION, 1, shape);
    let bad = [
        ("an unknown opcode", command(200, [], 0)),
        ("an unknown kernel", launch(handle, 99, 1, (1, 1))),
        ("a block of 1025 threads", reduction((1, 1025))),
        ("a copy onto a part of itself", command(COPY, overlap, 0b11)),
    ];
    let bad = bad.map(|(name, submit)| (name, submit, BAD_COMMAND));
    let long = reduction(((1 << 14) + 1, 1024));
    let long = ("more than 2^24 threads", long, TOO_LONG);
    bad.into_iter().chain([long]).collect()
}

/// Checks that the driver refuses a copy within host memory that overlaps itself. The memory lies
/// in pieces, none of which overlaps its own copy, so the device would find nothing wrong.
fn overlap_in_parts_is_refused(gpu: &gpus::Gpu) -> anyhow::Result<()> {
    const DISTANCE: u64 = 6 << 20;
    let gpu = gpu.open()?;
    let host = gpu.allocate_host(2 * DISTANCE + DISTANCE / 2)?;
    let (from, to) = (..DISTANCE + DISTANCE / 2, DISTANCE..);
    match gpu.copy(host.span(from)?, host.span(to)?) {
        Err(Error::Driver { .. }) => Ok(()),
        other => bail!("it should have been refused by the driver, but: {other:?}"),
    }
}

/// Checks that an importer's commands do not access memory that its owner has revoked.
fn revoked_import_is_refused(gpu: &gpus::Gpu) -> anyhow::Result<()> {
    const MARK: u64 = 0x3c3c_3c3c_3c3c_3c3c;
    let (owner, importer) = (gpu.open()?, gpu.open()?);
    let buffer = owner.allocate(BYTES)?;
    let imported = importer.import(&buffer.export()?)?;
    importer.fill(imported.span(..)?, MARK)?;
    buffer.revoke()?;
    match importer.fill(imported.span(..)?, MARK) {
        Err(Error::Driver { .. }) => Ok(()),
        other => bail!("a fill of it should have been refused by the driver, but: {other:?}"),
    }
}
