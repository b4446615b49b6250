//! INTx as QEMU uses it under KVM: the end of interrupt arrives by an eventfd.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use peerbar_rig::nvme::Driver;
use peerbar_rig::wire::INTX;
use peerbar_rig::{event, wait_until};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::connect;
use crate::process::start;

/// Ends the thread that takes signals at the end of a test, even of one that fails. The device
/// takes undelivered signals back from the pin's eventfd, so the end has its own eventfd.
struct End<'e>(&'e OwnedFd);

impl Drop for End<'_> {
    fn drop(&mut self) {
        rustix::io::write(self.0, &1_u64.to_ne_bytes()).unwrap();
    }
}

/// Counts the signals of `pin` that it takes, until `end` is signalled.
fn take_signals(pin: &OwnedFd, end: &OwnedFd, taken: &AtomicU64) {
    loop {
        let mut ready = [pin, end].map(|event| PollFd::new(event, PollFlags::IN));
        poll(&mut ready, None).unwrap();
        if ready[1].revents().contains(PollFlags::IN) {
            return;
        }
        match rustix::io::read(pin, &mut [0; 8]) {
            Ok(_) => drop(taken.fetch_add(1, Ordering::SeqCst)),
            Err(error) => assert_eq!(error, Errno::AGAIN, "the device may be faster"),
        }
    }
}

#[test]
fn eventfd_unmasks_the_pin() {
    let daemon = start(&["--namespace", "ram=1M"]);
    let guest = connect(&daemon);
    let [pin, unmask, end] = [(); 3].map(|()| event());
    guest.link.signal_by(INTX, pin.as_fd());
    guest.link.unmask_by(unmask.as_fd());
    let mut driver = Driver::enabled(guest);
    let taken = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| take_signals(&pin, &end, &taken));
        // The device takes undelivered signals back when a command completes.
        let mut interrupts = |wanted| {
            driver.serial();
            (taken.load(Ordering::SeqCst) == wanted).then_some(())
        };
        let _end = End(&end);
        for count in 1..=3 {
            wait_until("an interrupt", || interrupts(count));
            assert!((0..20).all(|_| interrupts(count).is_some()), "it is masked");
            rustix::io::write(&unmask, &1_u64.to_ne_bytes()).unwrap();
        }
    });
}
