//! Places of two memories between which requests write, and what they must have in the end.

use std::collections::{HashMap, VecDeque};

use anyhow::{Context as _, bail, ensure};
use peerbar_rdma_end::{Answer, Command, End, MARGIN, Span, content};

use super::DEPTH;

/// Bytes of a slot.
pub(crate) const SIZE: u32 = 64 << 10;
/// Slots of the memory that is written to: half of them are idle.
const TARGETS: u32 = 2 * DEPTH;
/// Slots of the memory that is read.
const SOURCES: u32 = TARGETS + 1;
/// What the target has where nothing was written.
const UNTOUCHED: u8 = 0xa5;

/// Where a request reads and where it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Its number.
    pub(crate) id: u64,
    /// Offset of the first byte that it reads.
    pub(crate) source: u64,
    /// Offset of the first byte that it writes.
    pub(crate) target: u64,
}

/// What the last requests to a slot of the target read, by their sources' numbers.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    /// The last one that succeeded.
    last: Option<u32>,
    /// One after that, which failed.
    failed: Option<u32>,
}

/// The slots of both memories. No request writes to a slot of another one in progress, and each slot gets another content each time.
#[derive(Debug)]
pub(crate) struct Slots {
    seed: u64,
    next: u64,
    idle: VecDeque<u32>,
    running: HashMap<u64, (u32, u32)>,
    /// For each slot of the target.
    written: Vec<Written>,
}

impl Slots {
    /// What each memory needs.
    pub(crate) fn bytes() -> u64 {
        offset(SOURCES).saturating_add(MARGIN)
    }

    /// None of which has been used. The contents are those of `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            seed,
            next: 0,
            idle: (0..TARGETS).collect(),
            running: HashMap::new(),
            written: (0..TARGETS).map(|_| Written::default()).collect(),
        }
    }

    /// Gives each slot of `near` a content of its own, and those of `far` another.
    pub(crate) fn fill(&self, near: &mut dyn End, far: &mut dyn End) -> anyhow::Result<()> {
        for source in 0..SOURCES {
            let (span, seed) = (span(source), self.seed_of(source));
            expect(near, &Command::Put { span, seed })?;
        }
        let span = Span {
            offset: 0,
            length: u32::try_from(Self::bytes())?,
        };
        let value = UNTOUCHED;
        expect(far, &Command::Fill { span, value })
    }

    /// The next request. It writes to the slot that has been idle for longest.
    pub(crate) fn next(&mut self) -> anyhow::Result<Request> {
        let target = self.idle.pop_front().context("all slots are in use")?;
        let source = match self.written(target)?.last {
            Some(last) => (last + 1) % SOURCES,
            None => target,
        };
        let id = self.next;
        self.next += 1;
        self.running.insert(id, (source, target));
        Ok(Request {
            id,
            source: offset(source),
            target: offset(target),
        })
    }

    /// Request `id` has ended. A slot whose request failed is used no more.
    pub(crate) fn complete(&mut self, id: u64, has_succeeded: bool) -> anyhow::Result<()> {
        let ended = self.running.remove(&id);
        let (source, target) = ended.with_context(|| format!("request {id} is not in progress"))?;
        let written = self.written(target)?;
        if has_succeeded {
            written.last = Some(source);
            self.idle.push_back(target);
        } else {
            written.failed = Some(source);
        }
        Ok(())
    }

    /// Checks that each slot of the target, all of which `seen` is, has what the last request that succeeded wrote. Where one has failed
    /// after that, each byte may also be what that was to write. Nothing else may have changed.
    pub(crate) fn expect_target(&self, seen: &[u8]) -> anyhow::Result<()> {
        let running = self.running.len();
        ensure!(running == 0, "{running} requests have not ended");
        let mut at = usize::try_from(MARGIN)?;
        let (before, mut rest) = seen.split_at_checked(at).context("no memory")?;
        for (target, written) in self.written.iter().enumerate() {
            let (slot, after) = rest
                .split_at_checked(usize::try_from(SIZE)?)
                .context("less memory than slots")?;
            self.judge(slot, *written)
                .with_context(|| format!("slot {target} of the target, seed {}", self.seed))?;
            (rest, at) = (after, at.saturating_add(slot.len()));
        }
        for (first, margin) in [(0, before), (at, rest)] {
            let wrong = margin.iter().position(|&byte| byte != UNTOUCHED);
            ensure!(
                wrong.is_none(),
                "byte {} of the target has changed, where no request writes",
                wrong.unwrap_or_default().saturating_add(first)
            );
        }
        Ok(())
    }

    /// Checks that each slot of `near` has the content that it was given.
    pub(crate) fn expect_source(&self, near: &mut dyn End) -> anyhow::Result<()> {
        for source in 0..SOURCES {
            let (span, seed) = (span(source), self.seed_of(source));
            expect(near, &Command::Expect { span, seed })
                .with_context(|| format!("slot {source} of the source, seed {}", self.seed))?;
        }
        Ok(())
    }

    fn judge(&self, seen: &[u8], Written { last, failed }: Written) -> anyhow::Result<()> {
        let of = |source: Option<u32>| match source {
            Some(source) => content(self.seed_of(source), SIZE),
            None => vec![UNTOUCHED; seen.len()],
        };
        let old = of(last);
        let new = failed.map_or_else(|| old.clone(), |source| of(Some(source)));
        let wrong = seen
            .iter()
            .zip(old.iter().zip(&new))
            .position(|(seen, (old, new))| seen != old && seen != new);
        match wrong {
            None => Ok(()),
            Some(at) => bail!(
                "byte {at} is of neither the last request that succeeded (source {last:?}) nor of one that failed ({failed:?})"
            ),
        }
    }

    fn seed_of(&self, source: u32) -> u64 {
        self.seed.wrapping_add(source.into())
    }

    fn written(&mut self, target: u32) -> anyhow::Result<&mut Written> {
        let slot = self.written.get_mut(usize::try_from(target)?);
        slot.with_context(|| format!("there is no slot {target}"))
    }
}

/// First byte of a slot.
fn offset(slot: u32) -> u64 {
    MARGIN.saturating_add(u64::from(slot) * u64::from(SIZE))
}

fn span(slot: u32) -> Span {
    Span {
        offset: offset(slot),
        length: SIZE,
    }
}

fn expect(end: &mut dyn End, command: &Command) -> anyhow::Result<()> {
    match end.ask(command)? {
        Answer::Done => Ok(()),
        Answer::Differs { reason } | Answer::Failed { reason } => bail!("{reason}"),
        other => bail!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(slot: u64) -> std::ops::Range<usize> {
        let start = usize::try_from(slot).unwrap();
        start..start + usize::try_from(SIZE).unwrap()
    }

    /// What a request writes.
    fn payload(slots: &Slots, request: Request) -> Vec<u8> {
        let source = (request.source - MARGIN) / u64::from(SIZE);
        content(slots.seed_of(u32::try_from(source).unwrap()), SIZE)
    }

    /// Slots whose targets were all written twice, and a request in progress.
    fn used() -> (Slots, Vec<u8>, Request) {
        let mut slots = Slots::new(7);
        let mut target = vec![UNTOUCHED; usize::try_from(Slots::bytes()).unwrap()];
        for _ in 0..2 * TARGETS {
            let request = slots.next().unwrap();
            target[bytes(request.target)].copy_from_slice(&payload(&slots, request));
            slots.complete(request.id, true).unwrap();
        }
        let last = slots.next().unwrap();
        (slots, target, last)
    }

    #[test]
    fn target_has_what_was_acknowledged_and_nothing_else() {
        let (mut slots, mut target, last) = used();
        assert!(slots.expect_target(&target).is_err(), "one is in progress");
        slots.complete(last.id, true).unwrap();
        // It was acknowledged, and the slot has what the request before it wrote.
        let error = format!("{:#}", slots.expect_target(&target).unwrap_err());
        assert!(
            error.starts_with("slot 0 of the target, seed 7: byte 0 is of neither"),
            "{error}"
        );
        target[bytes(last.target)].copy_from_slice(&payload(&slots, last));
        slots.expect_target(&target).unwrap();
        for changed in [0, bytes(last.target).end, target.len() - 1] {
            target[changed] ^= 1;
            assert!(slots.expect_target(&target).is_err(), "byte {changed}");
            target[changed] ^= 1;
        }
    }

    #[test]
    fn failed_request_may_have_written_its_bytes_alone() {
        let (mut slots, mut target, last) = used();
        slots.complete(last.id, false).unwrap();
        slots.expect_target(&target).unwrap();
        let half = bytes(last.target).start..bytes(last.target).start + 1000;
        let written = payload(&slots, last);
        target[half.clone()].copy_from_slice(&written[..1000]);
        slots.expect_target(&target).unwrap();
        target[half.start] = !written[0];
        assert!(slots.expect_target(&target).is_err());
    }

    #[test]
    fn slot_of_a_failed_request_is_used_no_more() {
        let (mut slots, _, last) = used();
        slots.complete(last.id, false).unwrap();
        assert!(slots.complete(last.id, false).is_err(), "it has ended");
        for _ in 1..TARGETS {
            assert_ne!(slots.next().unwrap().target, last.target);
        }
        assert!(slots.next().is_err(), "all slots are in use");
    }
}
