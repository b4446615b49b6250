//! Many transfers at once, by a batch and by a queue: reads and writes mixed, with impossible ones
//! among them. Each has its own outcome.

mod images;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use peerbar_agent::checks::route::judge;
use peerbar_agent::counters::TrafficWatch;
use peerbar_agent::devices::Controller;
use peerbar_agent::gpus;
use peerbar_agent::guest_context::GuestContext;
use peerbar_gds::{
    Buffer, Direction, Error, Gpu, GpuFile, Policy, Queue, Request, Ticket, Traffic, batch,
};
use peerbar_report::Buffer as Through;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::images::{Images, Move, SLOT};
use crate::{PAGE, Test};

/// Number of possible transfers: more than the library keeps in progress at once.
const MOVES: u64 = 80;

/// Number of those that start and end within a block.
const UNALIGNED: u64 = 8;

/// Number of requests that the queue holds.
const DEPTH: u32 = 8;

/// Time limit of a request.
const TIME_OUT: Duration = Duration::from_secs(30);

/// The outcome of a request.
type Ended = peerbar_gds::Result<u64>;

pub(crate) fn run(test: &Test<'_>) -> anyhow::Result<()> {
    let guest = test.guest;
    let (gpu, disk) = (test.gpu()?, test.disk()?);
    let fixture = Fixture::new(guest, gpu, disk)?;
    let mut watch = TrafficWatch::new(guest);
    let by_batch = fixture.aligned(all_at_once, &mut watch);
    let by_queue = fixture.aligned(through_a_queue, &mut watch);
    let bytes = by_batch.context("a batch")? + by_queue.context("a queue")?;
    let through = Through::P2pmem(gpu.name.clone());
    judge(&through, &[disk.share(bytes)], watch.traffic()?)?;
    fixture.unaligned().context("a batch that may bounce")?;
    fixture.dropped_queue().context("a queue that is dropped")?;
    Ok(())
}

fn all_at_once(requests: &[Request]) -> anyhow::Result<Vec<Ended>> {
    Ok(batch(requests.iter().cloned())?)
}

/// Works as an event loop does: pushes until the queue is full, and takes finished requests when
/// its descriptor says so.
fn through_a_queue(requests: &[Request]) -> anyhow::Result<Vec<Ended>> {
    let mut queue = Queue::new(DEPTH)?;
    let mut indexes: BTreeMap<Ticket, usize> = BTreeMap::new();
    let mut outcomes: BTreeMap<usize, Ended> = BTreeMap::new();
    let mut full = 0;
    for (index, request) in requests.iter().enumerate() {
        let mut pushed = queue.push(request.clone());
        while matches!(pushed, Err(Error::QueueFull(DEPTH))) {
            full += 1;
            outcomes.extend(take(&mut queue, &mut indexes)?);
            pushed = queue.push(request.clone());
        }
        match pushed {
            Ok(ticket) => drop(indexes.insert(ticket, index)),
            Err(error) => drop(outcomes.insert(index, Err(error))),
        }
    }
    while queue.pending() > 0 {
        outcomes.extend(take(&mut queue, &mut indexes)?);
    }
    ensure!(full > 0, "{} requests never filled it", requests.len());
    Ok(outcomes.into_values().collect())
}

fn take(
    queue: &mut Queue,
    indexes: &mut BTreeMap<Ticket, usize>,
) -> anyhow::Result<Option<(usize, Ended)>> {
    let timeout = Timespec::try_from(TIME_OUT)?;
    let ready = poll(&mut [PollFd::new(queue, PollFlags::IN)], Some(&timeout))?;
    ensure!(ready > 0, "no request of {} ends", queue.pending());
    let Some(done) = queue.wait()? else {
        bail!("the queue polls readable and has nothing");
    };
    let index = indexes.remove(&done.ticket);
    Ok(Some((
        index.context("a ticket that was given to no request")?,
        done.result,
    )))
}

/// A request that must fail, or end early, and the expected outcome.
struct Odd {
    request: Request,
    wanted: &'static str,
    is_right: fn(&Ended) -> bool,
}

/// Disk, GPU, and a buffer on it.
struct Fixture<'a> {
    guest: &'a GuestContext,
    gpu: &'a gpus::Gpu,
    disk: &'a Controller,
    opened: Gpu,
    file: GpuFile,
    buffer: Buffer,
}

impl<'a> Fixture<'a> {
    fn new(
        guest: &'a GuestContext,
        gpu: &'a gpus::Gpu,
        disk: &'a Controller,
    ) -> anyhow::Result<Self> {
        disk.disk.check(0, MOVES * SLOT)?;
        let opened = gpu.open()?;
        Ok(Fixture {
            guest,
            gpu,
            disk,
            file: disk.open_for(&opened, Policy::PeerOnly)?,
            buffer: opened.allocate(MOVES * SLOT)?,
            opened,
        })
    }

    fn request(&self, file: &GpuFile, part: &Move) -> Request {
        Request {
            direction: part.direction,
            file: file.clone(),
            offset: part.offset,
            buffer: self.buffer.clone(),
            range: part.at..part.at.saturating_add(part.length),
        }
    }

    fn images(&self) -> anyhow::Result<Images> {
        let round = self.guest.fresh_pattern(self.disk);
        Images::store(round, MOVES, &self.disk.disk, &self.buffer)
    }

    /// Checks that possible transfers are peer to peer, and that each impossible one has its own
    /// error, regardless of the others. Returns the number of bytes moved.
    fn aligned(
        &self,
        carry: fn(&[Request]) -> anyhow::Result<Vec<Ended>>,
        watch: &mut TrafficWatch<'_>,
    ) -> anyhow::Result<u64> {
        let mut images = self.images()?;
        let moves: Vec<Move> = (0..MOVES).map(Move::aligned).collect();
        let other = self.gpu.open()?;
        let odd = self.odd(&other)?;
        let mut requests: Vec<Request> = Vec::new();
        for (index, part) in moves.iter().enumerate() {
            requests.extend(odd.get(index).map(|odd| odd.request.clone()));
            requests.push(self.request(&self.file, part));
        }
        let mut outcomes = watch.watch(|| carry(&requests))?.into_iter();
        for (index, part) in moves.iter().enumerate() {
            if let Some(odd) = odd.get(index) {
                let outcome = outcomes.next().context("an outcome is missing")?;
                ensure!(
                    (odd.is_right)(&outcome),
                    "{} should have been the outcome, but it is {outcome:?}",
                    odd.wanted
                );
            }
            let outcome = outcomes.next().context("an outcome is missing")?;
            expect_whole(part, &outcome)?;
            images.apply(part)?;
        }
        ensure!(outcomes.next().is_none(), "there is an outcome too many");
        images.verify(&self.opened, &self.buffer, &self.disk.disk)?;
        // One of the odd ones reads the last page of the disk.
        Ok(PAGE + moves.iter().map(|part| part.length).sum::<u64>())
    }

    /// Makes one request of each kind that cannot be executed as it is.
    fn odd(&self, other: &Gpu) -> anyhow::Result<Vec<Odd>> {
        let page = self.opened.allocate(SLOT)?;
        let [freed, revoked] = [self.opened.allocate(SLOT)?, self.opened.allocate(SLOT)?];
        freed.free()?;
        revoked.revoke()?;
        let end = self.disk.disk.bytes;
        let ask = |direction, buffer: &Buffer, range, offset| Request {
            direction,
            file: self.file.clone(),
            offset,
            buffer: buffer.clone(),
            range,
        };
        let (read, write) = (Direction::Read, Direction::Write);
        let odd = |request, wanted, is_right: fn(&Ended) -> bool| Odd {
            request,
            wanted,
            is_right,
        };
        Ok(vec![
            odd(ask(read, &page, 0..SLOT + 1, 0), "OutOfBounds", |outcome| {
                matches!(outcome, Err(Error::OutOfBounds { .. }))
            }),
            odd(ask(write, &page, 0..PAGE, 5), "Unaligned", |outcome| {
                matches!(outcome, Err(Error::Unaligned { .. }))
            }),
            odd(ask(read, &page, 0..PAGE - 1, 0), "Unaligned", |outcome| {
                matches!(outcome, Err(Error::Unaligned { .. }))
            }),
            odd(ask(write, &freed, 0..PAGE, 0), "Freed", |outcome| {
                matches!(outcome, Err(Error::Freed))
            }),
            odd(ask(read, &revoked, 0..PAGE, 0), "Withdrawn", |outcome| {
                matches!(outcome, Err(Error::Withdrawn { .. }))
            }),
            odd(
                ask(read, &other.allocate(SLOT)?, 0..PAGE, 0),
                "ForeignBuffer",
                |outcome| matches!(outcome, Err(Error::ForeignBuffer)),
            ),
            odd(ask(read, &page, 0..PAGE, end), "0 bytes", |outcome| {
                matches!(outcome, Ok(0))
            }),
            odd(
                ask(read, &page, 0..2 * PAGE, end - PAGE),
                "4096 bytes, up to the disk's end",
                |outcome| matches!(outcome, Ok(PAGE)),
            ),
            odd(ask(write, &page, 0..PAGE, end), "ENOSPC", |outcome| {
                matches!(outcome, Err(Error::Transfer { source, .. })
                    if source.raw_os_error() == Some(libc::ENOSPC))
            }),
        ])
    }

    /// Checks transfers that start and end within a block: the whole blocks are peer to peer and
    /// the rest bounces, to the byte. The GPU's copy engine moves exactly that rest, and the disk
    /// the blocks around it, twice for a write.
    fn unaligned(&self) -> anyhow::Result<()> {
        let file = self.disk.open_for(&self.opened, Policy::AllowBounce)?;
        let block = file.alignment().block;
        let mut images = self.images()?;
        let moves: Vec<Move> = (0..2 * UNALIGNED)
            .map(|slot| match slot % 4 {
                0 | 1 => Move::aligned(slot),
                _ => Move::unaligned(slot, block),
            })
            .collect();
        let requests: Vec<Request> = moves.iter().map(|part| self.request(&file, part)).collect();
        let mut watch = TrafficWatch::new(self.guest);
        let outcomes = watch.watch(|| batch(requests))?;
        let (mut right, mut blocks) = (Traffic::default(), 0);
        for (part, outcome) in moves.iter().zip(&outcomes) {
            expect_whole(part, outcome)?;
            images.apply(part)?;
            right.peer_bytes += part.whole_blocks(block);
            right.bounced_bytes += part.length - part.whole_blocks(block);
            blocks += match part.direction {
                _ if part.length == part.whole_blocks(block) => 0,
                Direction::Read => 2,
                Direction::Write => 4,
            };
        }
        images.verify(&self.opened, &self.buffer, &self.disk.disk)?;
        let seen = watch.traffic()?;
        let counted = (
            file.traffic(),
            seen.payload_to_devices(self.disk.number),
            seen.payload_to_guest_ram(self.disk.number),
            seen.payload_to_guest_ram(self.gpu.number),
        );
        let wanted = (right, right.peer_bytes, blocks * block, right.bounced_bytes);
        ensure!(
            counted == wanted && seen.failures() == 0 && right.bounced_bytes > 0,
            "the library, the disk (peer to peer, through guest RAM) and the GPU counted {counted:?}, expected {wanted:?}; {} DMA requests failed",
            seen.failures()
        );
        Ok(())
    }

    /// Checks that no request is left half done when the queue is dropped, even though nothing
    /// waits for the requests.
    fn dropped_queue(&self) -> anyhow::Result<()> {
        let mut images = self.images()?;
        let mut queue = Queue::new(DEPTH)?;
        for slot in 0..u64::from(DEPTH) {
            let part = Move::aligned(slot);
            queue.push(self.request(&self.file, &part))?;
            images.apply(&part)?;
        }
        drop(queue);
        images.verify(&self.opened, &self.buffer, &self.disk.disk)
    }
}

fn expect_whole(part: &Move, outcome: &Ended) -> anyhow::Result<()> {
    match outcome {
        Ok(moved) if *moved == part.length => Ok(()),
        other => bail!("{part:?} has ended with {other:?}"),
    }
}
