//! Rings and kernels of a GPU, compared with a model that knows every byte of VRAM and of guest
//! memory: data, results, fences, HEAD, status and fault code of each command. Guest memory comes
//! and goes by pages, so that commands fail halfway.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use peerbar_dma::MemoryFile;

use super::gpu_bench::{GpuBench, ON, failed};
use crate::input::Input;

mod model;

use model::{BadCommand, Entry, Memories, PAGE, PAGES, RAM, RAM_AT, TIME_OUT};

/// Maximum number of steps of an input.
const STEPS: usize = 24;
/// Entries of each ring. The rings lie one after the other, at the end of guest memory, where no
/// command of the model reaches.
const ENTRIES: u32 = 8;
const RINGS_AT: u64 = model::RINGS_AT;
const CHANNELS: u8 = 2;
/// Far longer than any command here takes.
const LONG: Duration = Duration::from_secs(20);

/// A channel as its driver knows it.
#[derive(Clone, Copy, Default)]
struct Channel {
    put: u32,
    /// The fault code, once it has failed.
    failed: Option<u8>,
}

struct Fixture {
    gpu: GpuBench,
    ram: Arc<MemoryFile>,
    rings: MemoryFile,
    expected: Memories,
    channels: [Channel; CHANNELS as usize],
}

/// Executes the steps of `data`.
pub fn run(data: &[u8]) {
    static BENCH: OnceLock<Mutex<Fixture>> = OnceLock::new();
    let fixture = BENCH.get_or_init(|| Mutex::new(Fixture::new()));
    let mut fixture = fixture.lock().expect("no earlier failure");
    fixture.start();
    let mut input = Input::new(data);
    for _ in 0..STEPS {
        if fixture.step(&mut input).is_none() {
            break;
        }
    }
    fixture.check_memories();
}

impl Fixture {
    fn new() -> Self {
        let ram = MemoryFile::create("ram", RAM).expect("memory");
        let rings = u64::from(ENTRIES) * model::ENTRY_BYTES as u64 * u64::from(CHANNELS);
        let mut fixture = Self {
            gpu: GpuBench::new(),
            ram: Arc::new(ram),
            rings: MemoryFile::create("rings", rings.next_multiple_of(PAGE)).expect("memory"),
            expected: Memories::new(),
            channels: Default::default(),
        };
        let rings = fixture.rings.file();
        fixture.gpu.map(RINGS_AT, fixture.rings.size(), rings, 0);
        fixture
    }

    /// Restores the start state of every input.
    fn start(&mut self) {
        self.gpu.reset();
        for (start, bytes) in self.expected.clear() {
            match start {
                model::Space::Vram(at) => self.gpu.vram().write(at, bytes).expect("VRAM"),
                model::Space::Ram(at) => self.ram.write(at, bytes).expect("RAM"),
            }
        }
        for page in 0..PAGES {
            self.set_page(page, true);
        }
        for channel in 0..CHANNELS {
            self.enable(channel);
        }
    }

    fn set_page(&mut self, page: u64, present: bool) {
        if self.expected.set_page(page, present) {
            let iova = RAM_AT + page * PAGE;
            match present {
                true => self.gpu.map(iova, PAGE, self.ram.file(), page * PAGE),
                false => self.gpu.unmap(iova, PAGE),
            }
        }
    }

    fn enable(&mut self, channel: u8) {
        let ring = RINGS_AT + self.ring(channel);
        self.gpu.enable(channel, ring, ENTRIES);
        self.channels[usize::from(channel)] = Channel::default();
    }

    fn ring(&self, channel: u8) -> u64 {
        u64::from(channel) * u64::from(ENTRIES) * model::ENTRY_BYTES as u64
    }

    /// Executes a step. Returns `None` at the end of the input.
    fn step(&mut self, input: &mut Input<'_>) -> Option<()> {
        match input.u8()? {
            0..=159 => {
                let channel = input.u8()? % CHANNELS;
                let count = 1 + u32::from(input.u8()? % 3);
                let mut entries: Vec<Entry> =
                    (0..count).map_while(|_| Entry::made_of(input)).collect();
                // A later command may read a NaN.
                let floats = entries.iter().position(Entry::writes_floats);
                entries.truncate(floats.map_or(entries.len(), |at| at + 1));
                self.submit(channel, &entries);
            }
            160..=175 => {
                let entry = Entry::raw(input)?;
                self.submit(0, &[entry]);
            }
            176..=207 => {
                let page = input.u8()?;
                self.set_page(u64::from(page) % PAGES, page & 0x80 != 0);
            }
            208..=231 => self.enable(input.u8()? % CHANNELS),
            232..=239 => self.start_again(),
            240..=247 => self.wait_for_the_other(input)?,
            _ => {
                let (offset, value) = (input.u16()?, input.u32()?);
                // Registers take any value and are read without a panic, and a reset restores the
                // start state.
                let offset = u64::from(offset) & 0x5ffc;
                self.gpu.write(offset, &value.to_le_bytes());
                self.gpu.read(offset);
                self.gpu.work();
                self.start_again();
            }
        }
        Some(())
    }

    /// Resets the device: channels are disabled, and memory stays.
    fn start_again(&mut self) {
        self.gpu.reset();
        for channel in 0..CHANNELS {
            assert_eq!(self.gpu.status(channel), 0);
            self.enable(channel);
        }
    }

    /// Puts commands on a ring, rings the doorbell, and compares the results of the GPU and of the
    /// model.
    fn submit(&mut self, number: u8, entries: &[Entry]) {
        let mut done = self.gpu.head(number);
        self.put(number, entries);
        self.work_off(number);
        let mut channel = self.channels[usize::from(number)];
        let ahead = channel.put.wrapping_sub(done);
        if channel.failed.is_none() && ahead <= ENTRIES {
            for entry in entries {
                match self.expected.execute(entry) {
                    Ok(()) => done = done.wrapping_add(1),
                    Err(BadCommand { code, written }) => {
                        channel.failed = Some(code);
                        self.take_over(written);
                        break;
                    }
                }
            }
        }
        if entries.last().is_some_and(Entry::writes_floats) {
            self.take_over_nans();
        }
        assert_eq!(self.gpu.head(number), done, "{entries:x?}");
        let expected = channel.failed.map_or(ON, |code| failed(code.into()));
        assert_eq!(self.gpu.status(number), expected, "{entries:x?}");
        self.channels[usize::from(number)] = channel;
    }

    /// Puts commands on a ring, and rings the doorbell.
    fn put(&mut self, number: u8, entries: &[Entry]) {
        let mut put = self.channels[usize::from(number)].put;
        for entry in entries {
            let slot = u64::from(put % ENTRIES) * model::ENTRY_BYTES as u64;
            let at = self.ring(number) + slot;
            self.rings.write(at, &entry.bytes()).expect("a ring");
            put = put.wrapping_add(1);
        }
        self.channels[usize::from(number)].put = put;
        self.gpu.ring(number, put);
    }

    /// Lets the GPU work until a channel has nothing left to do. A wait for a value that never
    /// comes ends with its time limit.
    fn work_off(&mut self, number: u8) {
        let deadline = Instant::now() + LONG;
        let put = self.channels[usize::from(number)].put;
        loop {
            self.gpu.work();
            if self.gpu.status(number) != ON || self.gpu.head(number) == put {
                return;
            }
            assert!(Instant::now() < deadline, "a command does not end");
        }
    }

    /// Lets a channel wait for a word until the other channel writes it. If that is impossible, the
    /// channel is disabled, which ends the wait.
    fn wait_for_the_other(&mut self, input: &mut Input<'_>) -> Option<()> {
        let waiting = input.u8()? % CHANNELS;
        let wait = Entry::wait(input)?;
        (0..CHANNELS).for_each(|channel| self.enable(channel));
        if !self.expected.is_in_vain(&wait) {
            self.submit(waiting, &[wait]);
            return Some(());
        }
        self.put(waiting, &[wait]);
        self.gpu.work();
        assert_eq!(
            (self.gpu.status(waiting), self.gpu.head(waiting)),
            (ON, 0),
            "{wait:x?}"
        );
        self.submit(1 - waiting, &[wait.awaited_write()]);
        self.gpu.work();
        let seen = (self.gpu.status(waiting), self.gpu.head(waiting));
        match self.expected.execute(&wait) {
            Ok(()) => assert_eq!(seen, (ON, 1), "{wait:x?}"),
            Err(bad) if bad.code == TIME_OUT => assert_eq!(seen, (ON, 0), "{wait:x?}"),
            Err(BadCommand { code, written }) => {
                assert_eq!(seen, (failed(code.into()), 0), "{wait:x?}");
                self.take_over(written);
            }
        }
        self.enable(waiting);
        Some(())
    }

    /// Copies the memory of a command that has failed halfway into the model: each byte must be old
    /// or new.
    fn take_over(&mut self, written: Option<(model::Space, Vec<u8>)>) {
        let Some((start, new)) = written else {
            return;
        };
        let mut found = vec![0; new.len()];
        self.read_memory(start, &mut found);
        let old = self.expected.at(start, new.len());
        for (at, ((old, new), found)) in old.iter_mut().zip(&new).zip(found).enumerate() {
            assert!(found == *old || found == *new, "byte {at} at {start:x?}");
            *old = found;
        }
    }

    /// Copies NaNs of the GPU into the model where it has NaNs.
    fn take_over_nans(&mut self) {
        let Some((start, len)) = self.expected.floats.take() else {
            return;
        };
        let mut found = vec![0; len];
        self.read_memory(start, &mut found);
        let known = self.expected.at(start, len).chunks_exact_mut(4);
        for (known, found) in known.zip(found.chunks_exact(4)) {
            if is_nan(known) && is_nan(found) {
                known.copy_from_slice(found);
            }
        }
    }

    fn read_memory(&self, start: model::Space, bytes: &mut [u8]) {
        match start {
            model::Space::Vram(at) => self.gpu.vram().read(at, bytes).expect("VRAM"),
            model::Space::Ram(at) => self.ram.read(at, bytes).expect("RAM"),
        }
    }

    fn check_memories(&mut self) {
        for (start, known) in self.expected.touched() {
            let mut found = vec![0; known.len()];
            self.read_memory(start, &mut found);
            if found != known {
                let at = found.iter().zip(known).position(|(a, b)| a != b);
                panic!("{start:x?} differs from byte {at:?} on");
            }
        }
    }
}

/// Returns `true` if these four bytes are a NaN.
fn is_nan(bytes: &[u8]) -> bool {
    let word = bytes.first_chunk();
    word.is_some_and(|word| f32::from_le_bytes(*word).is_nan())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::Seed;

    /// Fields of a command in the encoding of an input, without its opcode and kernel.
    #[derive(Clone, Copy, Default)]
    struct Fields {
        flags: u8,
        spaces: u8,
        addresses: [u16; 3],
        length: u16,
        fence: u16,
        grid: u8,
        block: u8,
        value: u64,
    }

    fn entry(seed: Seed, [opcode, kernel]: [u8; 2], fields: Fields) -> Seed {
        let seed = seed.bytes(&[opcode, kernel, fields.flags, fields.spaces]);
        let seed = fields.addresses.into_iter().fold(seed, Seed::u16);
        let seed = seed.u16(fields.length).u16(fields.fence);
        seed.bytes(&[fields.grid, fields.block]).u64(fields.value)
    }

    fn submit(channel: u8, count: u8) -> Seed {
        Seed::default().bytes(&[0, channel, count - 1])
    }

    /// Executes a seed, in which no command may fail.
    fn carry_out(seed: &[u8]) -> Fixture {
        let mut fixture = Fixture::new();
        fixture.start();
        let mut input = Input::new(seed);
        while fixture.step(&mut input).is_some() {
            let failed = fixture.channels.map(|channel| channel.failed);
            assert_eq!(failed, [None; CHANNELS as usize]);
        }
        assert_eq!(input.u8(), None, "the seed is used up");
        fixture.check_memories();
        fixture
    }

    #[test]
    fn seed_of_commands_is_carried_out_without_a_fault() {
        // From VRAM at 0 to guest memory, with a fence.
        let fields = Fields {
            flags: 1,
            spaces: 1,
            addresses: [0, 0x100, 0x1100],
            length: 64,
            fence: 0x2100,
            grid: 4,
            block: 8,
            value: 0x0102_0304_0506_0708,
        };
        let seed = entry(submit(0, 3), [2, 0], fields);
        let seed = entry(seed, [1, 0], fields);
        let seed = entry(seed, [3, 0], fields);
        let seed = entry(seed.bytes(&[0, 1, 2]), [4, 0], fields);
        let seed = entry(seed, [5, 2], fields);
        let seed = entry(seed, [5, 3], fields);
        let seed = entry(seed.bytes(&[0, 1, 1]), [5, 4], fields);
        let seed = entry(seed, [5, 0], fields);
        let fixture = carry_out(&seed.in_corpus("gpu_commands", "commands"));
        assert_eq!(fixture.channels.map(|channel| channel.put), [3, 5]);
    }

    #[test]
    fn seed_of_waits_is_carried_out_without_a_fault() {
        let fields = Fields {
            flags: 1 | 2 << 5,
            addresses: [0x100, 0, 0],
            length: 8,
            fence: 0x2100,
            ..Fields::default()
        };
        // A word is written, and waited for; then one channel waits for the other.
        let word = Fields {
            flags: fields.flags | 0x10,
            value: 5,
            ..fields
        };
        let seed = entry(submit(0, 2), [6, 0], word);
        let seed = entry(seed, [7, 0], word);
        let waiting = Fields {
            value: 0xff,
            ..fields
        };
        let seed = entry(seed.bytes(&[240, 1]), [7, 0], waiting).u64(9);
        // An endless wait: the value has bits that the mask does not have.
        let seed = entry(seed.bytes(&[240, 0]), [7, 0], waiting).u64(0x100);
        let fixture = carry_out(&seed.in_corpus("gpu_commands", "waits"));
        let mut word = [0; 8];
        fixture.ram.read(0, &mut word).expect("RAM");
        assert_eq!(u64::from_le_bytes(word), 0x100);
    }
}
