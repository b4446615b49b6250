//! One boot: from the first mount to the last result.

use std::fs::File;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow};
use peerbar_report::{Check, Evidence, KtapWriter, Measure, Module, Plan, Request, Verdict};
use rustix::time::{ClockId, clock_gettime};

use crate::checks::{self, CheckOutcome};
use crate::decisions::Decisions;
use crate::guest_context::GuestContext;
use crate::kmsg::{Complaints, Expected, KernelLog};
use crate::modules::Modules;
use crate::port::{self, Port};
use crate::trace::KernelTracing;
use crate::uevents::Uevents;
use crate::watchdog::{self, Ended};
use crate::{kmemleak, kmsg, mounts, network, pci_tree, root, udev};

/// Brings up the guest, takes the plan, and reports each of its checks.
///
/// # Errors
/// The reason why the agent cannot report.
pub(crate) fn run() -> anyhow::Result<()> {
    mounts::sysfs()?;
    // The kernel patches itself for the probe, and cannot load modules at the same time.
    let watch = thread::spawn(Decisions::watch);
    mounts::essential()?;
    network::start()?;
    let uevents = Uevents::open()?;
    let modules = Modules::open()?;
    for driver in ["virtio_pci", "virtio_console"] {
        modules.load(driver, "")?;
    }
    let (plan, port) = Port::open(&uevents)?.read_plan()?;
    let for_trace = plan.trace.then(|| port::open_trace(&uevents)).transpose()?;
    let for_checks = port.try_clone().context("cannot share the port")?;
    let mut report = KtapWriter::new(port);
    let planned = u32::try_from(plan.checks.len())?;
    report.begin((!plan.interactive).then_some(planned))?;
    match prepare(&plan, modules, uevents, for_checks) {
        Ok(guest) => {
            report.ready(uptime_ms()?)?;
            let decisions = watch
                .join()
                .map_err(|_| anyhow!("the thread that sets the probe panicked"))?;
            let trace = for_trace
                .map(|port| KernelTracing::start(port, &guest))
                .transpose()?;
            CheckRunner::new(
                Arc::new(guest),
                &plan.iommu_faults,
                decisions,
                trace,
                &mut report,
            )?
            .run_all(&plan)?;
        }
        Err(error) => {
            eprintln!("peerbar-agent: {error:#}");
            let reason = format!("{error:#}");
            for check in &plan.checks {
                refuse(check, &reason, &mut report)?;
            }
            if plan.interactive {
                report.diagnostic(&reason)?;
            }
        }
    }
    if plan.interactive {
        report.end()?;
    }
    Ok(())
}

/// Loads the drivers, and waits for the devices.
fn prepare(
    plan: &Plan,
    mut modules: Modules,
    uevents: Uevents,
    port: File,
) -> anyhow::Result<GuestContext> {
    let (late, early): (Vec<&Module>, Vec<&Module>) = plan
        .modules
        .iter()
        .partition(|module| module.has_placeholders());
    for module in &early {
        modules.set_parameters(&module.name, &module.parameters);
    }
    for module in early {
        modules.load(&module.name, &module.parameters)?;
    }
    let guest = GuestContext::new(plan, modules, uevents, port)?;
    // Only now are the values of the placeholders known.
    for module in late {
        let parameters = guest.placeholders().fill_in(&module.parameters)?;
        guest.load_module_with(&module.name, &parameters)?;
    }
    // Before udevd, which may rename the network card.
    if plan.network {
        network::join(guest.required_tools()?)?;
    }
    for share in &plan.shares {
        guest.required_tools()?;
        root::mount_host_folder(&share.tag, &share.at, share.folder)?;
    }
    if plan.udev {
        if let Some(tools) = guest.tools()? {
            udev::start(tools)?;
        }
    }
    if let Some(host_folder) = plan.exec {
        guest.start_exec_server(host_folder)?;
    }
    Ok(guest)
}

/// Runs checks one after the other, and reports each.
struct CheckRunner<'a> {
    guest: Arc<GuestContext>,
    decisions: Decisions,
    report: &'a mut KtapWriter<File>,
    log: KernelLog,
    /// Complaints of the kernel before the first check, which counts as their cause.
    earlier: Vec<String>,
    trace: Option<KernelTracing>,
    /// `true` if a check hung: nothing can be said about later checks.
    hung: bool,
}

impl<'a> CheckRunner<'a> {
    fn new(
        guest: Arc<GuestContext>,
        iommu_faults: &[String],
        decisions: Decisions,
        trace: Option<KernelTracing>,
        report: &'a mut KtapWriter<File>,
    ) -> anyhow::Result<Self> {
        for evidence in pci_tree::found(&guest).iter().chain(decisions.is_blind()) {
            report.evidence(evidence)?;
        }
        let mut log = KernelLog::open(iommu_faults)?;
        let mut earlier = log.complaints(&Expected::default()).lines;
        if !earlier.is_empty() {
            earlier.insert(0, "before the first check:".to_owned());
        }
        Ok(Self {
            guest,
            decisions,
            report,
            log,
            earlier,
            trace,
            hung: false,
        })
    }

    /// Runs the checks of `plan` and, if it is interactive, those of the requests that follow.
    fn run_all(&mut self, plan: &Plan) -> anyhow::Result<()> {
        let last = plan.checks.len().saturating_sub(1);
        for (index, check) in plan.checks.iter().enumerate() {
            self.run(check, index == last)?;
        }
        if plan.interactive {
            while let Request::Check(check) = self.guest.launcher.next_request()? {
                self.run(&check, false)?;
            }
        }
        // Decisions for programs of the host, which are not checks.
        self.report_decisions(Vec::new())?;
        self.show_complaints();
        Ok(())
    }

    /// Shows the kernel's complaints outside of checks on the console, by which the launcher judges
    /// the run. The kernel may not have shown them there: `quiet` and `dmesg -n` limit that.
    fn show_complaints(&mut self) {
        if let Err(error) = kmsg::let_warnings_through() {
            eprintln!("peerbar-agent: {error:#}");
        }
        let mut lines = std::mem::take(&mut self.earlier);
        lines.extend(self.log.complaints_outside_of_checks());
        if !lines.is_empty() {
            eprintln!("peerbar-agent: the kernel complained outside of checks:");
        }
        for line in lines {
            eprintln!("{line}");
        }
    }

    /// Reports the kernel's decisions since the last call, and its messages in `said`.
    fn report_decisions(&mut self, said: Vec<String>) -> anyhow::Result<()> {
        let said = said.into_iter().map(Evidence::Message);
        for evidence in self.decisions.news().chain(said) {
            self.report.evidence(&evidence)?;
        }
        Ok(())
    }

    /// Runs a check. Leaks of all checks count against the last one.
    fn run(&mut self, check: &Check, is_last: bool) -> anyhow::Result<()> {
        if self.hung {
            return refuse(
                check,
                "not run, because the check before it hung",
                self.report,
            );
        }
        let name = check.name();
        // A command may have many lines.
        eprintln!("peerbar-agent: {}", name.lines().next().unwrap_or_default());
        let ended = supervise(&self.guest, check);
        self.hung = matches!(ended, Ended::Hung { .. });
        let (outcome, mut measure) = judge(ended, check.seconds());
        let mut complaints = self.log.complaints(&checks::runner(check).expected_log());
        if let Some(probe) = &mut measure.probe {
            probe.faults = complaints.faults;
            probe.fault = complaints.fault.take();
        }
        self.report_decisions(complaints.peer_to_peer.drain(..).collect())?;
        complaints.lines.splice(..0, self.earlier.drain(..));
        if is_last && !self.hung {
            complaints.lines.extend(leaks());
        }
        report_check(check, outcome, complaints, &measure, self.report)?;
        if self.hung {
            // After the complaints were taken, since the output looks like one.
            watchdog::show_blocked_tasks()?;
        }
        if let Some(trace) = &mut self.trace {
            trace.collect(&self.guest)?;
        }
        Ok(())
    }
}

/// Returns leaks of the kernel, or the reason why they are not known.
fn leaks() -> Vec<String> {
    kmemleak::leaks().unwrap_or_else(|error| vec![format!("{error:#}")])
}

fn supervise(
    guest: &Arc<GuestContext>,
    check: &Check,
) -> Ended<(anyhow::Result<CheckOutcome>, Measure)> {
    let (guest, check) = (Arc::clone(guest), check.clone());
    watchdog::run(guest.limit(check.seconds()), move || {
        let mut measure = Measure::default();
        let outcome = checks::run(&guest, &check, &mut measure);
        (outcome, measure)
    })
}

/// Turns a panic or a hang of a check, which has this `timeout` in seconds, into a failure.
fn judge(
    ended: Ended<(anyhow::Result<CheckOutcome>, Measure)>,
    timeout: Option<u32>,
) -> (anyhow::Result<CheckOutcome>, Measure) {
    match ended {
        Ended::Done((outcome, measure)) => (outcome, measure),
        Ended::Panicked(message) => (
            Err(anyhow::anyhow!("the agent panicked: {message}")),
            Measure::default(),
        ),
        Ended::Hung { limit, tasks } => {
            let error = anyhow::anyhow!(
                "the check {}; blocked tasks:\n{tasks}",
                watchdog::too_slow(limit, timeout)
            );
            (Err(error), Measure::default())
        }
    }
}

/// Reports one check. If the kernel complained unexpectedly during the check, it has failed,
/// regardless of its own outcome.
fn report_check(
    check: &Check,
    outcome: anyhow::Result<CheckOutcome>,
    complaints: Complaints,
    measure: &Measure,
    report: &mut KtapWriter<File>,
) -> anyhow::Result<()> {
    let verdict = match outcome {
        Ok(CheckOutcome::Passed) => Verdict::Pass,
        Ok(CheckOutcome::Said(text)) => {
            report.diagnostic(&text)?;
            Verdict::Pass
        }
        Ok(CheckOutcome::Skipped(reason)) => Verdict::Skip(reason),
        Err(error) => {
            report.diagnostic(&format!("{error:#}"))?;
            Verdict::Fail
        }
    };
    let Complaints { lines, missing, .. } = complaints;
    if lines.is_empty() && missing.is_empty() {
        return Ok(report.result(&check.name(), &verdict, measure)?);
    }
    for text in missing {
        report.diagnostic(&format!("the kernel did not say {text:?}"))?;
    }
    if !lines.is_empty() {
        report.diagnostic("the kernel complained:")?;
    }
    for line in lines {
        report.diagnostic(&format!("  {line}"))?;
    }
    Ok(report.result(&check.name(), &Verdict::Fail, measure)?)
}

/// Reports `check` as failed without a run.
fn refuse(check: &Check, reason: &str, report: &mut KtapWriter<File>) -> anyhow::Result<()> {
    report.diagnostic(reason)?;
    Ok(report.result(&check.name(), &Verdict::Fail, &Measure::default())?)
}

/// Returns the milliseconds since the kernel started.
fn uptime_ms() -> anyhow::Result<u64> {
    let now = Duration::try_from(clock_gettime(ClockId::Boottime))
        .context("the clock is before its start")?;
    Ok(u64::try_from(now.as_millis())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_that_hung_fails_with_its_limit_and_the_remedy() {
        let hung = |timeout| {
            let limit = Duration::from_secs(9);
            let tasks = "7 dd D".to_owned();
            let (outcome, _) = judge(Ended::Hung { limit, tasks }, timeout);
            outcome.unwrap_err().to_string()
        };
        let message = "the check did not end within 9 s: give the check a longer `timeout`; blocked tasks:\n7 dd D";
        assert_eq!(hung(Some(9)), message);
        let remedy = "give the check a `timeout`, or scale all that have none by `peerbar run --timeout`; without both";
        assert!(hung(None).contains(remedy), "{}", hung(None));
    }
}
