//! Dispatch of the client's commands: each is checked, executed by the device, and answered.
//! Independent of the socket.

use std::os::fd::OwnedFd;

use peerbar_pci::{Iova, Range};
use rustix::fs::{AtFlags, FileType, StatxFlags, statx};
use rustix::io::Errno;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use crate::device::{Device, DmaMap};
use crate::framing::Descriptors;
use crate::irqs::Unmasking;
use crate::request::{Answer, ClientCommand, check_argsz, parse};
use crate::wire::{self, command};
use crate::{access, irqs, region_info};

/// Executes `request`. The error goes into the header of the reply; it is ENOTSUP for an unknown
/// command.
pub(crate) fn dispatch<'d>(
    device: &'d mut dyn Device,
    unmasking: &mut Option<Unmasking>,
    request: ClientCommand<'_>,
) -> Result<Answer<'d>, Errno> {
    let payload = request.payload;
    match request.command {
        command::DMA_MAP => dma_map(device, request),
        command::DMA_UNMAP => dma_unmap(device, payload),
        command::DEVICE_GET_INFO => device_info(device, payload),
        command::DEVICE_GET_REGION_INFO => region_info::answer(device, payload),
        command::DEVICE_GET_IRQ_INFO => irqs::info(device, payload),
        command::DEVICE_SET_IRQS => irqs::set(device, unmasking, request),
        command::REGION_READ => access::read(device, payload),
        command::REGION_WRITE => access::write(device, payload),
        command::REGION_WRITE_MULTI => access::write_multi(device, payload),
        command::DEVICE_RESET => device.reset().map(|()| Answer::default()),
        // The version has already been agreed upon.
        command::VERSION => Err(Errno::INVAL),
        _ => Err(Errno::NOTSUP),
    }
}

fn device_info<'d>(device: &dyn Device, payload: &[u8]) -> Result<Answer<'d>, Errno> {
    let (asked, _) = parse::<wire::DeviceInfo>(payload)?;
    check_argsz::<wire::DeviceInfo>(asked.argsz)?;
    let info = device.info();
    let reset = match info.can_reset {
        true => wire::device_info::RESET,
        false => 0,
    };
    let reply = wire::DeviceInfo {
        argsz: U32::new(wire::DeviceInfo::SIZE),
        flags: U32::new(reset | wire::device_info::PCI),
        regions: U32::new(info.regions),
        irqs: U32::new(info.irqs),
    };
    Ok(reply.as_bytes().to_vec().into())
}

fn dma_map<'d>(device: &mut dyn Device, request: ClientCommand<'_>) -> Result<Answer<'d>, Errno> {
    use wire::dma_map::{READ, WRITE};
    let (map, _) = parse::<wire::DmaMap>(request.payload)?;
    check_argsz::<wire::DmaMap>(map.argsz)?;
    let (range, flags) = (range(map.iova, map.size)?, map.flags.get());
    // The client's end of a mapping, iova + size, must not overflow.
    if range.last() == Iova(u64::MAX) || flags & !(READ | WRITE) != 0 {
        return Err(Errno::INVAL);
    }
    device.dma_map(DmaMap {
        range,
        readable: flags & READ != 0,
        writable: flags & WRITE != 0,
        memory: lent_memory(map, request.descriptors)?,
    })?;
    Ok(Answer::default())
}

fn lent_memory(
    map: &wire::DmaMap,
    descriptors: Descriptors,
) -> Result<Option<(OwnedFd, u64)>, Errno> {
    if descriptors.lost {
        return Err(Errno::MFILE);
    }
    if descriptors.sockets > 0 {
        return Err(Errno::INVAL);
    }
    let mut kept = descriptors.kept.into_iter();
    let (first, second) = (kept.next(), kept.next());
    let offset = map.offset.get();
    let is_possible = offset.checked_add(map.size.get()).is_some();
    match (first, second, descriptors.foreign) {
        (None, _, 0) => Ok(None),
        (None, _, 1) if is_possible => {
            log::warn!(
                "mapping {:#x}+{:#x} is reached by messages, slowly: its memory is a file of FUSE or a network's file system",
                map.iova.get(),
                map.size.get()
            );
            Ok(None)
        }
        (Some(memory), None, 0) if is_possible => {
            check_memory(&memory)?;
            Ok(Some((memory, offset)))
        }
        _ => Err(Errno::INVAL),
    }
}

/// Refuses descriptors that cannot be memory, such as a pipe, a socket, a directory or an eventfd.
/// Does not query a file system in user space, which may never answer.
pub(crate) fn check_memory(memory: &OwnedFd) -> Result<(), Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(memory, c"", flags, StatxFlags::TYPE)?;
    match FileType::from_raw_mode(found.stx_mode.into()) {
        FileType::RegularFile | FileType::CharacterDevice => Ok(()),
        _ => Err(Errno::INVAL),
    }
}

fn dma_unmap<'d>(device: &mut dyn Device, payload: &[u8]) -> Result<Answer<'d>, Errno> {
    let (unmap, _) = parse::<wire::DmaUnmap>(payload)?;
    check_argsz::<wire::DmaUnmap>(unmap.argsz)?;
    device.dma_unmap(unmapped_range(unmap)?)?;
    Ok(unmap.as_bytes().to_vec().into())
}

fn unmapped_range(unmap: &wire::DmaUnmap) -> Result<Range<Iova>, Errno> {
    use wire::dma_unmap::{ALL, GET_DIRTY_BITMAP};
    match (unmap.flags.get(), unmap.iova.get(), unmap.size.get()) {
        (ALL, 0, 0) => Ok(Range::all()),
        (0, ..) => range(unmap.iova, unmap.size),
        (flags, ..) if flags & GET_DIRTY_BITMAP != 0 => Err(Errno::NOTSUP),
        _ => Err(Errno::INVAL),
    }
}

fn range(iova: U64, size: U64) -> Result<Range<Iova>, Errno> {
    Range::new(Iova(iova.get()), size.get()).ok_or(Errno::INVAL)
}
