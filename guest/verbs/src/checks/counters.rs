//! Completion counters in memory of the host or of a GPU, compared with the adapter's completion of
//! each work request.

use anyhow::{Context as _, ensure};
use peerbar_gds::ExportPolicy;
use peerbar_verbs::{
    Change, CompletionCounter, Context, Operation, ProtectionDomain, QueuePair, Status, Word,
    counted,
};

use super::loopback::Loopback;
use super::memory::{Memory, MemoryKind, PAGE};
use super::report::Report;
use super::{DEPTH, TIME_OUT};

/// Bytes of a transfer, more than fit into a packet.
const LENGTH: u32 = 100_000;
/// Number of times that each work request is posted.
const TIMES: u64 = 3;

/// Offsets of the words of each counter.
const SENDER: u64 = 0;
const RECEIVER: u64 = 64;
const TARGET: u64 = 128;

/// Makes the adapter `nic` count, in words in memory of this kind, its work with memory of the
/// host.
pub(crate) fn run(nic: &str, kind: MemoryKind, report: &mut Report) -> anyhow::Result<()> {
    let fixture = Fixture::new(nic, kind)?;
    let in_use = fixture
        .counters
        .each_ref()
        .map(|it| it.modify(Word::Errors, Change::Set(0)));
    report.add(
        "words start at 0 and can be set",
        in_use
            .into_iter()
            .collect::<Result<Vec<()>, _>>()
            .map_err(Into::into)
            .and_then(|_| fixture.expect("at first", [[0, 0]; 3])),
    );
    report.add("sends and receives", fixture.messages());
    report.add("writes and reads", fixture.transfers());
    report.add("errors", fixture.errors());
    report.add("words that are set and added to", fixture.changes());
    report.add("a second counter of the same operations", fixture.overlap());
    report.add("counters that are in use", fixture.destruction());
    Ok(())
}

/// Two queue pairs with counters: of the first one's sends, of the second one's receives, and of
/// others' accesses to its memory.
struct Fixture {
    ends: Loopback,
    counters: [CompletionCounter; 3],
    words: Memory,
}

impl Fixture {
    fn new(nic: &str, kind: MemoryKind) -> anyhow::Result<Self> {
        let context = Context::open(nic)?;
        let domain = ProtectionDomain::new(&context)?;
        let words = Memory::new(kind, PAGE)?;
        words.write(0, &vec![0xff; usize::try_from(PAGE)?])?;
        let counter = |offset| counter(&context, &words, offset);
        let counters = [counter(SENDER)?, counter(RECEIVER)?, counter(TARGET)?];
        let pairs = [
            QueuePair::new(&domain, DEPTH)?,
            QueuePair::new(&domain, DEPTH)?,
        ];
        let [asking, asked] = pairs;
        let [sent, received, remote] = &counters;
        sent.attach(&asking, counted::SEND | counted::WRITE | counted::READ)?;
        received.attach(&asked, counted::RECEIVE)?;
        remote.attach(&asked, counted::REMOTE_WRITE | counted::REMOTE_READ)?;
        for pair in [&asking, &asked] {
            pair.start(0)?;
        }
        Ok(Self {
            ends: Loopback::new(&domain, [asking, asked], LENGTH.into())?,
            counters,
            words,
        })
    }

    /// Posts a request [`TIMES`] times. Each must end with this status.
    fn ask(&self, operation: Operation, status: Status) -> anyhow::Result<()> {
        for id in 0..TIMES {
            let length = match operation {
                Operation::Send => 64,
                _ => LENGTH,
            };
            self.ends.post(id, operation, length)?;
            let done = self.ends.asking.wait(TIME_OUT)?;
            ensure!(
                done.status == status,
                "{operation:?} ended with {}",
                done.status
            );
        }
        Ok(())
    }

    /// Checks the words of all counters: completions and errors. They are updated no later than the
    /// completion appears.
    fn expect(&self, when: &str, wanted: [[u64; 2]; 3]) -> anyhow::Result<()> {
        for (offset, wanted) in [SENDER, RECEIVER, TARGET].into_iter().zip(wanted) {
            for (word, wanted) in wanted.into_iter().enumerate() {
                let at = offset + 8 * word as u64;
                let kept = self.words.expect(at, &wanted.to_le_bytes());
                kept.with_context(|| format!("{when}, the word at {at} is not {wanted}"))?;
            }
        }
        Ok(())
    }

    fn messages(&self) -> anyhow::Result<()> {
        for id in 0..TIMES {
            let into = self.ends.target.1.local(0, 64);
            self.ends.asked.post_receive(id, into)?;
        }
        self.ask(Operation::Send, Status::SUCCESS)?;
        for _ in 0..TIMES {
            self.ends.asked.wait(TIME_OUT)?.succeeded()?;
        }
        self.expect("after sends", [[TIMES, 0], [TIMES, 0], [0, 0]])
    }

    fn transfers(&self) -> anyhow::Result<()> {
        let there = self.ends.there();
        self.ask(Operation::Write(there), Status::SUCCESS)?;
        self.ask(Operation::Read(there), Status::SUCCESS)?;
        let wanted = [[3 * TIMES, 0], [TIMES, 0], [2 * TIMES, 0]];
        self.expect("after writes and reads", wanted)
    }

    fn errors(&self) -> anyhow::Result<()> {
        let mut nowhere = self.ends.there();
        nowhere.key ^= 1;
        self.ask(Operation::Write(nowhere), Status::REMOTE_ACCESS)?;
        let wanted = [[3 * TIMES, TIMES], [TIMES, 0], [2 * TIMES, 0]];
        self.expect("after writes by a wrong key", wanted)
    }

    fn changes(&self) -> anyhow::Result<()> {
        let [sent, received, _] = &self.counters;
        sent.modify(Word::Completions, Change::Set(u64::MAX - 1))?;
        received.modify(Word::Errors, Change::Add(1 << 40))?;
        self.ask(Operation::Write(self.ends.there()), Status::SUCCESS)?;
        let wanted = [[1, TIMES], [TIMES, 1 << 40], [3 * TIMES, 0]];
        self.expect("after changes", wanted)
    }

    fn overlap(&self) -> anyhow::Result<()> {
        let pair = QueuePair::new(&self.ends.domain, DEPTH)?;
        let [sent, received, _] = &self.counters;
        sent.attach(&pair, counted::SEND | counted::READ)?;
        let refused = received.attach(&pair, counted::READ | counted::WRITE);
        ensure!(
            refused
                .as_ref()
                .is_err_and(|it| it.number() == Some(libc::EBUSY)),
            "a second counter of reads gave {refused:?}"
        );
        received.attach(&pair, counted::WRITE)?;
        pair.initialize()?;
        pair.receive_from_now_on()?;
        let refused = received.attach(&pair, counted::RECEIVE);
        ensure!(
            refused
                .as_ref()
                .is_err_and(|it| it.number() == Some(libc::EINVAL)),
            "a counter of a queue pair that receives gave {refused:?}"
        );
        Ok(())
    }

    fn destruction(&self) -> anyhow::Result<()> {
        let pair = QueuePair::new(&self.ends.domain, DEPTH)?;
        let context = self.ends.domain.context();
        let own = counter(context, &self.words, 256)?;
        own.attach(&pair, counted::SEND)?;
        drop(pair);
        own.destroy()?;
        self.ask(Operation::Write(self.ends.there()), Status::SUCCESS)?;
        self.expect(
            "at last",
            [[1 + TIMES, TIMES], [TIMES, 1 << 40], [4 * TIMES, 0]],
        )
    }
}

/// Makes a counter with its words at this offset of the memory.
fn counter(context: &Context, words: &Memory, offset: u64) -> anyhow::Result<CompletionCounter> {
    Ok(match words {
        Memory::Host(mapping) => CompletionCounter::in_memory(context, mapping.clone(), offset)?,
        Memory::Vram(buffer, _) => {
            let dma_buf = buffer.export_as(ExportPolicy::Pinned)?;
            CompletionCounter::in_dma_buf(context, dma_buf, offset)?
        }
    })
}
