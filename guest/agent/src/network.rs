//! The guest's name, the loopback interface, and QEMU's user network.

#![expect(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::system::sethostname;

use crate::tools::Tools;

/// The same as in the tools root's `/etc/hostname`.
const NAME: &[u8] = b"peerbar";

/// Joins QEMU's user network, whose addresses are fixed (QEMU's documentation, "Using the user mode network stack").
const JOIN: &str = "ip -batch - << END || exit
address add 10.0.2.15/24 dev eth0
link set eth0 up
route add default via 10.0.2.2
END
echo nameserver 10.0.2.3 > /etc/resolv.conf";
/// Time limit for joining.
const JOINED: Duration = Duration::from_secs(30);

/// Names the guest, and brings up the loopback interface if the kernel has IPv4.
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
    // SAFETY: `ifreq` consists of integers and a union of integers, for which zeros are valid.
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

/// Gives the guest's only network card its address, and the tools root its name server.
pub(crate) fn join(tools: Tools) -> anyhow::Result<()> {
    let ran = tools.run(JOIN, JOINED, |_| ())?;
    ensure!(
        ran.status.success() && !ran.timed_out,
        "cannot join QEMU's user network: {}",
        ran.output.trim()
    );
    Ok(())
}
