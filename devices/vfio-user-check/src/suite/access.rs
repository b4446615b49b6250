//! REGION_READ and REGION_WRITE, in config space. Registers that are written have their old values
//! afterwards.

use crate::checker::Checker;
use crate::device::region_flags::{READ, WRITE};
use crate::outcome::{Failing, Outcome};
use crate::session::Session;
use crate::test::{Group, Source, specified};
use crate::wire::{CONFIG, command, region_access, u16_at, u32_at};

pub(super) const GROUP: Group = Group {
    name: "access",
    tests: &[
        (
            "read",
            specified(
                "REGION_READ",
                "the reply has the offset, the region and the count of the access, then the data",
            ),
            read,
        ),
        (
            "read-sizes",
            specified(
                "REGION_READ",
                "count is the size of the data, up to max_data_xfer_size: one read has the data of many",
            ),
            read_sizes,
        ),
        (
            "past-the-end",
            specified(
                "REGION_READ",
                "offset is an offset into the region: an access beyond its size is an error",
            ),
            past_the_end,
        ),
        (
            "overflow",
            specified(
                "Security Considerations",
                "input is validated: offset and count whose sum overflows are an error",
            ),
            overflow,
        ),
        (
            "unknown-region",
            specified(
                "REGION_READ",
                "region is the index of a region: one that the device does not have is an error",
            ),
            unknown_region,
        ),
        (
            "wrong-way",
            specified(
                "DEVICE_GET_REGION_INFO",
                "READ allows read access and WRITE write access: without the flag an access is an error",
            ),
            wrong_way,
        ),
        (
            "too-much",
            specified(
                "Read and Write Operations",
                "count must not exceed max_data_xfer_size of the peer; a server survives one that does",
            ),
            too_much,
        ),
        (
            "nothing",
            specified(
                "Security Considerations",
                "input is validated: a server survives an access of no bytes",
            ),
            nothing,
        ),
        (
            "write",
            specified(
                "REGION_WRITE",
                "the reply has the offset, the region and the count of the access, and no data",
            ),
            write,
        ),
        (
            "write-length",
            specified(
                "REGION_WRITE",
                "count is the size of the data: a payload with less data is an error",
            ),
            write_length,
        ),
        (
            "bar-read",
            specified(
                "Read and Write Operations",
                "reads must be supported even if the region has been shared as mappable",
            ),
            bar_read,
        ),
        (
            "widths",
            Source::Qemu("reads config space by 1, 2 and 4 bytes, and needs a vendor"),
            widths,
        ),
        (
            "interrupt-line",
            Source::Qemu("passes writes of the Interrupt Line on: the server keeps the register"),
            interrupt_line,
        ),
        (
            "command-register",
            Source::Qemu(
                "passes writes of Command on: the server keeps memory space and bus mastering",
            ),
            command_register,
        ),
        (
            "bar-sizes",
            Source::Qemu(
                "lets firmware size BARs: the server's mask of each agrees with the region's size",
            ),
            bar_sizes,
        ),
    ],
};

/// The registers of config space (PCI Local Bus 3.0, 6.1).
const COMMAND: u64 = 0x04;
const STATUS: u64 = 0x06;
const HEADER_TYPE: u64 = 0x0e;
const BARS: u64 = 0x10;
const CAPABILITIES: u64 = 0x34;
const INTERRUPT_LINE: u64 = 0x3c;
/// Memory space and bus mastering in Command.
const ENABLED: u16 = 0b110;
/// Capabilities List in Status.
const HAS_CAPABILITIES: u16 = 1 << 4;
/// An I/O BAR, and a 64-bit memory BAR.
const IO: u32 = 1;
const TYPE: u32 = 0b110;
const WIDE: u32 = 0b100;

/// Reads from config space.
pub(super) fn config(session: &mut Session, offset: u64, count: u32) -> Outcome<Vec<u8>> {
    let access = region_access(CONFIG, offset, count);
    let reply = session.success(command::REGION_READ, &access)?;
    let data = reply.payload.strip_prefix(access.as_slice());
    let count = usize::try_from(count).unwrap_or_default();
    let data = data.filter(|data| data.len() == count);
    let text = format!("the access, then {count} bytes of data");
    data.map(<[u8]>::to_vec)
        .ok_or_else(|| session.violation(text))
}

/// Reads a byte of config space.
pub(super) fn config_byte(session: &mut Session, offset: u64) -> Outcome<u8> {
    let data = config(session, offset, 1)?;
    Ok(data.first().copied().unwrap_or_default())
}

fn config_word(session: &mut Session, offset: u64) -> Outcome<u16> {
    let data = config(session, offset, 2)?;
    Ok(u16_at(&data, 0).unwrap_or_default())
}

fn config_dword(session: &mut Session, offset: u64) -> Outcome<u32> {
    let data = config(session, offset, 4)?;
    Ok(u32_at(&data, 0).unwrap_or_default())
}

/// Writes to config space.
pub(super) fn set_config(session: &mut Session, offset: u64, data: &[u8]) -> Outcome {
    let count = u32::try_from(data.len()).unwrap_or_default();
    let access = region_access(CONFIG, offset, count);
    let payload = [&access, data].concat();
    let reply = session.success(command::REGION_WRITE, &payload)?;
    let is_right = reply.payload == access;
    session.expect(is_right, "the access of the request, without data")
}

/// Returns the offset of a capability (PCI Local Bus 3.0, 6.7).
pub(super) fn capability(session: &mut Session, id: u8) -> Outcome<Option<u64>> {
    if config_word(session, STATUS)? & HAS_CAPABILITIES == 0 {
        return Ok(None);
    }
    let mut at = u64::from(config_byte(session, CAPABILITIES)? & !3);
    // A list that is longer has a loop.
    for _ in 0..64 {
        if at == 0 {
            break;
        }
        if config_byte(session, at)? == id {
            return Ok(Some(at));
        }
        at = u64::from(config_byte(session, at + 1)? & !3);
    }
    Ok(None)
}

fn read(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    for (offset, count) in [(0, 1), (0, 2), (0, 4), (0x3c, 4)] {
        config(session, offset, count)?;
    }
    Ok(())
}

fn read_sizes(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    let mut single = Vec::new();
    for offset in (0..64).step_by(4) {
        single.extend(config(session, offset, 4)?);
    }
    let whole = config(session, 0, 64)?;
    session.expect(whole == single, "the same data as by reads of 4 bytes")?;
    config(session, 0, 256).map(drop)
}

fn past_the_end(checker: &mut Checker) -> Outcome {
    let (session, device) = checker.device()?;
    for region in device.regions.iter().filter(|region| region.has(READ)) {
        for (offset, count) in [(region.size, 1), (region.size.saturating_sub(1), 2)] {
            let access = region_access(region.index, offset, count);
            session.refusal(command::REGION_READ, &access)?;
        }
    }
    Ok(())
}

fn overflow(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    for (offset, count) in [(u64::MAX, 1), (u64::MAX - 3, 4), (u64::MAX - 3, 8)] {
        let access = region_access(CONFIG, offset, count);
        session.refusal(command::REGION_READ, &access)?;
    }
    Ok(())
}

fn unknown_region(checker: &mut Checker) -> Outcome {
    let (session, device) = checker.device()?;
    for index in [device.region_count, u32::MAX] {
        let access = region_access(index, 0, 4);
        session.refusal(command::REGION_READ, &access)?;
        session.refusal(command::REGION_WRITE, &[access, vec![0; 4]].concat())?;
    }
    Ok(())
}

fn wrong_way(checker: &mut Checker) -> Outcome {
    let (session, device) = checker.device()?;
    let mut is_tried = false;
    for region in &device.regions {
        let access = region_access(region.index, 0, 4);
        if !region.has(READ) {
            is_tried = true;
            session.refusal(command::REGION_READ, &access)?;
        }
        if !region.has(WRITE) {
            is_tried = true;
            session.refusal(command::REGION_WRITE, &[access, vec![0; 4]].concat())?;
        }
    }
    let reason = || Failing::not_applicable("all regions have READ and WRITE");
    is_tried.then_some(()).ok_or_else(reason)
}

fn too_much(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    for count in [(16 << 20) + 1, u32::MAX] {
        session.answered(command::REGION_READ, &region_access(CONFIG, 0, count), &[])?;
    }
    Ok(())
}

fn nothing(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    for command in [command::REGION_READ, command::REGION_WRITE] {
        session.answered(command, &region_access(CONFIG, 0, 0), &[])?;
    }
    Ok(())
}

fn write(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    let line = config_byte(session, INTERRUPT_LINE)?;
    set_config(session, INTERRUPT_LINE, &[line])
}

fn write_length(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    // The vendor is read-only, so that nothing changes even if the write is carried out.
    let access = region_access(CONFIG, 0, 4);
    session.refusal(command::REGION_WRITE, &[&access[..], &[0; 2]].concat())?;
    Ok(())
}

fn bar_read(checker: &mut Checker) -> Outcome {
    if !checker.options.bars {
        return Err(Failing::not_applicable("reads from BARs only with --bars"));
    }
    let (session, device) = checker.device()?;
    let bars = device.regions.iter().filter(|region| region.index < 6);
    for bar in bars.filter(|bar| bar.has(READ) && bar.size >= 4) {
        let access = region_access(bar.index, 0, 4);
        let reply = session.success(command::REGION_READ, &access)?;
        let bytes = reply.payload.len();
        session.expect(bytes == 20, "the access, then 4 bytes of data")?;
    }
    Ok(())
}

fn widths(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    let dword = config(session, 0, 4)?;
    let words = [config(session, 0, 2)?, config(session, 2, 2)?].concat();
    let mut bytes = Vec::new();
    for offset in 0..4 {
        bytes.extend(config(session, offset, 1)?);
    }
    let is_same = dword == words && dword == bytes;
    session.expect(is_same, "the same bytes by accesses of 1, 2 and 4 bytes")?;
    let vendor = u16_at(&dword, 0).unwrap_or(u16::MAX);
    session.expect(vendor != u16::MAX, "a vendor ID other than 0xffff")
}

fn interrupt_line(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    let line = config_byte(session, INTERRUPT_LINE)?;
    set_config(session, INTERRUPT_LINE, &[line ^ 0x5a])?;
    let found = config_byte(session, INTERRUPT_LINE)?;
    let outcome = session.expect_equal("Interrupt Line", found, line ^ 0x5a);
    set_config(session, INTERRUPT_LINE, &[line])?;
    outcome
}

fn command_register(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    let before = config_word(session, COMMAND)?;
    let mut outcome = Ok(());
    for bits in [ENABLED, 0] {
        set_config(session, COMMAND, &(before & !ENABLED | bits).to_le_bytes())?;
        let found = config_word(session, COMMAND)? & ENABLED;
        outcome = outcome.and(session.expect_equal("memory space and bus mastering", found, bits));
    }
    set_config(session, COMMAND, &before.to_le_bytes())?;
    outcome
}

fn bar_sizes(checker: &mut Checker) -> Outcome {
    let (session, device) = checker.device()?;
    if config_byte(session, HEADER_TYPE)? & 0x7f != 0 {
        return Err(Failing::not_applicable(
            "config space has another type of header",
        ));
    }
    let before = config_word(session, COMMAND)?;
    // Otherwise a BAR would decode other addresses for a moment.
    set_config(session, COMMAND, &(before & !0b111).to_le_bytes())?;
    let mut outcome = Ok(());
    let mut index = 0;
    while index < 6 {
        let expected = device.region(index).map_or(0, |region| region.size);
        let (size, registers) = bar_size(session, index)?;
        let is_right = match expected {
            0 => size == 0,
            // A BAR's size is a power of two.
            expected => expected.checked_next_power_of_two() == Some(size),
        };
        let text = format!("a mask of BAR{index} for {expected:#x} bytes, not {size:#x}");
        outcome = outcome.and(session.expect(is_right, text));
        index += registers;
    }
    set_config(session, COMMAND, &before.to_le_bytes())?;
    outcome
}

/// Writes all ones to a BAR and reads its mask (PCI Local Bus 3.0, 6.2.5.1). Returns its size and
/// its number of registers.
fn bar_size(session: &mut Session, index: u32) -> Outcome<(u64, u32)> {
    let (mask, flags) = mask(session, index)?;
    let is_io = flags & IO != 0;
    let is_wide = !is_io && flags & TYPE == WIDE && index < 5;
    let low = u64::from(mask & if is_io { !0b11 } else { !0b1111 });
    if !is_wide {
        return Ok((size(low | u64::from(u32::MAX) << 32, low), 1));
    }
    let (high, _) = self::mask(session, index + 1)?;
    let whole = low | u64::from(high) << 32;
    Ok((size(whole, whole), 2))
}

/// Returns the size for which a mask stands, or 0 if no bit of it can be set.
fn size(mask: u64, settable: u64) -> u64 {
    match settable {
        0 => 0,
        _ => (!mask).wrapping_add(1),
    }
}

/// Returns the mask of a BAR's register, and the register's old value, which it has again.
fn mask(session: &mut Session, index: u32) -> Outcome<(u32, u32)> {
    let register = BARS + 4 * u64::from(index);
    let before = config_dword(session, register)?;
    set_config(session, register, &u32::MAX.to_le_bytes())?;
    let mask = config_dword(session, register)?;
    set_config(session, register, &before.to_le_bytes())?;
    Ok((mask, before))
}
