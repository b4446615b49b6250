//! A measurement, not a check: the speed at which adapters move payload on the servers' side,
//! compared with a copy of the same size.
//!
//! It prints the time on the clock, which other load of the machine lengthens, and the processor
//! time of the servers' threads: the adapters' workers and links, and the fabric.
//!
//! `cargo test --release -p peerbar-efa --lib -- --ignored --nocapture speed`

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use peerbar_dma::{MemoryFile, PeerId, PeerMemory, PeerWindow, Span};
use peerbar_efa_spec::completion::CompletionStatus;
use peerbar_efa_spec::work::Operation;
use peerbar_pci::{BusAddress, Range};
use rustix::time::{ClockId, clock_gettime};

use super::fixture::{Adapter, ENTRIES, PAYLOAD, Pair, Post};
use super::two_adapters::{A, B, TestFabric};

/// Bus addresses of the memory of two GPUs below each adapter's switch, and its size.
const VRAM: [u64; 2] = [0x1_0000_0000, 0x2_0000_0000];
const VRAM_BYTES: u64 = 16 << 20;
const WRITE: u32 = 1 << 20;
const ROUNDS: u32 = 5;
const WRITES: u32 = 128;
const MESSAGES: u32 = 1024;
const MESSAGE: u32 = 64;
const TIME_OUT: Duration = Duration::from_secs(60);

/// An adapter whose worker has a thread, below a switch with two GPUs.
struct Running {
    adapter: Adapter,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn new(mut adapter: Adapter) -> Self {
        for (number, address) in (1..).zip(VRAM) {
            let memory = MemoryFile::create("vram", VRAM_BYTES).unwrap();
            let full = vec![7; usize::try_from(VRAM_BYTES).unwrap()];
            memory.write(0, &full).unwrap();
            let memory = PeerMemory::Span(Span {
                file: Arc::new(memory),
                offset: 0,
            });
            let window = PeerWindow {
                range: Range::new(BusAddress(address), VRAM_BYTES).unwrap(),
                claim: 0,
                memory,
            };
            adapter.requester.set_peer(PeerId(number), vec![window]);
        }
        let worker = adapter.take_worker();
        let thread = std::thread::spawn(move || worker.run());
        Self {
            adapter,
            thread: Some(thread),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.adapter.path.end();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// Time on the clock, and processor time of all threads except this one.
#[derive(Clone, Copy)]
struct Taken {
    clock: f64,
    servers: f64,
}

fn now(id: ClockId) -> f64 {
    let time = clock_gettime(id);
    let nanoseconds = i32::try_from(time.tv_nsec).unwrap();
    let seconds = i32::try_from(time.tv_sec).unwrap();
    f64::from(seconds) + f64::from(nanoseconds) * 1e-9
}

fn servers() -> f64 {
    now(ClockId::ProcessCPUTime) - now(ClockId::ThreadCPUTime)
}

/// Posts as many work requests as there is room for, until all of them are complete. Returns the
/// time that this took.
fn carry_out(adapter: &Adapter, pair: &mut Pair, post: impl Fn(u32) -> Post, count: u32) -> Taken {
    let (start, used) = (Instant::now(), servers());
    let (mut posted, mut done) = (0, 0);
    while done < count {
        while posted < count && posted - done < u32::from(ENTRIES) {
            adapter.send(pair, &post(posted));
            posted += 1;
        }
        for completion in adapter.poll(&mut pair.queue) {
            assert_eq!(completion.status, CompletionStatus::Ok);
            done += 1;
        }
        assert!(start.elapsed() < TIME_OUT, "{done} of {count}");
        std::thread::yield_now();
    }
    Taken {
        clock: start.elapsed().as_secs_f64(),
        servers: servers() - used,
    }
}

/// Returns the best of a few rounds, which other load disturbs least.
fn best(mut round: impl FnMut() -> Taken) -> Taken {
    let rounds: Vec<Taken> = (0..ROUNDS).map(|_| round()).collect();
    let least = |of: fn(&Taken) -> f64| rounds.iter().map(of).fold(f64::INFINITY, f64::min);
    Taken {
        clock: least(|it| it.clock),
        servers: least(|it| it.servers),
    }
}

/// Returns the MiB of writes per second.
fn speed(seconds: f64) -> f64 {
    f64::from(WRITES) * f64::from(WRITE) / f64::from(1 << 20) / seconds
}

fn addresses(index: u32) -> (u64, u64) {
    let slots = u32::try_from(VRAM_BYTES).unwrap() / WRITE;
    let offset = u64::from(index % slots * WRITE);
    (VRAM[0] + offset, VRAM[1] + offset)
}

/// Measures copies by this thread, whose processor time stands for the servers'.
fn copies() -> Taken {
    let bytes = usize::try_from(VRAM_BYTES).unwrap();
    let write = WRITE as usize;
    let from = vec![7_u8; bytes];
    let mut to = vec![1_u8; bytes];
    best(|| {
        let (start, used) = (Instant::now(), now(ClockId::ThreadCPUTime));
        for index in 0..WRITES as usize {
            let at = index * write % bytes;
            to[at..at + write].copy_from_slice(&from[at..at + write]);
            std::hint::black_box(&mut to);
        }
        Taken {
            clock: start.elapsed().as_secs_f64(),
            servers: now(ClockId::ThreadCPUTime) - used,
        }
    })
}

/// Measures writes of 1 MiB from the first GPU's memory at one adapter to the second GPU's at
/// another.
fn writes(near: &Adapter, far: &Adapter, (a, b): (&mut Pair, &Pair), handle: u16) -> Taken {
    let (from, to) = (
        near.region(VRAM[0], VRAM_BYTES),
        far.region(VRAM[1], VRAM_BYTES),
    );
    let post = |index| {
        let (here, there) = addresses(index);
        let (local, remote) = ((from.local, here, WRITE), (to.remote, there, WRITE));
        Post::rdma(Operation::RdmaWrite, b, handle, local, remote)
    };
    best(|| carry_out(near, a, post, WRITES))
}

/// Measures 64-byte writes per second, from memory at this address to the same address at the other
/// adapter.
fn messages(
    near: &Adapter,
    far: &Adapter,
    (a, b): (&mut Pair, &Pair),
    handle: u16,
    at: u64,
) -> Taken {
    let (from, to) = (near.region(at, 1 << 20), far.region(at, 1 << 20));
    let (local, remote) = ((from.local, at, MESSAGE), (to.remote, at, MESSAGE));
    let post = |_| Post::rdma(Operation::RdmaWrite, b, handle, local, remote);
    best(|| carry_out(near, a, post, MESSAGES))
}

/// Measures writes and messages between queue pairs of two adapters, or of one adapter if `far` is
/// `None`.
fn report(what: &str, near: &mut Running, far: Option<&mut Running>, memcpy: Taken) {
    let mut a = near.adapter.reliable();
    let (b, far) = match far {
        Some(far) => {
            far.adapter.handle_to(A);
            (far.adapter.reliable(), Some(&far.adapter))
        }
        None => (near.adapter.reliable(), None),
    };
    let near = &near.adapter;
    let far = far.unwrap_or(near);
    let handle = near.handle_to(if std::ptr::eq(near, far) { A } else { B });
    let taken = writes(near, far, (&mut a, &b), handle);
    println!(
        "{what}: writes of 1 MiB from VRAM to VRAM: {:.0} MiB/s, {:.2} of memcpy; by processor time {:.2}",
        speed(taken.clock),
        memcpy.clock / taken.clock,
        memcpy.servers / taken.servers
    );
    for (memory, at) in [("guest RAM", PAYLOAD), ("VRAM", VRAM[0])] {
        let taken = messages(near, far, (&mut a, &b), handle, at);
        let count = f64::from(MESSAGES);
        println!(
            "{what}: writes of {MESSAGE} bytes, {memory}: {:.0}/s, {:.1} us of processor time each",
            count / taken.clock,
            taken.servers / count * 1e6
        );
    }
    let statistics = [near, far].map(|adapter| adapter.path.statistics().packet_bytes);
    println!("{what}: {statistics:?} bytes of payload in packets");
}

#[test]
#[ignore = "a measurement, for an idle machine and a release build"]
fn speed_beside_a_copy_of_the_same_size() {
    let memcpy = copies();
    println!("memcpy: {:.0} MiB/s", speed(memcpy.clock));
    for (what, rule) in [("slots", "*->* none"), ("packets", "*->* loss=0.0001%")] {
        let fabric = TestFabric::start(rule);
        let ends = [A, B].map(|gid| Running::new(fabric.adapter(gid)));
        let [mut near, mut far] = ends;
        report(what, &mut near, Some(&mut far), memcpy);
    }
    let mut alone = Running::new(Adapter::at(A, None));
    report("one adapter", &mut alone, None, memcpy);
}
