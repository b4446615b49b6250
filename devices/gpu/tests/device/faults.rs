//! A DMA that fails is never silent.

use std::time::{Duration, Instant};

use peerbar_gpu::Mode;

use peerbar_rig::Link;

use crate::driver::{Command, Driver, Fault, MIB, RAM};

/// Longer than the engine polls before it blocks.
const A_WHILE: Duration = Duration::from_millis(5);

/// Returns the fault of a command on channel 0.
fn fault_of(driver: &mut Driver, command: &Command) -> Fault {
    driver.enable(0);
    let fence = driver.submit(0, command);
    driver.wait_for_vector(0);
    assert!(!driver.is_fenced(fence));
    driver.disable(0);
    driver.wait_for_status(0, 0);
    driver.take_fault().unwrap()
}

#[test]
fn each_kind_of_fault_names_its_address() {
    let mut driver = Driver::new(Mode::Static);
    let vram = 32 * MIB;
    for (command, code, write, address) in [
        (Command::new(1, 0b10, &[0x5000, 0, 8]), 2, false, 0x5000),
        (Command::new(1, 0b01, &[0, 0x6000, 8]), 2, true, 0x6000),
        (Command::new(1, 0b11, &[vram, 0, 8]), 3, false, vram),
        (Command::new(2, 0b1, &[vram - 7, 8, 0]), 3, true, vram - 7),
        (Command::new(4, 0b0, &[u64::MAX, 8]), 2, false, u64::MAX),
        (
            Command::launch(2, 0b1, &[vram - 4, 2], (1, 2)),
            3,
            false,
            vram - 4,
        ),
    ] {
        let fault = fault_of(&mut driver, &command);
        let expected = Fault {
            code,
            channel: 0,
            write,
            address,
        };
        assert_eq!(fault, expected, "{command:x?}");
    }
    let long = fault_of(&mut driver, &Command::new(2, 0b1, &[0, (1 << 30) + 1, 0]));
    assert_eq!((long.code, long.address), (6, driver.ring(0).0));
    assert_eq!(driver.register(0x28), 7);
}

#[test]
fn a_copy_that_fails_halfway_is_a_fault_where_it_failed() {
    let mut driver = Driver::new(Mode::Static);
    let end = RAM + 16 * MIB;
    let copy = Command::new(1, 0b01, &[0, end - 4096, 8192]);
    assert_eq!(fault_of(&mut driver, &copy).address, end);
}

#[test]
fn a_fence_that_cannot_be_written_is_a_fault() {
    let mut driver = Driver::new(Mode::Static);
    driver.enable(0);
    let mut bytes = [0; 128];
    bytes[1] = 0b001;
    bytes[8..16].copy_from_slice(&0x7000u64.to_le_bytes());
    driver.put_bytes(0, &bytes);
    driver.ring_trapped(0, 1);
    driver.wait_for_vector(0);
    let fault = driver.take_fault().unwrap();
    assert_eq!((fault.code, fault.write, fault.address), (2, true, 0x7008));
    assert_eq!(driver.head(0), 0);
}

#[test]
fn commands_wait_while_bus_mastering_is_off_or_in_d3() {
    let mut driver = Driver::new(Mode::Static);
    let power = driver.capability(0x01) + 4;
    let off: [(u64, [u8; 2], [u8; 2]); 2] = [
        (0x04, 0b010u16.to_le_bytes(), 0b110u16.to_le_bytes()),
        (power, [3, 0], [0, 0]),
    ];
    driver.enable(0);
    for (register, off, on) in off {
        driver.run(0, &Command::default());
        driver.configure(register, &off);
        let fence = driver.submit(0, &Command::default());
        nothing_moves(&mut driver, fence);
        driver.configure(register, &on);
        driver.wait(fence);
    }
    driver.run(0, &Command::default());
    assert!(driver.take_fault().is_none());
}

/// Fails if a channel's state or a fence changes for a while.
fn nothing_moves(driver: &mut Driver, fence: (u64, u64)) {
    let (start, before) = (Instant::now(), driver.head(0));
    while start.elapsed() < A_WHILE {
        assert_eq!((driver.channel_status(0), driver.head(0)), (1, before));
    }
    assert!(!driver.is_fenced(fence) && driver.take_fault().is_none());
}

#[test]
fn a_command_in_progress_waits_while_bus_mastering_is_off() {
    let mut driver = Driver::new(Mode::Static);
    driver.put_rings_into_vram();
    driver.set_command(0b010);
    driver.enable(0);
    // The command is fetched from VRAM, and its fence is in guest RAM.
    let fence = driver.submit(0, &Command::new(2, 0b1, &[0, 8, 7]));
    nothing_moves(&mut driver, fence);
    driver.disable(0);
    driver.wait_for_status(0, 0);
    driver.enable(0);
    let fence = driver.submit(0, &Command::new(2, 0b1, &[0, 8, 7]));
    nothing_moves(&mut driver, fence);
    driver.set_command(0b110);
    driver.wait(fence);
}

#[test]
fn no_interrupt_is_lost_while_bus_mastering_is_off() {
    let mut driver = Driver::new(Mode::Static);
    driver.put_rings_into_vram();
    driver.enable(0);
    driver.set_command(0b010);
    let mut beyond = [0; 128];
    (beyond[0], beyond[2]) = (2, 0b1);
    beyond[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
    beyond[32] = 8;
    driver.put_bytes(0, &beyond);
    driver.ring_trapped(0, 1);
    driver.wait_for_status(0, 2 | 3 << 8);
    assert!(!driver.take_vector(0) && !driver.take_vector(1));
    driver.set_command(0b110);
    driver.wait_for_vector(0);
    driver.wait_for_vector(1);
}

#[test]
fn ring_in_vram_works_without_bus_mastering() {
    let mut driver = Driver::new(Mode::Static);
    driver.put_rings_into_vram();
    driver.set_command(0b010);
    driver.enable(0);
    let mut fill = [0; 128];
    fill[0] = 2;
    fill[1] = 0b010;
    fill[2] = 0b1;
    fill[32] = 8;
    driver.put_bytes(0, &fill);
    driver.ring_trapped(0, 1);
    driver.wait_for_head(0, 1);
    assert_eq!(driver.channel_status(0), 1);
}

#[test]
fn sixty_four_faults_are_kept_and_all_are_counted() {
    let driver = Driver::new(Mode::Window);
    for _ in 0..100 {
        driver.read_bar2(0x1_0000, &mut [0; 4]);
    }
    assert_eq!(driver.register(0x28), 100);
    let mut kept = 0;
    while driver.take_fault().is_some() {
        kept += 1;
    }
    assert_eq!(kept, 64);
}
