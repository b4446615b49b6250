//! Event counters, by the commands of Linux 7.3's driver.

use peerbar_efa_spec::admin::completion_queue::DestroyCq;
use peerbar_efa_spec::admin::event_counter::{
    AttachEventCounter, CreateEventCounter, CreatedEventCounter, DestroyEventCounter,
    ModifyEventCounter, QpEvents, operation,
};
use peerbar_efa_spec::admin::feature::{DeviceAttributes, FeatureCommand, QueueAttributes2, id};
use peerbar_efa_spec::admin::queue_pair::{CreatedQp, QpHandle, state};
use peerbar_efa_spec::admin::resource::Numbered;
use peerbar_efa_spec::admin::{Opcode, Status};
use peerbar_efa_spec::completion::CompletionStatus;
use peerbar_efa_spec::work::Operation;
use zerocopy::FromZeros;

use crate::daemon::{client, start};
use crate::driver::{DATA, Driver, Link, Local};
use crate::objects::{allocate, modify_state, queue_pair};
use crate::transfers::{PAGE, QueuePairs, everything, gid};

/// Addresses of the words.
const WORD: u64 = DATA + 8 * PAGE;

fn create<L: Link>(driver: &mut Driver<L>, uar: u16, address: u64) -> Result<u32, u8> {
    let mut command = CreateEventCounter::new_zeroed();
    command.uar = uar.into();
    command.address = address.into();
    let completion = driver.execute(Opcode::CreateEventCounter, &command);
    match completion.status {
        0 => Ok(completion.view::<CreatedEventCounter>().handle.get()),
        status => Err(status),
    }
}

fn attachment(counter: u32, qp: u32, events: QpEvents) -> AttachEventCounter {
    let mut command = AttachEventCounter::new_zeroed();
    command.handle = counter.into();
    command.qp = qp.into();
    command.events = events;
    command
}

fn modify(counter: u32, operation: u8, value: u64) -> ModifyEventCounter {
    let mut command = ModifyEventCounter::new_zeroed();
    command.handle = counter.into();
    command.operation = operation;
    command.value = value.into();
    command
}

fn destroy<L: Link>(driver: &mut Driver<L>, counter: u32) -> u8 {
    let command = DestroyEventCounter {
        handle: counter.into(),
    };
    let completion = driver.execute(Opcode::DestroyEventCounter, &command);
    completion.status
}

fn word<L: Link>(driver: &Driver<L>, address: u64) -> u64 {
    let mut word = [0; 8];
    driver.read_ram(address, &mut word);
    u64::from_le_bytes(word)
}

/// Creates a queue pair that neither sends nor receives. Returns its UAR and its handle.
fn idle_pair(driver: &mut Driver<Local>) -> (u16, u32) {
    let parameters = queue_pair(driver);
    let created: CreatedQp = driver.execute(Opcode::CreateQp, &parameters).view();
    (parameters.uar.get(), created.handle.get())
}

fn send() -> QpEvents {
    QpEvents::new().with_send(true)
}

#[test]
fn driver_learns_that_there_are_counters_and_of_what() {
    let mut driver = Driver::new();
    let mut command = FeatureCommand::new_zeroed();
    command.select.id = id::DEVICE_ATTRIBUTES;
    let device: DeviceAttributes = driver.execute(Opcode::GetFeature, &command).view();
    assert!(device.caps.event_counters());
    command.select.id = id::QUEUE_ATTRIBUTES_2;
    let queues: QueueAttributes2 = driver.execute(Opcode::GetFeature, &command).view();
    assert_eq!(queues.counted_events, QpEvents::ALL);
    let uar = allocate(&mut driver, Opcode::AllocUar);
    let most = queues.max_event_counters.get();
    let handles: Vec<_> = (0..most).map(|_| create(&mut driver, uar, WORD)).collect();
    assert!(handles.iter().all(Result::is_ok));
    let full = Err(Status::ResourceAllocationFailure as u8);
    assert_eq!(create(&mut driver, uar, WORD), full);
    assert_eq!(destroy(&mut driver, handles[7].unwrap()), 0);
    assert_eq!(create(&mut driver, uar, WORD), handles[7]);
}

#[test]
fn counter_is_set_and_added_to_in_the_memory_of_the_guest() {
    let mut driver = Driver::new();
    let uar = allocate(&mut driver, Opcode::AllocUar);
    driver.write_ram(WORD, &[0xff; 16]);
    let counter = create(&mut driver, uar, WORD).unwrap();
    assert_eq!(word(&driver, WORD), 0);
    for (change, value, expected) in [
        (operation::SET, 1 << 40, 1 << 40),
        (operation::ADD, 5, (1 << 40) + 5),
        (operation::SET, u64::MAX, u64::MAX),
        (operation::ADD, 3, 2),
    ] {
        let command = modify(counter, change, value);
        driver
            .execute(Opcode::ModifyEventCounter, &command)
            .expect(Status::Success);
        assert_eq!(word(&driver, WORD), expected);
    }
    assert_eq!(word(&driver, WORD + 8), u64::MAX, "the next word");
}

#[test]
fn impossible_counters_are_refused() {
    let mut driver = Driver::new();
    let uar = allocate(&mut driver, Opcode::AllocUar);
    let illegal = Err(Status::IllegalParameter as u8);
    assert_eq!(create(&mut driver, uar + 1, WORD), illegal);
    assert_eq!(create(&mut driver, uar, WORD + 4), illegal);
    let unreachable = create(&mut driver, uar, WORD + (1 << 40));
    assert_eq!(unreachable, Err(Status::UnknownError as u8));
    let counter = create(&mut driver, uar, WORD).unwrap();
    let mut reserved = modify(counter, operation::SET, 1);
    reserved.reserved[6] = 1;
    for (command, status) in [
        (
            modify(counter + 1, operation::SET, 1),
            Status::IllegalParameter,
        ),
        (
            modify(1 << 16 | counter, operation::SET, 1),
            Status::IllegalParameter,
        ),
        (modify(counter, 2, 1), Status::IllegalParameter),
        (reserved, Status::MalformedRequest),
    ] {
        let completion = driver.execute(Opcode::ModifyEventCounter, &command);
        completion.expect(status);
    }
    assert_eq!(word(&driver, WORD), 0);
    assert_eq!(destroy(&mut driver, counter), 0);
    assert_eq!(
        destroy(&mut driver, counter),
        Status::IllegalParameter as u8
    );
}

#[test]
fn attached_counter_and_its_uar_are_not_removed() {
    let mut driver = Driver::new();
    let (uar, qp) = idle_pair(&mut driver);
    let counter = create(&mut driver, uar, WORD).unwrap();
    let command = attachment(counter, qp, send());
    let attach = Opcode::AttachEventCounter;
    driver.execute(attach, &command).expect(Status::Success);
    let busy = Status::ResourceBusy as u8;
    assert_eq!(destroy(&mut driver, counter), busy);
    driver
        .execute(Opcode::DestroyQp, &QpHandle { handle: qp.into() })
        .expect(Status::Success);
    let page = Numbered {
        number: uar.into(),
        reserved: 0.into(),
    };
    assert_eq!(driver.execute(Opcode::DeallocUar, &page).status, busy);
    assert_eq!(destroy(&mut driver, counter), 0);
    // The completion queue of the queue pair is left.
    assert_eq!(driver.execute(Opcode::DeallocUar, &page).status, busy);
    let queue = DestroyCq::new_zeroed();
    let completion = driver.execute(Opcode::DestroyCq, &queue);
    completion.expect(Status::Success);
    assert_eq!(driver.execute(Opcode::DeallocUar, &page).status, 0);
}

#[test]
fn impossible_attachments_are_refused() {
    let mut driver = Driver::new();
    let (uar, qp) = idle_pair(&mut driver);
    let (_, foreign) = idle_pair(&mut driver);
    let [counter, other] = [(); 2].map(|()| create(&mut driver, uar, WORD).unwrap());
    let mut reserved = attachment(counter, qp, send());
    reserved.events = QpEvents::from_bits(0x400.into());
    let mut unknown_type = attachment(counter, qp, send());
    unknown_type.attach_type = 1;
    use Status as S;
    let (attach, detach) = (Opcode::AttachEventCounter, Opcode::DetachEventCounter);
    for (opcode, command, status) in [
        (attach, attachment(9, qp, send()), S::IllegalParameter),
        (
            attach,
            attachment(counter, 0xffff, send()),
            S::IllegalParameter,
        ),
        (
            attach,
            attachment(counter, 1 << 16 | qp, send()),
            S::IllegalParameter,
        ),
        (
            attach,
            attachment(counter, foreign, send()),
            S::IllegalParameter,
        ),
        (attach, reserved, S::MalformedRequest),
        (attach, unknown_type, S::IllegalParameter),
        (detach, attachment(counter, qp, send()), S::IllegalParameter),
        (attach, attachment(counter, qp, send()), S::Success),
        (
            attach,
            attachment(other, qp, send().with_receive(true)),
            S::ResourceBusy,
        ),
        (attach, attachment(other, qp, QpEvents::new()), S::Success),
        (detach, attachment(other, qp, send()), S::IllegalParameter),
        (
            detach,
            attachment(counter, qp, send().with_read(true)),
            S::IllegalParameter,
        ),
        (detach, attachment(counter, qp, send()), S::Success),
        (
            attach,
            attachment(other, qp, send().with_receive(true)),
            S::Success,
        ),
    ] {
        let completion = driver.execute(opcode, &command);
        completion.expect(status);
    }
    assert_eq!(destroy(&mut driver, counter), 0, "it is detached");
    let [init, ready] = [state::INIT, state::RTR].map(|next| modify_state(qp, next));
    driver.execute(Opcode::ModifyQp, &init).expect(S::Success);
    let late = attachment(other, qp, QpEvents::new().with_read(true));
    driver.execute(attach, &late).expect(S::Success);
    driver.execute(Opcode::ModifyQp, &ready).expect(S::Success);
    let late = attachment(other, qp, QpEvents::new().with_write(true));
    driver.execute(attach, &late).expect(S::IllegalParameter);
}

/// Counts writes of the sender and of others at the receiver, and removes the first counter again.
fn writes_are_counted<L: Link>(mut driver: Driver<L>) {
    let gid = gid(&mut driver);
    let mut pairs = QueuePairs::new(driver, gid);
    let (write, remote) = (
        QpEvents::new().with_write(true),
        QpEvents::new().with_remote_write(true),
    );
    let mut detached = None;
    for (side, events) in [(0, write), (1, remote)] {
        let address = WORD + 8 * side as u64;
        let counter = create(&mut pairs.driver, pairs.uar, address).unwrap();
        let command = attachment(counter, pairs.handle(side), events);
        pairs.make_idle(side);
        let completion = pairs.driver.execute(Opcode::AttachEventCounter, &command);
        completion.expect(Status::Success);
        pairs.make_ready(side);
        detached = detached.or(Some(command));
    }
    let keys = pairs.register(everything());
    let here = (keys.local_key.get(), 0x10);
    for round in 1..=4 {
        if round == 4 {
            let command = detached.take().unwrap();
            let completion = pairs.driver.execute(Opcode::DetachEventCounter, &command);
            completion.expect(Status::Success);
        }
        pairs.rdma(Operation::RdmaWrite, (keys.remote_key.get(), PAGE), here, 8);
        pairs.expect_sent(CompletionStatus::Ok);
        let counted = [WORD, WORD + 8].map(|at| word(&pairs.driver, at));
        assert_eq!(counted, [round.min(3), round]);
    }
}

#[test]
fn writes_are_counted_until_the_counter_is_detached() {
    writes_are_counted(Driver::new());
}

#[test]
fn daemon_counts_writes_in_the_memory_of_its_client() {
    let daemon = start(&[]);
    let mut driver = Driver::of(client(&daemon));
    driver.bring_up();
    writes_are_counted(driver);
}
