//! Memory regions that are allocated by a command, and get their memory by work requests.

use peerbar_efa_spec::admin::memory_region::{AllocMr, AllocatedMr, DeregMr, Permissions};
use peerbar_efa_spec::admin::{Opcode, Status};
use peerbar_efa_spec::completion::CompletionStatus;
use peerbar_efa_spec::work::{
    FastInvalidation, FastRegistration, FastRegistrationFlags, Operation,
};
use zerocopy::{FromZeros, IntoBytes};

use crate::daemon::{client, start};
use crate::driver::{Driver, Link};
use crate::objects::allocate;
use crate::transfers::{PAGE, QueuePairs, REGION, REGION_IOVA, everything, gid};

fn region(pd: u16, max_pages: u32) -> AllocMr {
    let mut command = AllocMr::new_zeroed();
    command.pd = pd.into();
    command.max_pages = max_pages.into();
    command
}

fn deregister(key: u32) -> DeregMr {
    DeregMr {
        local_key: key.into(),
    }
}

#[test]
fn impossible_regions_are_refused_and_others_removed_once() {
    let mut driver = Driver::new();
    let pd = allocate(&mut driver, Opcode::AllocPd);
    let mut reserved = region(pd, 1);
    reserved.reserved = 1.into();
    for (command, status) in [
        (region(pd + 1, 1), Status::IllegalParameter),
        (region(pd, 0), Status::IllegalParameter),
        (region(pd, 1 << 20), Status::IllegalParameter),
        (reserved, Status::MalformedRequest),
    ] {
        driver.execute(Opcode::AllocMr, &command).expect(status);
    }
    let keys: AllocatedMr = driver.execute(Opcode::AllocMr, &region(pd, 16)).view();
    // The driver has changed the key, and has not registered memory with it.
    let key = keys.local_key.get() + 3;
    for status in [Status::Success, Status::IllegalParameter] {
        let completion = driver.execute(Opcode::DeregMr, &deregister(key));
        completion.expect(status);
    }
}

/// Registers a page by a work request, writes from there, and removes it.
fn memory_is_given_and_taken_away<L: Link>(mut driver: Driver<L>) {
    let gid = gid(&mut driver);
    let mut pairs = QueuePairs::new(driver, gid);
    let target = pairs.register(everything());
    let command = region(pairs.pd, 1);
    let keys: AllocatedMr = pairs.driver.execute(Opcode::AllocMr, &command).view();
    let key = keys.local_key.get() + 1;
    let registration = FastRegistration {
        lkey: key.into(),
        permissions: Permissions::new(),
        flags: FastRegistrationFlags::new().with_page_shift(12),
        reserved: [0; 2],
        iova: REGION_IOVA.into(),
        length: PAGE.into(),
        pages: REGION.into(),
    };
    let invalidation = FastInvalidation {
        lkey: key.into(),
        reserved: [0; 28],
    };
    pairs.driver.write_ram(REGION, b"by a work request");
    let (there, here) = ((target.remote_key.get(), PAGE), (key, 0));
    use CompletionStatus as S;
    pairs.rdma(Operation::RdmaWrite, there, here, 17);
    pairs.expect_sent(S::LocalInvalidKey);
    pairs.post(Operation::FastRegister, 0, registration.as_bytes());
    pairs.expect_sent(S::Ok);
    pairs.rdma(Operation::RdmaWrite, there, here, 17);
    pairs.expect_sent(S::Ok);
    let mut found = [0; 17];
    pairs.read_region(PAGE, &mut found);
    assert_eq!(&found, b"by a work request");
    // It is read-only.
    pairs.rdma(Operation::RdmaRead, there, here, 17);
    pairs.expect_sent(S::LocalInvalidKey);
    pairs.post(Operation::FastInvalidate, 0, invalidation.as_bytes());
    pairs.expect_sent(S::Ok);
    pairs.rdma(Operation::RdmaWrite, there, here, 17);
    pairs.expect_sent(S::LocalInvalidKey);
    let completion = pairs.driver.execute(Opcode::DeregMr, &deregister(key));
    completion.expect(Status::Success);
    pairs.post(Operation::FastRegister, 0, registration.as_bytes());
    pairs.expect_sent(S::LocalInvalidKey);
}

#[test]
fn memory_is_given_to_a_region_and_taken_away() {
    memory_is_given_and_taken_away(Driver::new());
}

#[test]
fn daemon_gives_memory_to_a_region_and_takes_it_away() {
    let daemon = start(&[]);
    let mut driver = Driver::of(client(&daemon));
    driver.bring_up();
    memory_is_given_and_taken_away(driver);
}
