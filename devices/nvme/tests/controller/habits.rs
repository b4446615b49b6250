//! A guest of random behaviour with doorbells in memory: queues of all sizes, bursts and pauses,
//! completions that it takes late or does not acknowledge. No worker may sleep while one of its
//! commands waits.

use std::time::{Duration, Instant};

use fastrand::Rng;
use peerbar_nvme::{Config, PollPolicy};
use peerbar_rig::seed;

use crate::driver::{DATA, Driver, enabled_with, queues};
use crate::machine::{TIMEOUT, config};
use peerbar_rig::nvme::command::{Command, FLUSH, READ, blocks, delete_cq, delete_sq};

const IDS: [u16; 2] = [2, 3];
const SIZES: [u16; 8] = [2, 3, 4, 5, 17, 33, 64, 128];
/// Microseconds; most are 0.
const PAUSES: [u64; 32] = {
    let mut pauses = [0; 32];
    [pauses[0], pauses[1], pauses[2], pauses[3]] = [1200, 300, 60, 60];
    [pauses[4], pauses[5], pauses[6], pauses[7]] = [8; 4];
    pauses
};

struct Guest {
    driver: Driver,
    random: Rng,
    /// Outstanding commands of each queue.
    out: [u32; 2],
}

impl Guest {
    fn one_of<T: Copy>(&mut self, things: &[T]) -> T {
        *self.random.choice(things).unwrap()
    }

    fn create_queues(&mut self) {
        for id in IDS {
            let at = DATA + 0x4_0000 * u64::from(id);
            let [sq, cq] = [(); 2].map(|()| self.one_of(&SIZES));
            let pair = queues(at, at + 0x1_0000, sq, cq);
            self.driver.create_pair(id, pair);
        }
    }

    /// Deletes the queues, one of them perhaps with a command that has not been fetched.
    fn delete_queues(&mut self) {
        for id in IDS {
            if self.random.bool() {
                self.driver.submit(id, Command::new(FLUSH, 1, &[]));
            }
            self.driver.ok(0, delete_sq(id));
            self.driver.ok(0, delete_cq(id));
        }
    }

    /// Submits up to `most` commands, with a doorbell for each or with one for all.
    fn submit(&mut self, which: usize, most: u32, each: bool) {
        let id = IDS[which];
        let entries = self.driver.pair(id).memory().submission_entries;
        let free = u32::from(entries) - 1 - self.out[which];
        let count = self.random.u32(..=most.min(free));
        for left in (0..count).rev() {
            let block = self.random.u64(..100);
            self.driver.put(id, blocks(READ, block, 1).at(DATA, 0));
            if each || left == 0 {
                self.driver.ring(id);
            }
        }
        self.out[which] += count;
    }

    /// Takes some of the completions that are there, and sometimes rings for them.
    fn take_some(&mut self, which: usize) {
        let id = IDS[which];
        for _ in 0..self.random.u32(..=self.out[which]) {
            self.out[which] -= u32::from(self.driver.poll(id).is_some());
        }
        if self.random.bool() {
            self.driver.acknowledge(id);
        }
    }

    /// Takes all outstanding completions, and does nothing else. It rings for the first ones so
    /// late that a worker without free completion entries sleeps.
    fn take_all(&mut self, which: usize) {
        let id = IDS[which];
        let there = std::iter::from_fn(|| self.driver.poll(id)).count();
        self.out[which] -= there as u32;
        pause(2000);
        self.driver.acknowledge(id);
        let start = Instant::now();
        while self.out[which] > 0 {
            if self.driver.poll(id).is_some() {
                self.out[which] -= 1;
                self.driver.acknowledge(id);
            }
            let pair = self.driver.pair(id);
            let at = (pair.memory(), pair.tail(), pair.head());
            let left = self.out[which];
            assert!(start.elapsed() < TIMEOUT, "{left} do not come: {at:?}");
            std::thread::yield_now();
        }
    }
}

/// Spins for `micros` microseconds.
fn pause(micros: u64) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_micros(micros) {
        std::hint::spin_loop();
    }
}

#[test]
fn no_command_of_a_guest_is_left_to_a_worker_that_sleeps() {
    let adaptive = Config {
        poll: PollPolicy::Adaptive,
        ..config()
    };
    let mut guest = Guest {
        driver: enabled_with(&adaptive),
        random: Rng::with_seed(seed()),
        out: [0; 2],
    };
    guest.driver.use_shadow_doorbells();
    for _ in 0..16 {
        guest.create_queues();
        let (most, each) = guest.one_of(&[(1, true), (3, true), (128, false)]);
        for _ in 0..300 {
            let [from, to] = [(); 2].map(|()| guest.random.usize(..2));
            guest.submit(from, most, each);
            pause(guest.one_of(&PAUSES));
            guest.take_some(to);
        }
        (0..IDS.len()).for_each(|which| guest.take_all(which));
        guest.delete_queues();
    }
}
