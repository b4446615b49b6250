//! `program`: a program of the user's own, from the host.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::{CheckKind, Described, Expectation, Key, Keys, Pair, TableError, pair};

/// What stands for the folder of peerbar's own programs at the start of a [`Program::path`].
pub const OWN_PROGRAMS: &str = "{peerbar}/";

/// A program of the host's, as a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// The program's file on the host, or the folder that it is in; relative to the scenario. After [`OWN_PROGRAMS`], one of peerbar's.
    pub path: String,
    /// In a folder, the program's path from there.
    #[serde(default)]
    pub program: Option<String>,
    /// A line for the host's `sh -c` that builds it.
    #[serde(default)]
    pub build: Option<String>,
    /// Its arguments, with [placeholders](crate::fill_in).
    #[serde(default)]
    pub arguments: Vec<String>,
    /// Variables of its environment, whose values have placeholders, too.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// As [`CheckKind::kills`].
    #[serde(default)]
    pub loses: Option<String>,
    /// Folder in the guest that has what `path` brings, once that is known.
    #[serde(default)]
    pub folder: String,
    /// What it must do.
    #[serde(default)]
    pub expected: Expectation,
    /// As [`Described::seconds`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u32>,
}

impl Program {
    /// The program's file, from the folder on that has it in the guest.
    pub fn file(&self) -> &str {
        self.program
            .as_deref()
            .unwrap_or_else(|| file_name(&self.path))
    }
}

fn file_name(path: &str) -> &str {
    let name = Path::new(path).file_name().and_then(|name| name.to_str());
    name.unwrap_or(path)
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "program {}", file_name(self.file()))?;
        self.arguments
            .iter()
            .try_for_each(|argument| write!(f, " {argument}"))
    }
}

impl Described for Program {
    const KIND: &'static str = "program";
    const ABOUT: &'static str = "Runs a program of your own, from the host, in the tools root, which takes `tools = true` at the \
        top of the scenario.";
    const KEYS: &'static [Key] = &[
        Key::required(
            "path",
            "The program's file on the host, or a folder with it and what it needs; relative to the scenario. `{peerbar}` at its start is the folder \
             of peerbar's own programs.",
        ),
        Key::required("program", "In a folder, the program's path from there.")
            .or("`path` is the program"),
        Key::required(
            "build",
            "A line for the host's `sh -c`, such as `\"make\"`, which runs before the guest boots, in the folder that has the \
             program.",
        )
        .or("nothing is built"),
        Key::required(
            "arguments",
            "Its arguments, in which `{NAME}` and `{NAME:PART}` stand for devices.",
        )
        .or("none"),
        Key::required(
            "environment",
            "Variables of its environment, `{ NAME = \"value\" }`; values have placeholders, too.",
        )
        .or("`PATH`, `HOME` and `LC_ALL`"),
        Key::required(
            "loses",
            "Name of a `[[gpu]]` or `[[nvme]]` whose server one of peerbar's own programs may kill. Checks that follow can only use what is left.",
        )
        .or("none"),
    ];
    const EXPECTED: &'static [Key] = Expectation::KEYS;

    fn seconds(&self) -> Option<u32> {
        self.seconds
    }
}

impl CheckKind for Program {
    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        if !keys.inventory.tools {
            let message = "a program is run in the tools root: write `tools = true` at the top";
            return Err(keys.refused(message));
        }
        let path: Spanned<String> = keys.required("path")?;
        let program = program(keys)?;
        if program.is_none() && Path::new(path.get_ref()).file_name().is_none() {
            let message = "`path` is a folder: name the program in it by `program`";
            return Err(TableError::new(path.span(), message));
        }
        Ok(Program {
            path: path.into_inner(),
            program,
            build: keys.optional("build")?.map(Spanned::into_inner),
            arguments: arguments(keys)?,
            environment: environment(keys)?,
            loses: keys.optional_device("loses")?,
            folder: String::new(),
            expected: Expectation::read(keys)?,
            seconds: keys.seconds,
        })
    }

    fn kills(&self) -> Option<&str> {
        self.loses.as_deref()
    }

    fn pairs(&self) -> Vec<Pair> {
        let memory = self.expected.memory();
        let values = self.environment.values();
        let words = self.arguments.iter().chain(values).chain(&memory);
        pair::named_in(words.map(String::as_str))
    }
}

/// The program's path in the folder, which must stay there.
fn program(keys: &mut Keys<'_, '_>) -> Result<Option<String>, TableError> {
    let Some(program) = keys.optional::<String>("program")? else {
        return Ok(None);
    };
    let path = Path::new(program.get_ref());
    let stays = path.components().all(|part| {
        matches!(
            part,
            std::path::Component::Normal(_) | std::path::Component::CurDir
        )
    });
    if !stays || path.file_name().is_none() {
        let message = format!(
            "`program = {:?}`: write its path from the folder `path` on",
            program.get_ref()
        );
        return Err(TableError::new(program.span(), message));
    }
    Ok(Some(program.into_inner()))
}

fn arguments(keys: &mut Keys<'_, '_>) -> Result<Vec<String>, TableError> {
    let arguments: Vec<Spanned<String>> = keys.or_default("arguments")?;
    let arguments = arguments.into_iter().map(|argument| word(keys, argument));
    arguments.collect()
}

fn environment(keys: &mut Keys<'_, '_>) -> Result<BTreeMap<String, String>, TableError> {
    let variables: BTreeMap<String, Spanned<String>> = keys.or_default("environment")?;
    let variables = variables.into_iter().map(|(name, value)| {
        if name.is_empty() || name.contains(['=', '\0']) {
            let message = format!("`environment`: {name:?} is no name of a variable");
            return Err(TableError::new(value.span(), message));
        }
        Ok((name, word(keys, value)?))
    });
    variables.collect()
}

/// A word with placeholders, as a process can have it.
fn word(keys: &Keys<'_, '_>, word: Spanned<String>) -> Result<String, TableError> {
    if word.get_ref().contains('\0') {
        let message = "a NUL cannot be in an argument or a variable: leave it out";
        return Err(TableError::new(word.span(), message));
    }
    keys.inventory.with_placeholders(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_is_called_by_its_file_and_arguments() {
        let program = |text: &str| serde_json::from_str::<Program>(text).unwrap();
        let alone = program(r#"{"path":"../bin/copy","arguments":["{a:disk}","4"]}"#);
        assert_eq!(alone.to_string(), "program copy {a:disk} 4");
        assert_eq!(alone.file(), "copy");
        let text = r#"{"path":"src/","program":"out/copy","arguments":["{a:ns1}"],"environment":{"MEMORY":"{b:p2pmem}"}}"#;
        let built = program(text);
        assert_eq!(built.to_string(), "program copy {a:ns1}");
        assert_eq!(built.file(), "out/copy");
        assert_eq!(built.pairs(), [Pair::of("b", "a")]);
    }
}
