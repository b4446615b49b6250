//! Orders copies of the copy engine from within a guest, and compares the bytes.
//!
//! It needs no driver: it maps the BARs of the engine and of its peer by sysfs.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use clap::Parser;
use peerbar_foreign::registers::{
    IDENTITY, IDENTITY_VALUE, LENGTH, MEMORY_BAR, MEMORY_BYTES, REGISTER_BAR, SOURCE, START,
    Status, TARGET,
};
use vm_memory::{FileOffset, MmapRegion, VolatileMemory};

/// Offset in the peer's BAR, behind memory that its driver may use.
const PEER_OFFSET: usize = 16 << 20;
/// Lengths of the copies in bytes: within a page, a page, and all of the engine's memory.
const LENGTHS: [u32; 4] = [1, 4096, 12_345, MEMORY_BYTES];

/// Orders a copy engine to write into the memory of a peer and to read it back.
#[derive(Parser)]
struct Arguments {
    /// PCI address of the copy engine.
    engine: String,
    /// PCI address of the peer.
    peer: String,
    /// The BAR of the peer with its memory.
    #[arg(long, default_value_t = 2)]
    peer_bar: u32,
    /// Pass only if the engine reports that it cannot reach the peer's memory.
    #[arg(long)]
    refused: bool,
    /// Pass only if the engine no longer answers after this number of copies.
    #[arg(long, conflicts_with = "refused")]
    dies_after: Option<usize>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let engine = Function::open(&arguments.engine)?;
    let peer = Function::open(&arguments.peer)?;
    engine.enable()?;
    let test = Test {
        registers: engine.map(REGISTER_BAR)?,
        own: engine.map(MEMORY_BAR)?,
        peer: peer.map(arguments.peer_bar)?.from(PEER_OFFSET)?,
    };
    if let Some(copies) = arguments.dies_after {
        return test.survive(copies);
    }
    for length in LENGTHS {
        match arguments.refused {
            true => test.be_refused(length)?,
            false => test.copy_and_compare(length)?,
        }
    }
    Ok(())
}

/// A PCI function, as sysfs shows it.
struct Function(PathBuf);

impl Function {
    fn open(address: &str) -> anyhow::Result<Self> {
        let folder = PathBuf::from("/sys/bus/pci/devices").join(address);
        ensure!(folder.exists(), "no PCI function has the address {address}");
        Ok(Self(folder))
    }

    /// Sets memory decode and bus mastering, as a driver does: Command is at 4 (PCI Local Bus 3.0,
    /// 6.2.2).
    fn enable(&self) -> anyhow::Result<()> {
        let file = self.open_file("config")?;
        file.write_all_at(&[0b110, 0], 4)
            .context("cannot write Command")
    }

    fn open_file(&self, name: &str) -> anyhow::Result<File> {
        let path = self.0.join(name);
        let file = OpenOptions::new().read(true).write(true).open(&path);
        file.with_context(|| format!("cannot open {}", path.display()))
    }

    fn map(&self, bar: u32) -> anyhow::Result<Bar> {
        let resources = fs::read_to_string(self.0.join("resource"))?;
        let line = resources.lines().nth(usize::try_from(bar)?);
        let address = line.and_then(|line| line.split_whitespace().next()?.strip_prefix("0x"));
        let address = address.context("no such BAR")?;
        let file = self.open_file(&format!("resource{bar}"))?;
        let bytes = usize::try_from(file.metadata()?.len())?;
        let memory = MmapRegion::from_file(FileOffset::new(file, 0), bytes);
        Ok(Bar {
            address: u64::from_str_radix(address, 16).context("no address")?,
            memory: memory.with_context(|| format!("cannot map BAR {bar}"))?,
            start: 0,
        })
    }
}

/// A mapped BAR, or its end.
struct Bar {
    address: u64,
    memory: MmapRegion,
    /// Offset in the BAR at which it starts.
    start: usize,
}

impl Bar {
    /// Returns the part from `offset` on.
    fn from(self, offset: usize) -> anyhow::Result<Self> {
        let address = self.address.checked_add(u64::try_from(offset)?);
        Ok(Self {
            address: address.context("an address beyond 64 bits")?,
            start: offset,
            ..self
        })
    }

    fn read(&self, at: u64) -> anyhow::Result<u32> {
        let register = self.memory.get_ref::<u32>(usize::try_from(at)?)?;
        Ok(register.load())
    }

    fn write(&self, at: u64, value: u32) -> anyhow::Result<()> {
        let register = self.memory.get_ref::<u32>(usize::try_from(at)?)?;
        register.store(value);
        Ok(())
    }

    /// Writes a register of 8 bytes by two of 4.
    fn write_address(&self, at: u64, value: u64) -> anyhow::Result<()> {
        let [low, high] = [value, value >> 32].map(|half| half & u64::from(u32::MAX));
        self.write(at, u32::try_from(low)?)?;
        self.write(at + 4, u32::try_from(high)?)
    }

    fn fill(&self, bytes: &[u8]) -> anyhow::Result<()> {
        let slice = self.memory.get_slice(self.start, bytes.len())?;
        slice.copy_from(bytes);
        Ok(())
    }

    fn content(&self, length: usize) -> anyhow::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.memory
            .get_slice(self.start, length)?
            .copy_to(&mut bytes);
        Ok(bytes)
    }
}

struct Test {
    registers: Bar,
    own: Bar,
    peer: Bar,
}

impl Test {
    /// Orders a copy, and returns its outcome. The engine answers the write after it has copied.
    fn order(&self, source: &Bar, target: &Bar, length: u32) -> anyhow::Result<Status> {
        let registers = &self.registers;
        let identity = registers.read(IDENTITY)?;
        ensure!(
            identity == IDENTITY_VALUE,
            "not a copy engine: its identity is {identity:#x}"
        );
        registers.write_address(SOURCE, source.address)?;
        registers.write_address(TARGET, target.address)?;
        registers.write(LENGTH, length)?;
        registers.write(START, 1)?;
        let value = registers.read(START)?;
        Status::from_value(value).with_context(|| format!("the status is {value:#x}"))
    }

    /// Has the engine write into the peer's memory, and read it back.
    fn copy_and_compare(&self, length: u32) -> anyhow::Result<()> {
        let (pattern, zeros) = (pattern(length), vec![0; usize::try_from(length)?]);
        self.own.fill(&pattern)?;
        self.peer.fill(&zeros)?;
        let status = self.order(&self.own, &self.peer, length)?;
        ensure!(
            status == Status::Done,
            "write of {length} bytes: {status:?}"
        );
        compare(
            "the peer's memory",
            &self.peer.content(pattern.len())?,
            &pattern,
        )?;
        self.own.fill(&zeros)?;
        let status = self.order(&self.peer, &self.own, length)?;
        ensure!(status == Status::Done, "read of {length} bytes: {status:?}");
        compare(
            "the engine's memory",
            &self.own.content(pattern.len())?,
            &pattern,
        )?;
        println!("{length} bytes to the peer and back");
        Ok(())
    }

    fn be_refused(&self, length: u32) -> anyhow::Result<()> {
        let zeros = vec![0; usize::try_from(length)?];
        self.own.fill(&pattern(length))?;
        self.peer.fill(&zeros)?;
        let status = self.order(&self.own, &self.peer, length)?;
        ensure!(
            status == Status::TargetUnmapped,
            "write of {length} bytes: {status:?}, not refused"
        );
        compare(
            "the peer's memory",
            &self.peer.content(zeros.len())?,
            &zeros,
        )?;
        println!("{length} bytes refused");
        Ok(())
    }

    /// Passes if the engine dies after `copies`, the guest sees all ones, and the peer is well.
    fn survive(&self, copies: usize) -> anyhow::Result<()> {
        for number in 0..copies {
            let status = self.order(&self.own, &self.peer, 4096)?;
            ensure!(status == Status::Done, "copy {number}: {status:?}");
        }
        if let Ok(status) = self.order(&self.own, &self.peer, 4096) {
            bail!("the engine did not die: {status:?}");
        }
        let identity = self.registers.read(IDENTITY)?;
        ensure!(
            identity == u32::MAX,
            "a dead engine answers {identity:#x}, not all ones"
        );
        let pattern = pattern(4096);
        self.peer.fill(&pattern)?;
        compare("the peer's memory", &self.peer.content(4096)?, &pattern)?;
        println!("the engine is dead, its peer is not");
        Ok(())
    }
}

/// Returns bytes that differ from page to page.
fn pattern(length: u32) -> Vec<u8> {
    let byte = |at: u32| (at.wrapping_mul(31) ^ (at >> 12)).to_le_bytes()[0] | 1;
    (0..length).map(byte).collect()
}

fn compare(place: &str, found: &[u8], expected: &[u8]) -> anyhow::Result<()> {
    let mut differing = found.iter().zip(expected).enumerate();
    match differing.find(|(_, (found, expected))| found != expected) {
        Some((at, (found, expected))) => {
            bail!("{place} has {found:#04x} at {at:#x}, not {expected:#04x}")
        }
        None => Ok(()),
    }
}
