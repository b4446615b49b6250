//! A GPU that drives queues of a disk by itself. The host makes the queues in the GPU's memory, and
//! does not touch them again.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use peerbar_dma_log::counter_file::Reader;
use peerbar_flight::{Event, FlightFile, Purpose};
use peerbar_nvme_driver::{Controller, DmaMemory, PAGE, QueueMemory, Registers};
use peerbar_rig::gpu::Command;
use peerbar_rig::{Answer, Client, Daemon, GuestRam, Link, MEMORY, UpstreamRequest};
use tempfile::TempDir;

use crate::channel::Channel;
use crate::machine::{RAM, RAM_BYTES, VRAM};
use crate::memory::{BLOCK, block};
use crate::server;

/// Address and size of the disk's registers.
const REGISTERS: u64 = (1 << 38) + (1 << 30);
const REGISTERS_BYTES: u64 = 0x4000;
/// Offset of the doorbells, and of those of the first I/O queue.
const DOORBELLS: u64 = 0x1000;
const IO_DOORBELLS: u64 = DOORBELLS + 8;
const VRAM_BYTES: u64 = 16 << 20;
/// Blocks of the disk.
const BLOCKS: u64 = 1024;
/// The kernel `nvme io`, and the bits of its operands in VRAM: queues, state and requests.
const NVME_IO: u32 = 5;
const IN_VRAM: u16 = 0b11_0011;
/// Bytes of VRAM for a queue with its requests and data, and their offsets.
const AREA: u64 = 4 << 20;
const COMPLETIONS: u64 = 0x4000;
const STATE: u64 = 0x8000;
const REQUESTS: u64 = 0x1_0000;
const DATA: u64 = 0x10_0000;
const READ: u8 = 2;
const WRITE: u8 = 1;
const TIME_OUT: Duration = Duration::from_secs(60);

/// The connection of the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Root ports: everything goes through the client, as through QEMU.
    Root,
    /// A switch.
    Switch,
    /// A switch, and the disk lends its doorbells and polls them.
    SwitchAndPolls,
}

/// RAM and VRAM, each at the devices' address of it.
#[derive(Clone)]
struct Memories {
    ram: GuestRam,
    vram: GuestRam,
}

/// The registers of the disk, and the number of writes to the doorbells of its I/O queues.
#[derive(Clone)]
struct CountedRegisters {
    client: Client,
    doorbells: Arc<AtomicU64>,
}

impl Registers for CountedRegisters {
    fn read_register(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.client.read_register(offset, data)
    }

    fn write_register(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let is_doorbell = offset >= IO_DOORBELLS;
        self.doorbells
            .fetch_add(is_doorbell.into(), Ordering::SeqCst);
        self.client.write_register(offset, data)
    }
}

/// A root complex that executes the requests of both devices.
struct Root {
    memories: Memories,
    disk: CountedRegisters,
    /// Doorbells that the GPU has written through it.
    doorbells: Arc<AtomicU64>,
}

impl Memories {
    fn find(&self, address: u64) -> Option<&GuestRam> {
        let mut memories = [&self.ram, &self.vram].into_iter();
        memories.find(|memory| memory.contains(address))
    }

    fn at(&self, address: u64) -> io::Result<&GuestRam> {
        let found = self.find(address);
        found.ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }
}

impl DmaMemory for Memories {
    fn read(&self, address: u64, data: &mut [u8]) -> io::Result<()> {
        self.at(address)?.read(address, data)
    }

    fn write(&self, address: u64, data: &[u8]) -> io::Result<()> {
        self.at(address)?.write(address, data)
    }

    fn load32(&self, address: u64) -> io::Result<u32> {
        self.at(address)?.load32(address)
    }

    fn store32(&self, address: u64, value: u32) -> io::Result<()> {
        self.at(address)?.store32(address, value)
    }

    fn load64(&self, address: u64) -> io::Result<u64> {
        self.at(address)?.load64(address)
    }
}

impl Root {
    fn execute(&self, request: &UpstreamRequest) -> Answer {
        if let Some(memory) = self.memories.find(request.address) {
            return request.transfer(memory);
        }
        let offset = request.address.checked_sub(REGISTERS);
        let offset = offset.filter(|offset| *offset < REGISTERS_BYTES);
        let (Some(offset), Some(data)) = (offset, &request.data) else {
            return Answer::UNMAPPED;
        };
        self.disk.write_register(offset, data).unwrap();
        self.doorbells.fetch_add(1, Ordering::SeqCst);
        Answer::AllAs(0)
    }
}

/// A disk and a GPU, both enabled.
struct DiskAndGpu {
    folder: TempDir,
    servers: Vec<Daemon>,
    ram: GuestRam,
    vram: GuestRam,
    disk: CountedRegisters,
    gpu: Client,
    controller: Controller<CountedRegisters, Memories>,
    /// Doorbells that the GPU has written through the root complex.
    by_root: Arc<AtomicU64>,
}

/// A pair of queues in VRAM that the GPU drives, and the channel that does it.
struct GpuQueue {
    channel: Channel,
    id: u16,
    entries: [u16; 2],
    /// Offset in VRAM of all of it.
    area: u64,
    /// Time limit until the next completion.
    limit: Duration,
}

impl DiskAndGpu {
    /// Starts the devices: the disk with numbered blocks, the GPU with these rules.
    fn start(way: Way, rules: &[&str]) -> anyhow::Result<Self> {
        let folder = TempDir::new()?;
        let path = folder.path();
        let image = path.join("disk0.img");
        let content: Vec<u8> = (0..BLOCKS).flat_map(block).collect();
        fs::write(&image, content)?;
        let (mut servers, mut joined) = (Vec::new(), Vec::new());
        if way != Way::Root {
            let switch = server::start("peerbar-switch", &[])?;
            joined = vec!["--switch".to_owned(), switch.socket().display().to_string()];
            servers.push(switch);
        }
        let mut start = |name: &str, program: &str, own: &[&str]| {
            let flight = path.join(format!("{name}.flight")).display().to_string();
            let counters = path.join(format!("{name}.counters"));
            let counters = counters.display().to_string();
            let mut words: Vec<&str> = joined.iter().map(String::as_str).collect();
            if way != Way::Root {
                words.extend(["--port-name", name]);
            }
            words.extend(["--flight", &flight, "--record", "all"]);
            words.extend(["--counters", &counters]);
            words.extend(own);
            let server = server::start(program, &words)?;
            let socket = server.socket().to_owned();
            servers.push(server);
            anyhow::Ok(socket)
        };
        let namespace = format!("file={}", image.display());
        let poll = match way {
            Way::SwitchAndPolls => "always",
            _ => "adaptive",
        };
        let own = [
            "--serial",
            "disk0",
            "--namespace",
            &namespace,
            "--poll",
            poll,
        ];
        let disk = start("disk0", "peerbar-nvme", &own)?;
        let mut own = vec!["--vram", "16M"];
        own.extend(rules.iter().flat_map(|rule| ["--fault", rule]));
        let gpu = start("gpu0", "peerbar-gpu", &own)?;

        let ram = GuestRam::new(RAM, RAM_BYTES);
        let disk = Client::attach(&disk, &ram)?;
        let gpu = Client::attach(&gpu, &ram)?;
        let vram = gpu.open_bar(MEMORY, VRAM)?;
        disk.set_bar(peerbar_rig::REGISTERS, REGISTERS)?;
        let disk = CountedRegisters {
            client: disk,
            doorbells: Arc::default(),
        };
        let memories = Memories {
            ram: ram.clone(),
            vram: vram.clone(),
        };
        let by_root = Arc::<AtomicU64>::default();
        if way == Way::Root {
            let clients = [&disk.client, &gpu];
            for client in clients {
                let root = Root {
                    memories: memories.clone(),
                    disk: disk.clone(),
                    doorbells: by_root.clone(),
                };
                let upstream = client.upstream();
                upstream.answer_with(move |request| root.execute(request));
            }
            disk.client.map((VRAM, VRAM_BYTES), None)?;
            gpu.map((REGISTERS, REGISTERS_BYTES), None)?;
        }
        let admin = QueueMemory {
            submission: RAM,
            completion: RAM + PAGE,
            submission_entries: 16,
            completion_entries: 16,
        };
        let controller = Controller::enable(disk.clone(), memories, admin)?;
        Ok(Self {
            folder,
            servers,
            ram,
            vram,
            disk,
            gpu,
            controller,
            by_root,
        })
    }

    /// Makes queues in VRAM, and leaves them to the GPU.
    fn create_queue(&mut self, id: u16, entries: [u16; 2]) -> anyhow::Result<GpuQueue> {
        let area = AREA * u64::from(id - 1);
        let [submission_entries, completion_entries] = entries;
        let at = QueueMemory {
            submission: VRAM + area,
            completion: VRAM + area + COMPLETIONS,
            submission_entries,
            completion_entries,
        };
        self.controller.create_queues(id, at)?;
        let ring = RAM + 0x10_0000 * u64::from(id);
        let number = u8::try_from(id)?;
        let channel = Channel::enable(self.gpu.clone(), self.ram.clone(), number, ring)?;
        Ok(GpuQueue {
            channel,
            id,
            entries,
            area,
            limit: Duration::from_secs(10),
        })
    }

    /// Lets the GPU transfer `count` blocks, from block `first` on.
    fn submit(
        &self,
        queue: &mut GpuQueue,
        opcode: u8,
        first: u64,
        count: u64,
    ) -> anyhow::Result<()> {
        let area = queue.area;
        let mut requests = Vec::new();
        for index in 0..count {
            let data = VRAM + area + DATA + index * BLOCK as u64;
            let numbers = [(first + index) * 8, data, 0];
            requests.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
            requests.extend([7, 0, opcode, 0, 0, 0, 0, 0]);
        }
        self.vram.write(VRAM + area + REQUESTS, &requests)?;
        let doorbell = REGISTERS + DOORBELLS + 8 * u64::from(queue.id);
        let [submissions, completions] = queue.entries.map(u64::from);
        let limit = u64::try_from(queue.limit.as_nanos())?;
        let operands = [
            area,
            area + COMPLETIONS,
            doorbell,
            doorbell + 4,
            area + STATE,
            area + REQUESTS,
            count,
            completions << 32 | submissions,
            0,
            1,
            limit,
        ];
        let threads = (count.div_ceil(1024), 1024);
        let command = Command::launch(NVME_IO, IN_VRAM, &operands, threads);
        queue.channel.put(&command)
    }

    /// Returns the result of a launch, or its fault.
    fn wait(&self, queue: &GpuQueue) -> anyhow::Result<Result<u64, u32>> {
        let begun = Instant::now();
        loop {
            if let Some(result) = queue.channel.result()? {
                return Ok(Ok(result));
            }
            if let Some(fault) = queue.channel.fault()? {
                return Ok(Err(fault));
            }
            ensure!(begun.elapsed() < TIME_OUT, "a launch does not end");
            thread::yield_now();
        }
    }

    /// Sets all data of a queue to zeros.
    fn clear(&self, queue: &GpuQueue, count: u64) -> anyhow::Result<()> {
        let zeros = vec![0; usize::try_from(count)? * BLOCK];
        Ok(self.vram.write(VRAM + queue.area + DATA, &zeros)?)
    }

    /// Returns the data of a queue.
    fn data(&self, queue: &GpuQueue, count: u64) -> anyhow::Result<Vec<u8>> {
        let bytes = usize::try_from(count)? * BLOCK;
        Ok(self.vram.bytes_at(VRAM + queue.area + DATA, bytes)?)
    }

    /// Returns the commands, completions and doorbells of a queue, as the GPU has counted them.
    fn counts(&self, queue: &GpuQueue) -> anyhow::Result<[u64; 3]> {
        let at = VRAM + queue.area + STATE;
        let words = [0, 8, 16].map(|word| self.vram.load64(at + word));
        let [submitted, completed, doorbells] = words;
        Ok([submitted?, completed?, doorbells?])
    }

    /// Returns the number of such events in a device's record.
    fn recorded(&self, name: &str, is_meant: impl Fn(&Event) -> bool) -> anyhow::Result<usize> {
        let path = self.folder.path().join(format!("{name}.flight"));
        let flight = FlightFile::open(&path)?.read()?;
        let events = flight.records.iter().map(|record| record.event);
        Ok(events.filter(is_meant).count())
    }

    /// Returns the disk's counts of interrupts, and of I/O queues' doorbells by its client, if it
    /// can count these.
    fn counted(&self) -> anyhow::Result<(u64, Option<u64>)> {
        let reader = Reader::open(&self.folder.path().join("disk0.counters"))?;
        let events = reader.read()?.events;
        let of_queues = |doorbells: BTreeMap<u16, u64>| doorbells.range(1..).map(|(_, n)| n).sum();
        Ok((events.interrupts, events.doorbells.map(of_queues)))
    }

    fn end(self) -> anyhow::Result<()> {
        drop((self.controller, self.disk, self.gpu));
        self.servers.into_iter().rev().try_for_each(server::end)
    }
}

fn expected(first: u64, count: u64) -> Vec<u8> {
    (first..first + count).flat_map(block).collect()
}

/// Reads by two queues at the same time, several times around both, without any access by the host.
fn read_by_two_queues(way: Way) -> anyhow::Result<()> {
    let mut pair = DiskAndGpu::start(way, &[])?;
    let mut queues = [
        pair.create_queue(1, [32, 32])?,
        pair.create_queue(2, [8, 24])?,
    ];
    let by_host = pair.disk.doorbells.load(Ordering::SeqCst);
    for (first, count) in [(0, 500), (500, 300)] {
        for queue in &mut queues {
            pair.clear(queue, count)?;
            pair.submit(queue, READ, first, count)?;
        }
        for queue in &queues {
            assert_eq!(pair.wait(queue)?, Ok(count));
            assert!(pair.data(queue, count)? == expected(first, count));
        }
    }
    assert_eq!(
        pair.disk.doorbells.load(Ordering::SeqCst) - by_host,
        pair.by_root.load(Ordering::SeqCst)
    );
    let counts = [pair.counts(&queues[0])?, pair.counts(&queues[1])?];
    for [submitted, completed, _] in counts {
        assert_eq!([submitted, completed], [800, 800]);
    }
    let doorbells: u64 = counts.iter().map(|[.., doorbells]| doorbells).sum();
    match way {
        Way::Root => assert_eq!(pair.by_root.load(Ordering::SeqCst), doorbells),
        _ => assert_eq!(pair.by_root.load(Ordering::SeqCst), 0),
    }
    let made = |event: &Event| matches!(event, Event::Dma(dma) if dma.purpose == Purpose::Register);
    assert_eq!(pair.recorded("gpu0", made)? as u64, doorbells);
    let met = |event: &Event| matches!(event, Event::RegisterWrite(_));
    let by_message = if way == Way::Switch { doorbells } else { 0 };
    assert_eq!(pair.recorded("disk0", met)? as u64, by_message);
    let interrupts = |event: &Event| matches!(event, Event::Interrupt { .. });
    assert_eq!(pair.recorded("disk0", interrupts)?, 0);
    let can_count = way != Way::SwitchAndPolls;
    let by_client = can_count.then_some(pair.by_root.load(Ordering::SeqCst));
    assert_eq!(pair.counted()?, (0, by_client));
    pair.end()
}

#[test]
#[ignore = "takes what scripts/build makes; scripts/test runs it"]
fn gpu_reads_without_the_host_by_the_root() {
    read_by_two_queues(Way::Root).unwrap();
}

#[test]
#[ignore = "takes what scripts/build makes; scripts/test runs it"]
fn gpu_reads_without_the_host_below_a_switch() {
    read_by_two_queues(Way::Switch).unwrap();
}

#[test]
#[ignore = "takes what scripts/build makes; scripts/test runs it"]
fn gpu_rings_a_polling_disk_without_a_message() {
    read_by_two_queues(Way::SwitchAndPolls).unwrap();
}

#[test]
#[ignore = "takes what scripts/build makes; scripts/test runs it"]
fn gpu_writes_are_on_the_disk() {
    let mut pair = DiskAndGpu::start(Way::Switch, &[]).unwrap();
    let mut queue = pair.create_queue(1, [16, 16]).unwrap();
    let data = expected(5000, 100);
    pair.vram.write(VRAM + queue.area + DATA, &data).unwrap();
    pair.submit(&mut queue, WRITE, 7, 100).unwrap();
    assert_eq!(pair.wait(&queue).unwrap(), Ok(100));
    let image = File::open(pair.folder.path().join("disk0.img")).unwrap();
    let mut written = vec![0; 102 * BLOCK];
    image.read_exact_at(&mut written, 6 * BLOCK as u64).unwrap();
    let around = [expected(6, 1), data, expected(107, 1)].concat();
    assert!(written == around);
    pair.end().unwrap();
}

#[test]
#[ignore = "takes what scripts/build makes; scripts/test runs it"]
fn status_of_the_disk_is_the_result() {
    let mut pair = DiskAndGpu::start(Way::Switch, &[]).unwrap();
    let mut queue = pair.create_queue(1, [16, 16]).unwrap();
    pair.submit(&mut queue, READ, BLOCKS - 30, 40).unwrap();
    // LBA Out of Range, with or without DNR.
    let result = pair.wait(&queue).unwrap().unwrap();
    assert_eq!((result & 0xffff_ffff, result >> 32 & 0x7ff), (30, 0x80));
    pair.submit(&mut queue, READ, 0, 40).unwrap();
    assert_eq!(pair.wait(&queue).unwrap(), Ok(40), "the queues go on");
    pair.end().unwrap();
}

#[test]
#[ignore = "takes what scripts/build makes; scripts/test runs it"]
fn doorbell_without_a_new_entry_is_found() {
    // The entry is in the second pass: the disk finds an old command there, which is complete.
    let rule = "drop submission-entry nth=40";
    let mut pair = DiskAndGpu::start(Way::Switch, &[rule]).unwrap();
    let mut queue = pair.create_queue(1, [32, 32]).unwrap();
    pair.submit(&mut queue, READ, 0, 200).unwrap();
    assert_eq!(pair.wait(&queue).unwrap(), Err(8), "BadCompletion");
    let injected = |event: &Event| matches!(event, Event::Injected(_));
    assert_eq!(pair.recorded("gpu0", injected).unwrap(), 1);
    pair.end().unwrap();
}

#[test]
#[ignore = "takes what scripts/build makes; scripts/test runs it"]
fn disk_that_is_reset_ends_a_launch_in_time() {
    let mut pair = DiskAndGpu::start(Way::Switch, &[]).unwrap();
    let mut queue = pair.create_queue(1, [16, 16]).unwrap();
    // CC.EN = 0: the queues are gone, and doorbells are ignored.
    pair.disk.write_register(0x14, &[0; 4]).unwrap();
    queue.limit = Duration::from_millis(50);
    pair.submit(&mut queue, READ, 0, 40).unwrap();
    assert_eq!(pair.wait(&queue).unwrap(), Err(7), "TimeOut");
    let state = VRAM + queue.area + STATE + 24;
    assert_eq!(pair.vram.load64(state).unwrap(), 1, "in use, and request 0");
    pair.end().unwrap();
}
