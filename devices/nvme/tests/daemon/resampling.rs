//! INTx as QEMU has it under KVM: the end of interrupt comes by an eventfd.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::SealFlags;

use crate::driver::{Driver, RAM, RAM_BYTES, ram};
use crate::process::start;
use crate::wait_until;
use crate::wire::Wire;

/// A count that ends the thread that takes signals.
const LAST: u64 = 1 << 32;

/// Ends that thread when dropped, at the end of a test that fails, too.
struct Last<'e>(&'e OwnedFd);

impl Drop for Last<'_> {
    fn drop(&mut self) {
        rustix::io::write(self.0, &LAST.to_ne_bytes()).unwrap();
    }
}

#[test]
fn eventfd_unmasks_the_pin() {
    let daemon = start(&["--namespace", "ram=1M"]);
    let memory = ram(SealFlags::SHRINK);
    let mut wire = Wire::connect(daemon.socket());
    wire.map((RAM, RAM_BYTES), Some(memory.as_fd())).unwrap();
    let [pin, unmask] = [(), ()].map(|()| eventfd(0, EventfdFlags::CLOEXEC).unwrap());
    wire.signal_by(0, pin.as_fd());
    wire.unmask_by(unmask.as_fd());
    let mut driver = Driver::bring_up(wire, memory);
    let taken = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut count = [0; 8];
            while u64::from_ne_bytes(count) < LAST {
                rustix::io::read(&pin, &mut count).unwrap();
                taken.fetch_add(1, Ordering::SeqCst);
            }
        });
        // The device takes back what nobody has taken when a command is done.
        let mut interrupts = |wanted| {
            driver.serial();
            (taken.load(Ordering::SeqCst) == wanted).then_some(())
        };
        let _last = Last(&pin);
        for end in 1..=3 {
            wait_until("an interrupt", || interrupts(end));
            assert!((0..20).all(|_| interrupts(end).is_some()), "it is masked");
            rustix::io::write(&unmask, &1_u64.to_ne_bytes()).unwrap();
        }
    });
}
