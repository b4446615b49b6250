//! A driver that makes every mistake, on its own channel: each causes an error of the channel, an
//! interrupt and a record, and does not affect the other channels.

use std::time::Duration;

use anyhow::{Context, ensure};
use peerbar_agent::gpus;
use peerbar_agent::guest_context::GuestContext;
use peerbar_agent::kmsg::KernelLog;
use peerbar_gds::{Buffer, Gpu};

use crate::channel::{
    self, Channel, ChannelState, DEVICE_VECTOR, ENTRY_BYTES, Entry, FENCE_IN_VRAM, IN_VRAM,
    INTERRUPT, ON_BUS, Ring, VECTOR,
};
use crate::expect::same;
use crate::interrupts;

/// Time limit for the device to notice.
const TIME_OUT: Duration = Duration::from_secs(20);

/// A bus address without a completer.
const NOWHERE: u64 = 0x000f_0000_0000_0000;

const ENTRIES: u32 = 4;

/// Offsets in the buffer of the ring, of the memory that a command fills, and of a fence.
const TARGET: u64 = 0x4000;
const FENCE: u64 = 0x8000;
const BYTES: u64 = 0x1_0000;

const MARK: u64 = 0x9696_9696_9696_9696;

const FILL: u8 = 2;
const COPY: u8 = 1;

/// The first operand is in VRAM.
const FIRST_IN_VRAM: u16 = 1;

/// One mistake, and its expected result. The driver's log has room for ten within five seconds.
struct Mistake {
    name: &'static str,
    ring: Ring,
    entry: Entry,
    doorbell: u32,
    code: u8,
    write: bool,
    address: u64,
}

/// Number of the device's requests that mistakes make fail, by a bus address.
pub(super) const FAILED_REQUESTS: u64 = 2;

pub(super) struct Fixture<'a> {
    guest: &'a GuestContext,
    channel: &'a Channel,
    /// The GPU with a channel that must not be affected.
    other: Gpu,
    buffer: Buffer,
    /// Offset of the buffer in VRAM.
    base: u64,
}

impl<'a> Fixture<'a> {
    pub(super) fn new(
        guest: &'a GuestContext,
        gpu: &'a gpus::Gpu,
        channel: &'a Channel,
    ) -> anyhow::Result<Self> {
        let other = gpu.open()?;
        let buffer = other.allocate(BYTES)?;
        let placement = buffer.placement(0)?;
        ensure!(placement.length >= BYTES, "VRAM lies in pieces");
        Ok(Fixture {
            guest,
            channel,
            other,
            buffer,
            base: placement.vram_offset,
        })
    }

    pub(super) fn run(&self) -> anyhow::Result<()> {
        let found = self.channel.state()?;
        ensure!(
            found == ChannelState::Off,
            "channel {} is {found:?}: it is in use",
            channel::NUMBER
        );
        self.a_good_command_is_done()
            .context("before all mistakes")?;
        for mistake in self.bad_rings().into_iter().chain(self.bad_entries()) {
            let outcome = self.make(&mistake);
            self.channel.disable()?;
            outcome.context(mistake.name)?;
            self.wait_for_state(ChannelState::Off)
                .with_context(|| format!("disabled after {}", mistake.name))?;
        }
        self.a_good_command_is_done().context("after all mistakes")
    }

    /// Makes mistakes in setting up and ringing a channel.
    fn bad_rings(&self) -> [Mistake; 5] {
        let vram = self.other.properties().vram_bytes;
        let ring = self.good_ring();
        let bad = |name, ring: Ring| Mistake {
            name,
            ring,
            entry: Entry::default(),
            doorbell: 1,
            code: 5,
            write: false,
            address: ring.address,
        };
        let at = |address| Ring { address, ..ring };
        let nowhere = Ring {
            space: ON_BUS,
            ..at(NOWHERE)
        };
        [
            bad("a ring off its boundary", at(self.base + 64)),
            bad("a ring that leaves VRAM", at(vram - ENTRY_BYTES)),
            bad("a ring of three entries", Ring { entries: 3, ..ring }),
            Mistake {
                doorbell: ENTRIES + 1,
                ..bad("a doorbell beyond the ring", ring)
            },
            Mistake {
                code: 2,
                ..bad("a ring without a completer", nowhere)
            },
        ]
    }

    /// Makes invalid commands.
    fn bad_entries(&self) -> [Mistake; 5] {
        let vram = self.other.properties().vram_bytes;
        let bad = |name, entry, code| Mistake {
            name,
            ring: self.good_ring(),
            entry,
            doorbell: 1,
            code,
            write: false,
            address: self.base,
        };
        let command = |opcode, operands| Entry {
            opcode,
            spaces: FIRST_IN_VRAM,
            operands,
            ..Entry::default()
        };
        let fill = |to, length| command(FILL, [to, length, MARK]);
        let copy = command(COPY, [self.base, NOWHERE, 8]);
        let unaligned = Entry {
            flags: FENCE_IN_VRAM,
            fence: self.base + FENCE + 8,
            ..Entry::default()
        };
        [
            bad("an unknown opcode", command(200, [0; 3]), 4),
            bad("a length beyond 1 GiB", fill(self.base, (1 << 30) + 1), 6),
            Mistake {
                write: true,
                address: vram - 8,
                ..bad("a fill that leaves VRAM", fill(vram - 8, 16), 3)
            },
            Mistake {
                write: true,
                address: NOWHERE,
                ..bad("a copy to an address without a completer", copy, 2)
            },
            bad("a fence off its boundary", unaligned, 4),
        ]
    }

    fn good_ring(&self) -> Ring {
        Ring {
            address: self.base,
            space: IN_VRAM,
            entries: ENTRIES,
        }
    }

    fn make(&self, mistake: &Mistake) -> anyhow::Result<()> {
        let mut log = KernelLog::from_now_on()?;
        let interrupts = self.interrupts()?;
        let faults = self.channel.faults()?;
        self.put(&mistake.entry)?;
        self.channel.enable(mistake.ring)?;
        self.channel.ring(mistake.doorbell)?;
        self.wait_for_state(ChannelState::Error(mistake.code))?;
        self.the_other_channel_goes_on()?;
        // Still in error: the doorbell has no effect.
        self.channel.ring(2)?;
        self.the_other_channel_goes_on()?;
        let seen = (self.channel.state()?, self.channel.head()?);
        let growth = self.channel.faults()?.wrapping_sub(faults);
        ensure!(
            seen == (ChannelState::Error(mistake.code), 0) && growth == 1,
            "the channel is {seen:?} with {growth} faults more"
        );
        self.wait_for_interrupts(interrupts)?;
        self.wait_for_record(mistake, &mut log)
    }

    fn put(&self, entry: &Entry) -> anyhow::Result<()> {
        Ok(self.buffer.mapping().write(0, &entry.bytes()?)?)
    }

    fn wait_for_state(&self, wanted: ChannelState) -> anyhow::Result<()> {
        self.guest.uevents.wait_for(TIME_OUT, || {
            let state = self.channel.state()?;
            ensure!(state == wanted, "the channel is {state:?}, not {wanted:?}");
            Ok(())
        })
    }

    fn interrupts(&self) -> anyhow::Result<[u64; 2]> {
        let address = &self.other.properties().address;
        Ok([
            interrupts::count(address, DEVICE_VECTOR)?,
            interrupts::count(address, VECTOR)?,
        ])
    }

    /// Waits for the device's vector and the channel's.
    fn wait_for_interrupts(&self, before: [u64; 2]) -> anyhow::Result<()> {
        self.guest.uevents.wait_for(TIME_OUT, || {
            let now = self.interrupts()?;
            let came = now.iter().zip(&before).all(|(now, before)| now > before);
            ensure!(
                came,
                "vectors 0 and {VECTOR} went from {before:?} to {now:?}"
            );
            Ok(())
        })
    }

    /// Checks that the driver reports each fault that the device has recorded.
    fn wait_for_record(&self, mistake: &Mistake, log: &mut KernelLog) -> anyhow::Result<()> {
        let access = if mistake.write { "write" } else { "read" };
        let wanted = format!(
            "fault {} on a {access} at {:#x}, channel {}",
            mistake.code,
            mistake.address,
            channel::NUMBER
        );
        let mut said = Vec::new();
        self.guest.uevents.wait_for(TIME_OUT, || {
            said.extend(log.new_messages());
            let logged = said.iter().any(|line| line.ends_with(&wanted));
            ensure!(
                logged,
                "the driver was to say {wanted:?}; the kernel's log has {said:?}"
            );
            Ok(())
        })
    }

    fn the_other_channel_goes_on(&self) -> anyhow::Result<()> {
        let (left, right) = (
            self.buffer.span(TARGET..TARGET + 0x1000)?,
            self.buffer.span(TARGET + 0x1000..TARGET + 0x2000)?,
        );
        self.other.fill(left, MARK)?;
        self.other.copy(left, right)?;
        same(&self.other, right, left).context("a copy by another channel")?;
        self.other.fill(left, 0).context("another channel")
    }

    fn a_good_command_is_done(&self) -> anyhow::Result<()> {
        let interrupts = self.interrupts()?;
        self.other.fill(self.buffer.span(..)?, 0)?;
        self.put(&Entry {
            opcode: FILL,
            flags: FENCE_IN_VRAM | INTERRUPT,
            spaces: FIRST_IN_VRAM,
            fence: self.base + FENCE,
            fence_value: 1,
            operands: [self.base + TARGET, 8, MARK],
            ..Entry::default()
        })?;
        self.channel.enable(self.good_ring())?;
        self.channel.ring(1)?;
        let word = |at| {
            let mut bytes = [0; 8];
            self.buffer.mapping().read(at, &mut bytes)?;
            anyhow::Ok(u64::from_le_bytes(bytes))
        };
        self.guest.uevents.wait_for(TIME_OUT, || {
            let (fence, head) = (word(FENCE)?, self.channel.head()?);
            ensure!((fence, head) == (1, 1), "the fence is {fence}, HEAD {head}");
            Ok(())
        })?;
        let seen = (word(TARGET)?, word(TARGET + 8)?);
        ensure!(seen == (MARK, 0), "a fill of 8 bytes has left {seen:x?}");
        self.guest.uevents.wait_for(TIME_OUT, || {
            let ([_, now], [_, before]) = (self.interrupts()?, interrupts);
            ensure!(now > before, "no interrupt comes through vector {VECTOR}");
            Ok(())
        })?;
        self.channel.disable()?;
        self.wait_for_state(ChannelState::Off)
    }
}
