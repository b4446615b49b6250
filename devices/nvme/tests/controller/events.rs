//! Asynchronous events and Abort (NVMe Base 2.0, 5.1 and 5.2).

use crate::driver::{DATA, Driver, enabled};
use peerbar_rig::Link as _;
use peerbar_rig::nvme::command::{
    Command, async_event_request, get_feature, get_log, sc, set_feature,
};

const INVALID_REGISTER: u32 = 0x0001_0000;
const INVALID_VALUE: u32 = 0x0001_0100;
const TEMPERATURE: u32 = 0x0002_0101;

const ERROR: u8 = 0x01;
const SMART: u8 = 0x02;
/// Retain Asynchronous Event.
const RAE: u32 = 1 << 15;

fn abort(sqid: u16, cid: u16) -> Command {
    Command::new(0x08, 0, &[u32::from(sqid) | u32::from(cid) << 16])
}

#[test]
fn a_wrong_doorbell_is_an_event() {
    for (doorbell, value, event) in [
        (0x1000 + 8 * 5, 1, INVALID_REGISTER),
        (0x1008, 16, INVALID_VALUE),
        (0x100c, 3, INVALID_VALUE),
    ] {
        let mut driver = enabled();
        let cid = driver.submit(0, async_event_request());
        if event == INVALID_VALUE {
            driver.write_doorbell(doorbell, value);
        } else {
            driver.set_register(doorbell, value.into());
        }
        let entry = driver.take(0);
        assert_eq!((entry.cid, entry.dw0, entry.code()), (cid, event, 0));
    }
}

#[test]
fn earlier_event_is_reported_to_the_next_request() {
    let mut driver = enabled();
    driver.set_register(0x1000 + 8 * 9, 1);
    driver.let_every_queue_have_a_turn();
    assert_eq!(driver.ok(0, async_event_request()), INVALID_REGISTER);
}

#[test]
fn a_temperature_beyond_its_threshold_is_an_event_if_wanted() {
    let mut driver = enabled();
    let cid = driver.submit(0, async_event_request());
    driver.ok(0, set_feature(0x04, 300));
    let temperature_warnings = 1 << 1;
    driver.submit(0, set_feature(0x0b, temperature_warnings));
    let entries = [driver.take(0), driver.take(0)];
    let event = entries.iter().find(|entry| entry.cid == cid).unwrap();
    assert_eq!(event.dw0, TEMPERATURE);
    let page = driver.fetch(get_log(SMART, 0, 512), 512);
    assert_eq!(page[0], 0b10, "the warning that it was of");
}

#[test]
fn a_kind_is_masked_until_its_page_is_read_without_rae() {
    let mut driver = enabled();
    let stray = |driver: &mut Driver| driver.set_register(0x1000 + 8 * 9, 1);
    stray(&mut driver);
    driver.let_every_queue_have_a_turn();
    driver.ok(0, async_event_request());
    let waiting = driver.submit(0, async_event_request());
    stray(&mut driver);
    driver.let_every_queue_have_a_turn();
    let mut retaining = get_log(ERROR, 0, 64).at(DATA, 0);
    retaining.dwords[0] |= RAE;
    driver.ok(0, retaining);
    driver.let_every_queue_have_a_turn();
    assert_eq!(driver.poll(0), None, "still masked");
    let reading = driver.submit(0, get_log(ERROR, 0, 64).at(DATA, 0));
    let mut cids = [driver.take(0).cid, driver.take(0).cid];
    cids.sort_unstable();
    assert_eq!(cids, [waiting, reading]);
}

#[test]
fn as_many_requests_wait_as_identify_says() {
    let mut driver = enabled();
    let limit = driver.fetch(peerbar_rig::nvme::command::identify(1, 0), 4096)[259];
    for _ in 0..=limit {
        driver.submit(0, async_event_request());
    }
    assert_eq!(driver.code(0, async_event_request()), sc::ASYNC_LIMIT);
}

#[test]
fn a_request_that_is_aborted_says_so() {
    let mut driver = enabled();
    let waiting = driver.submit(0, async_event_request());
    let aborting = driver.submit(0, abort(0, waiting));
    let entries = [driver.take(0), driver.take(0)];
    let ended = entries.map(|entry| (entry.cid, entry.code(), entry.dw0));
    assert_eq!(ended, [(waiting, sc::ABORT_REQ, 0), (aborting, 0, 0)]);
    assert_eq!(driver.ok(0, abort(0, waiting)), 1, "nothing to abort");
    assert_eq!(driver.ok(0, abort(1, waiting)), 1, "nothing to abort");
}

#[test]
fn a_request_is_not_aborted_without_room_to_say_so() {
    let mut driver = enabled();
    let waiting = driver.submit(0, async_event_request());
    let flood = crate::driver::ENTRIES - 2;
    for _ in 0..flood {
        driver.ok_silently(0, get_feature(0x07, 0, 0));
    }
    driver.submit(0, abort(0, waiting));
    let entry = driver.take_silently(0);
    assert_eq!((entry.code(), entry.dw0), (0, 1));
    driver.acknowledge(0);
    assert_eq!(driver.poll(0), None, "it still waits");
    driver.submit(0, abort(0, waiting));
    assert_eq!(driver.take(0).cid, waiting);
    assert_eq!(driver.take(0).dw0, 0);
}

#[test]
fn a_doorbell_that_is_rung_before_there_are_queues_is_no_event() {
    let mut driver = enabled();
    driver.disable();
    driver.set_register(0x1000 + 8, 1);
    driver.enable();
    driver.submit(0, async_event_request());
    driver.let_every_queue_have_a_turn();
    assert_eq!(driver.poll(0), None);
}

#[test]
fn a_controller_reset_forgets_requests_and_events() {
    let mut driver = enabled();
    driver.submit(0, async_event_request());
    driver.let_every_queue_have_a_turn();
    driver.disable();
    driver.enable();
    driver.set_register(0x1000 + 8 * 9, 1);
    driver.let_every_queue_have_a_turn();
    assert_eq!(driver.poll(0), None, "no request is outstanding");
}
