//! The behaviour of an idle processor of the host, which determines how long a thread takes to wake
//! up.

use super::finding::Finding;

const PROBE: &str = "idle CPUs";
/// The name of the driver, and of its governor, that polls before it halts (Linux, drivers/cpuidle/cpuidle-haltpoll.c).
const HALTPOLL: &str = "haltpoll";
/// Time that the governor polls by default, in nanoseconds.
const DEFAULT_NS: u64 = 200_000;

/// The machine's description of its idle processors.
pub(super) struct IdleProcessors<'a> {
    /// `/proc/cpuinfo`.
    pub(super) cpuinfo: &'a str,
    /// `/sys/devices/system/cpu/cpuidle/current_driver`.
    pub(super) driver: &'a str,
    /// `/sys/devices/system/cpu/cpuidle/current_governor`.
    pub(super) governor: &'a str,
    /// `/sys/module/haltpoll/parameters/guest_halt_poll_ns`.
    pub(super) poll_ns: &'a str,
}

impl IdleProcessors<'_> {
    /// Returns `true` if the machine is a virtual one, such as in a cloud: then a halt is an exit
    /// to its hypervisor.
    fn are_virtual(&self) -> bool {
        let mut fields = self.cpuinfo.lines().filter_map(|line| line.split_once(':'));
        let flags = fields.find(|(name, _)| name.trim() == "flags");
        flags.is_some_and(|(_, flags)| flags.split_whitespace().any(|flag| flag == "hypervisor"))
    }

    /// Returns the steps that make them poll before they halt.
    fn steps(&self, poll_ns: u64) -> Vec<String> {
        let mut steps = Vec::new();
        if self.driver.trim() != HALTPOLL {
            // This changes the governor, too.
            steps.push("modprobe cpuidle_haltpoll force=1".to_owned());
        } else if self.governor.trim() != HALTPOLL {
            steps.push(format!(
                "echo {HALTPOLL} > /sys/devices/system/cpu/cpuidle/current_governor"
            ));
        }
        if poll_ns == 0 {
            steps.push(format!(
                "echo {DEFAULT_NS} > /sys/module/haltpoll/parameters/guest_halt_poll_ns"
            ));
        }
        steps
    }
}

/// Checks that processors of a virtual machine poll for a while before they halt.
pub(super) fn idle(processors: &IdleProcessors<'_>) -> Finding {
    if !processors.are_virtual() {
        return Finding::ok(PROBE, "no hypervisor is involved when one halts");
    }
    let poll_ns: u64 = processors.poll_ns.trim().parse().unwrap_or(0);
    let steps = processors.steps(poll_ns);
    if steps.is_empty() {
        let found = format!("poll for up to {} µs before they halt", poll_ns / 1000);
        return Finding::ok(PROBE, found);
    }
    let (driver, governor) = (processors.driver.trim(), processors.governor.trim());
    let found = format!(
        "halt at once in this virtual machine (cpuidle driver `{driver}`, governor `{governor}`, guest_halt_poll_ns {poll_ns}): each wake-up \
         is slow, and transfers behind an IOMMU with it"
    );
    Finding::limited(PROBE, found, steps.join(", then "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::State;

    const VIRTUAL: &str = "processor\t: 0\nflags\t\t: fpu hypervisor lahf_lm\n";

    fn found(cpuinfo: &str, driver: &str, governor: &str, poll_ns: &str) -> Finding {
        idle(&IdleProcessors {
            cpuinfo,
            driver,
            governor,
            poll_ns,
        })
    }

    #[test]
    fn machine_of_its_own_has_no_hypervisor_to_ask() {
        let cpuinfo = VIRTUAL.replace(" hypervisor", "");
        assert_eq!(found(&cpuinfo, "none\n", "menu\n", "").state, State::Ok);
    }

    #[test]
    fn processors_that_poll_say_for_how_long() {
        let finding = found(VIRTUAL, "haltpoll\n", "haltpoll\n", "200000\n");
        assert_eq!(
            finding,
            Finding::ok("idle CPUs", "poll for up to 200 µs before they halt")
        );
    }

    #[test]
    fn processors_that_halt_at_once_are_reported_with_the_way_out() {
        let load = "modprobe cpuidle_haltpoll force=1";
        let govern = "echo haltpoll > /sys/devices/system/cpu/cpuidle/current_governor";
        let set = "echo 200000 > /sys/module/haltpoll/parameters/guest_halt_poll_ns";
        for (driver, governor, poll_ns, mend) in [
            ("haltpoll", "haltpoll", "0\n", set.to_owned()),
            ("haltpoll", "menu", "200000\n", govern.to_owned()),
            ("none", "menu", "200000\n", load.to_owned()),
            ("none", "menu", "0\n", format!("{load}, then {set}")),
            ("none", "menu", "", format!("{load}, then {set}")),
        ] {
            let finding = found(VIRTUAL, driver, governor, poll_ns);
            assert_eq!(finding.state, State::Limited, "{driver} {poll_ns}");
            let seen = format!("driver `{driver}`, governor `{governor}`");
            assert!(finding.found.contains(&seen), "{}", finding.found);
            assert_eq!(finding.mend, Some(mend));
        }
    }
}
