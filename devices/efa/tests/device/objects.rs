//! The commands that make and remove objects.

use peerbar_efa_spec::admin::completion_queue::{CqCaps1, CqCaps2, CreateCq, CreatedCq, DestroyCq};
use peerbar_efa_spec::admin::event_queue::{CreateEq, EqNumber};
use peerbar_efa_spec::admin::queue_pair::{
    CreateQp, CreateQpFlags, CreatedQp, ModifyMask, ModifyQp, QpHandle, QueriedQp, state, transport,
};
use peerbar_efa_spec::admin::resource::{CreateAh, CreatedAh, DestroyAh, Numbered};
use peerbar_efa_spec::admin::{Opcode, Status};
use zerocopy::FromZeros;

use crate::driver::{DATA, Driver, Link};

fn numbered(number: u16) -> Numbered {
    Numbered {
        number: number.into(),
        reserved: 0.into(),
    }
}

pub(crate) fn allocate<L: Link>(driver: &mut Driver<L>, opcode: Opcode) -> u16 {
    let allocated: Numbered = driver.execute(opcode, &[0; 0]).view();
    allocated.number.get()
}

pub(crate) fn completion_queue(uar: u16) -> CreateCq {
    let mut queue = CreateCq::new_zeroed();
    queue.caps_2 = CqCaps2::new().with_entry_words(4);
    queue.depth = 64.into();
    queue.address = DATA.into();
    queue.parts = 1.into();
    queue.uar = uar.into();
    queue
}

fn event_queue(vector: u8) -> CreateEq {
    let mut queue = CreateEq::new_zeroed();
    queue.depth = 64.into();
    queue.vector = vector;
    queue.entry_words = 4;
    queue.address = (DATA + 0x1_0000).into();
    queue.events = 1.into();
    queue
}

/// Returns the command that moves the queue pair of this handle to a state.
pub(crate) fn modify_state(handle: u32, next: u32) -> ModifyQp {
    let mut modify = ModifyQp::new_zeroed();
    modify.handle = handle.into();
    modify.mask = ModifyMask::new().with_state(true);
    modify.state = next.into();
    modify
}

/// Creates a protection domain, a UAR and a completion queue. Returns a command that creates a
/// queue pair with them.
pub(crate) fn queue_pair<L: Link>(driver: &mut Driver<L>) -> CreateQp {
    let uar = allocate(driver, Opcode::AllocUar);
    let cq: CreatedCq = driver
        .execute(Opcode::CreateCq, &completion_queue(uar))
        .view();
    let mut pair = CreateQp::new_zeroed();
    pair.pd = allocate(driver, Opcode::AllocPd).into();
    pair.transport = transport::SRD;
    pair.uar = uar.into();
    pair.send_cq = u32::from(cq.cq.get()).into();
    pair.receive_cq = pair.send_cq;
    pair.sq_depth = 100.into();
    pair.sq_bytes = (128 * 64).into();
    pair.rq_depth = 64.into();
    pair.rq_bytes = (64 * 16).into();
    pair.rq_address = (DATA + 0x2_0000).into();
    pair
}

#[test]
fn domains_and_uars_are_made_up_to_their_limit_and_removed() {
    for (make, remove) in [
        (Opcode::AllocPd, Opcode::DeallocPd),
        (Opcode::AllocUar, Opcode::DeallocUar),
    ] {
        let mut driver = Driver::new();
        let mut numbers: Vec<_> = (0..256).map(|_| allocate(&mut driver, make)).collect();
        let completion = driver.execute(make, &[0; 0]);
        completion.expect(Status::ResourceAllocationFailure);
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 256, "each has a number of its own");
        driver
            .execute(remove, &numbered(numbers[7]))
            .expect(Status::Success);
        let completion = driver.execute(remove, &numbered(numbers[7]));
        completion.expect(Status::IllegalParameter);
        assert_eq!(allocate(&mut driver, make), numbers[7]);
    }
}

#[test]
fn address_handle_belongs_to_its_domain() {
    let mut driver = Driver::new();
    let [one, other] = [(); 2].map(|()| allocate(&mut driver, Opcode::AllocPd));
    let mut command = CreateAh::new_zeroed();
    command.destination[15] = 2;
    command.pd = one.into();
    let created: CreatedAh = driver.execute(Opcode::CreateAh, &command).view();
    let destroy = |pd: u16| DestroyAh {
        ah: created.ah,
        pd: pd.into(),
    };
    let busy = driver.execute(Opcode::DeallocPd, &numbered(one));
    busy.expect(Status::ResourceBusy);
    let foreign = driver.execute(Opcode::DestroyAh, &destroy(other));
    foreign.expect(Status::IllegalParameter);
    let own = driver.execute(Opcode::DestroyAh, &destroy(one));
    own.expect(Status::Success);
    let free = driver.execute(Opcode::DeallocPd, &numbered(one));
    free.expect(Status::Success);
    command.pd = 200.into();
    let unknown = driver.execute(Opcode::CreateAh, &command);
    unknown.expect(Status::IllegalParameter);
}

#[test]
fn completion_queue_has_a_doorbell_in_a_page_of_its_uar() {
    let mut driver = Driver::new();
    let uar = allocate(&mut driver, Opcode::AllocUar);
    let eq: EqNumber = driver.execute(Opcode::CreateEq, &event_queue(1)).view();
    let mut command = completion_queue(uar);
    let polled: CreatedCq = driver.execute(Opcode::CreateCq, &command).view();
    assert_eq!((polled.flags.get(), polled.depth.get()), (1, 64));
    let page = polled.doorbell.get() / 4096;
    assert_eq!(page, (16 << 20) / 4096 + u32::from(uar));
    command.caps_1 = CqCaps1::new().with_interrupts(true);
    command.eq = eq.eq;
    command.caps_2 = CqCaps2::new().with_entry_words(8).with_source_address(true);
    let with_events: CreatedCq = driver.execute(Opcode::CreateCq, &command).view();
    assert_eq!(with_events.flags.get(), 1);
    let page = with_events.doorbell.get() / 4096;
    assert_eq!(page, u32::from(uar), "in the page of its UAR");
    let busy = driver.execute(Opcode::DestroyEq, &eq);
    busy.expect(Status::ResourceBusy);
    for cq in [polled.cq, with_events.cq] {
        let reserved = 0.into();
        let destroyed = driver.execute(Opcode::DestroyCq, &DestroyCq { cq, reserved });
        destroyed.expect(Status::Success);
    }
    driver
        .execute(Opcode::DestroyEq, &eq)
        .expect(Status::Success);
    driver
        .execute(Opcode::DestroyEq, &eq)
        .expect(Status::IllegalParameter);
}

#[test]
fn impossible_completion_queues_are_refused() {
    use Status::{IllegalParameter, MalformedRequest};
    let mut driver = Driver::new();
    let uar = allocate(&mut driver, Opcode::AllocUar);
    type Change = fn(&mut CreateCq);
    let changes: [(Change, Status); 8] = [
        (|it| it.depth = 63.into(), IllegalParameter),
        (|it| it.depth = 0.into(), IllegalParameter),
        (|it| it.caps_2.set_source_address(true), IllegalParameter),
        (|it| it.caps_2.set_reserved(true), MalformedRequest),
        (|it| it.caps_1.set_interrupts(true), IllegalParameter),
        (|it| it.caps_1.set_is_virtual(true), IllegalParameter),
        (|it| it.parts = 2.into(), IllegalParameter),
        (|it| it.uar = 200.into(), IllegalParameter),
    ];
    for (number, (change, status)) in changes.into_iter().enumerate() {
        let mut command = completion_queue(uar);
        change(&mut command);
        let completion = driver.execute(Opcode::CreateCq, &command);
        assert_eq!(completion.status, status as u8, "change {number}");
    }
    let command = completion_queue(uar);
    driver
        .execute(Opcode::CreateCq, &command)
        .expect(Status::Success);
}

#[test]
fn completion_has_16_or_32_bytes_and_no_other_length() {
    let mut driver = Driver::new();
    let uar = allocate(&mut driver, Opcode::AllocUar);
    for words in 0..32 {
        let mut command = completion_queue(uar);
        command.caps_2 = CqCaps2::new().with_entry_words(words);
        let wanted = match words {
            4 | 8 => Status::Success,
            _ => Status::IllegalParameter,
        };
        let completion = driver.execute(Opcode::CreateCq, &command);
        assert_eq!(completion.status, wanted as u8, "{words} words");
    }
}

#[test]
fn impossible_event_queues_are_refused() {
    let mut driver = Driver::new();
    type Change = fn(&mut CreateEq);
    let changes: [Change; 5] = [
        |it| it.depth = 65.into(),
        |it| it.vector = 33,
        |it| it.entry_words = 3,
        |it| it.events = 3.into(),
        |it| it.address = u64::MAX.into(),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut command = event_queue(1);
        change(&mut command);
        let completion = driver.execute(Opcode::CreateEq, &command);
        assert_eq!(
            completion.status,
            Status::IllegalParameter as u8,
            "change {number}"
        );
    }
}

#[test]
fn queue_pair_goes_through_its_states() {
    let mut driver = Driver::new();
    let command = queue_pair(&mut driver);
    let created: CreatedQp = driver.execute(Opcode::CreateQp, &command).view();
    let handle = QpHandle {
        handle: created.handle,
    };
    let queried: QueriedQp = driver.execute(Opcode::QueryQp, &handle).view();
    assert_eq!(queried.state.get(), state::RESET);
    let mut current = state::RESET;
    for next in [
        state::INIT,
        state::RTR,
        state::RTS,
        state::SQD,
        state::RTS,
        state::ERR,
    ] {
        let mut modify = ModifyQp::new_zeroed();
        modify.mask = ModifyMask::new()
            .with_state(true)
            .with_current_state(true)
            .with_qkey(true)
            .with_rnr_retry(true);
        modify.handle = created.handle;
        modify.state = next.into();
        modify.current_state = current.into();
        modify.qkey = 0x1111.into();
        modify.rnr_retry = 5;
        driver
            .execute(Opcode::ModifyQp, &modify)
            .expect(Status::Success);
        let queried: QueriedQp = driver.execute(Opcode::QueryQp, &handle).view();
        assert_eq!((queried.state.get(), queried.qkey.get()), (next, 0x1111));
        assert_eq!(queried.rnr_retry, 5);
        current = next;
    }
    let modify = modify_state(created.handle.get(), state::RTS);
    let impossible = driver.execute(Opcode::ModifyQp, &modify);
    impossible.expect(Status::IllegalParameter);
    driver
        .execute(Opcode::DestroyQp, &handle)
        .expect(Status::Success);
    for opcode in [Opcode::DestroyQp, Opcode::QueryQp] {
        driver
            .execute(opcode, &handle)
            .expect(Status::IllegalParameter);
    }
}

#[test]
fn queue_pair_has_doorbells_and_memory_of_its_own() {
    let mut driver = Driver::new();
    let command = queue_pair(&mut driver);
    let [one, other] = [(); 2].map(|()| {
        let created: CreatedQp = driver.execute(Opcode::CreateQp, &command).view();
        created
    });
    for pair in [&one, &other] {
        let page = u32::from(command.uar.get());
        assert_eq!(pair.sq_doorbell.get() / 4096, page);
        assert_eq!(pair.rq_doorbell.get() / 4096, page);
        assert_ne!(pair.sq_doorbell.get(), pair.rq_doorbell.get());
        assert_eq!(pair.sq_offset.get() % 4096, 0, "it is mapped by pages");
    }
    assert_ne!(one.number.get() % 256, other.number.get() % 256);
    assert_ne!(one.sq_doorbell.get(), other.sq_doorbell.get());
    assert!(one.sq_offset.get().abs_diff(other.sq_offset.get()) >= 128 << 10);
    let uar = driver.execute(Opcode::DeallocUar, &numbered(command.uar.get()));
    uar.expect(Status::ResourceBusy);
}

#[test]
fn impossible_queue_pairs_are_refused() {
    use Status::{IllegalParameter, MalformedRequest};
    let mut driver = Driver::new();
    let possible = queue_pair(&mut driver);
    type Change = fn(&mut CreateQp);
    let changes: [(Change, Status); 12] = [
        (|it| it.transport = 0, IllegalParameter),
        (|it| it.transport = 3, IllegalParameter),
        (|it| it.pd = 99.into(), IllegalParameter),
        (|it| it.uar = 99.into(), IllegalParameter),
        (|it| it.send_cq = 0x1_0000.into(), IllegalParameter),
        (|it| it.receive_cq = 77.into(), IllegalParameter),
        (|it| it.sq_depth = u32::MAX.into(), IllegalParameter),
        (|it| it.sq_bytes = (256 << 10).into(), IllegalParameter),
        (|it| it.rq_bytes = 17.into(), IllegalParameter),
        (
            |it| it.flags = CreateQpFlags::new().with_sq_virtual(true),
            IllegalParameter,
        ),
        (
            |it| it.flags = CreateQpFlags::new().with_rq_virtual(true),
            IllegalParameter,
        ),
        (
            |it| it.flags = CreateQpFlags::new().with_reserved(1),
            MalformedRequest,
        ),
    ];
    for (number, (change, status)) in changes.into_iter().enumerate() {
        let mut command = possible;
        change(&mut command);
        let completion = driver.execute(Opcode::CreateQp, &command);
        assert_eq!(completion.status, status as u8, "change {number}");
    }
    for _ in 0..256 {
        driver
            .execute(Opcode::CreateQp, &possible)
            .expect(Status::Success);
    }
    let completion = driver.execute(Opcode::CreateQp, &possible);
    completion.expect(Status::ResourceAllocationFailure);
}

#[test]
fn impossible_change_of_a_queue_pair_is_refused() {
    let mut driver = Driver::new();
    let command = queue_pair(&mut driver);
    let created: CreatedQp = driver.execute(Opcode::CreateQp, &command).view();
    let mut modify = ModifyQp::new_zeroed();
    modify.handle = created.handle;
    modify.mask = ModifyMask::new().with_state(true);
    modify.state = 7.into();
    let completion = driver.execute(Opcode::ModifyQp, &modify);
    completion.expect(Status::IllegalParameter);
    modify.mask = ModifyMask::new().with_sq_drained_notify(true);
    for (notify, status) in [(1, Status::IllegalParameter), (0, Status::Success)] {
        modify.sq_drained_notify = notify;
        driver.execute(Opcode::ModifyQp, &modify).expect(status);
    }
    modify.mask = ModifyMask::new().with_reserved(1);
    let completion = driver.execute(Opcode::ModifyQp, &modify);
    completion.expect(Status::MalformedRequest);
    modify.mask = ModifyMask::new().with_qkey(true);
    modify.handle = (created.handle.get() + 0x1_0000).into();
    let completion = driver.execute(Opcode::ModifyQp, &modify);
    completion.expect(Status::IllegalParameter);
}
