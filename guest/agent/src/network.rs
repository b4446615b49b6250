//! The guest's name, and the loopback interface.

#![expect(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;

use anyhow::Context;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::system::sethostname;

/// As in the tools root's `/etc/hostname`.
const NAME: &[u8] = b"peerbar";

/// Names the guest, and brings the loopback interface up if the kernel has IPv4.
pub(crate) fn start() -> anyhow::Result<()> {
    sethostname(NAME).context("cannot set the host name")?;
    let Ok(socket) = socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    ) else {
        return Ok(());
    };
    // SAFETY: `ifreq` consists of integers and a union of such, for which zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(*b"lo") {
        *to = libc::c_char::try_from(from)?;
    }
    request.ifr_ifru.ifru_flags = libc::c_short::try_from(libc::IFF_UP)?;
    // SAFETY: the descriptor is open, and SIOCSIFFLAGS reads an `ifreq`, which outlives the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &request) };
    if done < 0 {
        return Err(io::Error::last_os_error()).context("cannot bring up the loopback interface");
    }
    Ok(())
}
