//! Waits for changes in sysfs, by the kernel's own announcements.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

/// The multicast group in which the kernel itself sends (Linux, lib/kobject_uevent.c).
const KERNEL_GROUP: u32 = 1;

/// Some changes of state are not announced, so conditions are also checked at this interval.
const RECHECK: Duration = Duration::from_millis(50);

/// The kernel's uevents.
#[derive(Debug)]
pub struct Uevents {
    socket: OwnedFd,
}

impl Uevents {
    pub(crate) fn open() -> anyhow::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            flags,
            Some(KOBJECT_UEVENT),
        )
        .context("cannot open a uevent socket")?;
        bind(&socket, &SocketAddrNetlink::new(0, KERNEL_GROUP))
            .context("cannot listen for uevents")?;
        Ok(Uevents { socket })
    }

    /// Checks `condition` until it holds, at each uevent and at least every 50 ms.
    ///
    /// # Errors
    /// The last error of `condition`, once `time_out` is over.
    pub fn wait_for<T, E>(
        &self,
        time_out: Duration,
        mut condition: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        let deadline = Instant::now() + time_out;
        loop {
            self.forget_announced();
            let outcome = condition();
            let left = deadline.saturating_duration_since(Instant::now());
            if outcome.is_ok() || left.is_zero() {
                return outcome;
            }
            self.sleep_until_announcement(left.min(RECHECK));
        }
    }

    /// Empties the socket before a check, so that any later announcement ends the next wait.
    fn forget_announced(&self) {
        let mut message = [0; 4096];
        while recv(&self.socket, &mut message, RecvFlags::empty()).is_ok() {}
    }

    fn sleep_until_announcement(&self, limit: Duration) {
        let timeout = Timespec::try_from(limit).ok();
        // An interrupted or failed wait only causes an earlier check.
        let _ = poll(
            &mut [PollFd::new(&self.socket, PollFlags::IN)],
            timeout.as_ref(),
        );
    }
}
