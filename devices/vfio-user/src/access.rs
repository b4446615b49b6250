//! REGION_READ, REGION_WRITE and REGION_WRITE_MULTI: only ranges inside a region reach the device.

use std::time::{Duration, Instant};

use rustix::io::Errno;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

use crate::device::Device;
use crate::request::{Answer, parse};
use crate::version::MAX_TRANSFER;
use crate::wire::{RegionAccess, RegionWrite};

#[derive(Clone, Copy)]
enum Direction {
    Read,
    Write,
}

/// vfio-user, REGION_READ. A read of 0 bytes succeeds and never reaches the device.
pub(crate) fn read<'d>(device: &mut dyn Device, payload: &[u8]) -> Result<Answer<'d>, Errno> {
    let (access, _) = parse::<RegionAccess>(payload)?;
    let count = check(device, access, Direction::Read)?;
    let mut reply = access.as_bytes().to_vec();
    let start = reply.len();
    reply.resize(start.saturating_add(count), 0);
    let data = reply.get_mut(start..).unwrap_or_default();
    if !data.is_empty() {
        device.region_read(access.region.get(), access.offset.get(), data)?;
    }
    Ok(reply.into())
}

/// vfio-user, REGION_WRITE. A write of 0 bytes succeeds and never reaches the device.
pub(crate) fn write<'d>(device: &mut dyn Device, payload: &[u8]) -> Result<Answer<'d>, Errno> {
    let (access, data) = parse::<RegionAccess>(payload)?;
    if check(device, access, Direction::Write)? != data.len() {
        return Err(Errno::INVAL);
    }
    if !data.is_empty() {
        device.region_write(access.region.get(), access.offset.get(), data)?;
    }
    Ok(access.as_bytes().to_vec().into())
}

/// Limit of writes in a REGION_WRITE_MULTI: QEMU sends no more (VFIO_USER_MULTI_MAX).
const MOST_WRITES: usize = 200;
/// Time limit for the writes of one message, so that a device whose writes wait for a peer can soon
/// serve its next client, or stop.
const LONGEST: Duration = Duration::from_secs(1);

/// vfio-user, REGION_WRITE_MULTI. Ends at the first write that fails, and after [`LONGEST`]. The
/// reply has the number of writes that succeeded, and is an error only if that is 0. E2BIG for more
/// than [`MOST_WRITES`].
pub(crate) fn write_multi<'d>(
    device: &mut dyn Device,
    payload: &[u8],
) -> Result<Answer<'d>, Errno> {
    let (announced, rest) = parse::<U64>(payload)?;
    let writes = <[RegionWrite]>::ref_from_bytes(rest).map_err(|_| Errno::INVAL)?;
    if u64::try_from(writes.len()) != Ok(announced.get()) {
        return Err(Errno::INVAL);
    }
    if writes.len() > MOST_WRITES {
        return Err(Errno::TOOBIG);
    }
    let deadline = Instant::now() + LONGEST;
    let mut done = 0_u64;
    for one in writes {
        if done > 0 && deadline <= Instant::now() {
            log::warn!(
                "{done} of {} writes took a second: the rest is left out",
                writes.len()
            );
            break;
        }
        match write_one(device, one) {
            Ok(()) => done = done.saturating_add(1),
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done.to_le_bytes().to_vec().into())
}

fn write_one(device: &mut dyn Device, one: &RegionWrite) -> Result<(), Errno> {
    let count = check(device, &one.access, Direction::Write)?;
    let data = one.data.get(..count).ok_or(Errno::INVAL)?;
    if data.is_empty() {
        return Ok(());
    }
    device.region_write(one.access.region.get(), one.access.offset.get(), data)
}

/// Checks an access. Returns its length.
fn check(device: &dyn Device, access: &RegionAccess, direction: Direction) -> Result<usize, Errno> {
    let region = device.region(access.region.get()).ok_or(Errno::INVAL)?;
    let allowed = match direction {
        Direction::Read => region.readable,
        Direction::Write => region.writable,
    };
    let count = access.count.get();
    let end = access.offset.get().checked_add(count.into());
    if !allowed || count > MAX_TRANSFER || end.is_none_or(|end| end > region.size) {
        return Err(Errno::INVAL);
    }
    usize::try_from(count).map_err(|_| Errno::INVAL)
}
