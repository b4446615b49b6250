//! One cell: what the kernel's rule says, what has happened, and whether they agree.

use std::path::PathBuf;

use anyhow::{Context, anyhow};
use peerbar_report::{Measure, Probed, Transfer};
use peerbar_rule::{Release, decide};
use serde::{Deserialize, Serialize};

use super::Device;
use super::topology::{Flow, Pair, Topology};
use super::way::Way;
use crate::fabric::{fabric, platform};
use crate::iommu::Iommu;
use crate::scenario::Scenario;

/// Where in the matrix a cell is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Spot {
    /// CPU model of the guest.
    pub(crate) cpu: String,
    /// Its IOMMU.
    pub(crate) iommu: Iommu,
    /// Where the devices are.
    pub(crate) topology: Topology,
    /// What they do.
    pub(crate) flow: Flow,
}

/// What the kernel's rule says of a cell.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Rule {
    /// The way that data must take.
    pub(crate) way: Way,
    /// The mapping that the kernel makes.
    mapping: peerbar_rule::Verdict,
    /// Why, in a sentence.
    why: String,
    /// The way hop by hop, from client to provider.
    path: Vec<String>,
}

/// What has happened in a cell.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Seen {
    /// In one word.
    pub(crate) way: Way,
    /// What the agent tells; none if the cell was not run.
    #[serde(flatten)]
    probed: Option<Probed>,
    /// Folder of the run.
    run: PathBuf,
}

/// A cell of the matrix.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cell {
    /// Where it is.
    #[serde(flatten)]
    pub(crate) spot: Spot,
    /// Whose memory it is.
    provider: &'static str,
    /// Whose DMA it is.
    client: &'static str,
    /// What must happen.
    pub(crate) rule: Rule,
    /// What has happened.
    pub(crate) seen: Seen,
    /// What keeps the two from agreeing; none if they agree.
    pub(crate) disagreement: Option<String>,
}

/// A check's result, as `results.json` of a run has it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Checked {
    verdict: String,
    measure: Measure,
    diagnostics: Vec<String>,
}

impl Checked {
    /// Whether the agent had nothing against it.
    pub(super) fn passed(&self) -> bool {
        self.verdict == "pass"
    }
}

impl Rule {
    /// The kernel's rule for `pair` in `scenario`.
    pub(super) fn of(scenario: &Scenario, kernel: Release, pair: Pair) -> anyhow::Result<Self> {
        let fabric = fabric(scenario);
        let cpu = &scenario.machine.cpu;
        let platform = platform(&scenario.machine, kernel)
            .with_context(|| format!("what the kernel takes the CPU `{cpu}` for is not known here: name a model of QEMU's"))?;
        let find = |name| {
            let found = fabric.find(name);
            found.ok_or_else(|| anyhow!("the machine has no `{name}`"))
        };
        let decision = decide(&fabric, &platform, find(pair.provider)?, find(pair.client)?);
        let decision = decision.context("the rule does not know the fabric")?;
        Ok(Self {
            way: Way::ruled(&decision),
            mapping: decision.verdict,
            why: decision.why(&fabric),
            path: decision
                .path
                .iter()
                .map(|hop| fabric.name(*hop).to_owned())
                .collect(),
        })
    }
}

impl Cell {
    /// Where it is and who takes part, in a line.
    pub(super) fn title(&self) -> String {
        format!(
            "{} ({} to {})",
            self.spot.title(),
            self.client,
            self.provider
        )
    }

    /// A cell with what its check has found; `Err` has the reason why there is none.
    pub(super) fn judged(
        spot: Spot,
        pair: Pair,
        device: Device,
        rule: Rule,
        run: PathBuf,
        checked: Result<&Checked, &str>,
    ) -> Self {
        let probed = checked
            .ok()
            .and_then(|checked| checked.measure.probe.clone());
        let bytes = checked.map_or(0, |checked| checked.measure.bytes);
        let way = probed
            .as_ref()
            .map_or(Way::NotRun, |probed| Way::seen(probed, bytes));
        let disagreement =
            disagreement(spot.iommu, device, rule.way, way, probed.as_ref(), checked);
        Self {
            spot,
            provider: pair.provider,
            client: pair.client,
            rule,
            seen: Seen { way, probed, run },
            disagreement,
        }
    }
}

impl Spot {
    /// Where the cell is, in a line.
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

/// Why what was seen is not what the rule says, in one sentence; none if it is.
fn disagreement(
    iommu: Iommu,
    device: Device,
    ruled: Way,
    seen: Way,
    probed: Option<&Probed>,
    checked: Result<&Checked, &str>,
) -> Option<String> {
    let checked = match checked {
        Ok(checked) => checked,
        Err(reason) => return Some(reason.to_owned()),
    };
    let Some(probed) = probed else {
        return Some(format!(
            "the check has no result: {}",
            checked.diagnostics.join("; ")
        ));
    };
    if !is_as_asked(iommu, probed.domain.as_deref()) {
        let domain = probed.domain.as_deref().unwrap_or("none");
        return Some(format!(
            "the boot is not what was asked for: with the IOMMU `{}` the client's iommu_group/type is {domain}",
            iommu.word()
        ));
    }
    // Right data without a record is all that can be seen of QEMU's controller.
    let unrecorded = device == Device::QemuNvme && seen == Way::Unrecorded && ruled != Way::Refused;
    if seen != ruled && !unrecorded {
        let told = told(probed).map_or(String::new(), |told| format!(": {told}"));
        let logged = probed.fault.as_ref();
        let logged = logged.map_or(String::new(), |fault| {
            format!("; the guest's kernel logs: {fault}")
        });
        return Some(format!("the rule says: {ruled}; but: {seen}{told}{logged}"));
    }
    if let Some(fault) = &probed.fault {
        return Some(format!(
            "an IOMMU faults ({} lines): {fault}",
            probed.faults
        ));
    }
    (!checked.passed()).then(|| checked.diagnostics.join("; "))
}

/// Whether the kernel has the IOMMU treat the client's DMA as the boot was to have it.
fn is_as_asked(iommu: Iommu, domain: Option<&str>) -> bool {
    match (iommu, domain) {
        (Iommu::None, domain) => domain.is_none(),
        (Iommu::IntelPassthrough, domain) => domain == Some("identity"),
        (Iommu::Intel | Iommu::Amd | Iommu::Virtio, domain) => {
            domain.is_some_and(|domain| domain.starts_with("DMA"))
        }
    }
}

/// What is wrong with the first transfer that has not succeeded with the right data.
fn told(probed: &Probed) -> Option<&str> {
    let both = [&probed.written, &probed.read];
    both.into_iter().find_map(|transfer| match transfer {
        Transfer::Right => None,
        Transfer::Wrong { message } | Transfer::Failed { message, .. } => Some(message.as_str()),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use peerbar_report::{Record, Route};

    use super::*;

    /// A check's result: right data, with this record.
    pub(in super::super) fn checked(record: Option<Record>) -> Checked {
        Checked {
            verdict: "pass".to_owned(),
            measure: Measure {
                bytes: 8192,
                probe: Some(Probed {
                    written: Transfer::Right,
                    read: Transfer::Right,
                    record,
                    domain: None,
                    faults: 0,
                    fault: None,
                }),
                ..Measure::default()
            },
            diagnostics: Vec::new(),
        }
    }

    /// The record of a device that has moved all of it through the host bridge.
    pub(in super::super) fn upstream() -> Option<Record> {
        Some(Record {
            routes: [(Route::Upstream, 8192)].into(),
            failures: 0,
        })
    }

    /// The cell of two disks of ours.
    pub(in super::super) fn at(
        iommu: Iommu,
        cpu: &str,
        topology: Topology,
        checked: Result<&Checked, &str>,
    ) -> Cell {
        cell(Device::Peerbar, iommu, cpu, topology, checked)
    }

    fn cell(
        device: Device,
        iommu: Iommu,
        cpu: &str,
        topology: Topology,
        checked: Result<&Checked, &str>,
    ) -> Cell {
        let flow = Flow::NvmeCmbNvme;
        let pair = topology.pair(flow, device).unwrap();
        let text = super::super::machine::scenario("x", device, iommu, cpu, &[pair]);
        let scenario = Scenario::parse("x.toml".as_ref(), text).unwrap();
        let rule = Rule::of(&scenario, Release::NEWEST, pair).unwrap();
        let cpu = cpu.to_owned();
        let spot = Spot {
            cpu,
            iommu,
            topology,
            flow,
        };
        Cell::judged(spot, pair, device, rule, PathBuf::new(), checked)
    }

    /// What disagrees where two disks of `device` are at root ports of an EPYC.
    fn disagreement(
        device: Device,
        iommu: Iommu,
        checked: Result<&Checked, &str>,
    ) -> Option<String> {
        cell(device, iommu, "EPYC", Topology::RootPorts, checked).disagreement
    }

    #[test]
    fn rule_and_record_must_be_the_same() {
        let right = checked(upstream());
        let agreed = at(Iommu::None, "EPYC", Topology::RootPorts, Ok(&right));
        assert_eq!(
            (agreed.seen.way, agreed.disagreement),
            (Way::HostBridge, None)
        );
        let against = at(Iommu::None, "Haswell", Topology::RootPorts, Ok(&right));
        assert_eq!(against.rule.way, Way::Refused);
        let told = against.disagreement.unwrap();
        assert!(
            told.starts_with("the rule says: refused by the kernel"),
            "{told}"
        );
        let below = at(Iommu::None, "Haswell", Topology::OneSwitch, Ok(&right));
        assert_eq!(below.rule.way, Way::Peer);
        assert!(below.disagreement.is_some());
    }

    #[test]
    fn our_devices_must_have_a_record_and_qemu_s_have_none() {
        let right = checked(None);
        let ours = disagreement(Device::Peerbar, Iommu::None, Ok(&right));
        assert!(ours.unwrap().contains("there is no record"));
        assert_eq!(
            disagreement(Device::QemuNvme, Iommu::None, Ok(&right)),
            None
        );
        let refused = cell(
            Device::QemuNvme,
            Iommu::None,
            "Haswell",
            Topology::RootPorts,
            Ok(&right),
        );
        assert!(refused.disagreement.is_some());
    }

    #[test]
    fn faults_failed_checks_and_boots_disagree() {
        let told = |checked: Result<&Checked, &str>| {
            disagreement(Device::Peerbar, Iommu::None, checked).unwrap()
        };
        let mut faulty = checked(upstream());
        let probe = faulty.measure.probe.as_mut().unwrap();
        (probe.faults, probe.fault) = (2, Some("DMAR: x".to_owned()));
        assert_eq!(told(Ok(&faulty)), "an IOMMU faults (2 lines): DMAR: x");
        let mut failed = checked(upstream());
        failed.verdict = "fail".to_owned();
        failed.diagnostics = vec!["the kernel complained:".to_owned()];
        assert_eq!(told(Ok(&failed)), "the kernel complained:");
        failed.measure.probe = None;
        assert_eq!(
            told(Ok(&failed)),
            "the check has no result: the kernel complained:"
        );
        assert_eq!(told(Err("no boot")), "no boot");
    }

    #[test]
    fn success_with_wrong_data_is_told_with_what_the_kernel_says_of_it() {
        let mut wrong = checked(None);
        let probe = wrong.measure.probe.as_mut().unwrap();
        let message = "1 of 8192 bytes are wrong".to_owned();
        (probe.read, probe.fault) = (Transfer::Wrong { message }, Some("DMAR: x".to_owned()));
        for device in [Device::Peerbar, Device::QemuNvme] {
            let told = disagreement(device, Iommu::None, Ok(&wrong)).unwrap();
            let end =
                "with wrong data: 1 of 8192 bytes are wrong; the guest's kernel logs: DMAR: x";
            assert!(told.ends_with(end), "{told}");
        }
    }

    #[test]
    fn a_boot_without_its_iommu_is_not_taken_for_one_with_it() {
        let right = checked(upstream());
        let told = disagreement(Device::Peerbar, Iommu::Intel, Ok(&right)).unwrap();
        assert!(
            told.contains("with the IOMMU `intel` the client's iommu_group/type is none"),
            "{told}"
        );
        assert!(is_as_asked(Iommu::Amd, Some("DMA-FQ")));
        assert!(!is_as_asked(Iommu::Amd, Some("identity")));
        assert!(is_as_asked(Iommu::IntelPassthrough, Some("identity")));
        assert!(!is_as_asked(Iommu::None, Some("DMA")));
    }
}
