//! The time that the host's processors have spent as processors of a guest.

use std::fs;
use std::path::Path;

/// Prefix of QEMU's names of the threads of virtual processors.
const THREAD: &str = "CPU ";

/// Returns the time that the host's processors gave to the virtual processors of this QEMU, in
/// nanoseconds. A processor of the guest takes none while it is halted or waits for the host.
/// Returns `None` if QEMU names its threads in another way or has ended, or if the host's kernel
/// does not count.
pub(crate) fn of_guest(qemu: u32) -> Option<u64> {
    sum(Path::new(&format!("/proc/{qemu}/task")))
}

/// Returns the sum over the virtual processors' threads in that folder.
fn sum(threads: &Path) -> Option<u64> {
    let threads = fs::read_dir(threads).ok()?;
    let threads = threads.filter_map(|thread| Some(thread.ok()?.path()));
    let times = threads
        .filter(|thread| is_processor(thread))
        .map(|thread| time(&thread));
    times.reduce(|sum, time| sum?.checked_add(time?))?
}

fn is_processor(thread: &Path) -> bool {
    fs::read_to_string(thread.join("comm")).is_ok_and(|name| name.starts_with(THREAD))
}

/// Returns the first number of a thread's schedstat: nanoseconds on a processor (Linux,
/// Documentation/scheduler/sched-stats.rst).
fn time(thread: &Path) -> Option<u64> {
    let schedstat = fs::read_to_string(thread.join("schedstat")).ok()?;
    schedstat.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_that_of_all_virtual_processors_and_no_other_thread() {
        let folder = tempfile::tempdir().unwrap();
        let thread = |id: &str, name: &str, schedstat: &str| {
            let thread = folder.path().join(id);
            fs::create_dir(&thread).unwrap();
            fs::write(thread.join("comm"), name).unwrap();
            fs::write(thread.join("schedstat"), schedstat).unwrap();
        };
        thread("7", "qemu-system-x86\n", "1000000 5 6\n");
        assert_eq!(sum(folder.path()), None);
        thread("8", "CPU 0/TCG\n", "700 5 6\n");
        thread("9", "CPU 1/KVM\n", "40 5 6\n");
        assert_eq!(sum(folder.path()), Some(740));
        thread("10", "CPU 2/TCG\n", "\n");
        assert_eq!(sum(folder.path()), None, "a time that is missing");
    }
}
