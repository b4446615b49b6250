//! Transfers between two queue pairs, all made by admin commands, from the view of user space.

use peerbar_efa_spec::admin::completion_queue::CreatedCq;
use peerbar_efa_spec::admin::memory_region::{
    DeregMr, Permissions, RegMr, RegMrFlags, RegisteredMr,
};
use peerbar_efa_spec::admin::queue_pair::{CreateQp, CreatedQp, state, transport};
use peerbar_efa_spec::admin::resource::{CreateAh, CreatedAh};
use peerbar_efa_spec::admin::statistics::{GetStats, RdmaWrite, kind};
use peerbar_efa_spec::admin::{Opcode, Status};
use peerbar_efa_spec::completion::{CompletionStatus, ReceiveCompletion, SendCompletion};
use peerbar_efa_spec::work::{
    LocalBuffer, Operation, ReceiveDescriptor, ReceiveKey, RemoteBuffer, SEND_ENTRY_BYTES,
    SendControl, SendFlags, SendMeta,
};
use peerbar_rig::wait_until;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::driver::{DATA, Driver, Link, Local, MEMORY};
use crate::objects::{allocate, completion_queue, modify_state};

pub(crate) const PAGE: u64 = 4096;
/// Entries of every queue.
const ENTRIES: u32 = 64;
const COMPLETION_BYTES: u64 = 16;
const QKEY: u32 = 0x1111_1111;
/// The memory region's address in guest RAM, its length, and its address in work requests.
pub(crate) const REGION: u64 = DATA + 16 * PAGE;
pub(crate) const REGION_BYTES: u64 = 4 * PAGE;
pub(crate) const REGION_IOVA: u64 = 0x5000_0000_0000;
/// Addresses of a side's receive queue and completion queue.
const RECEIVES: u64 = DATA;
const COMPLETIONS: u64 = DATA + 4 * PAGE;

/// One of two queue pairs.
struct Side {
    pair: CreatedQp,
    completions: u64,
    completion_doorbell: u32,
    receives: u64,
    sent: u32,
    received: u32,
    completed: u32,
}

/// Two queue pairs of one protection domain, with a memory region.
pub(crate) struct QueuePairs<L> {
    pub(crate) driver: Driver<L>,
    pub(crate) uar: u16,
    pub(crate) pd: u16,
    ah: CreatedAh,
    sides: Vec<Side>,
    /// The side that sends. The other one receives.
    sender: usize,
    /// The number of the queue pair of another adapter, if that one receives.
    pub(crate) peer: Option<u16>,
    /// The number of the next work request.
    pub(crate) request: u16,
}

impl<L: Link> QueuePairs<L> {
    /// Creates two queue pairs of a driver. Their address handle leads to the adapter of this GID.
    pub(crate) fn new(mut driver: Driver<L>, gid: [u8; 16]) -> Self {
        let uar = allocate(&mut driver, Opcode::AllocUar);
        let pd = allocate(&mut driver, Opcode::AllocPd);
        let mut handle = CreateAh::new_zeroed();
        handle.destination = gid;
        handle.pd = pd.into();
        let ah = driver.execute(Opcode::CreateAh, &handle).view();
        let sides = (0..2).map(|side| new_side(&mut driver, side, (uar, pd)));
        Self {
            sides: sides.collect(),
            sender: 0,
            peer: None,
            request: 3,
            driver,
            uar,
            pd,
            ah,
        }
    }

    /// Returns the number of the queue pair that sends.
    pub(crate) fn number(&self) -> u16 {
        self.sides[self.sender].pair.number.get()
    }

    /// Returns the handle of a side's queue pair.
    pub(crate) fn handle(&self, side: usize) -> u32 {
        self.sides[side].pair.handle.get()
    }

    /// Takes the queue pair of a side that has been idle back to RESET.
    pub(crate) fn make_idle(&mut self, side: usize) {
        let reset = modify_state(self.handle(side), state::RESET);
        self.driver
            .execute(Opcode::ModifyQp, &reset)
            .expect(Status::Success);
    }

    /// Makes the queue pair of a side ready to send.
    pub(crate) fn make_ready(&mut self, side: usize) {
        make_ready(&mut self.driver, &self.sides[side].pair);
    }

    pub(crate) fn register(&mut self, permissions: Permissions) -> RegisteredMr {
        let mut region = RegMr::new_zeroed();
        region.pd = self.pd.into();
        region.length = REGION_BYTES.into();
        region.iova = REGION_IOVA.into();
        region.flags = RegMrFlags::new().with_page_shift(12);
        region.permissions = permissions;
        for (page, address) in region.inline_pages.iter_mut().zip(0u64..) {
            // In reverse, so that only the list of pages finds the bytes.
            *page = (REGION + (3 - address) * PAGE).into();
        }
        self.driver.execute(Opcode::RegMr, &region).view()
    }

    pub(crate) fn write_region(&self, offset: u64, data: &[u8]) {
        let page = REGION + (3 - offset / PAGE) * PAGE;
        self.driver.write_ram(page + offset % PAGE, data);
    }

    pub(crate) fn read_region(&self, offset: u64, data: &mut [u8]) {
        let page = REGION + (3 - offset / PAGE) * PAGE;
        self.driver.read_ram(page + offset % PAGE, data);
    }

    /// Posts a receive of side 1.
    fn receive(&mut self, key: u32, offset: u64, length: u16) {
        let side = &mut self.sides[1];
        let descriptor = ReceiveDescriptor {
            address: (REGION_IOVA + offset).into(),
            req_id: 7.into(),
            length: length.into(),
            key: ReceiveKey::new()
                .with_lkey(key)
                .with_first(true)
                .with_last(true),
        };
        let address = side.receives + u64::from(side.received % ENTRIES) * 16;
        side.received += 1;
        let (doorbell, value) = (side.pair.rq_doorbell, side.received);
        self.driver.write_ram(address, descriptor.as_bytes());
        self.ring(doorbell.get(), value);
    }

    fn ring(&mut self, doorbell: u32, value: u32) {
        let value = value.to_le_bytes();
        self.driver.link.write(MEMORY, doorbell.into(), &value);
    }

    /// Posts a work request of the sender, which ends with `rest`.
    pub(crate) fn post(&mut self, operation: Operation, length: u16, rest: &[u8]) {
        let mut meta = SendMeta::new_zeroed();
        meta.req_id = self.request.into();
        meta.control = SendControl::new()
            .with_operation(operation as u8)
            .with_is_meta(true);
        let side = &mut self.sides[self.sender];
        let is_first_round = (side.sent / ENTRIES) % 2 == 0;
        meta.flags = SendFlags::new()
            .with_phase(is_first_round)
            .with_first(true)
            .with_last(true)
            .with_completion(true);
        let index = u64::from(side.sent % ENTRIES);
        let offset = u64::from(side.pair.sq_offset.get()) + index * SEND_ENTRY_BYTES as u64;
        side.sent += 1;
        let (doorbell, value) = (side.pair.sq_doorbell, side.sent);
        let own = self.sides[1 - self.sender].pair.number;
        meta.dest_qp_num = self.peer.map_or(own, Into::into);
        meta.length = length.into();
        meta.ah = self.ah.ah;
        meta.qkey = QKEY.into();
        let mut entry = meta.as_bytes().to_vec();
        entry.extend_from_slice(rest);
        entry.resize(SEND_ENTRY_BYTES, 0);
        self.driver.link.write_mapped(MEMORY, offset, &entry);
        self.ring(doorbell.get(), value);
    }

    fn send(&mut self, key: u32, offset: u64, length: u32) {
        let buffer = local(key, offset, length);
        self.post(Operation::Send, 1, buffer.as_bytes());
    }

    pub(crate) fn rdma(
        &mut self,
        operation: Operation,
        (remote_key, there): (u32, u64),
        (local_key, here): (u32, u64),
        length: u32,
    ) {
        let remote = RemoteBuffer {
            length: length.into(),
            rkey: remote_key.into(),
            address: (REGION_IOVA + there).into(),
        };
        let local = local(local_key, here, length);
        let rest = [remote.as_bytes(), local.as_bytes()].concat();
        self.post(operation, 1, &rest);
    }

    /// Takes the next completion of a side.
    #[track_caller]
    fn completion(&mut self, side: usize) -> [u8; 16] {
        let entry = wait_until("a completion", || self.completion_ahead(side, 0));
        let side = &mut self.sides[side];
        side.completed += 1;
        let doorbell = side.completion_doorbell.into();
        let consumed = (side.completed & 0xffff).to_le_bytes();
        self.driver.link.write_mapped(MEMORY, doorbell, &consumed);
        entry
    }

    /// Returns the completion of a side that is `ahead` behind the next one, if it is there.
    fn completion_ahead(&self, side: usize, ahead: u32) -> Option<[u8; 16]> {
        let side = &self.sides[side];
        let number = side.completed + ahead;
        let index = u64::from(number % ENTRIES);
        let phase = u8::from((number / ENTRIES) % 2 == 0);
        let address = side.completions + index * COMPLETION_BYTES;
        let mut entry = [0; 16];
        self.driver.read_ram(address, &mut entry);
        if entry[3] & 1 != phase {
            return None;
        }
        self.driver.read_ram(address, &mut entry);
        Some(entry)
    }

    /// Returns the number of the sender's work requests that have ended, beyond those that
    /// [`Self::sent`] has returned.
    pub(crate) fn ended(&self) -> usize {
        let completions = (0..ENTRIES).map(|ahead| self.completion_ahead(self.sender, ahead));
        completions.take_while(Option::is_some).count()
    }

    #[track_caller]
    pub(crate) fn expect_sent(&mut self, status: CompletionStatus) {
        assert_eq!(self.sent_status(), status as u8, "{status:?}");
    }

    /// Returns the status of the sender's next work request.
    #[track_caller]
    pub(crate) fn sent_status(&mut self) -> u8 {
        let (request, status) = self.sent();
        assert_eq!(request, self.request);
        status
    }

    /// Returns the number and the status of the sender's next work request that has ended.
    #[track_caller]
    pub(crate) fn sent(&mut self) -> (u16, u8) {
        let completion = self.completion(self.sender);
        let completion = SendCompletion::read_from_bytes(&completion).unwrap();
        (completion.common.req_id.get(), completion.common.status)
    }
}

fn new_side<L: Link>(driver: &mut Driver<L>, side: u64, (uar, pd): (u16, u16)) -> Side {
    let (receives, completions) = (RECEIVES + side * PAGE, COMPLETIONS + side * PAGE);
    let mut queue = completion_queue(uar);
    queue.address = completions.into();
    let queue: CreatedCq = driver.execute(Opcode::CreateCq, &queue).view();
    let mut pair = CreateQp::new_zeroed();
    pair.pd = pd.into();
    pair.transport = transport::SRD;
    pair.uar = uar.into();
    pair.send_cq = u32::from(queue.cq.get()).into();
    pair.receive_cq = pair.send_cq;
    pair.sq_depth = ENTRIES.into();
    pair.sq_bytes = (ENTRIES * SEND_ENTRY_BYTES as u32).into();
    pair.rq_depth = ENTRIES.into();
    pair.rq_bytes = (ENTRIES * 16).into();
    pair.rq_address = receives.into();
    let pair: CreatedQp = driver.execute(Opcode::CreateQp, &pair).view();
    make_ready(driver, &pair);
    Side {
        pair,
        completions,
        completion_doorbell: queue.doorbell.get(),
        receives,
        sent: 0,
        received: 0,
        completed: 0,
    }
}

fn make_ready<L: Link>(driver: &mut Driver<L>, pair: &CreatedQp) {
    for next in [state::INIT, state::RTR, state::RTS] {
        let mut modify = modify_state(pair.handle.get(), next);
        modify.mask = modify.mask.with_qkey(true);
        modify.qkey = QKEY.into();
        driver
            .execute(Opcode::ModifyQp, &modify)
            .expect(Status::Success);
    }
}

fn local(key: u32, offset: u64, length: u32) -> LocalBuffer {
    LocalBuffer {
        length: length.into(),
        lkey: key.into(),
        address: (REGION_IOVA + offset).into(),
    }
}

pub(crate) fn everything() -> Permissions {
    Permissions::new()
        .with_local_write(true)
        .with_remote_write(true)
        .with_remote_read(true)
}

/// Returns the GID of an adapter.
pub(crate) fn gid<L: Link>(driver: &mut Driver<L>) -> [u8; 16] {
    use peerbar_efa_spec::admin::feature::{FeatureCommand, NetworkAttributes, id};
    let mut command = FeatureCommand::new_zeroed();
    command.select.id = id::NETWORK_ATTRIBUTES;
    let network: NetworkAttributes = driver.execute(Opcode::GetFeature, &command).view();
    network.gid
}

fn queue_pairs() -> QueuePairs<Local> {
    let mut driver = Driver::new();
    let gid = gid(&mut driver);
    QueuePairs::new(driver, gid)
}

/// A message and RDMA in both directions, across page boundaries of a region whose pages are
/// scattered.
pub(crate) fn every_operation_moves_its_bytes<L: Link>(mut driver: Driver<L>) {
    let gid = gid(&mut driver);
    let mut pairs = QueuePairs::new(driver, gid);
    let keys = pairs.register(everything());
    let (local_key, remote_key) = (keys.local_key.get(), keys.remote_key.get());
    let mut found = [0; 8];
    pairs.write_region(PAGE - 4, b"mess");
    pairs.write_region(PAGE, b"ages");
    pairs.receive(local_key, 2 * PAGE, 64);
    pairs.send(local_key, PAGE - 4, 8);
    pairs.expect_sent(CompletionStatus::Ok);
    let received = pairs.completion(1);
    let received = ReceiveCompletion::read_from_bytes(&received).unwrap();
    assert_eq!((received.common.status, received.length.get()), (0, 8));
    pairs.read_region(2 * PAGE, &mut found);
    assert_eq!(&found, b"messages");
    pairs.write_region(0x10, b"to write");
    let here = (local_key, 0x10);
    pairs.rdma(Operation::RdmaWrite, (remote_key, 3 * PAGE), here, 8);
    pairs.expect_sent(CompletionStatus::Ok);
    pairs.read_region(3 * PAGE, &mut found);
    assert_eq!(&found, b"to write");
    pairs.write_region(3 * PAGE + 0x20, b"for read");
    let here = (local_key, 0x30);
    pairs.rdma(Operation::RdmaRead, (remote_key, 3 * PAGE + 0x20), here, 8);
    pairs.expect_sent(CompletionStatus::Ok);
    pairs.read_region(0x30, &mut found);
    assert_eq!(&found, b"for read");
    let mut command = GetStats::new_zeroed();
    command.kind = kind::RDMA_WRITE;
    let writes: RdmaWrite = pairs.driver.execute(Opcode::GetStats, &command).view();
    assert_eq!((writes.writes.get(), writes.bytes.get()), (1, 8));
}

#[test]
fn operations_move_their_bytes_by_scattered_pages() {
    every_operation_moves_its_bytes(Driver::new());
}

#[test]
fn queues_go_on_round_after_round() {
    let mut pairs = queue_pairs();
    let keys = pairs.register(everything());
    let (local_key, remote_key) = (keys.local_key.get(), keys.remote_key.get());
    for round in 0..3 * u64::from(ENTRIES) + 1 {
        pairs.write_region(0, &round.to_le_bytes());
        pairs.rdma(Operation::RdmaWrite, (remote_key, PAGE), (local_key, 0), 8);
        pairs.expect_sent(CompletionStatus::Ok);
        let mut found = [0; 8];
        pairs.read_region(PAGE, &mut found);
        assert_eq!(found, round.to_le_bytes());
    }
}

#[test]
fn key_that_was_guessed_or_permits_less_moves_nothing() {
    let mut pairs = queue_pairs();
    let keys = pairs.register(everything());
    let (local_key, remote_key) = (keys.local_key.get(), keys.remote_key.get());
    let read_only = pairs.register(Permissions::new().with_remote_read(true));
    let unwritable = read_only.remote_key.get();
    pairs.write_region(0, b"payload!");
    for key in [
        remote_key ^ 1,
        remote_key.wrapping_add(1),
        local_key,
        unwritable,
    ] {
        pairs.rdma(Operation::RdmaWrite, (key, PAGE), (local_key, 0), 8);
        pairs.expect_sent(CompletionStatus::RemoteBadAddress);
    }
    let unwritable = read_only.local_key.get();
    let there = (remote_key, 0);
    pairs.rdma(Operation::RdmaRead, there, (unwritable, PAGE), 8);
    pairs.expect_sent(CompletionStatus::LocalInvalidKey);
    for offset in [REGION_BYTES - 7, u64::MAX - REGION_IOVA] {
        pairs.rdma(
            Operation::RdmaWrite,
            (remote_key, offset),
            (local_key, 0),
            8,
        );
        pairs.expect_sent(CompletionStatus::RemoteBadAddress);
    }
    let mut found = [0; 8];
    pairs.read_region(PAGE, &mut found);
    assert_eq!(found, [0; 8]);
}

#[test]
fn removed_region_moves_nothing() {
    let mut pairs = queue_pairs();
    let keys = pairs.register(everything());
    let gone = pairs.register(everything());
    let local_key = gone.local_key;
    let removed = pairs
        .driver
        .execute(Opcode::DeregMr, &DeregMr { local_key });
    removed.expect(Status::Success);
    let (known, gone_remote) = (keys.local_key.get(), gone.remote_key.get());
    pairs.rdma(Operation::RdmaWrite, (gone_remote, PAGE), (known, 0), 8);
    pairs.expect_sent(CompletionStatus::RemoteBadAddress);
    pairs.receive(known, PAGE, 64);
    pairs.send(local_key.get(), 0, 8);
    pairs.expect_sent(CompletionStatus::LocalInvalidKey);
}

#[test]
fn queue_pair_in_error_flushes_its_receives() {
    let mut pairs = queue_pairs();
    let keys = pairs.register(everything());
    pairs.receive(keys.local_key.get(), 0, 64);
    let modify = modify_state(pairs.handle(1), state::ERR);
    let modified = pairs.driver.execute(Opcode::ModifyQp, &modify);
    modified.expect(Status::Success);
    let flushed = pairs.completion(1);
    let flushed = ReceiveCompletion::read_from_bytes(&flushed).unwrap();
    assert_eq!(flushed.common.status, CompletionStatus::Flushed as u8);
    pairs.send(keys.local_key.get(), 0, 8);
    pairs.expect_sent(CompletionStatus::RemoteBadQueuePair);
}

#[test]
fn doorbell_in_the_page_of_another_uar_is_ignored() {
    let mut pairs = queue_pairs();
    let keys = pairs.register(everything());
    let (local_key, remote_key) = (keys.local_key.get(), keys.remote_key.get());
    let own = pairs.sides[0].pair.sq_doorbell;
    pairs.sides[0].pair.sq_doorbell = (own.get() + PAGE as u32).into();
    pairs.write_region(0, b"payload!");
    pairs.rdma(Operation::RdmaWrite, (remote_key, PAGE), (local_key, 0), 8);
    // The worker takes the doorbell of the first queue pair before that of the second.
    pairs.sender = 1;
    pairs.rdma(
        Operation::RdmaWrite,
        (remote_key, 2 * PAGE),
        (local_key, 0),
        8,
    );
    pairs.expect_sent(CompletionStatus::Ok);
    let mut found = [0; 8];
    pairs.read_region(PAGE, &mut found);
    assert_eq!(found, [0; 8], "it was rung");
    pairs.sender = 0;
    pairs.ring(own.get(), 1);
    pairs.expect_sent(CompletionStatus::Ok);
    pairs.read_region(PAGE, &mut found);
    assert_eq!(&found, b"payload!");
}
