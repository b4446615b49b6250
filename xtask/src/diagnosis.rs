//! Facts about a command that does not end: its processes, what each thread waits for, and the ends
//! of logs.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::param::clock_ticks_per_second;

/// Number of lines of each log.
const LINES: usize = 15;
/// Characters of a line that are shown.
const COLUMNS: usize = 200;

/// Describes `process`, all processes that it started, and the logs below `folder`.
pub(crate) fn of(process: u32, folder: Option<&Path>) -> String {
    let mut text =
        "\n== not done in time; its processes, and the wait of each thread:\n".to_owned();
    for process in [vec![process], descendants(process)].concat() {
        describe(process, &mut text);
    }
    if let Some(folder) = folder {
        quote_logs(folder, &mut text);
    }
    text
}

/// Returns the processes that `process` started, and those that they started.
pub(crate) fn descendants(process: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for thread in entries(&format!("/proc/{process}/task")) {
        let children = read(&format!("/proc/{process}/task/{thread}/children"));
        for child in children
            .split_whitespace()
            .filter_map(|child| child.parse().ok())
        {
            found.push(child);
            found.extend(descendants(child));
        }
    }
    found
}

/// Returns the processor time of a process and all processes that it waited for, or zero if it is
/// gone.
pub(crate) fn processor_time(process: u32) -> Duration {
    let ticks = ticks(&read(&format!("/proc/{process}/stat")));
    Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second() as f64)
}

/// Returns the sum of utime, stime, cutime and cstime, the fields 14 to 17 of `/proc/PID/stat`
/// (proc_pid_stat(5)).
fn ticks(stat: &str) -> u64 {
    // The name of the program, the second field, may contain blanks and parentheses.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let times = after_name.split_whitespace().skip(11).take(4);
    times.filter_map(|time| time.parse::<u64>().ok()).sum()
}

fn describe(process: u32, text: &mut String) {
    let command = read(&format!("/proc/{process}/cmdline")).replace('\0', " ");
    let _ = writeln!(text, "   {process} {}", cut(&command));
    for thread in entries(&format!("/proc/{process}/task")) {
        let read = |file: &str| read(&format!("/proc/{process}/task/{thread}/{file}"));
        let stat = read("stat");
        let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        let (name, state) = (read("comm"), state.get(..1).unwrap_or_default());
        let _ = writeln!(text, "      {} {state} {}", name.trim_end(), read("wchan"));
    }
}

/// Quotes the ends of the logs in `folder` and in the folders below it, but not in links: `latest`
/// is one.
fn quote_logs(folder: &Path, text: &mut String) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let (path, kind) = (entry.path(), entry.file_type());
        if kind.as_ref().is_ok_and(fs::FileType::is_dir) {
            quote_logs(&path, text);
        } else if kind.is_ok_and(|kind| kind.is_file())
            && path.extension().is_some_and(|end| end == "log")
        {
            let bytes = fs::read(&path).unwrap_or_default();
            let log = String::from_utf8_lossy(&bytes);
            let lines: Vec<&str> = log.lines().collect();
            let last = lines
                .get(lines.len().saturating_sub(LINES)..)
                .unwrap_or_default();
            if !last.is_empty() {
                let _ = writeln!(text, "   == the end of {}", path.display());
            }
            for line in last {
                let _ = writeln!(text, "   {}", cut(line));
            }
        }
    }
}

fn cut(line: &str) -> String {
    line.chars().take(COLUMNS).collect()
}

/// Returns the text of a file of `/proc`, or an empty string: the process may have ended.
fn read(path: &str) -> String {
    fs::read(path).map_or_else(
        |_| String::new(),
        |bytes| String::from_utf8_lossy(&bytes).into_owned(),
    )
}

/// Returns the names in a folder of `/proc`.
fn entries(path: &str) -> Vec<String> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_after_a_name_with_parentheses() {
        let stat = "12 (a ) b) S 1 12 12 0 -1 4194560 100 200 0 0 7 5 30 20 20 0 1 0 100 0";
        assert_eq!(ticks(stat), 62);
    }

    #[test]
    fn own_threads_and_logs_are_in_the_diagnosis() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        fs::create_dir(&run).unwrap();
        fs::write(run.join("console.log"), "booting\nstuck").unwrap();
        fs::write(run.join("plan.json"), "{}").unwrap();
        let text = of(std::process::id(), Some(folder.path()));
        assert!(
            text.contains(&format!("   {} ", std::process::id())),
            "{text}"
        );
        assert!(
            text.contains("console.log\n   booting\n   stuck\n"),
            "{text}"
        );
        assert!(!text.contains("plan.json"), "{text}");
    }
}
