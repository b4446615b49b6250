//! The processor time of a process.

use std::time::Duration;

use anyhow::Context;
use nix::errno::Errno;
use nix::time::ClockId;
use nix::unistd::Pid;

/// Returns the processor time of all threads of process `pid` so far, including threads that have
/// ended (clock_getcpuclockid(3), in nanoseconds; /proc/PID/stat counts in ticks of 10 ms, and
/// /proc/PID/task forgets threads that end).
///
/// # Errors
/// If there is no such process.
pub(crate) fn cpu_time(pid: u32) -> anyhow::Result<Duration> {
    let process = i32::try_from(pid).map_err(|_| Errno::ESRCH);
    process
        .and_then(|process| ClockId::pid_cpu_clock_id(Pid::from_raw(process)))
        .and_then(ClockId::now)
        .map(Duration::from)
        .with_context(|| format!("cannot ask for the processor time of process {pid}"))
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::time::Instant;

    use super::*;

    #[test]
    fn threads_that_have_ended_have_taken_time_too() {
        let before = cpu_time(std::process::id()).unwrap();
        let work = || {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(100) {
                black_box(0);
            }
            cpu_time(std::process::id()).unwrap()
        };
        let meanwhile = std::thread::spawn(work).join().unwrap();
        let after = cpu_time(std::process::id()).unwrap();
        assert!(meanwhile > before);
        assert!(
            after >= meanwhile,
            "{meanwhile:?}, and {after:?} once it has ended"
        );
    }

    #[test]
    fn work_takes_time() {
        let before = cpu_time(std::process::id()).unwrap();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(20) {
            black_box(0);
        }
        assert!(cpu_time(std::process::id()).unwrap() > before);
        assert!(cpu_time(u32::MAX).is_err());
    }
}
