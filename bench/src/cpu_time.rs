//! How long a process has had a processor.

use std::fs;
use std::io;
use std::time::Duration;

use crate::Error;

/// Time that the living threads of process `pid` have run so far (Linux, /proc/PID/task/TID/schedstat, in
/// nanoseconds; /proc/PID/stat counts in ticks of 10 ms).
///
/// # Errors
/// If there is no such process.
pub fn cpu_time(pid: u32) -> Result<Duration, Error> {
    let folder = format!("/proc/{pid}/task");
    let tasks = fs::read_dir(&folder).map_err(Error::system(format!("list {folder}")))?;
    let mut nanoseconds = 0_u64;
    for task in tasks {
        let task = task.map_err(Error::system(format!("list {folder}")))?;
        match fs::read_to_string(task.path().join("schedstat")) {
            Ok(text) => nanoseconds = nanoseconds.saturating_add(running(&text)),
            // The thread has ended since.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {}
            Err(error) => return Err(Error::system(format!("read from {folder}"))(error)),
        }
    }
    Ok(Duration::from_nanos(nanoseconds))
}

/// The first of the three numbers; 0 where the kernel keeps none.
fn running(schedstat: &str) -> u64 {
    let first = schedstat.split_whitespace().next();
    first.and_then(|word| word.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::time::Instant;

    use super::*;

    #[test]
    fn the_first_number_is_the_time_on_a_processor() {
        assert_eq!(running("4711 12 3\n"), 4711);
        assert_eq!(running(""), 0);
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
