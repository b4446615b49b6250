//! A scenario with several guests: `[[guest]]` tables, and devices and checks that belong to one
//! guest each.
//!
//! Each guest is a separate [`Scenario`], made from the tables that name it and from those that
//! name no guest. The rest are the checks across guests, and the fabric that joins all adapters.

mod split;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use peerbar_nvme::PollPolicy;
use peerbar_rdma_end::{EndSpec, TWO_ENDED, two_ends};
use peerbar_report::{Check, CheckTable, Inventory, Rdma};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::catalogue::{self, file_text};
use super::contents::Scenario;
use super::error::Problem;
use super::error::ScenarioError;
use super::file::File;
use super::lost;
use super::names;
use super::names::demand_known_checks;
use super::nic::Nic;
use super::nic::number;
use super::rdma_network::RdmaNetwork;
use super::rdma_network::fabric;
use super::validate;
use super::{packages, together};

/// A scenario with several guests.
#[derive(Clone, Debug)]
pub struct GuestGroup {
    /// Its name, which is suitable for a folder.
    pub name: String,
    /// The file that it was read from; paths in it are relative to that.
    pub path: PathBuf,
    /// The text that it was read from.
    pub text: String,
    /// Time limit of each guest.
    pub timeout: Duration,
    /// The fabric that joins the adapters of all guests, if there is one.
    pub fabric: Option<RdmaNetwork>,
    /// The guests, in the order of the file.
    pub guests: Vec<GroupGuest>,
    /// The checks across guests, in the order of the file. They follow those of the single guests.
    pub checks: Vec<GroupCheck>,
}

/// A guest of several.
#[derive(Clone, Debug)]
pub struct GroupGuest {
    /// Its name.
    pub name: String,
    /// Its machine, its devices and its own checks. The name is that of the group and of the guest.
    pub scenario: Scenario,
}

/// A check across guests.
#[derive(Clone, Debug)]
pub struct GroupCheck {
    /// Its name in the report.
    pub name: String,
    /// The check, which has two ends.
    pub check: Check,
}

/// Rejects a file with several guests if a scenario of one is wanted, and a table of an unknown
/// guest.
pub(super) fn refuse(document: &DeTable<'_>) -> Result<(), Problem> {
    if let Some(guests) = document.get("guest") {
        return Err(Problem::new(
            guests.span(),
            "the scenario has several guests: `peerbar run` takes them all, and other commands may take --guest NAME",
        ));
    }
    let tables = document.values().flat_map(|value| match value.get_ref() {
        DeValue::Array(tables) => tables.iter().as_slice(),
        _ => &[],
    });
    let mut guests = tables.filter_map(|table| match table.get_ref() {
        DeValue::Table(table) => table.get("guest"),
        _ => None,
    });
    match guests.next() {
        Some(guest) => Err(Problem::new(
            guest.span(),
            "`guest` requires a [[guest]]: add one for each guest, or leave the key out",
        )),
        None => Ok(()),
    }
}

impl GuestGroup {
    /// Reads a scenario file, or the shipped one of a bare name. Returns `None` if its text has no
    /// `[[guest]]`.
    ///
    /// # Errors
    /// A mistake, with its line.
    pub fn load(path: &Path) -> Result<Option<Self>, ScenarioError> {
        let path = &catalogue::resolve(path);
        Self::read(path, file_text(path)?, false)
    }

    /// Does the work of [`GuestGroup::load`]. It needs no checks, because the user works in a
    /// guest.
    ///
    /// # Errors
    /// Those of [`GuestGroup::load`].
    pub fn load_interactive(path: &Path) -> Result<Option<Self>, ScenarioError> {
        let path = &catalogue::resolve(path);
        Self::read(path, file_text(path)?, true)
    }

    /// Reads a scenario's text, which has the path `path` in messages. It needs no checks, because
    /// requests can follow. Returns `None` if it has no `[[guest]]`.
    ///
    /// # Errors
    /// Those of [`GuestGroup::load`].
    pub fn parse_interactive(
        path: &Path,
        text: impl Into<String>,
    ) -> Result<Option<Self>, ScenarioError> {
        Self::read(path, text.into(), true)
    }

    fn read(path: &Path, text: String, interactive: bool) -> Result<Option<Self>, ScenarioError> {
        let read = || -> Result<Option<Self>, Problem> {
            let document = DeTable::parse(&text)?;
            match document.get_ref().contains_key("guest") {
                true => Self::of_document(document, path, interactive).map(Some),
                false => Ok(None),
            }
        };
        let group = read().map_err(|problem| problem.locate(path.to_owned(), text.as_str()))?;
        Ok(group.map(|group| Self { text, ..group }))
    }

    /// Reads a document from `path`; the text is not set.
    pub(super) fn of_document(
        document: Spanned<DeTable<'_>>,
        path: &Path,
        interactive: bool,
    ) -> Result<Self, Problem> {
        let at = document.span();
        let parts = split::GroupDocument::of(document.into_inner())?;
        let file = File::read(&Spanned::new(at.clone(), parts.whole.clone()))?;
        let name = names::fitting(file.name.clone(), names::LONGEST_SCENARIO)?;
        validate::unique_devices(&file)?;
        together::images(&file, path.parent().unwrap_or(Path::new("")))?;
        if file.check.is_empty() && !interactive {
            let message = "no [[check]]: add one";
            return Err(Problem::new(file.name.span(), message));
        }
        let mut guests = Vec::new();
        let mut own_spans = Vec::new();
        for guest in &parts.guests {
            let own = parts.of_guest(guest)?;
            let scenario =
                Scenario::of_document(Spanned::new(at.clone(), own.clone()), path, true)?;
            let tables = CheckTable::all(&own)?;
            let spans: Vec<Range<usize>> = tables.iter().map(CheckTable::span).collect();
            lost::refuse_shared(&scenario.checks, &spans)?;
            own_spans.extend(spans);
            let text = split::text(own)?;
            guests.push(GroupGuest {
                name: guest.name.clone(),
                scenario: Scenario { text, ..scenario },
            });
        }
        let nics: Vec<Nic> = guests
            .iter()
            .flat_map(|g| g.scenario.nics.clone())
            .collect();
        let fabric = fabric(file.fabric, &nics)?;
        number(guests.iter_mut().flat_map(|guest| &mut guest.scenario.nics));
        let tables = CheckTable::all(&parts.across)?;
        let checks = read_across(tables, &guests, own_spans)?;
        if let Some(fabric) = &fabric {
            guests
                .iter_mut()
                .for_each(|guest| guest.join_fabric(fabric));
        }
        Ok(Self {
            name,
            path: path.to_owned(),
            text: String::new(),
            timeout: file
                .timeout
                .map_or(validate::DEFAULT_TIMEOUT, |timeout| timeout.0),
            fabric,
            guests,
            checks,
        })
    }

    /// Does the work of [`Scenario::serve_disks_by`] for all guests.
    pub fn serve_disks_by(&mut self, workers: Option<u8>, poll: Option<PollPolicy>) {
        let guests = self.guests.iter_mut();
        guests.for_each(|guest| guest.scenario.serve_disks_by(workers, poll));
    }

    /// Does the work of [`Scenario::set_timeout`] for all guests.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
        let guests = self.guests.iter_mut();
        guests.for_each(|guest| guest.scenario.set_timeout(timeout));
    }

    /// Does the work of [`Scenario::trace`] for all guests.
    pub fn trace(&mut self) {
        self.guests
            .iter_mut()
            .for_each(|guest| guest.scenario.trace());
    }

    /// Keeps the checks with one of these names, or all if there are no names. A name begins with
    /// the guest's, as in `left: copy`, unless the check is across guests.
    ///
    /// # Errors
    /// An unknown name, with the list of names.
    pub fn select_checks(&mut self, names: &[String]) -> anyhow::Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        demand_known_checks(names, &self.check_names())?;
        for GroupGuest { name, scenario } in &mut self.guests {
            let own = names.iter();
            let own =
                own.filter_map(|wanted| wanted.strip_prefix(name.as_str())?.strip_prefix(": "));
            let own: Vec<String> = own.map(str::to_owned).collect();
            scenario.keep_checks(&own);
        }
        self.checks.retain(|check| names.contains(&check.name));
        Ok(())
    }

    /// Returns the names of all checks in the report.
    pub fn check_names(&self) -> Vec<String> {
        let of_guests = self.guests.iter().flat_map(GroupGuest::check_names);
        let across = self.checks.iter().map(|check| check.name.clone());
        of_guests.chain(across).collect()
    }

    /// Returns the number of the guest that a device belongs to.
    pub fn guest_of(&self, device: &str) -> Option<usize> {
        owner(&self.guests, |guest| has_device(guest, device))
    }
}

impl GroupGuest {
    /// Returns the name of this guest's check `name` in the report of the group.
    pub fn name_of(&self, name: &str) -> String {
        format!("{}: {name}", self.name)
    }

    /// Returns the names of this guest's checks in the report of the group.
    fn check_names(&self) -> Vec<String> {
        let names = self.scenario.check_names();
        names.iter().map(|name| self.name_of(name)).collect()
    }

    /// Adds it to the group's fabric, whose rules also apply to a guest that is started alone, and
    /// adds the programs for checks across guests.
    fn join_fabric(&mut self, fabric: &RdmaNetwork) {
        let scenario = &mut self.scenario;
        if scenario.nics.is_empty() {
            return;
        }
        scenario.fabric = Some(fabric.clone());
        if scenario.tools {
            scenario.rdma_ends = true;
            packages::add(&mut scenario.packages, Rdma::PACKAGES.iter().copied());
        }
    }
}

/// Reads the tables of the checks that name no guest. Those of the guests are at `spans`.
fn read_across(
    tables: Vec<CheckTable<'_>>,
    guests: &[GroupGuest],
    mut spans: Vec<Range<usize>>,
) -> Result<Vec<GroupCheck>, Problem> {
    let inventory = inventory(guests);
    let labels: Vec<Spanned<String>> = tables.iter().filter_map(|t| t.label().cloned()).collect();
    labels.iter().try_for_each(names::label)?;
    let mut others: Vec<String> = guests.iter().flat_map(GroupGuest::check_names).collect();
    let checks = tables.into_iter().map(|table| {
        spans.push(table.span());
        let (at, kind) = (table.span(), table.kind());
        let of_one_guest = || {
            let way_out = one_of(guests);
            let message =
                format!("a check of the kind `{kind}` belongs to one guest: add {way_out}");
            Problem::new(at.clone(), message)
        };
        if !TWO_ENDED.contains(&kind) {
            return Err(of_one_guest());
        }
        let label = table.label().map(|label| label.get_ref().clone());
        let check = table.read(&inventory)?;
        let ends = two_ends(&check).ok_or_else(of_one_guest)?;
        fits(ends.ends(), guests).map_err(|message| Problem::new(at, message))?;
        let name = label.unwrap_or_else(|| {
            let name = check.name();
            others.push(name.clone());
            name
        });
        Ok(GroupCheck { name, check })
    });
    let checks: Vec<GroupCheck> = checks.collect::<Result<_, _>>()?;
    names::distinct_labels(&labels, &others)?;
    // Those of the guests come first. They have already been compared with each other.
    let own = guests.iter().flat_map(|guest| &guest.scenario.checks);
    let mut all: Vec<Check> = own.cloned().collect();
    all.extend(checks.iter().map(|check| check.check.clone()));
    lost::refuse(&all, &spans)?;
    Ok(checks)
}

/// Checks that both ends of a check are in different guests, each with its memory and its disk.
fn fits([near, far]: [EndSpec<'_>; 2], guests: &[GroupGuest]) -> Result<(), String> {
    let of = |name: &str| owner(guests, |guest| has_device(guest, name));
    if of(near.nic) == of(far.nic) {
        return Err(format!(
            "`{}` and `{}` are in one guest: add {}, or name adapters of two",
            near.nic,
            far.nic,
            one_of(guests)
        ));
    }
    for EndSpec { nic, memory, disk } in [near, far] {
        let beside = memory.gpu().into_iter().chain(disk);
        for device in beside {
            if of(device) != of(nic) {
                return Err(format!(
                    "`{device}` is in another guest than `{nic}`: an adapter reaches only memory of its own guest"
                ));
            }
        }
    }
    Ok(())
}

/// Returns everything that checks across guests can name: all devices.
fn inventory(guests: &[GroupGuest]) -> Inventory {
    let mut all = Inventory {
        tools: true,
        ..Inventory::default()
    };
    for inventory in guests.iter().map(|guest| guest.scenario.inventory()) {
        all.nvmes.extend(inventory.nvmes);
        all.gpus.extend(inventory.gpus);
        all.nics.extend(inventory.nics);
        all.tools &= inventory.tools;
        all.timeout = inventory.timeout;
    }
    all
}

/// Returns the number of the first guest for which `is_its` returns `true`.
fn owner(guests: &[GroupGuest], is_its: impl Fn(&Scenario) -> bool) -> Option<usize> {
    guests.iter().position(|guest| is_its(&guest.scenario))
}

fn has_device(guest: &Scenario, name: &str) -> bool {
    guest.devices().any(|device| device.name() == name)
}

/// Returns the ways in which a table can name its guest.
fn one_of(guests: &[GroupGuest]) -> String {
    let names = guests.iter().map(|guest| guest.name.as_str());
    split::one_of(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iommu::Iommu;

    /// Two guests with an adapter and a GPU each, up to line 17.
    const HEAD: &str = "name = \"x\"\ntools = true\nmachine = { cpus = 1, memory = \"256M\" }\n\
        [[guest]]\nname = \"left\"\n[[guest]]\nname = \"right\"\nmachine = { iommu = \"intel\", cpus = 2 }\n\
        [[nic]]\nguest = \"left\"\nname = \"n0\"\n[[gpu]]\nguest = \"left\"\nname = \"g0\"\n\
        [[nic]]\nguest = \"right\"\nname = \"n1\"\n";
    const COMMAND: &str =
        "[[check]]\nguest = \"right\"\nname = \"own\"\nkind = \"command\"\nrun = \"true\"\n";
    const ACROSS: &str = "[[check]]\nkind = \"rdma\"\nnic = \"n0\"\npeer = \"n1\"\nfrom = { vram = \"g0\" }\n\
        to = \"guest-ram\"\nsizes = [1]\n";

    fn parse(text: &str) -> Result<GuestGroup, String> {
        let read = GuestGroup::read(Path::new("x.toml"), text.to_owned(), false);
        read.map(Option::unwrap).map_err(|error| error.to_string())
    }

    #[test]
    fn file_with_guests_is_divided_among_them() {
        let module = "[[module]]\nname = \"loop\"\n[[module]]\nguest = \"left\"\nname = \"brd\"\n";
        let group = parse(&format!("{HEAD}{module}{COMMAND}{ACROSS}")).unwrap();
        let [left, right] = group.guests.as_slice() else {
            panic!("{:?}", group.guests)
        };
        let names = [left, right].map(|guest| guest.scenario.name.as_str());
        assert_eq!(names, ["x-left", "x-right"]);
        let machines = [left, right].map(|guest| &guest.scenario.machine);
        assert_eq!(
            machines.map(|machine| machine.iommu),
            [Iommu::None, Iommu::Intel]
        );
        assert_eq!(machines.map(|machine| machine.cpus), [1, 2]);
        assert_eq!(machines.map(|machine| machine.memory), [256 << 20; 2]);
        let devices: [Vec<String>; 2] = [left, right].map(|guest| {
            let devices = guest.scenario.devices();
            devices.map(|device| device.name().to_owned()).collect()
        });
        assert_eq!(
            devices,
            [
                vec!["g0".to_owned(), "n0".to_owned()],
                vec!["n1".to_owned()]
            ]
        );
        assert_eq!(
            [left, right].map(|guest| guest.scenario.nics[0].gid),
            [1, 2]
        );
        let modules = |guest: &GroupGuest| {
            let modules = &guest.scenario.modules;
            modules
                .iter()
                .filter(|module| ["loop", "brd"].contains(&&*module.name))
                .count()
        };
        assert_eq!((modules(left), modules(right)), (2, 1));
        assert_eq!(
            group.check_names(),
            [
                "right: own",
                "RDMA from VRAM of g0 by n0 to guest RAM by n1"
            ]
        );
        assert_eq!(group.fabric, Some(RdmaNetwork::default()));
    }

    #[test]
    fn rules_of_the_fabric_hold_for_each_guest() {
        let rule = "n0<->n1 loss=1%";
        let table = format!("[fabric]\nimpair = [\"{rule}\"]\nseed = 7\n");
        let group = parse(&format!("{HEAD}{ACROSS}{table}")).unwrap();
        for guest in &group.guests {
            assert_eq!(guest.scenario.fabric, group.fabric, "{}", guest.name);
        }
        assert_eq!(group.fabric.unwrap().impairments, [rule]);
    }

    #[test]
    fn guest_of_several_has_a_text_of_its_own() {
        let group = parse(&format!("{HEAD}{COMMAND}{ACROSS}")).unwrap();
        for guest in &group.guests {
            let scenario = &guest.scenario;
            assert!(
                scenario.rdma_ends && scenario.packages.contains(&"ibverbs-providers".to_owned())
            );
            let files = scenario.guest_files();
            assert!(
                format!("{files:?}").contains("opt/peerbar/peerbar-verbs"),
                "{files:?}"
            );
            let again = Scenario::parse_interactive(&scenario.path, scenario.text.clone()).unwrap();
            assert_eq!(again.name, scenario.name);
            assert_eq!(again.devices().count(), scenario.devices().count());
            assert_eq!(again.checks.len(), scenario.checks.len());
            assert_eq!(again.machine.iommu, scenario.machine.iommu);
        }
    }

    #[test]
    fn mistakes_about_guests_are_reported_with_their_line() {
        let nvme = "name = \"d\"\nnamespaces = [{ file = \"d.img\" }]\n";
        for (lines, wanted) in [
            (
                "[[switch]]\nname = \"s\"\n".to_owned(),
                "18: [[switch]] belongs to a guest: add `guest = \"left\"` or `guest = \"right\"`",
            ),
            (
                "[[switch]]\nname = \"s\"\nguest = \"up\"\n".to_owned(),
                "20: no [[guest]] is named `up`: there are `left`, `right`",
            ),
            (
                "[[nic]]\nguest = \"left\"\nname = \"n1\"\n".to_owned(),
                "20: the name `n1` is taken",
            ),
            (
                "[[guest]]\nname = \"left\"\n".to_owned(),
                "19: the name `left` is taken",
            ),
            (
                "[[guest]]\nname = \"verdict\"\n".to_owned(),
                "19: the name `verdict` is taken",
            ),
            (
                "[[guest]]\nname = \"up\"\nmemory = \"1G\"\n".to_owned(),
                "20: unknown key `memory`",
            ),
            (
                COMMAND.replace("guest = \"right\"\n", ""),
                "20: a check of the kind `command` belongs to one guest: add `guest = \"left\"` or",
            ),
            (
                ACROSS.replace("n1", "n0"),
                "19: `n0` and `n0` are in one guest: add `guest = \"left\"` or",
            ),
            (
                ACROSS
                    .replace("\"n0\"", "\"n2\"")
                    .replace("n1", "n0")
                    .replace("n2", "n1"),
                "19: `g0` is in another guest than `n1`: an adapter reaches only memory of its own guest",
            ),
            (
                COMMAND
                    .replace("command", "provider")
                    .replace("run = \"true\"", "device = \"g0\""),
                "22: no [[nvme]] is named `g0`",
            ),
            (
                format!(
                    "[[nvme]]\nguest = \"left\"\n{nvme}[[nvme]]\nguest = \"right\"\n{}",
                    nvme.replace("\"d\"", "\"e\"")
                ),
                "25: image d.img is already used by another namespace: give each its own (see line 21)",
            ),
            (
                "[fabric]\nimpair = [\"n0->n2 loss=1%\"]\n".to_owned(),
                "19: `impair`: no [[nic]] is named `n2`: there is n0, n1",
            ),
        ] {
            let error = parse(&format!("{HEAD}{lines}{COMMAND}")).unwrap_err();
            assert!(error.starts_with(&format!("x.toml:{wanted}")), "{error}");
        }
        for (guests, wanted) in [("[]", "is empty"), ("3", "is not a table")] {
            let error = parse(&format!("name = \"x\"\nguest = {guests}\n")).unwrap_err();
            let begin = format!("x.toml:2: `guest` {wanted}: write [[guest]]");
            assert!(error.starts_with(&begin), "{error}");
        }
        assert!(parse(HEAD).unwrap_err().ends_with("no [[check]]: add one"));
    }

    #[test]
    fn chain_across_guests_has_each_side_in_one() {
        let disk = |guest: &str, name: &str| {
            format!(
                "[[nvme]]\nguest = \"{guest}\"\nname = \"{name}\"\nnamespaces = [{{ ram = \"1M\" }}]\n"
            )
        };
        let gpu = "[[gpu]]\nguest = \"right\"\nname = \"g1\"\n";
        let devices = [&disk("left", "d0"), &disk("right", "d1"), gpu].concat();
        let chain = |disk: &str| {
            format!(
                "{HEAD}{devices}[[check]]\nkind = \"rdma-chain\"\nfrom = {{ disk = \"{disk}\", gpu = \"g0\", nic = \"n0\" }}\n\
                 to = {{ disk = \"d1\", gpu = \"g1\", nic = \"n1\" }}\nsizes = [\"4K\"]\n"
            )
        };
        let group = parse(&chain("d0")).unwrap();
        let [near, far] = two_ends(&group.checks[0].check).unwrap().ends();
        assert_eq!((near.nic, near.disk), ("n0", Some("d0")));
        assert_eq!((far.nic, far.memory.gpu()), ("n1", Some("g1")));
        let moved = chain("d0").replace(
            "guest = \"left\"\nname = \"d0\"",
            "guest = \"right\"\nname = \"d0\"",
        );
        let error = parse(&moved).unwrap_err();
        assert!(
            error.contains("`d0` is in another guest than `n0`"),
            "{error}"
        );
    }

    #[test]
    fn check_across_guests_of_what_was_lost_is_refused() {
        let lost = |name: &str| {
            let lines = ACROSS.replace("\"rdma\"", "\"rdma-lost\"");
            lines.replace(
                "sizes = [1]",
                &format!("loses = \"{name}\"\nby = \"sends\""),
            )
        };
        for name in ["n1", "g0", "fabric"] {
            let group = parse(&format!("{HEAD}{}", lost(name))).unwrap();
            assert_eq!(group.checks[0].check.kills(), Some(name));
            let error = parse(&format!("{HEAD}{}{ACROSS}", lost(name))).unwrap_err();
            let wanted = format!("the check uses `{name}`, which a check before it loses");
            assert!(error.contains(&wanted), "{error}");
        }
        // Checks of one guest come first, in any order of the file.
        let own = lost("g0").replace("[[check]]", "[[check]]\nguest = \"left\"");
        let beside = "[[nic]]\nguest = \"left\"\nname = \"n2\"\n";
        let own = own.replace("n1", "n2");
        let error = parse(&format!("{HEAD}{beside}{ACROSS}{own}")).unwrap_err();
        assert!(error.contains("the check uses `g0`"), "{error}");
    }

    #[test]
    fn guest_s_own_check_does_not_lose_the_fabric() {
        let beside = "[[nic]]\nguest = \"left\"\nname = \"n2\"\n";
        let own = |lines: &str| {
            let lines = lines.replace("[[check]]", "[[check]]\nguest = \"left\"");
            lines.replace("n1", "n2")
        };
        let lost = ACROSS.replace("\"rdma\"", "\"rdma-lost\"");
        let lost = lost.replace("sizes = [1]", "loses = \"fabric\"");
        let error = parse(&format!("{HEAD}{beside}{}", own(&lost))).unwrap_err();
        let wanted = "x.toml:23: `loses = \"fabric\"`: the fabric belongs to all guests";
        assert!(error.starts_with(wanted), "{error}");
    }

    #[test]
    fn refusals_across_guests_are_of_the_asked_one_s_gpu() {
        let check = |nic: &str, peer: &str| {
            let kind = "[[check]]\nkind = \"rdma-refused\"\n";
            let text = format!("{kind}nic = \"{nic}\"\npeer = \"{peer}\"\ngpu = \"g0\"\n");
            parse(&format!("{HEAD}{text}"))
        };
        let group = check("n1", "n0").unwrap();
        assert_eq!(group.check_names(), ["what n0 must refuse n1, also of g0"]);
        let [near, far] = two_ends(&group.checks[0].check).unwrap().ends();
        assert_eq!((near.nic, near.memory.gpu()), ("n1", None));
        assert_eq!((far.nic, far.memory.gpu()), ("n0", Some("g0")));
        let error = check("n0", "n1").unwrap_err();
        assert!(
            error.contains("`g0` is in another guest than `n1`"),
            "{error}"
        );
    }

    #[test]
    fn one_guest_is_refused_where_several_are() {
        let text = format!("{HEAD}{COMMAND}");
        let error = Scenario::parse(Path::new("x.toml"), text)
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("x.toml:4: the scenario has several guests: "),
            "{error}"
        );
        let demo = GuestGroup::load(Path::new("../scenarios/demo.toml")).unwrap();
        assert!(demo.is_none());
    }

    #[test]
    fn checks_of_guests_are_selected_by_both_names() {
        let group = parse(&format!("{HEAD}{COMMAND}{ACROSS}")).unwrap();
        let left = |names: &[&str]| {
            let mut group = group.clone();
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            group.select_checks(&names).map(|()| group.check_names())
        };
        assert_eq!(left(&[]).unwrap().len(), 2);
        assert_eq!(left(&["right: own"]).unwrap(), ["right: own"]);
        let across = "RDMA from VRAM of g0 by n0 to guest RAM by n1";
        assert_eq!(left(&[across]).unwrap(), [across]);
        let error = left(&["own"]).unwrap_err().to_string();
        assert!(
            error.starts_with("no check is named `own`: there are `right: own`"),
            "{error}"
        );
    }
}
