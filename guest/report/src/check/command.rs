//! `command`: a line for a shell in the tools root.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CheckKind, Described, Expectation, Key, Keys, Pair, TableError, pair};

/// A command of the tools root, as a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// A line for `sh -c`, with [placeholders](crate::fill_in).
    pub run: String,
    /// The expectations.
    #[serde(default)]
    pub expected: Expectation,
    /// See [`Described::seconds`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u32>,
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "command {}", self.run)
    }
}

impl Described for Command {
    const KIND: &'static str = "command";
    const ABOUT: &'static str = "Runs a command in the tools root, which requires `tools = true` at the top of the scenario.";
    const KEYS: &'static [Key] = &[Key::required(
        "run",
        "A line for `sh -c`, in which `{NAME}` and `{NAME:PART}` are placeholders for devices.",
    )];
    const EXPECTED: &'static [Key] = Expectation::KEYS;

    fn seconds(&self) -> Option<u32> {
        self.seconds
    }
}

impl CheckKind for Command {
    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        if !keys.inventory.tools {
            let message = "a command is run in the tools root: write `tools = true` at the top";
            return Err(keys.refused(message));
        }
        let run = keys.required("run")?;
        Ok(Command {
            run: keys.inventory.with_placeholders(run)?,
            expected: Expectation::read(keys)?,
            seconds: keys.seconds,
        })
    }

    fn pairs(&self) -> Vec<Pair> {
        let memory = self.expected.memory();
        pair::named_in([self.run.as_str()].into_iter().chain(memory.as_deref()))
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
        let line = "f() { fio --filename=$1 --iomem=mmapshared:{a:p2pmem}; }; f {b:disk} && f {c:ns2} && f {b:disk}";
        assert_eq!(pairs(line), [Pair::of("a", "b"), Pair::of("a", "c")]);
        assert_eq!(pairs("nvme list {b} {b:disk} ${c} {"), []);
        let expected = Expectation {
            through: Some(crate::Buffer::P2pmem("a".to_owned())),
            ..Expectation::default()
        };
        let check = Command {
            run: "dd if={b:disk}".to_owned(),
            expected,
            seconds: None,
        };
        assert_eq!(check.pairs(), [Pair::of("a", "b")]);
    }
}
