//! The machine, and its load by other programs.

use std::{fmt, fs};

use serde::{Deserialize, Serialize};

/// The share of all processors that other programs may use before a report mentions it.
const QUIET: f64 = 0.1;

/// The machine, as Linux reports it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// Model of the processors.
    pub cpu: String,
    /// Number of processors that this process may use.
    pub cpus: u32,
    /// Kernel of the host.
    pub kernel: String,
    /// Memory in KiB.
    pub memory_kib: u64,
    /// The behaviour of idle processors: cpuidle's driver and governor, and how long those of a
    /// virtual machine poll before they halt. It determines the time of a wake-up.
    #[serde(default)]
    pub idle: String,
    /// Average number of processors that other programs used during the measurement, if it was
    /// measured.
    pub others: Option<f64>,
}

impl Machine {
    /// Returns this machine.
    pub(crate) fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Self {
            cpu: field(&read("/proc/cpuinfo"), "model name").to_owned(),
            cpus: std::thread::available_parallelism()
                .ok()
                .and_then(|cpus| u32::try_from(cpus.get()).ok())
                .unwrap_or(1),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            memory_kib: first_number(field(&read("/proc/meminfo"), "MemTotal")).unwrap_or(0),
            idle: idle([
                &read("/sys/devices/system/cpu/cpuidle/current_driver"),
                &read("/sys/devices/system/cpu/cpuidle/current_governor"),
                &read("/sys/module/haltpoll/parameters/guest_halt_poll_ns"),
            ]),
            others: None,
        }
    }

    /// Returns `true` if other programs used so much of the processors that ratios do not help
    /// either: threads that wait for each other then measure the scheduler.
    pub(crate) fn is_busy(&self) -> bool {
        let quiet = f64::from(self.cpus) * QUIET;
        self.others.is_none_or(|others| others > quiet)
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {}", self.cpus, self.cpu)?;
        match self.others {
            Some(others) => write!(f, ", others had {others:.2} of them"),
            None => Ok(()),
        }
    }
}

/// Returns driver, governor and `guest_halt_poll_ns` in one line.
fn idle(read: [&str; 3]) -> String {
    let [driver, governor, poll_ns] = read.map(|text| match text.trim() {
        "" => "unknown",
        text => text,
    });
    format!("driver {driver}, governor {governor}, guest_halt_poll_ns {poll_ns}")
}

/// Returns the first value of `name` in a text of lines `NAME: VALUE`.
fn field<'a>(text: &'a str, name: &str) -> &'a str {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    let found = pairs.into_iter().find(|(key, _)| key.trim() == name);
    found.map_or("unknown", |(_, value)| value.trim())
}

fn first_number<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.split_whitespace().next()?.parse().ok()
}

/// Time of all processors and of this process so far, in the same clock ticks (Linux, proc(5)).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Ticks {
    processors: u32,
    /// Of all processors, idle or not.
    all: u64,
    /// Of processors that were not idle, including those of other machines on the same hardware.
    work: u64,
    /// Of this process, and of its children that have ended and their children.
    own: u64,
}

impl Ticks {
    /// Returns the present ticks, or `None` if Linux does not report them.
    pub(crate) fn now() -> Option<Self> {
        let read = |path: &str| fs::read_to_string(path).ok();
        Self::parse(&read("/proc/stat")?, &read("/proc/self/stat")?)
    }

    fn parse(all: &str, own: &str) -> Option<Self> {
        let of_processors = all.lines().filter(|line| line.starts_with("cpu"));
        let sums = all.lines().next()?.strip_prefix("cpu ")?;
        let sums: Vec<u64> = sums
            .split_whitespace()
            .map_while(|word| word.parse().ok())
            .collect();
        // The times of guests, the last two, are included in the user times, the first two.
        let [user, nice, system, idle, waiting, irq, softirq, stolen, ..] = sums[..] else {
            return None;
        };
        let work = user + nice + system + irq + softirq + stolen;
        // The name, in parentheses, may contain anything. utime is field 14, and the state, which
        // follows the name, field 3.
        let behind_name = own.rsplit_once(") ")?.1;
        let times = behind_name.split_whitespace().skip(11).take(4);
        Some(Self {
            processors: u32::try_from(of_processors.count()).ok()?.checked_sub(1)?,
            all: work + idle + waiting,
            work,
            own: times.filter_map(|time| time.parse::<u64>().ok()).sum(),
        })
    }

    /// Returns the average number of processors that other programs used since then.
    pub(crate) fn others_until(&self, now: &Self) -> Option<f64> {
        let since = |then: u64, now: u64| u32::try_from(now.saturating_sub(then)).ok();
        let all = since(self.all, now.all).filter(|ticks| *ticks > 0)?;
        let work = since(self.work, now.work)?;
        let others = work.saturating_sub(since(self.own, now.own)?);
        Some(f64::from(others) / f64::from(all) * f64::from(now.processors))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_is_described_by_its_fields() {
        let text = "processor\t: 0\nmodel name\t: A 1: B\nMemTotal:       16 kB\n";
        assert_eq!(field(text, "model name"), "A 1: B");
        assert_eq!(first_number(field(text, "MemTotal")), Some(16_u64));
        assert_eq!(field(text, "bogomips"), "unknown");
        assert!(Machine::here().cpus > 0);
    }

    #[test]
    fn idle_processors_are_described_by_what_linux_says_of_them() {
        assert_eq!(
            idle(["none\n", "menu\n", ""]),
            "driver none, governor menu, guest_halt_poll_ns unknown"
        );
        assert!(Machine::here().idle.starts_with("driver "));
    }

    #[test]
    fn what_others_had_is_all_work_without_our_own() {
        let own = |utime, children| {
            format!("7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 {utime} 1 {children} 1 20 0 1\n")
        };
        let all =
            |user, idle| format!("cpu  {user} 2 3 {idle} 5 6 7 8 0 0\ncpu0 1\ncpu1 1\nintr 1\n");
        let before = Ticks::parse(&all(100, 100), &own(10, 20)).unwrap();
        let expected = Ticks {
            processors: 2,
            all: 231,
            work: 126,
            own: 32,
        };
        assert_eq!(before, expected);
        // 200 ticks have passed, 100 of them at work, 60 of those ours.
        let after = Ticks::parse(&all(200, 200), &own(40, 50)).unwrap();
        assert_eq!(before.others_until(&after), Some(0.4));
        assert_eq!(after.others_until(&after), None);
        assert!(Ticks::now().is_some());
    }

    #[test]
    fn a_machine_is_busy_unless_others_left_it_alone() {
        let mut machine = Machine::here();
        machine.cpus = 2;
        for (others, busy) in [(None, true), (Some(0.1), false), (Some(0.3), true)] {
            machine.others = others;
            assert_eq!(machine.is_busy(), busy);
            assert_eq!(machine.to_string().contains("others had"), others.is_some());
        }
    }
}
