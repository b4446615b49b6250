//! Copies from disk to disk, and who carried the bytes.

use std::fs::File;
use std::io;
use std::thread;

use anyhow::{Context, anyhow, ensure};
use peerbar_report::{Buffer, Copy, Measure};

use crate::counters::{Traffic, Witness};
use crate::devices::Controller;
use crate::disk;
use crate::lab::Lab;
use crate::memory::Memory;
use crate::pattern::Pattern;

pub(super) fn run(lab: &Lab, copy: &Copy, measure: &mut Measure) -> anyhow::Result<()> {
    let (from, to) = (lab.controller(&copy.from)?, lab.controller(&copy.to)?);
    let layout = Layout::of(copy)?;
    measure.sizes = size_range(&copy.sizes);
    let mut lanes = (0..copy.threads)
        .map(|number| Lane::open(lab, copy, &layout, number))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut witness = Witness::new(&lab.controllers);
    for (size, offset) in copy
        .sizes
        .iter()
        .flat_map(|size| copy.offsets.iter().map(move |offset| (*size, *offset)))
    {
        for place in lanes.iter().map(|lane| layout.place(lane.number, offset)) {
            from.disk.check(place.source, size)?;
            to.disk.check(place.target, size)?;
        }
        let moved = round(lab, from, &layout, &mut lanes, &mut witness, size, offset)
            .map_err(|error| explain(&copy.through, error))
            .with_context(|| format!("copying {size} bytes at offset {offset}"))?;
        measure.bytes = measure.bytes.saturating_add(moved);
        witness.tell(measure);
    }
    judge(
        &copy.through,
        &expected(from, to, measure.bytes),
        witness.traffic()?,
    )
}

/// Fills the sources, copies in all lanes at once, and compares the targets. Only the copying is watched.
fn round(
    lab: &Lab,
    from: &Controller,
    layout: &Layout,
    lanes: &mut [Lane],
    witness: &mut Witness<'_>,
    size: u64,
    offset: u64,
) -> anyhow::Result<u64> {
    let length = usize::try_from(size)?;
    let pattern = lab.fresh_pattern(from);
    for lane in &*lanes {
        disk::fill(
            &lane.source,
            pattern,
            layout.place(lane.number, offset).source,
            length,
        )?;
    }
    witness.watch(|| transfer(layout, lanes, offset, length))?;
    for lane in &*lanes {
        lane.compare(pattern, layout.place(lane.number, offset), length)
            .with_context(|| format!("the data that thread {} copied is wrong", lane.number))?;
    }
    Ok(size.saturating_mul(lanes.len() as u64))
}

fn transfer(layout: &Layout, lanes: &mut [Lane], offset: u64, length: usize) -> anyhow::Result<()> {
    thread::scope(|scope| {
        let threads: Vec<_> = lanes
            .iter_mut()
            .map(|lane| {
                let place = layout.place(lane.number, offset);
                scope.spawn(move || lane.carry(place, length))
            })
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .map_err(|_| anyhow!("a copying thread panicked"))?
        })
    })
}

/// One thread's part: its handles on both disks and a buffer of its own.
#[derive(Debug)]
struct Lane {
    number: u32,
    source: File,
    target: File,
    buffer: Memory,
}

impl Lane {
    fn open(lab: &Lab, copy: &Copy, layout: &Layout, number: u32) -> anyhow::Result<Self> {
        let length = usize::try_from(layout.largest)?;
        let buffer = match &copy.through {
            Buffer::P2pmem(name) => lab.provider(name)?.pool().map(length)?,
            Buffer::GuestRam => {
                Memory::guest_ram(length).context("cannot get memory to copy through")?
            }
        };
        let source = lab.controller(&copy.from)?.disk.open_direct()?;
        let target = lab.controller(&copy.to)?.disk.open_direct()?;
        Ok(Lane {
            number,
            source,
            target,
            buffer,
        })
    }

    fn carry(&mut self, place: Place, length: usize) -> anyhow::Result<()> {
        self.buffer
            .read_from(&self.source, place.source, length)
            .context("from the source")?;
        self.buffer
            .write_to(&self.target, place.target, length)
            .context("to the target")
    }

    /// Reads the target back through guest RAM.
    fn compare(&self, pattern: Pattern, place: Place, length: usize) -> anyhow::Result<()> {
        let seen = disk::read(&self.target, place.target, length).context("reading it back")?;
        Ok(pattern.verify(place.source, &seen)?)
    }
}

/// Which part of the disks each thread has: first the sources, then, as large again, the targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    largest: u64,
    span: u64,
}

/// Where one transfer starts on the disks, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    source: u64,
    target: u64,
}

impl Layout {
    fn of(copy: &Copy) -> anyhow::Result<Self> {
        let largest = copy.sizes.iter().copied().max().unwrap_or(0);
        let farthest = copy.offsets.iter().copied().max();
        ensure!(
            largest > 0 && copy.threads > 0 && farthest.is_some(),
            "the copy has nothing to do: it needs sizes ({:?}), offsets ({:?}) and threads ({})",
            copy.sizes,
            copy.offsets,
            copy.threads
        );
        let span = largest
            .checked_add(farthest.unwrap_or(0))
            .context("sizes and offsets go beyond any disk")?;
        Ok(Layout { largest, span })
    }

    fn place(&self, thread: u32, offset: u64) -> Place {
        let source = self
            .span
            .saturating_mul(2)
            .saturating_mul(thread.into())
            .saturating_add(offset);
        Place {
            source,
            target: source.saturating_add(self.span),
        }
    }
}

/// Adds what the kernel means by the errors that it has for a peer-to-peer mapping it does not do: EREMOTEIO before
/// 6.19 or so, EINVAL since.
fn explain(through: &Buffer, error: anyhow::Error) -> anyhow::Error {
    let code = error
        .root_cause()
        .downcast_ref::<io::Error>()
        .and_then(io::Error::raw_os_error);
    match (through, code) {
        (Buffer::P2pmem(provider), Some(libc::EINVAL | libc::EREMOTEIO)) => error.context(format!(
            "the kernel seems to refuse peer-to-peer DMA with {provider}: the devices need a common switch without ACS \
             redirect, or a host bridge that it trusts; look for \"P2PDMA\" and \"peer-to-peer\" in its log"
        )),
        _ => error,
    }
}

/// Payload that each device of the copy must have moved: the one reads what it writes to the buffer, the other
/// writes what it reads from there; both if they are one.
fn expected(from: &Controller, to: &Controller, bytes: u64) -> Vec<(u32, String, u64)> {
    if from.number == to.number {
        return vec![(from.number, from.name.clone(), bytes.saturating_mul(2))];
    }
    vec![
        (from.number, from.name.clone(), bytes),
        (to.number, to.name.clone(), bytes),
    ]
}

/// The bytes must have gone the one way that the buffer stands for, all of them, and none the other way.
fn judge(
    through: &Buffer,
    expected: &[(u32, String, u64)],
    traffic: &Traffic,
) -> anyhow::Result<()> {
    let failures = traffic.failures();
    ensure!(
        failures == 0,
        "{failures} DMA requests of the devices failed; the servers' logs say which"
    );
    for (number, name, bytes) in expected {
        let (peer, ram) = (
            traffic.payload_to_devices(*number),
            traffic.payload_to_guest_ram(*number),
        );
        match through {
            Buffer::P2pmem(provider) => ensure!(
                peer == *bytes && ram == 0,
                "{name} was to move {bytes} payload bytes to or from the p2pmem of {provider}, none of them through \
                 guest RAM; its counters show {peer} with a device's memory and {ram} with guest RAM"
            ),
            Buffer::GuestRam => ensure!(
                ram == *bytes && peer == 0,
                "{name} was to move {bytes} payload bytes to or from guest RAM; its counters show {ram}, and {peer} \
                 with a device's memory"
            ),
        }
    }
    let strays = traffic
        .payload()
        .saturating_sub(expected.iter().map(|(.., bytes)| bytes).sum());
    ensure!(
        strays == 0,
        "devices that had no part in the copy moved {strays} payload bytes meanwhile"
    );
    Ok(())
}

/// Sizes as a person reads them: the smallest and the largest.
fn size_range(sizes: &[u64]) -> String {
    let bounds = sizes.iter().min().zip(sizes.iter().max());
    match bounds {
        Some((least, most)) if least == most => short(*most),
        Some((least, most)) => format!("{}-{}", short(*least), short(*most)),
        None => String::new(),
    }
}

fn short(bytes: u64) -> String {
    match bytes {
        bytes if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        bytes if bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
        bytes => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use peerbar_nvme_spec::dma_log::{Completer, Purpose, Route};

    use super::*;

    fn copy(sizes: &[u64], offsets: &[u64]) -> Copy {
        let (from, to) = ("a".to_owned(), "b".to_owned());
        Copy {
            from,
            to,
            through: Buffer::GuestRam,
            sizes: sizes.into(),
            offsets: offsets.into(),
            threads: 2,
        }
    }

    fn moved(counts: &[(u32, Completer, u64)]) -> Traffic {
        let mut traffic = Traffic::default();
        for (device, completer, bytes) in counts {
            traffic.count(
                *device,
                (Purpose::Payload, *completer, Route::Upstream),
                *bytes,
                0,
            );
        }
        traffic
    }

    #[test]
    fn no_two_places_overlap() {
        let layout = Layout::of(&copy(&[4096, 8192], &[0, 512])).unwrap();
        assert_eq!(
            layout,
            Layout {
                largest: 8192,
                span: 8704
            }
        );
        assert_eq!(
            layout.place(0, 512),
            Place {
                source: 512,
                target: 9216
            }
        );
        assert_eq!(
            layout.place(1, 0),
            Place {
                source: 17408,
                target: 26112
            }
        );
        assert!(Layout::of(&copy(&[], &[0])).is_err());
        assert!(Layout::of(&copy(&[4096], &[])).is_err());
    }

    #[test]
    fn a_bounce_fails_a_peer_to_peer_copy_and_only_that() {
        let p2p = Buffer::P2pmem("a".into());
        let want = [(0, "a".to_owned(), 4096), (1, "b".to_owned(), 4096)];
        let straight = moved(&[
            (0, Completer::OwnMemory, 4096),
            (1, Completer::PeerBar, 4096),
        ]);
        let bounced = moved(&[
            (0, Completer::GuestRam, 4096),
            (1, Completer::GuestRam, 4096),
        ]);
        assert!(judge(&p2p, &want, &straight).is_ok());
        assert!(judge(&Buffer::GuestRam, &want, &bounced).is_ok());
        let error = judge(&p2p, &want, &bounced).unwrap_err().to_string();
        assert!(
            error.ends_with("its counters show 0 with a device's memory and 4096 with guest RAM"),
            "{error}"
        );
        assert!(judge(&Buffer::GuestRam, &want, &straight).is_err());
    }

    #[test]
    fn a_byte_too_few_or_too_many_fails() {
        let p2p = Buffer::P2pmem("a".into());
        let want = [(0, "a".to_owned(), 4096)];
        assert!(judge(&p2p, &want, &moved(&[(0, Completer::OwnMemory, 4095)])).is_err());
        let both = moved(&[(0, Completer::OwnMemory, 4096), (0, Completer::GuestRam, 1)]);
        assert!(judge(&p2p, &want, &both).is_err());
        let stray = moved(&[(0, Completer::OwnMemory, 4096), (2, Completer::GuestRam, 1)]);
        assert!(
            judge(&p2p, &want, &stray)
                .unwrap_err()
                .to_string()
                .contains("moved 1 payload bytes meanwhile")
        );
    }

    #[test]
    fn sizes_are_told_as_a_range() {
        assert_eq!(size_range(&[8 << 20, 4096, 65536]), "4K-8M");
        assert_eq!(size_range(&[512]), "512");
        assert_eq!(size_range(&[]), "");
    }
}
