//! An adapter whose worker the test runs step by step, and user space like rdma-core's: queues in
//! memory, doorbells, completions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use peerbar_dma::{Buffer, MapAccess, MemoryFile, Requester, Upstream, UpstreamRequest};
use peerbar_efa_spec::completion::{
    CompletionCommon, CompletionStatus, EventEntry, ExtendedCompletion, QueueType,
};
use peerbar_efa_spec::work::{
    LocalBuffer, Operation, ReceiveDescriptor, ReceiveKey, RemoteBuffer, SendControl, SendFlags,
    SendMeta,
};
use peerbar_pci::{InterruptMode, Interrupts, Iova, Range};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::super::turn::Turn;
use super::super::worker::{NextTurn, Worker};
use super::super::{DataPath, Setup};
use crate::limits;
use crate::memory_bar::{self, Doorbell};
use crate::objects::{
    CreateAddressHandle, CreateCompletionQueue, CreateEventQueue, CreateQueuePair, Gid,
    ModifyQueuePair, QueuePairKind, QueuePairState, RegionKeys, RegisterRegion, VerbsAccess,
};

pub(super) const GID: Gid = Gid([0xfe; 16]);
pub(super) const QKEY: u32 = 0x1111_1111;
/// Size of RAM, which begins at bus address 0.
pub(super) const RAM: u64 = 16 << 20;
/// Number of entries of each send queue, and of each completion queue.
pub(super) const ENTRIES: u16 = 16;
/// Number of descriptors of each receive queue.
pub(super) const DESCRIPTORS: u16 = 32;

/// Address of the queues in RAM. Payload begins at [`PAYLOAD`].
const QUEUES: u64 = 0x1000;
pub(super) const PAYLOAD: u64 = 1 << 20;
/// Offset of user space's addresses to bus addresses.
pub(super) const VIRTUAL: u64 = 0x7f12_0000_0000;

/// The vectors that were raised.
#[derive(Default)]
pub(super) struct Raised(pub(super) Mutex<Vec<u16>>);

impl Interrupts for Raised {
    fn mode(&self) -> InterruptMode {
        InterruptMode::MsiX
    }

    fn raise(&self, vector: u16) {
        self.0.lock().push(vector);
    }

    fn set_pin(&self, _: bool) {}
}

/// Memory that only the client can access.
struct AskedMemory(Mutex<Vec<u8>>);

/// Its address.
const ASKED: u64 = 0x8000_0000;

impl Upstream for AskedMemory {
    fn carry_out(&self, requests: &mut [UpstreamRequest<'_>], _: &dyn Fn() -> bool) {
        let mut memory = self.0.lock();
        for ask in requests {
            let start = usize::try_from(ask.address.0 - ASKED).unwrap();
            let bytes = &mut memory[start..start + ask.data.len()];
            match &mut ask.data {
                Buffer::Read(data) => data.copy_from_slice(bytes),
                Buffer::Write(data) => bytes.copy_from_slice(data),
            }
            ask.outcome = Some(Ok(()));
        }
    }
}

/// An adapter with RAM.
pub(super) struct Adapter {
    pub(super) path: DataPath,
    pub(super) worker: Worker,
    pub(super) requester: Arc<Requester>,
    pub(super) ram: MemoryFile,
    pub(super) raised: Arc<Raised>,
    bar: Arc<MemoryFile>,
    pub(super) now: Instant,
    pub(super) uar: u16,
    pub(super) domain: u16,
    /// The address of the next queue in RAM.
    free: u64,
}

/// A queue pair and its completion queue, as user space has them.
pub(super) struct Pair {
    pub(super) number: u16,
    pub(super) queue: CompletionRing,
    receive: u64,
    entry_bytes: usize,
    pub(super) sent: u16,
    received: u16,
}

/// A completion queue, as user space has it.
#[derive(Clone)]
pub(super) struct CompletionRing {
    pub(super) number: u16,
    address: u64,
    entry_bytes: usize,
    /// `true` if the number of consumed entries is told by the doorbell in memory.
    pub(super) is_polled: bool,
    consumed: u32,
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Completion {
    pub(super) pair: u16,
    pub(super) queue: QueueType,
    pub(super) id: u16,
    pub(super) status: CompletionStatus,
    pub(super) operation: Operation,
    pub(super) bytes: u32,
    pub(super) immediate: Option<u32>,
    pub(super) unsolicited: bool,
    pub(super) handle: u16,
    pub(super) source: u16,
}

/// A work request of a send queue.
#[derive(Clone, Debug)]
pub(super) struct Post {
    pub(super) id: u16,
    pub(super) operation: Operation,
    pub(super) to: u16,
    pub(super) handle: u16,
    pub(super) qkey: u32,
    pub(super) immediate: Option<u32>,
    pub(super) inline: Option<Vec<u8>>,
    /// Key, address and length.
    pub(super) local: Vec<(u32, u64, u32)>,
    pub(super) remote: (u32, u64, u32),
}

impl Adapter {
    pub(super) fn new() -> Self {
        Self::with_seed(None)
    }

    pub(super) fn with_seed(seed: Option<u64>) -> Self {
        Self::at(GID, seed)
    }

    /// Makes an adapter of this address.
    pub(super) fn at(gid: Gid, seed: Option<u64>) -> Self {
        let requester = Arc::new(Requester::new());
        let ram = MemoryFile::create("ram", RAM).unwrap();
        let fd = ram.file().try_clone().unwrap().into();
        requester
            .map(
                Range::new(Iova(0), RAM).unwrap(),
                MapAccess::READ_WRITE,
                Some((fd, 0)),
            )
            .unwrap();
        requester.set_bus_master(true);
        let bar = Arc::new(MemoryFile::create("bar", memory_bar::BAR_BYTES).unwrap());
        let raised = Arc::new(Raised::default());
        let (path, worker) = DataPath::parts(Setup {
            gid,
            requester: requester.clone(),
            interrupts: raised.clone(),
            bar_memory: bar.clone(),
            seed,
        })
        .unwrap();
        let uar = path.objects().create_uar().unwrap();
        let domain = path.objects().create_protection_domain().unwrap();
        Self {
            path,
            worker,
            requester,
            ram,
            raised,
            bar,
            now: Instant::now(),
            uar,
            domain,
            free: QUEUES,
        }
    }

    pub(super) fn bar(&self) -> &MemoryFile {
        &self.bar
    }

    pub(super) fn take_worker(&mut self) -> Worker {
        let other = DataPath::parts(Setup {
            gid: GID,
            requester: self.requester.clone(),
            interrupts: self.raised.clone(),
            bar_memory: self.bar.clone(),
            seed: None,
        })
        .unwrap();
        std::mem::replace(&mut self.worker, other.1)
    }

    /// Creates an address handle that leads to the adapter itself.
    pub(super) fn handle(&self) -> u16 {
        self.handle_to(GID)
    }

    pub(super) fn handle_to(&self, gid: Gid) -> u16 {
        let handle = CreateAddressHandle {
            protection_domain: self.domain,
            gid,
        };
        self.path.objects().create_address_handle(handle).unwrap()
    }

    /// Returns the bus address of 1 MiB of memory that is not mapped here.
    pub(super) fn asked_memory(&self) -> u64 {
        let (bytes, requester) = (1 << 20, &self.requester);
        requester
            .map(
                Range::new(Iova(ASKED), bytes).unwrap(),
                MapAccess::READ_WRITE,
                None,
            )
            .unwrap();
        let memory = vec![0; usize::try_from(bytes).unwrap()];
        let memory = Arc::new(AskedMemory(Mutex::new(memory)));
        requester.set_upstream(Some(memory));
        ASKED
    }

    /// Allocates RAM for a queue.
    fn take_ram(&mut self, bytes: u64) -> u64 {
        let address = self.free;
        self.free = (address + bytes).next_multiple_of(4096);
        assert!(self.free <= PAYLOAD);
        address
    }

    pub(super) fn completion_queue(&mut self, event_queue: Option<u16>) -> CompletionRing {
        self.completion_queue_of(32, event_queue)
    }

    pub(super) fn completion_queue_of(
        &mut self,
        entry_bytes: usize,
        event_queue: Option<u16>,
    ) -> CompletionRing {
        let address = self.take_ram(u64::from(ENTRIES) * entry_bytes as u64);
        let create = CreateCompletionQueue {
            uar: self.uar,
            entries: ENTRIES,
            entry_bytes,
            address,
            event_queue,
            with_source_address: entry_bytes == 32,
        };
        let number = self.path.objects().create_completion_queue(create).unwrap();
        CompletionRing {
            number,
            address,
            entry_bytes,
            is_polled: event_queue.is_none(),
            consumed: 0,
        }
    }

    /// Creates an event queue with that many entries. Returns its number and address.
    pub(super) fn event_queue(&mut self, entries: u16) -> (u16, u64) {
        let address = self.take_ram(u64::from(entries) * 16);
        let create = CreateEventQueue {
            entries,
            address,
            vector: 5,
        };
        let number = self.path.objects().create_event_queue(create).unwrap();
        (number, address)
    }

    /// Creates a queue pair that is ready to send, with its own completion queue.
    pub(super) fn pair(&mut self, kind: QueuePairKind) -> Pair {
        let queue = self.completion_queue(None);
        self.pair_with(kind, queue, 64, false)
    }

    pub(super) fn reliable(&mut self) -> Pair {
        self.pair(QueuePairKind::ReliableDatagram)
    }

    /// Returns the parameters of a queue pair with its completions in this queue.
    pub(super) fn pair_parameters(&mut self, queue: u16, entry_bytes: u32) -> CreateQueuePair {
        CreateQueuePair {
            kind: QueuePairKind::ReliableDatagram,
            protection_domain: self.domain,
            uar: self.uar,
            send_completions: queue.into(),
            receive_completions: queue.into(),
            send_entries: ENTRIES.into(),
            send_bytes: u32::from(ENTRIES) * entry_bytes,
            receive_address: self.take_ram(u64::from(DESCRIPTORS) * 16),
            receive_bytes: u32::from(DESCRIPTORS) * 16,
            unsolicited_writes: false,
        }
    }

    pub(super) fn pair_with(
        &mut self,
        kind: QueuePairKind,
        queue: CompletionRing,
        entry_bytes: u32,
        unsolicited_writes: bool,
    ) -> Pair {
        let create = CreateQueuePair {
            kind,
            unsolicited_writes,
            ..self.pair_parameters(queue.number, entry_bytes)
        };
        let receive = create.receive_address;
        let number = self.path.objects().create_queue_pair(create).unwrap();
        self.make_ready(number);
        Pair {
            number,
            queue,
            receive,
            entry_bytes: entry_bytes as usize,
            sent: 0,
            received: 0,
        }
    }

    /// Makes a new queue pair ready to send.
    pub(super) fn make_ready(&self, number: u16) {
        for state in [
            QueuePairState::Init,
            QueuePairState::ReadyToReceive,
            QueuePairState::ReadyToSend,
        ] {
            self.set_state(number, state);
        }
    }

    pub(super) fn set_state(&self, number: u16, state: QueuePairState) {
        let changes = ModifyQueuePair {
            state: Some(state),
            qkey: Some(QKEY),
            ..ModifyQueuePair::default()
        };
        let mut objects = self.path.objects();
        objects.modify_queue_pair(number, changes).unwrap();
    }

    pub(super) fn set_rnr_retry(&self, number: u16, retries: u8) {
        let changes = ModifyQueuePair {
            rnr_retry: Some(retries),
            ..ModifyQueuePair::default()
        };
        let mut objects = self.path.objects();
        objects.modify_queue_pair(number, changes).unwrap();
    }

    /// Registers payload memory at this bus address with all rights. User space sees it at
    /// [`VIRTUAL`] plus that address.
    pub(super) fn region(&self, bus: u64, length: u64) -> RegionKeys {
        let access = VerbsAccess {
            local_write: true,
            remote_write: true,
            remote_read: true,
        };
        self.region_with(bus, length, access)
    }

    pub(super) fn region_with(&self, bus: u64, length: u64, access: VerbsAccess) -> RegionKeys {
        let first = bus & !0xfff;
        let pages: Vec<u64> = (first..bus + length).step_by(4096).collect();
        let parameters = RegisterRegion {
            protection_domain: self.domain,
            address: bus + VIRTUAL,
            length,
            page_shift: 12,
            pages: &pages,
            access,
        };
        self.path.objects().register_region(parameters).unwrap()
    }

    /// Writes a work request and rings the doorbell.
    pub(super) fn send(&self, pair: &mut Pair, post: &Post) {
        self.write_entry(pair, &entry(post, pair.entry_bytes));
    }

    /// Writes these bytes as a work request and rings the doorbell.
    pub(super) fn write_entry(&self, pair: &mut Pair, entry: &[u8]) {
        let slot = pair.number % limits::QUEUE_PAIRS;
        let at = u64::from(pair.sent % ENTRIES) * pair.entry_bytes as u64;
        let offset = memory_bar::send_queue(slot) + at;
        self.bar.write(offset, entry).unwrap();
        pair.sent = pair.sent.wrapping_add(1);
        self.ring(Doorbell::Send(slot), pair.sent);
    }

    pub(super) fn ring(&self, doorbell: Doorbell, value: u16) {
        self.path.doorbell(self.uar, doorbell, value.into());
    }

    /// Posts a receive: key, bus address and length of each buffer.
    pub(super) fn receive(&self, pair: &mut Pair, id: u16, buffers: &[(u32, u64, u16)]) {
        for (index, (key, bus, length)) in buffers.iter().enumerate() {
            let descriptor = ReceiveDescriptor {
                address: U64::new(bus + VIRTUAL),
                req_id: U16::new(id),
                length: U16::new(*length),
                key: ReceiveKey::new()
                    .with_lkey(*key)
                    .with_first(index == 0)
                    .with_last(index + 1 == buffers.len()),
            };
            self.write_descriptor(pair, descriptor);
        }
        let slot = pair.number % limits::QUEUE_PAIRS;
        self.ring(Doorbell::Receive(slot), pair.received);
    }

    pub(super) fn write_descriptor(&self, pair: &mut Pair, descriptor: ReceiveDescriptor) {
        let at = u64::from(pair.received % DESCRIPTORS) * 16;
        self.ram
            .write(pair.receive + at, descriptor.as_bytes())
            .unwrap();
        pair.received = pair.received.wrapping_add(1);
    }

    /// Runs the part of a turn that follows the taking of doorbells.
    pub(super) fn take_mail(&mut self) {
        let worker = &mut self.worker;
        let mut turn = Turn {
            objects: &mut worker.objects.lock(),
            local: &mut worker.local,
            peers: &mut worker.peers,
            order: worker.order.as_mut(),
            now: self.now,
        };
        turn.take_mail();
    }

    /// Runs the worker until it has nothing to do now. Returns the time after which it would
    /// continue by itself.
    pub(super) fn work(&mut self) -> Option<Duration> {
        for _ in 0..10_000 {
            if let NextTurn::Wait(until) = self.worker.turn(self.now) {
                return until.map(|until| until - self.now);
            }
        }
        panic!("the worker does not come to an end");
    }

    /// Takes all completions.
    pub(super) fn poll(&self, queue: &mut CompletionRing) -> Vec<Completion> {
        let mut all = Vec::new();
        loop {
            let at = u64::from(queue.consumed % u32::from(ENTRIES));
            let mut entry = [0; 32];
            let address = queue.address + at * queue.entry_bytes as u64;
            self.ram
                .read(address, &mut entry[..queue.entry_bytes])
                .unwrap();
            let phase = (queue.consumed / u32::from(ENTRIES)) % 2 == 0;
            let completion = ExtendedCompletion::read_from_bytes(&entry).unwrap();
            if completion.base.common.flags.phase() != phase {
                if queue.is_polled && !all.is_empty() {
                    let doorbell = memory_bar::polled_doorbell(self.uar, queue.number);
                    self.bar.store(doorbell, queue.consumed & 0xffff).unwrap();
                }
                return all;
            }
            queue.consumed += 1;
            all.push(decoded(&completion));
        }
    }

    /// Returns the only new completion of this pair.
    pub(super) fn one(&self, pair: &mut Pair) -> Completion {
        let all = self.poll(&mut pair.queue);
        assert_eq!(all.len(), 1, "{all:?}");
        all[0]
    }

    /// Returns the statuses of all completions of this pair, by their numbers.
    pub(super) fn statuses(&self, pair: &mut Pair) -> Vec<(u16, CompletionStatus)> {
        let all = self.poll(&mut pair.queue);
        all.into_iter().map(|it| (it.id, it.status)).collect()
    }

    pub(super) fn fill(&self, bus: u64, length: usize, seed: u8) -> Vec<u8> {
        let data: Vec<u8> = (0..length)
            .map(|at| (at % 251).to_le_bytes()[0] ^ (at / 251).to_le_bytes()[0] ^ seed)
            .collect();
        self.ram.write(bus, &data).unwrap();
        data
    }

    pub(super) fn bytes(&self, bus: u64, length: usize) -> Vec<u8> {
        let mut data = vec![0; length];
        self.ram.read(bus, &mut data).unwrap();
        data
    }

    pub(super) fn event(&self, address: u64, index: u16) -> EventEntry {
        let mut event = [0; 16];
        self.ram
            .read(address + 16 * u64::from(index), &mut event)
            .unwrap();
        EventEntry::read_from_bytes(&event).unwrap()
    }
}

impl Post {
    /// Makes a send of these buffers: key, bus address and length.
    pub(super) fn send(to: &Pair, handle: u16, local: &[(u32, u64, u32)]) -> Self {
        Self {
            id: 0,
            operation: Operation::Send,
            to: to.number,
            handle,
            qkey: QKEY,
            immediate: None,
            inline: None,
            local: local.to_vec(),
            remote: (0, 0, 0),
        }
    }

    /// Makes an RDMA request between a local and a remote buffer.
    pub(super) fn rdma(
        operation: Operation,
        to: &Pair,
        handle: u16,
        local: (u32, u64, u32),
        remote: (u32, u64, u32),
    ) -> Self {
        Self {
            operation,
            remote,
            ..Self::send(to, handle, &[local])
        }
    }

    pub(super) fn with_id(self, id: u16) -> Self {
        Self { id, ..self }
    }
}

/// Returns the entry of a work request.
pub(super) fn entry(post: &Post, bytes: usize) -> Vec<u8> {
    let count = post.inline.as_ref().map_or(post.local.len(), Vec::len);
    let meta = SendMeta {
        req_id: U16::new(post.id),
        control: SendControl::new()
            .with_operation(post.operation as u8)
            .with_has_immediate(post.immediate.is_some())
            .with_is_inline(post.inline.is_some())
            .with_is_meta(true),
        flags: SendFlags::new()
            .with_first(true)
            .with_last(true)
            .with_completion(true),
        dest_qp_num: U16::new(post.to),
        length: U16::new(u16::try_from(count).unwrap()),
        immediate_data: U32::new(post.immediate.unwrap_or(0)),
        ah: U16::new(post.handle),
        hints: 0,
        reserved: 0,
        qkey: U32::new(post.qkey),
        reserved2: [0; 6],
        req_id_ex: [U16::ZERO; 3],
    };
    let mut entry = meta.as_bytes().to_vec();
    if post.operation != Operation::Send {
        let (key, bus, length) = post.remote;
        let remote = RemoteBuffer {
            length: U32::new(length),
            rkey: U32::new(key),
            address: U64::new(bus + VIRTUAL),
        };
        entry.extend_from_slice(remote.as_bytes());
    }
    match &post.inline {
        Some(data) => entry.extend_from_slice(data),
        None => {
            for (key, bus, length) in &post.local {
                let buffer = LocalBuffer {
                    length: U32::new(*length),
                    lkey: U32::new(*key),
                    address: U64::new(bus + VIRTUAL),
                };
                entry.extend_from_slice(buffer.as_bytes());
            }
        }
    }
    entry.resize(bytes, 0);
    entry
}

fn decoded(completion: &ExtendedCompletion) -> Completion {
    let base = &completion.base;
    let CompletionCommon { flags, status, .. } = base.common;
    let is_send = flags.queue_type() == QueueType::Send as u8;
    let operation = Operation::from_number(flags.operation()).unwrap();
    let [low, high, ..] = completion.extension;
    let is_write = !is_send && operation == Operation::RdmaWrite;
    let high = if is_write {
        u16::from_le_bytes([low, high])
    } else {
        0
    };
    Completion {
        pair: base.common.qp_num.get(),
        queue: if is_send {
            QueueType::Send
        } else {
            QueueType::Receive
        },
        id: base.common.req_id.get(),
        status: CompletionStatus::from_number(status).unwrap(),
        operation,
        bytes: if is_send {
            0
        } else {
            u32::from(base.length.get()) | u32::from(high) << 16
        },
        immediate: flags.has_immediate().then(|| base.immediate.get()),
        unsolicited: flags.unsolicited(),
        handle: base.ah.get(),
        source: base.src_qp_num.get(),
    }
}
