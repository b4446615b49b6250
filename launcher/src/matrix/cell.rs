//! One cell: the kernel's rule, the observation, and the difference between them.

use std::path::PathBuf;

use anyhow::{Context, anyhow};
use peerbar_report::{ProbeDriver, Probed, Transfer};
use peerbar_results::TransferOutcome;
use peerbar_rule::{MapType, Release, decide};
use serde::Serialize;

use super::TestedDevices;
use super::kernel::KernelChoice;
use super::placement::{Flow, Pair, Placement};
use super::transfer_outcome::{ruled, seen};
use peerbar_lab::count::counted;
use peerbar_lab::iommu::Iommu;
use peerbar_lab::pci_tree::{pci_tree, platform};
use peerbar_lab::results::CheckResult;
use peerbar_lab::scenario::Scenario;

/// Position of a cell in the matrix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Spot {
    /// CPU model of the guest.
    pub(crate) cpu: String,
    /// Its IOMMU.
    pub(crate) iommu: Iommu,
    /// Topology of the devices.
    pub(crate) topology: Placement,
    /// Flow between them.
    pub(crate) flow: Flow,
}

/// The kernel's rule for a cell.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Rule {
    /// The way that data must take.
    pub(crate) way: TransferOutcome,
    /// The mapping that the kernel makes.
    mapping: MapType,
    /// The kernel's release.
    #[serde(skip)]
    kernel: Release,
    /// The reason, in a sentence.
    why: String,
    /// The way hop by hop, from client to provider.
    path: Vec<String>,
}

/// The observation of a cell.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Seen {
    /// In one word.
    pub(crate) way: TransferOutcome,
    /// The agent's result, or `None` if the cell was not run.
    #[serde(flatten)]
    probed: Option<Probed>,
    /// The kernel's choice, or `None` if the cell was not run.
    kernel: Option<KernelChoice>,
    /// Folder of the run.
    run: PathBuf,
}

/// A cell of the matrix.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cell {
    /// Its position.
    #[serde(flatten)]
    pub(crate) spot: Spot,
    /// The device that owns the memory.
    provider: &'static str,
    /// The device that issues the DMA.
    client: &'static str,
    /// The expectation.
    pub(crate) rule: Rule,
    /// The observation.
    pub(crate) seen: Seen,
    /// The difference between the two, or `None` if they agree.
    pub(crate) disagreement: Option<String>,
}

/// The results of a boot for a cell.
pub(super) struct Tried {
    /// Its check's result.
    pub(super) check: CheckResult,
    /// The kernel's choice.
    pub(super) kernel: KernelChoice,
}

impl Tried {
    fn way(&self) -> TransferOutcome {
        let measure = &self.check.measure;
        let probed = measure.probe.as_ref();
        probed.map_or(TransferOutcome::NotRun, |probed| {
            seen(probed, measure.bytes)
        })
    }
}

impl Rule {
    /// Returns the kernel's rule for `pair` in `scenario`.
    pub(super) fn of(scenario: &Scenario, kernel: Release, pair: Pair) -> anyhow::Result<Self> {
        if pair.by == ProbeDriver::Vfio {
            return Ok(Self::of_vfio(scenario.machine.iommu, kernel, pair));
        }
        let tree = pci_tree(scenario);
        let cpu = &scenario.machine.cpu;
        let platform = platform(&scenario.machine, kernel).with_context(|| {
            format!("the kernel's view of the CPU `{cpu}` is unknown: name a CPU model of QEMU")
        })?;
        let find = |name| {
            let found = tree.find(name);
            found.ok_or_else(|| anyhow!("the machine has no `{name}`"))
        };
        let decision = decide(&tree, &platform, find(pair.provider)?, find(pair.client)?);
        let decision = decision.context("the rule does not know the tree")?;
        Ok(Self {
            way: ruled(&decision),
            mapping: decision.verdict,
            kernel,
            why: decision.why(&tree),
            path: decision
                .path
                .iter()
                .map(|hop| tree.name(*hop).to_owned())
                .collect(),
        })
    }
}

impl Rule {
    /// Returns VFIO's rule, which does not depend on the kernel's peer-to-peer rule. A device
    /// without an IOMMU is rejected, and an I/O address that is not a bus address goes up to the
    /// IOMMU from any position.
    fn of_vfio(iommu: Iommu, kernel: Release, pair: Pair) -> Self {
        let (way, mapping, why) = match iommu.is_present() {
            true => (
                TransferOutcome::HostBridge,
                MapType::ThroughHostBridgeIova,
                "the IOMMU translates an I/O address of the driver's choice",
            ),
            false => (
                TransferOutcome::Refused,
                MapType::NotSupported,
                "vfio-pci requires an IOMMU",
            ),
        };
        Self {
            way,
            mapping,
            kernel,
            why: why.to_owned(),
            path: [pair.client, "the IOMMU", pair.provider]
                .map(str::to_owned)
                .into(),
        }
    }
}

impl Cell {
    /// Returns its coordinates in the matrix, provider and client, in a line.
    pub(super) fn title(&self) -> String {
        format!(
            "{} ({} to {})",
            self.spot.title(),
            self.client,
            self.provider
        )
    }

    /// Makes a cell of the results in `tried`; `Err` has the reason why there are none.
    pub(super) fn judged(
        spot: Spot,
        pair: Pair,
        device: TestedDevices,
        rule: Rule,
        run: PathBuf,
        tried: Result<Tried, String>,
    ) -> Self {
        let (way, disagreement) = match &tried {
            Ok(tried) => {
                let way = tried.way();
                (
                    way,
                    disagreement(spot.iommu, device, pair.by, &rule, way, tried),
                )
            }
            Err(reason) => (TransferOutcome::NotRun, Some(reason.clone())),
        };
        let tried = tried
            .ok()
            .map(|tried| (tried.check.measure.probe, tried.kernel));
        let (probed, kernel) = tried.unzip();
        Self {
            spot,
            provider: pair.provider,
            client: pair.client,
            rule,
            seen: Seen {
                way,
                probed: probed.flatten(),
                kernel,
                run,
            },
            disagreement,
        }
    }
}

impl Spot {
    /// Returns the cell's position in a line.
    fn title(&self) -> String {
        format!(
            "{}, {}, {}, {}",
            self.cpu,
            self.iommu.word(),
            self.topology.label(),
            self.flow.label()
        )
    }
}

/// Explains in one sentence why the observation differs from the rule, or returns `None` if it does
/// not.
fn disagreement(
    iommu: Iommu,
    device: TestedDevices,
    by: ProbeDriver,
    rule: &Rule,
    seen: TransferOutcome,
    Tried { check, kernel }: &Tried,
) -> Option<String> {
    let said = check.diagnostics.join("; ");
    let Some(probed) = &check.measure.probe else {
        return Some(format!("the check has no result: {said}"));
    };
    let ruled = (by != ProbeDriver::Vfio).then_some((rule.mapping, rule.kernel));
    if let Some(objection) = kernel.objection(iommu, ruled) {
        return Some(objection);
    }
    // Correct data without a record is the only observable result of QEMU's controller.
    let unrecorded = device == TestedDevices::QemuNvme
        && seen == TransferOutcome::Unrecorded
        && rule.way != TransferOutcome::Refused;
    if seen != rule.way && !unrecorded {
        let output = output(probed).map_or(String::new(), |output| format!(": {output}"));
        let logged = probed.fault.as_ref();
        let logged = logged.map_or(String::new(), |fault| {
            format!("; the guest's kernel logs: {fault}")
        });
        let ruled = rule.way;
        return Some(format!(
            "the rule says: {ruled}; but: {seen}{output}{logged}"
        ));
    }
    if let Some(fault) = &probed.fault {
        return Some(format!(
            "an IOMMU faults ({}): {fault}",
            counted(probed.faults, "line")
        ));
    }
    (!check.passed()).then_some(said)
}

/// Returns the message of the first transfer that failed or moved wrong data.
fn output(probed: &Probed) -> Option<&str> {
    let both = [&probed.written, &probed.read];
    both.into_iter().find_map(|transfer| match transfer {
        Transfer::Right => None,
        Transfer::Wrong { message } | Transfer::Failed { message, .. } => Some(message.as_str()),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use peerbar_report::{Measure, Record, Route};

    use peerbar_lab::results::CheckStatus;

    use super::super::kernel::tests::chosen;
    use super::*;

    /// Returns a check's result: right data, with this record.
    fn checked(record: Option<Record>) -> CheckResult {
        CheckResult {
            verdict: CheckStatus::Pass,
            measure: Measure {
                bytes: 8192,
                probe: Some(Probed {
                    written: Transfer::Right,
                    read: Transfer::Right,
                    record,
                    faults: 0,
                    fault: None,
                }),
                ..Measure::default()
            },
            ..CheckResult::default()
        }
    }

    /// Returns a check's result: right data, all of it through the host bridge.
    pub(in super::super) fn upstream() -> CheckResult {
        checked(Some(Record {
            routes: [(Route::Upstream, 8192)].into(),
            failures: 0,
        }))
    }

    /// Returns the cell of two disks of ours without an IOMMU, in which the kernel has followed the
    /// rule.
    pub(in super::super) fn at(
        cpu: &str,
        topology: Placement,
        check: Result<&CheckResult, &str>,
    ) -> Cell {
        cell(TestedDevices::Peerbar, cpu, topology, check)
    }

    fn cell(
        device: TestedDevices,
        cpu: &str,
        topology: Placement,
        check: Result<&CheckResult, &str>,
    ) -> Cell {
        let (flow, iommu) = (Flow::NvmeCmbNvme, Iommu::None);
        let pair = topology.pair(flow, device).unwrap();
        let text = super::super::machine::scenario("x", device, iommu, cpu, &[pair]);
        let scenario = Scenario::parse("x.toml".as_ref(), text).unwrap();
        let rule = Rule::of(&scenario, Release::NEWEST, pair).unwrap();
        let kernel = chosen(rule.mapping);
        let tried = check.cloned().map(|check| Tried { check, kernel });
        let tried = tried.map_err(str::to_owned);
        let cpu = cpu.to_owned();
        let spot = Spot {
            cpu,
            iommu,
            topology,
            flow,
        };
        Cell::judged(spot, pair, device, rule, PathBuf::new(), tried)
    }

    /// Returns the disagreement for two disks of `device` at root ports of an EPYC.
    fn disagreement(device: TestedDevices, check: Result<&CheckResult, &str>) -> Option<String> {
        cell(device, "EPYC", Placement::RootPorts, check).disagreement
    }

    #[test]
    fn rule_and_record_must_be_the_same() {
        let right = upstream();
        let agreed = at("EPYC", Placement::RootPorts, Ok(&right));
        assert_eq!(
            (agreed.seen.way, agreed.disagreement),
            (TransferOutcome::HostBridge, None)
        );
        let against = at("Haswell", Placement::RootPorts, Ok(&right));
        assert_eq!(against.rule.way, TransferOutcome::Refused);
        let output = against.disagreement.unwrap();
        assert!(
            output.starts_with("the rule says: refused by the kernel"),
            "{output}"
        );
        let below = at("Haswell", Placement::OneSwitch, Ok(&right));
        assert_eq!(below.rule.way, TransferOutcome::Peer);
        assert!(below.disagreement.is_some());
    }

    #[test]
    fn our_devices_have_a_record_and_qemu_devices_none() {
        let right = checked(None);
        let ours = disagreement(TestedDevices::Peerbar, Ok(&right));
        assert!(ours.unwrap().contains("route not recorded"));
        assert_eq!(disagreement(TestedDevices::QemuNvme, Ok(&right)), None);
        let refused = cell(
            TestedDevices::QemuNvme,
            "Haswell",
            Placement::RootPorts,
            Ok(&right),
        );
        assert!(refused.disagreement.is_some());
    }

    #[test]
    fn faults_failed_checks_and_boots_disagree() {
        let output = |check: Result<&CheckResult, &str>| {
            disagreement(TestedDevices::Peerbar, check).unwrap()
        };
        let mut faulty = upstream();
        let probe = faulty.measure.probe.as_mut().unwrap();
        (probe.faults, probe.fault) = (2, Some("DMAR: x".to_owned()));
        assert_eq!(output(Ok(&faulty)), "an IOMMU faults (2 lines): DMAR: x");
        let mut failed = upstream();
        failed.verdict = CheckStatus::Fail;
        failed.diagnostics = vec!["the kernel complained:".to_owned()];
        assert_eq!(output(Ok(&failed)), "the kernel complained:");
        failed.measure.probe = None;
        assert_eq!(
            output(Ok(&failed)),
            "the check has no result: the kernel complained:"
        );
        assert_eq!(output(Err("no boot")), "no boot");
    }

    #[test]
    fn wrong_data_is_reported_with_the_kernel_choice() {
        let mut wrong = checked(None);
        let probe = wrong.measure.probe.as_mut().unwrap();
        let message = "1 of 8192 bytes are wrong".to_owned();
        (probe.read, probe.fault) = (Transfer::Wrong { message }, Some("DMAR: x".to_owned()));
        for device in [TestedDevices::Peerbar, TestedDevices::QemuNvme] {
            let output = disagreement(device, Ok(&wrong)).unwrap();
            let end =
                "with wrong data: 1 of 8192 bytes are wrong; the guest's kernel logs: DMAR: x";
            assert!(output.ends_with(end), "{output}");
        }
    }
}
