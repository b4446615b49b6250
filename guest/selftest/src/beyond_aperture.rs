//! A GPU with more VRAM than its aperture exposes: the rest must be usable, too.

use std::time::Duration;

use anyhow::{Context, ensure};
use peerbar_agent::gpus;
use peerbar_agent::guest_context::GuestContext;
use peerbar_gds::{Buffer, Gpu};

use crate::Test;
use crate::channel::{Channel, ENTRY_BYTES, Entry, IN_VRAM, Ring};
use crate::expect::driver_refused;
use crate::faults::Node;

const TIME_OUT: Duration = Duration::from_secs(20);

/// Pages of the GPU, in bytes.
const GPU_PAGE: u64 = 64 << 10;

/// Bytes that are filled and copied, and their offset in a buffer.
const BYTES: u64 = 4096;
const TARGET: u64 = 0x8000;

const MARK: u64 = 0xb10c_0000_0000_b10c;

pub(crate) fn run(test: &Test<'_>) -> anyhow::Result<()> {
    let guest = test.guest;
    let gpu = test.gpu()?;
    let opened = gpu.open()?;
    let properties = opened.properties();
    let (vram, aperture) = (properties.vram_bytes, properties.aperture_bytes);
    ensure!(
        vram >= aperture + GPU_PAGE,
        "{vram} bytes of VRAM are not more than the aperture of {aperture}"
    );
    if properties.window {
        is_too_much(&opened, vram + GPU_PAGE)?;
        a_window_shows_all_of_it(gpu, &opened).context("VRAM behind a window")
    } else {
        is_too_much(&opened, aperture + GPU_PAGE)?;
        commands_reach_it(guest, gpu, &opened).context("VRAM beyond a static aperture")
    }?;
    Ok(())
}

fn is_too_much(gpu: &Gpu, bytes: u64) -> anyhow::Result<()> {
    driver_refused(gpu.allocate(bytes), libc::ENOMEM)
        .with_context(|| format!("an allocation of {bytes} bytes"))
}

/// Checks that a window exposes all of VRAM. After an allocation as large as the aperture, which is
/// not exposed, the next buffer lies beyond that offset in VRAM, and the processor still finds it
/// in the BAR.
fn a_window_shows_all_of_it(gpu: &gpus::Gpu, opened: &Gpu) -> anyhow::Result<()> {
    let aperture = opened.properties().aperture_bytes;
    let hidden = Node::open(gpu)?;
    hidden
        .allocate(aperture)
        .context("cannot allocate as much as the aperture shows")?;
    let buffer = opened.allocate(GPU_PAGE)?;
    let placement = buffer.placement(0)?;
    let start = gpu.aperture_start()?;
    let in_bar = placement.bus_address.checked_sub(start);
    ensure!(
        placement.vram_offset >= aperture && in_bar.is_some_and(|offset| offset < aperture),
        "a buffer is at {placement:x?}, where the BAR is at {start:x} with {aperture:x} bytes"
    );
    buffer.mapping().write(TARGET, &MARK.to_le_bytes())?;
    let back = opened.allocate(GPU_PAGE)?;
    opened.copy(buffer.span(..)?, back.span(..)?)?;
    expect_mark(&back, 1)
}

/// Checks that commands can access VRAM beyond the aperture. The driver allocates only memory that
/// peers can access; the device's own commands can access all of it.
fn commands_reach_it(guest: &GuestContext, gpu: &gpus::Gpu, opened: &Gpu) -> anyhow::Result<()> {
    let buffer = opened.allocate(GPU_PAGE)?;
    let base = buffer.placement(0)?.vram_offset;
    let last = opened.properties().vram_bytes - BYTES;
    let fill = Entry {
        opcode: 2,
        spaces: 0b1,
        operands: [last, BYTES, MARK],
        ..Entry::default()
    };
    let copy = Entry {
        opcode: 1,
        spaces: 0b11,
        operands: [last, base + TARGET, BYTES],
        ..Entry::default()
    };
    for (index, entry) in (0..).zip([fill, copy]) {
        buffer
            .mapping()
            .write(index * ENTRY_BYTES, &entry.bytes()?)?;
    }
    let channel = Channel::of(&gpu.pci)?;
    channel.enable(Ring {
        address: base,
        space: IN_VRAM,
        entries: 2,
    })?;
    channel.ring(2)?;
    let done = guest.uevents.wait_for(TIME_OUT, || {
        let (head, state) = (channel.head()?, channel.state()?);
        ensure!(
            head == 2,
            "{head} of 2 commands are done, the channel is {state:?}"
        );
        Ok(())
    });
    channel.disable()?;
    done?;
    expect_mark(&buffer, BYTES / 8)
}

/// Checks that the buffer has this many marks, and zeros before and after them.
fn expect_mark(buffer: &Buffer, marks: u64) -> anyhow::Result<()> {
    for (offset, right) in [
        (TARGET - 8, 0),
        (TARGET, MARK),
        (TARGET + 8 * (marks - 1), MARK),
        (TARGET + 8 * marks, 0),
    ] {
        let mut seen = [0; 8];
        buffer.mapping().read(offset, &mut seen)?;
        let seen = u64::from_le_bytes(seen);
        ensure!(
            seen == right,
            "{seen:x} is at {offset:x} of it, not {right:x}"
        );
    }
    Ok(())
}
