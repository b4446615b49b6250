//! Two daemons at a fabric, and the survivor when the other is killed.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;

use peerbar_efa_spec::admin::Opcode;
use peerbar_efa_spec::admin::statistics::{GetStats, Network, kind};
use peerbar_efa_spec::completion::CompletionStatus;
use peerbar_efa_spec::work::Operation;
use peerbar_fabric::{Config, Impairment, serve};
use peerbar_rig::{Daemon, ForeignClient, ServerThread};
use rustix::process::{Pid, Signal, WaitOptions, waitpid};
use zerocopy::FromZeros;

use crate::daemon::{client, start};
use crate::driver::Driver;
use crate::transfers::{PAGE, QueuePairs, REGION_BYTES, everything, gid};

/// The addresses of the two adapters.
pub(crate) const GIDS: [&str; 2] = ["fe80::a", "fe80::b"];

/// The statuses of a request to an adapter that is gone: the fabric says so, unless the request has
/// timed out before.
pub(crate) const GONE: [u8; 2] = [
    CompletionStatus::LocalUnreachableRemote as u8,
    CompletionStatus::LocalUnresponsiveRemote as u8,
];

/// Starts a fabric.
fn fabric(impairments: Vec<Impairment>) -> ServerThread {
    ServerThread::start(|path, stop, ready| {
        let config = Config {
            impairments,
            ..Config::default()
        };
        serve(path, config, &stop, ready).unwrap();
    })
}

/// One of two adapters, its driver, and the keys of its memory region.
pub(crate) struct End {
    pub(crate) daemon: Daemon,
    pub(crate) pairs: QueuePairs<Rc<ForeignClient>>,
    pub(crate) keys: (u32, u32),
}

impl End {
    /// Starts an adapter that sends to the other one, whose queue pair is not known yet.
    pub(crate) fn start(fabric: &Path, index: usize) -> Self {
        let daemon = start(&["--fabric", fabric.to_str().unwrap(), "--gid", GIDS[index]]);
        let mut driver = Driver::of(client(&daemon));
        driver.bring_up();
        let mut peer = gid(&mut driver);
        peer[15] ^= 1;
        let mut pairs = QueuePairs::new(driver, peer);
        let keys = pairs.register(everything());
        Self {
            daemon,
            pairs,
            keys: (keys.local_key.get(), keys.remote_key.get()),
        }
    }

    /// Sets the contents of the region.
    pub(crate) fn put(&self, data: &[u8]) {
        for (page, data) in (0..).zip(data.chunks(PAGE as usize)) {
            self.pairs.write_region(page * PAGE, data);
        }
    }

    /// Returns the contents of the region.
    pub(crate) fn contents(&self) -> Vec<u8> {
        let mut data = vec![0; REGION_BYTES as usize];
        for (page, data) in (0..).zip(data.chunks_mut(PAGE as usize)) {
            self.pairs.read_region(page * PAGE, data);
        }
        data
    }
}

/// Tells each adapter's driver the queue pair of the other one.
pub(crate) fn introduce([a, b]: &mut [End; 2]) {
    (a.pairs.peer, b.pairs.peer) = (Some(b.pairs.number()), Some(a.pairs.number()));
}

/// Starts two adapters, whose queue pairs lead to each other.
fn two(fabric: &ServerThread) -> [End; 2] {
    let mut ends = [0, 1].map(|index| End::start(&fabric.socket(), index));
    introduce(&mut ends);
    ends
}

/// Begins an operation of the first adapter on all of the region except its last page.
fn begin(ends: &mut [End; 2], operation: Operation) {
    let [near, far] = ends;
    let length = u32::try_from(REGION_BYTES - PAGE).unwrap();
    let (there, here) = ((far.keys.1, PAGE), (near.keys.0, 0));
    near.pairs.rdma(operation, there, here, length);
}

fn fill(end: &End, seed: u8) -> Vec<u8> {
    let data: Vec<u8> = (0..REGION_BYTES)
        .map(|at| (at % 251) as u8 ^ seed)
        .collect();
    end.put(&data);
    data
}

/// Returns `true` if a daemon has mapped the guest memory of the other one's client.
fn has_mapped(end: &End, other: &End) -> bool {
    let pid = Pid::as_raw(Some(end.daemon.pid()));
    let maps = format!("/proc/{pid}/maps");
    let maps = fs::read_to_string(maps).unwrap();
    let inode = other
        .pairs
        .driver
        .ram
        .file
        .metadata()
        .unwrap()
        .ino()
        .to_string();
    maps.lines()
        .any(|line| line.split_whitespace().nth(4) == Some(&inode))
}

/// Stops a daemon. Nothing of it runs any more once this returns.
pub(crate) fn stop(daemon: &Daemon) {
    daemon.signal(Signal::STOP);
    let status = waitpid(Some(daemon.pid()), WaitOptions::UNTRACED);
    let (_, status) = status.unwrap().unwrap();
    assert!(status.stopped(), "{status:?}");
}

/// Starts two daemons that have done the operation once, so that they share buffers, and that begin
/// it again while the far one is stopped.
fn two_amid(operation: Operation) -> (ServerThread, [End; 2]) {
    let fabric = fabric(Vec::new());
    let mut ends = two(&fabric);
    begin(&mut ends, operation);
    ends[0].pairs.expect_sent(CompletionStatus::Ok);
    stop(&ends[1].daemon);
    begin(&mut ends, operation);
    (fabric, ends)
}

#[test]
fn two_daemons_move_payload_without_the_memory_of_each_other() {
    let fabric = fabric(Vec::new());
    let mut ends = two(&fabric);
    let (page, rest) = (PAGE as usize, (REGION_BYTES - PAGE) as usize);
    let data = fill(&ends[0], 1);
    begin(&mut ends, Operation::RdmaWrite);
    ends[0].pairs.expect_sent(CompletionStatus::Ok);
    assert!(ends[1].contents()[page..] == data[..rest]);
    let data = fill(&ends[1], 2);
    begin(&mut ends, Operation::RdmaRead);
    ends[0].pairs.expect_sent(CompletionStatus::Ok);
    assert!(ends[0].contents()[..rest] == data[page..]);
    assert!(!has_mapped(&ends[1], &ends[0]) && !has_mapped(&ends[0], &ends[1]));
}

#[test]
fn adapter_killed_amid_a_transfer_fails_it_at_the_other() {
    for operation in [Operation::RdmaWrite, Operation::RdmaRead] {
        let (_fabric, mut ends) = two_amid(operation);
        ends[1].daemon.kill();
        assert!(GONE.contains(&ends[0].pairs.sent_status()));
        begin(&mut ends, operation);
        assert!(GONE.contains(&ends[0].pairs.sent_status()));
    }
}

#[test]
fn requester_killed_amid_its_transfer_leaves_the_other_at_work() {
    for operation in [Operation::RdmaWrite, Operation::RdmaRead] {
        let (_fabric, mut ends) = two_amid(operation);
        ends[0].daemon.kill();
        ends[1].daemon.signal(Signal::CONT);
        let (near, far) = (ends[0].keys, ends[1].keys);
        let pairs = &mut ends[1].pairs;
        pairs.rdma(Operation::RdmaWrite, (near.1, 0), (far.0, 0), 64);
        assert!(GONE.contains(&pairs.sent_status()));
        gid(&mut pairs.driver);
    }
}

/// Returns the driver's network statistics.
fn network(end: &mut End) -> Network {
    let mut command = GetStats::new_zeroed();
    command.kind = kind::NETWORK;
    let driver = &mut end.pairs.driver;
    driver.execute(Opcode::GetStats, &command).view()
}

#[test]
fn lost_packets_are_counted_as_sent_again() {
    const WRITES: u64 = 24;
    // The lost packets follow from the seed and the packets' numbers, not from the time.
    let fabric = fabric(vec!["*->* loss=20%".parse().unwrap()]);
    let mut ends = two(&fabric);
    assert_eq!(network(&mut ends[0]), Network::new_zeroed());
    let (near, far) = (ends[0].keys, ends[1].keys);
    for _ in 0..WRITES {
        let (there, here) = ((far.1, 0), (near.0, 0));
        let pairs = &mut ends[0].pairs;
        pairs.rdma(Operation::RdmaWrite, there, here, 1000);
        pairs.expect_sent(CompletionStatus::Ok);
    }
    let sender = network(&mut ends[0]);
    let again = sender.retransmitted_packets.get();
    assert!(again > 0, "{sender:?}");
    // One write at a time: each time-out resends one packet.
    assert_eq!(sender.timeouts.get(), again);
    let bytes = sender.retransmitted_bytes.get();
    assert!(bytes > 1000 * again && bytes < 1100 * again, "{sender:?}");
    assert_eq!(sender.unresponsive.get(), 0);
    let receiver = network(&mut ends[1]);
    assert_eq!(receiver.timeouts.get(), 0, "it only answers");
}
