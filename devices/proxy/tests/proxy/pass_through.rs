//! Configuration space, regions, interrupts, mappings and resets pass through.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use peerbar_nvme_driver::DmaMemory;
use peerbar_rig::wire::{self, Outcome, command, words};
use peerbar_rig::{Answer, Client, GuestRam, Link, RawClient, event, pattern, wait_for_event};
use rustix::io::Errno;

use crate::copier::{CopierServer, MEMORY_BAR, MEMORY_BYTES, copy};
use crate::{proxy, until};

const RAM: u64 = 0x10_0000;
const BAR: u64 = 0x38_0000_0000;

fn ram() -> GuestRam {
    let ram = GuestRam::new(RAM, 0x10_0000);
    ram.write(RAM, &pattern(0x1000, 0)).unwrap();
    ram
}

#[test]
fn device_is_described_as_by_its_server() {
    let server = CopierServer::start();
    let daemon = proxy(&server.path()).start();
    let client = Client::connect(daemon.socket()).unwrap();
    let ask = |command, payload: &[u8]| client.ask(command, payload, &[]).unwrap().payload;
    assert_eq!(
        ask(command::INFO, &words(&[16, 0, 0, 0])),
        words(&[16, 3, 10, 5])
    );
    let irq = ask(command::IRQ_INFO, &words(&[16, 0, 2, 0]));
    assert_eq!(
        irq,
        words(&[16, 0b1001, 2, 40]),
        "an eventfd, and no resizing"
    );
    let region = |index| {
        let asked = [words(&[4096, 0, index, 0]), wire::quads(&[0, 0])].concat();
        let info = ask(command::REGION_INFO, &asked);
        (wire::number(&info[4..8]), wire::number(&info[16..24]))
    };
    assert_eq!(region(0), (0b1111, 0x4000), "mappable, without areas");
    assert_eq!(region(MEMORY_BAR), (0b111, MEMORY_BYTES));
    assert_eq!((region(6), region(9)), ((0b1, 0x1000), (0b11, 0x100)));
    assert_eq!(client.bytes(9, 4), [9; 4]);
    assert_eq!(client.try_write(9, 0, &[1]), Err(Errno::IO));
    assert_eq!(client.bytes::<2>(7, 0), 0x1af4_u16.to_le_bytes());
    assert_eq!(client.try_read(0, 0x100, &mut [0; 4]), Err(Errno::IO));
}

#[test]
fn memory_and_guest_ram_are_reached_without_the_proxy() {
    let server = CopierServer::start();
    let daemon = proxy(&server.path()).start();
    let ram = ram();
    let client = Client::attach(daemon.socket(), &ram).unwrap();
    assert_eq!(
        server.state.lock().unwrap().mapping(RAM),
        Some((0x10_0000, true))
    );
    let vram = client.open_bar(MEMORY_BAR, BAR).unwrap();
    vram.write(BAR + 0x100, &[7; 8]).unwrap();
    let mut seen = [0; 8];
    server.memory.read(0x100, &mut seen).unwrap();
    assert_eq!(seen, [7; 8]);
    assert!(copy(&client, RAM, RAM + 0x8000, 0x1000));
    assert_eq!(
        ram.bytes_at(RAM + 0x8000, 0x1000).unwrap(),
        pattern(0x1000, 0)
    );
    client.unmap((RAM, 0x10_0000)).unwrap();
    assert!(server.state.lock().unwrap().mappings.is_empty());
}

#[test]
fn dma_by_messages_follows_the_routes() {
    let server = CopierServer::start();
    let daemon = proxy(&server.path()).args(["--count-all"]).start();
    let ram = ram();
    let client = Client::attach(daemon.socket(), &ram).unwrap();
    assert_eq!(
        server.state.lock().unwrap().mapping(RAM),
        Some((0x10_0000, false))
    );
    client.open_bar(MEMORY_BAR, BAR).unwrap();
    assert!(copy(&client, RAM, BAR + 0x2000, 0x1000), "to its own BAR");
    let mut seen = [0; 0x1000];
    server.memory.read(0x2000, &mut seen).unwrap();
    assert_eq!(seen[..], pattern(0x1000, 0));
    client.upstream().answer_with(|request| match request.data {
        Some(_) => Answer::Refused(Errno::NODEV),
        None => Answer::AllAs(9),
    });
    assert!(copy(&client, 0x9000_0000, RAM, 0x1000), "upstream");
    assert_eq!(ram.bytes_at(RAM, 0x1000).unwrap(), [9; 0x1000]);
    assert!(!copy(&client, RAM, 0x9000_0000, 8), "refused upstream");
    client.set_command(0b010);
    assert!(!copy(&client, RAM, RAM + 0x4000, 8), "no bus master");
}

#[test]
fn event_descriptors_reach_the_server() {
    let server = CopierServer::start();
    let daemon = proxy(&server.path()).start();
    let client = Client::attach(daemon.socket(), &ram()).unwrap();
    let event = event();
    client.signal_by(wire::MSI_X, event.as_fd());
    assert!(copy(&client, RAM, RAM + 0x4000, 8));
    wait_for_event(&event, "the vector");
    drop(client);
    let stream = daemon.connect(|path| UnixStream::connect(path));
    let mut raw = RawClient::new(stream);
    raw.agree();
    let events: Vec<_> = (0..15).map(|_| peerbar_rig::event()).collect();
    let fds: Vec<_> = events.iter().map(AsFd::as_fd).collect();
    let set = wire::set_irqs(0b10_0100, wire::MSI_X, 3, 15);
    raw.ask_with(command::SET_IRQS, &set, &fds).ok();
}

#[test]
fn resets_reach_the_server_once_each() {
    let server = CopierServer::start();
    let daemon = proxy(&server.path()).start();
    let client = Client::attach(daemon.socket(), &ram()).unwrap();
    let resets = || server.state.lock().unwrap().resets;
    client.reset();
    assert_eq!(resets(), 1);
    let express = client.capability(0x10);
    client.configure(express + 8, &0x8000_u16.to_le_bytes());
    assert_eq!(resets(), 2, "a function-level reset");
    assert!(!copy(&client, RAM, 0x9000_0000, 8), "no bus master");
    drop(client);
    until("the device is reset for the next client", || resets() == 3);
    until("the memory is taken back", || {
        server.state.lock().unwrap().mappings.is_empty()
    });
    assert_eq!(server.state.lock().unwrap().sessions, 1);
}
