//! The list of entries to run: `tests/runs.toml`, read and checked.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

use crate::programs::TestPrograms;

/// The tier of an entry, which tells when it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Tier {
    /// For each change.
    Gate,
    /// Before an issue is resolved or a release is made, and when a change touches its subject.
    Full,
    /// By its name only, since it requires something that a machine may lack.
    Named,
}

impl Tier {
    fn name(self) -> &'static str {
        match self {
            Self::Gate => "gate",
            Self::Full => "full",
            Self::Named => "named",
        }
    }
}

/// The entries of the plan to run.
pub(crate) enum Selection<'a> {
    Gate,
    Full,
    Only(&'a [String]),
}

/// The file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plan {
    /// Commands, one after the other.
    step: Vec<Entry>,
    /// Runs that boot guests or keep a machine busy with waiting, several at a time.
    run: Vec<Entry>,
}

/// A step or a guest run. Exactly one of `run`, `test` and `scenario` describes its action.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Entry {
    /// Its name for `--only` and in the table.
    pub(crate) name: String,
    pub(crate) tier: Tier,
    /// Time limit in seconds: five times its duration on a quiet machine with two cores.
    limit: u64,
    /// The mistakes that only this entry finds.
    finds: String,
    /// `true` if a step needs the programs and the tests of this workspace. Guest runs always do.
    #[serde(default)]
    pub(crate) built: bool,
    /// `true` if it needs the machine to itself, after the others: it measures, or keeps all
    /// processors busy.
    #[serde(default)]
    pub(crate) alone: bool,
    /// `true` if it is skipped unless the user is root. CI is root.
    #[serde(default)]
    pub(crate) root: bool,
    /// Environment variables. Those of this process take precedence.
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,

    /// A shell command.
    run: Option<String>,

    /// Tests that are otherwise ignored: `FOLDER:TARGET`, the folder of the package and the target.
    test: Option<String>,
    /// Parts of the tests' names, or none for all.
    #[serde(default)]
    only: Vec<String>,
    /// Parts of the names of skipped tests.
    #[serde(default)]
    skip: Vec<String>,
    /// `true` to run the tests that are not ignored, in place of those that are.
    #[serde(default)]
    not_ignored: bool,

    /// A scenario's file, for `peerbar run` and `peerbar explain`.
    scenario: Option<PathBuf>,
    /// Keys whose values differ from the file, such as `"machine.iommu" = "amd"`.
    #[serde(default)]
    set: toml::Table,
    /// The checks to run, or none for all.
    #[serde(default)]
    checks: Vec<String>,
    /// Options of `peerbar run`.
    #[serde(default)]
    options: Vec<String>,
}

/// The action of an entry.
pub(crate) enum Action<'a> {
    /// Runs a shell command.
    Command(&'a str),
    /// Runs tests of the target `program`, with these arguments of libtest.
    Tests {
        program: &'a str,
        arguments: Vec<&'a str>,
    },
    /// Runs a scenario.
    Scenario {
        file: &'a Path,
        set: &'a toml::Table,
        /// The options of `peerbar run`.
        options: Vec<&'a str>,
    },
}

impl Entry {
    pub(crate) fn limit(&self) -> Duration {
        Duration::from_secs(self.limit)
    }

    /// Returns its action.
    ///
    /// # Errors
    /// An entry that does nothing or several things, or has a key of another action.
    pub(crate) fn action(&self) -> anyhow::Result<Action<'_>> {
        let of_tests = !self.only.is_empty() || !self.skip.is_empty() || self.not_ignored;
        let of_scenario =
            !self.set.is_empty() || !self.checks.is_empty() || !self.options.is_empty();
        match (&self.run, &self.test, &self.scenario) {
            (Some(command), None, None) if !of_tests && !of_scenario => {
                Ok(Action::Command(command))
            }
            (None, Some(program), None) if !of_scenario => Ok(Action::Tests {
                program,
                arguments: self.test_arguments(),
            }),
            (None, None, Some(file)) if !of_tests => Ok(Action::Scenario {
                file,
                set: &self.set,
                options: self.scenario_options(),
            }),
            _ => bail!(
                "{}: exactly one of `run`, `test` and `scenario`, and only its own keys",
                self.name
            ),
        }
    }

    fn test_arguments(&self) -> Vec<&str> {
        let mut arguments = Vec::new();
        if !self.not_ignored {
            // Each boots guests, or measures; other runs proceed at the same time.
            arguments.extend(["--ignored", "--test-threads=1"]);
        }
        arguments.extend(self.only.iter().map(String::as_str));
        arguments.extend(self.skip.iter().flat_map(|name| ["--skip", name]));
        arguments
    }

    fn scenario_options(&self) -> Vec<&str> {
        let checks = self.checks.iter().flat_map(|name| ["--check", name]);
        checks
            .chain(self.options.iter().map(String::as_str))
            .collect()
    }
}

/// The entries to run: steps one after the other, then guest runs, several at a time.
pub(crate) struct Chosen<'a> {
    pub(crate) steps: Vec<&'a Entry>,
    pub(crate) runs: Vec<&'a Entry>,
}

impl Plan {
    /// Reads the plan.
    ///
    /// # Errors
    /// A file that cannot be read or has a mistake.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path);
        let text = text.with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} has a mistake", path.display()))
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let plan: Self = toml::from_str(text)?;
        let mut names = BTreeSet::new();
        for entry in plan.entries() {
            let name = entry.name.as_str();
            let safe = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
            ensure!(
                !name.is_empty() && name.chars().all(safe),
                "the name `{name}` has other characters than letters, digits and `-`"
            );
            ensure!(names.insert(name), "two entries are called `{name}`");
            ensure!(entry.limit > 0, "{name}: a limit of 0 s");
            entry.action()?;
        }
        Ok(plan)
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.step.iter().chain(&self.run)
    }

    /// Returns the entries that `selection` chooses.
    ///
    /// # Errors
    /// A name that no entry has.
    pub(crate) fn chosen(&self, selection: &Selection<'_>) -> anyhow::Result<Chosen<'_>> {
        if let Selection::Only(names) = selection {
            let unknown = |name: &&String| !self.entries().any(|entry| entry.name == **name);
            if let Some(unknown) = names.iter().find(unknown) {
                bail!("nothing is called `{unknown}`; scripts/test --list has the names");
            }
        }
        let is_chosen = |entry: &&Entry| match selection {
            Selection::Gate => entry.tier == Tier::Gate,
            Selection::Full => entry.tier != Tier::Named,
            Selection::Only(names) => names.contains(&entry.name),
        };
        Ok(Chosen {
            steps: self.step.iter().filter(is_chosen).collect(),
            runs: self.run.iter().filter(is_chosen).collect(),
        })
    }

    /// Checks that each ignored test of the plan's targets is in some entry.
    ///
    /// # Errors
    /// A test that no entry runs, or a target that does not exist.
    pub(crate) fn check_tests(&self, tests: &TestPrograms) -> anyhow::Result<()> {
        let mut missing: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        let ignored = self.entries().filter(|entry| !entry.not_ignored);
        for program in ignored.filter_map(|entry| entry.test.as_deref()) {
            missing.insert(program, tests.get(program)?.names(&["--ignored"])?);
        }
        for entry in self.entries() {
            if let Action::Tests { program, arguments } = entry.action()? {
                let names = tests.get(program)?.names(&arguments)?;
                if let Some(missing) = missing.get_mut(program) {
                    missing.retain(|name| !names.contains(name));
                }
            }
        }
        for (program, names) in missing {
            ensure!(
                names.is_empty(),
                "no entry runs these tests of {program}: {names:?}"
            );
        }
        Ok(())
    }

    /// Lists the entries, one per line.
    pub(crate) fn listed(&self) -> String {
        let mut text = String::new();
        for entry in self.entries() {
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{:<26} {:<5} {}",
                entry.name,
                entry.tier.name(),
                entry.finds
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = r#"
        [[step]]
        name = "format"
        tier = "gate"
        limit = 60
        finds = "code that is not formatted"
        run = "cargo fmt --all --check"

        [[run]]
        name = "vfio-amd"
        tier = "full"
        limit = 300
        finds = "what AMD's IOMMU does otherwise"
        scenario = "scenarios/vfio-nvme.toml"
        set = { "machine.iommu" = "amd" }

        [[run]]
        name = "spdk"
        tier = "named"
        limit = 300
        finds = "what SPDK does otherwise"
        run = "tests/spdk/run"
    "#;

    fn names(plan: &Plan, selection: &Selection<'_>) -> anyhow::Result<Vec<String>> {
        let chosen = plan.chosen(selection)?;
        let entries = chosen.steps.iter().chain(&chosen.runs);
        Ok(entries.map(|entry| entry.name.clone()).collect())
    }

    #[test]
    fn tiers_and_names_choose_entries() {
        let plan = Plan::parse(PLAN).unwrap();
        let only = ["spdk".to_owned()];
        assert_eq!(names(&plan, &Selection::Gate).unwrap(), ["format"]);
        assert_eq!(
            names(&plan, &Selection::Full).unwrap(),
            ["format", "vfio-amd"]
        );
        assert_eq!(names(&plan, &Selection::Only(&only)).unwrap(), ["spdk"]);
        let unknown = ["vfio".to_owned()];
        let error = names(&plan, &Selection::Only(&unknown)).unwrap_err();
        assert!(error.to_string().contains("`vfio`"), "{error}");
    }

    #[test]
    fn mistake_in_the_plan_is_refused() {
        let twice = PLAN.replace("vfio-amd", "format");
        let wrong_key = PLAN.replace("limit = 60", "limits = 60");
        let path = PLAN.replace("vfio-amd", "../vfio");
        let nothing = PLAN.replace("run = \"tests/spdk/run\"", "");
        let two = PLAN.replace(
            "run = \"tests/spdk/run\"",
            "run = \"a\"\ntest = \"tests:b\"",
        );
        let stray = PLAN.replace("run = \"tests/spdk/run\"", "run = \"a\"\nchecks = [\"b\"]");
        for text in [twice, wrong_key, path, nothing, two, stray] {
            assert!(Plan::parse(&text).is_err(), "{text}");
        }
    }

    #[test]
    fn plan_of_this_workspace_is_valid() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let plan = Plan::read(&root.join("tests/runs.toml")).unwrap();
        for entry in plan.entries() {
            if let Action::Scenario { file, .. } = entry.action().unwrap() {
                assert!(root.join(file).is_file(), "{}", file.display());
            }
        }
    }
}
