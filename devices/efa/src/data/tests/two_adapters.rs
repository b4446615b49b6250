//! Two adapters at a real fabric, which loses, duplicates and reorders their packets.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use peerbar_efa_spec::completion::CompletionStatus;
use peerbar_efa_spec::work::Operation;
use peerbar_fabric::{Attachment, Config, Impairment, serve};
use tempfile::TempDir;

use super::fixture::{Adapter, Completion, PAYLOAD, Pair, Post};
use crate::objects::Gid;

pub(super) const A: Gid = Gid([0xa; 16]);
pub(super) const B: Gid = Gid([0xb; 16]);
const TO: u64 = PAYLOAD + (4 << 20);
/// Longer than any step here takes on a loaded machine.
const TIME_OUT: Duration = Duration::from_secs(60);

/// A fabric, until it is dropped.
pub(super) struct TestFabric {
    folder: TempDir,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl TestFabric {
    pub(super) fn start(rule: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let path = socket(folder.path());
        let (stop, stopped) = UnixStream::pair().unwrap();
        let (ready, is_ready) = channel();
        let config = Config {
            seed: 7,
            impairments: vec![rule.parse::<Impairment>().unwrap()],
            ..Config::default()
        };
        let thread = std::thread::spawn(move || {
            let ready = || ready.send(()).map_err(io::Error::other);
            serve(&path, config, &stopped, ready).unwrap();
        });
        is_ready.recv().unwrap();
        Self {
            folder,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    pub(super) fn adapter(&self, gid: Gid) -> Adapter {
        let mut adapter = Adapter::at(gid, Some(1));
        let name = gid.to_string().replace(':', "");
        let attachment = Attachment::new(&socket(self.folder.path()), &name, gid);
        adapter.path.attach(attachment.unwrap()).unwrap();
        adapter
    }
}

impl Drop for TestFabric {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("fabric.sock")
}

/// Works on all adapters until the pair, which belongs to the first one, has that many completions.
fn completions(adapters: &mut [&mut Adapter], pair: &mut Pair, count: usize) -> Vec<Completion> {
    let start = Instant::now();
    let mut all = Vec::new();
    while all.len() < count {
        assert!(start.elapsed() < TIME_OUT, "{all:?}");
        for adapter in &mut *adapters {
            adapter.now = Instant::now();
            adapter.work();
        }
        all.extend(adapters[0].poll(&mut pair.queue));
        std::thread::yield_now();
    }
    all
}

#[test]
fn bad_fabric_loses_no_transfer_and_doubles_no_message() {
    const LENGTH: u32 = 500_001;

    let fabric = TestFabric::start("*->* loss=3% duplicate=30% reorder=30%");
    let (mut near, mut far) = (fabric.adapter(A), fabric.adapter(B));
    let (mut a, mut b) = (near.reliable(), far.reliable());
    let handle = near.handle_to(B);
    far.handle_to(A);
    let near_keys = near.region(PAYLOAD, 8 << 20);
    let far_keys = far.region(PAYLOAD, 8 << 20);
    let written = near.fill(PAYLOAD + 1, LENGTH as usize, 1);
    let read = far.fill(PAYLOAD + 3, LENGTH as usize, 2);
    let write = Post::rdma(
        Operation::RdmaWrite,
        &b,
        handle,
        (near_keys.local, PAYLOAD + 1, LENGTH),
        (far_keys.remote, TO, LENGTH),
    );
    let reading = Post::rdma(
        Operation::RdmaRead,
        &b,
        handle,
        (near_keys.local, TO, LENGTH),
        (far_keys.remote, PAYLOAD + 3, LENGTH),
    );
    near.send(&mut a, &write);
    near.send(&mut a, &reading);
    for id in 0..10 {
        far.receive(&mut b, id, &[(far_keys.local, PAYLOAD + (3 << 20), 8)]);
        let message = Post {
            inline: Some(vec![id.to_le_bytes()[0]; 8]),
            ..Post::send(&b, handle, &[])
        };
        near.send(&mut a, &message);
    }
    let done = completions(&mut [&mut near, &mut far], &mut a, 12);
    assert!(
        done.iter().all(|it| it.status == CompletionStatus::Ok),
        "{done:?}"
    );
    assert!(far.bytes(TO, LENGTH as usize) == written);
    assert!(near.bytes(TO, LENGTH as usize) == read);
    assert_eq!(far.poll(&mut b.queue).len(), 10, "each message once");
}

/// Runs a write and a read of many parts, each to its own range. Returns the bytes of payload that
/// each adapter sent in packets, and through slots.
fn packets_and_slots(rule: &str) -> [(u64, u64); 2] {
    const LENGTH: u32 = (2 << 20) + 1;

    let fabric = TestFabric::start(rule);
    let (mut near, mut far) = (fabric.adapter(A), fabric.adapter(B));
    let (mut a, b) = (near.reliable(), far.reliable());
    let handle = near.handle_to(B);
    far.handle_to(A);
    let near_keys = near.region(PAYLOAD, 8 << 20);
    let far_keys = far.region(PAYLOAD, 8 << 20);
    let written = near.fill(PAYLOAD + 1, LENGTH as usize, 1);
    let read = far.fill(PAYLOAD + 3, LENGTH as usize, 2);
    for (operation, here, there) in [
        (Operation::RdmaWrite, PAYLOAD + 1, TO),
        (Operation::RdmaRead, TO, PAYLOAD + 3),
    ] {
        let local = (near_keys.local, here, LENGTH);
        let remote = (far_keys.remote, there, LENGTH);
        let post = Post::rdma(operation, &b, handle, local, remote);
        near.send(&mut a, &post);
        let done = completions(&mut [&mut near, &mut far], &mut a, 1);
        assert_eq!(done[0].status, CompletionStatus::Ok, "{operation:?}");
    }
    assert!(far.bytes(TO, LENGTH as usize) == written);
    assert!(near.bytes(TO, LENGTH as usize) == read);
    [&near, &far].map(|adapter| {
        let statistics = adapter.path.statistics();
        (statistics.packet_bytes, statistics.staged_bytes)
    })
}

#[test]
fn fabric_that_impairs_nothing_has_payload_pass_through_slots() {
    let length = (2 << 20) + 1;
    let [written, read] = packets_and_slots("*->* none");
    assert_eq!(read, (0, length));
    let (in_packets, through_slots) = written;
    assert_eq!(in_packets + through_slots, length);
    assert!(
        in_packets < 1 << 20,
        "{in_packets} until the buffer is shared"
    );
}

#[test]
fn payload_meets_the_impairments_of_its_fabric() {
    let length = (2 << 20) + 1;
    assert_eq!(packets_and_slots("*->* bandwidth=1GiB/s"), [(length, 0); 2]);
}

#[test]
fn adapter_that_leaves_ends_the_transfers_to_it() {
    let fabric = TestFabric::start("*->* none");
    let (mut near, mut far) = (fabric.adapter(A), fabric.adapter(B));
    let (mut a, b) = (near.reliable(), far.reliable());
    let handle = near.handle_to(B);
    far.handle_to(A);
    let near_keys = near.region(PAYLOAD, 4 << 20);
    let far_keys = far.region(TO, 4 << 20);
    let (local, remote) = (
        (near_keys.local, PAYLOAD, 4 << 20),
        (far_keys.remote, TO, 4 << 20),
    );
    let write = Post::rdma(Operation::RdmaWrite, &b, handle, local, remote);
    near.send(&mut a, &write);
    while far.path.statistics().received_packets == 0 {
        near.work();
        far.work();
    }
    drop(far);
    let [done] = completions(&mut [&mut near], &mut a, 1)[..] else {
        panic!("one completion");
    };
    assert_eq!(done.status, CompletionStatus::LocalUnreachableRemote);
    near.send(&mut a, &write);
    let done = completions(&mut [&mut near], &mut a, 1);
    assert_eq!(done[0].status, CompletionStatus::LocalUnreachableRemote);
}
