//! The end of the guest.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::system::{RebootCommand, reboot};

/// How long the kernel may take to write back and to shut its devices down.
const PATIENCE: Duration = Duration::from_secs(10);

/// Writes back and powers off. A hung device cannot keep the guest alive: the kernel then restarts at
/// once, which ends a QEMU that was started with `-no-reboot`.
pub(crate) fn off() -> ! {
    let (hold, held) = mpsc::channel::<()>();
    thread::spawn(|| {
        rustix::fs::sync();
        let refused = reboot(RebootCommand::PowerOff);
        eprintln!("peerbar-agent: powering off failed: {refused:?}");
    });
    // Nothing is ever sent: this is the time that the thread above has.
    let _ = held.recv_timeout(PATIENCE);
    drop(hold);
    eprintln!(
        "peerbar-agent: the kernel did not power off within {} s; restarting at once",
        PATIENCE.as_secs()
    );
    loop {
        let _ = std::fs::write("/proc/sysrq-trigger", "b");
        thread::park_timeout(PATIENCE);
    }
}
