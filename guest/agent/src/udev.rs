//! udevd in the tools root: it makes `/dev/disk/by-*`, and handles devices that are added later.

use std::time::Duration;

use anyhow::ensure;

use crate::tools::Tools;

/// Starts udevd, and makes it process the disks that existed before. Other hardware is left alone:
/// udevd would load a driver for every device of QEMU's machine.
const START: &str = "/usr/lib/systemd/systemd-udevd --daemon < /dev/null > /dev/null 2>&1 && \
    udevadm trigger --action=add --subsystem-match=nvme --subsystem-match=block && \
    udevadm settle --timeout=60";

/// Time limit for that.
const LIMIT: Duration = Duration::from_secs(70);

/// Starts udevd, and returns once it has nothing to do.
pub(crate) fn start(tools: Tools) -> anyhow::Result<()> {
    let ran = tools.run(START, LIMIT, |_| {})?;
    ensure!(
        ran.code() == 0 && !ran.timed_out,
        "udevd does not start (status {}): {}",
        ran.code(),
        ran.output.trim_end()
    );
    Ok(())
}
