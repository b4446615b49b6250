//! The end of the guest.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::system::{RebootCommand, reboot};
use rustix::termios::tcdrain;

use crate::counters::has_virtio_iommu;

/// Time limit for the kernel to write back and to shut down its devices.
const TIME_OUT: Duration = Duration::from_secs(10);
/// Drivers whose functions stay: those of ports, of virtio devices, and of user space, which may
/// still hold a function.
const STAYING: [&str; 3] = ["pcieport", "virtio-pci", "vfio-pci"];

/// Writes back and powers off. A hung device cannot keep the guest alive: after the time limit the
/// kernel restarts at once, which ends a QEMU that was started with `-no-reboot`.
pub(crate) fn off() -> ! {
    let (hold, held) = mpsc::channel::<()>();
    thread::spawn(|| {
        // Output that has not reached the console when the guest ends is lost.
        let _ = tcdrain(io::stderr());
        rustix::fs::sync();
        if matches!(has_virtio_iommu(), Ok(true)) {
            if let Err(error) = remove_functions(Path::new("/sys/bus/pci/devices")) {
                eprintln!("peerbar-agent: cannot remove a device behind virtio's IOMMU: {error}");
            }
        }
        let refused = reboot(RebootCommand::PowerOff);
        eprintln!("peerbar-agent: powering off failed: {refused:?}");
    });
    // Nothing is ever sent: this is the time that the thread above has.
    let _ = held.recv_timeout(TIME_OUT);
    drop(hold);
    eprintln!(
        "peerbar-agent: the kernel did not power off within {} s; restarting at once",
        TIME_OUT.as_secs()
    );
    loop {
        let _ = std::fs::write("/proc/sysrq-trigger", "b");
        thread::park_timeout(TIME_OUT);
    }
}

/// Removes the PCI functions that have a driver and are behind an IOMMU, whose domains end with
/// them. Linux 7.3 resets a virtio-iommu before other devices when it powers off. A mapping that is
/// flushed after that, 10 ms after its end or by a driver's shutdown, waits forever for the answer
/// of that IOMMU with interrupts off (drivers/iommu/virtio-iommu.c, `__viommu_sync_req`).
///
/// # Errors
/// The first function that the system does not remove; the others are removed all the same.
fn remove_functions(devices: &Path) -> io::Result<()> {
    let mut done = Ok(());
    for function in fs::read_dir(devices)? {
        let removed = function.and_then(|function| remove_function(&function.path()));
        done = done.and(removed);
    }
    done
}

/// Applies [`remove_functions`] to one function, which may not qualify.
fn remove_function(function: &Path) -> io::Result<()> {
    let Ok(driver) = fs::read_link(function.join("driver")) else {
        return Ok(());
    };
    let stays = driver
        .file_name()
        .is_none_or(|name| STAYING.iter().any(|staying| **staying == *name));
    if stays || !function.join("iommu_group").exists() {
        return Ok(());
    }
    fs::write(function.join("remove"), "1").map_err(|error| {
        let message = format!("{}: {error}", function.display());
        io::Error::new(error.kind(), message)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn functions_with_a_kernel_driver_behind_an_iommu_are_removed() {
        let devices = tempfile::tempdir().unwrap();
        let function = |address: &str, driver: Option<&str>, is_behind: bool| {
            let function = devices.path().join(address);
            fs::create_dir(&function).unwrap();
            fs::write(function.join("remove"), "").unwrap();
            if let Some(driver) = driver {
                let driver = Path::new("../../bus/pci/drivers").join(driver);
                symlink(driver, function.join("driver")).unwrap();
            }
            if is_behind {
                fs::create_dir(function.join("iommu_group")).unwrap();
            }
        };
        function("0000:00:00.0", Some("pcieport"), true);
        function("0000:01:00.0", Some("efa"), true);
        function("0000:02:00.0", Some("vfio-pci"), true);
        function("0000:03:00.0", None, true);
        function("0000:04:00.0", Some("nvme"), false);
        function("0000:05:00.0", Some("peerbar_gpu"), true);
        // A function that has just disappeared does not prevent the removal of others.
        let gone = ["0000:06:00.0", "0001:00:00.0", "ffff:00:00.0"];
        for address in gone {
            function(address, Some("nvme"), true);
            fs::remove_file(devices.path().join(address).join("remove")).unwrap();
            fs::create_dir(devices.path().join(address).join("remove")).unwrap();
        }
        let error = remove_functions(devices.path()).unwrap_err().to_string();
        assert!(gone.iter().any(|gone| error.contains(gone)), "{error}");
        let is_removed = |bus: u32| {
            let remove = devices.path().join(format!("0000:0{bus}:00.0/remove"));
            fs::read_to_string(remove).unwrap() == "1"
        };
        let removed = (0..6).filter(|bus| is_removed(*bus));
        assert_eq!(removed.collect::<Vec<_>>(), [1, 5]);
    }
}
