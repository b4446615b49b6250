//! `command`: a line for a shell in the tools root.

use std::fmt;

use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::{Buffer, CheckKind, Described, Key, Keys, Pair, TableError};

/// A command of the tools root, as a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// A line for `sh -c`. `{name}` stands for a device's character device, `{name:disk}` for its first
    /// namespace's block device, `{name:p2pmem}` for its p2pmem file in sysfs.
    pub run: String,
    /// Exit status that passes.
    #[serde(default)]
    pub status: i32,
    /// Whether any exit status passes; [`crate::Measure::status`] has it. No scenario can ask for that.
    #[serde(default)]
    pub any_status: bool,
    /// Texts that must all appear in what it prints.
    #[serde(default)]
    pub expect: Vec<String>,
    /// Texts that must all appear in the kernel's log meanwhile. A complaint with one of them is no failure of the check.
    #[serde(default)]
    pub kernel: Vec<String>,
    /// Where the data that it moves must lie, all of it, as the devices' counters show.
    #[serde(default)]
    pub through: Option<Buffer>,
    /// Whether what it prints is reported also if it passes.
    #[serde(default)]
    pub show: bool,
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "command {}", self.run)
    }
}

impl Described for Command {
    const KIND: &'static str = "command";
    const ABOUT: &'static str =
        "Runs a command of the tools root, which takes `tools = true` at the top of the scenario.";
    const KEYS: &'static [Key] = &[
        Key::required(
            "run",
            "A line for `sh -c`. `{NAME}` stands for a device's character device, `{NAME:disk}` for its first namespace's \
             block device, `{NAME:p2pmem}` for its p2pmem file in sysfs.",
        ),
        Key::required("status", "Exit status that passes.").or("0"),
        Key::required("expect", "Texts that must all appear in what it prints.").or("none"),
        Key::required(
            "kernel",
            "Texts that must all appear in the kernel's log meanwhile. A complaint with one of them does not fail the \
             check.",
        )
        .or("none"),
        Key::required(
            "through",
            "Where all of the data that it moves must lie: `\"guest-ram\"` or `{ p2pmem = \"NAME\" }`.",
        )
        .or("anywhere"),
        Key::required(
            "show",
            "Whether what it prints is reported also if it passes.",
        )
        .or("false"),
    ];
}

impl CheckKind for Command {
    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        if !keys.inventory.tools {
            let message = "a command is run in the tools root: write `tools = true` at the top";
            return Err(keys.refused(message));
        }
        let through = keys.optional("through")?;
        let through = through
            .map(|through| keys.inventory.buffer(through))
            .transpose()?;
        Ok(Command {
            any_status: false,
            run: keys.required("run")?.into_inner(),
            status: keys.or_default("status")?,
            expect: keys.or_default("expect")?,
            kernel: keys.or_default("kernel")?,
            through: through.map(Spanned::into_inner),
            show: keys.or_default("show")?,
        })
    }

    /// Each p2pmem that the line names with each disk that it names.
    fn pairs(&self) -> Vec<Pair> {
        let line = self.run.as_str();
        let words = || line.split('{').filter_map(|rest| rest.split_once('}'));
        let named =
            |what: &'static str| words().filter_map(move |(word, _)| word.strip_suffix(what));
        let mut pairs = Vec::new();
        for provider in named(":p2pmem") {
            for client in named(":disk") {
                let pair = Pair::of(provider, client);
                if !pairs.contains(&pair) {
                    pairs.push(pair);
                }
            }
        }
        pairs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_pairs_are_the_memory_and_the_disks_it_names() {
        let pairs = |line: &str| {
            let check = format!("{{\"run\":{line:?}}}");
            serde_json::from_str::<Command>(&check).unwrap().pairs()
        };
        let line = "f() { fio --filename=$1 --iomem=mmapshared:{a:p2pmem}; }; f {b:disk} && f {c:disk} && f {b:disk}";
        assert_eq!(pairs(line), [Pair::of("a", "b"), Pair::of("a", "c")]);
        assert_eq!(pairs("nvme list {b} {b:disk} ${c} {"), []);
    }
}
