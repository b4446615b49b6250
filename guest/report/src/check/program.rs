//! `program`: a user's own program, from the host.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::{CheckKind, Described, Expectation, Key, Keys, Pair, TableError, pair};

/// Start of a [`Program::path`] that stands for the folder of peerbar's own programs.
pub const OWN_PROGRAMS: &str = "{peerbar}/";

/// A program from the host, as a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// The program's file on the host, or its folder, relative to the scenario. With
    /// [`OWN_PROGRAMS`] at its start, one of peerbar's programs.
    pub path: String,
    /// The program's path in the folder, if `path` is a folder.
    #[serde(default)]
    pub program: Option<String>,
    /// A line for the host's `sh -c` that builds it.
    #[serde(default)]
    pub build: Option<String>,
    /// Its arguments, with [placeholders](crate::fill_in).
    #[serde(default)]
    pub arguments: Vec<String>,
    /// Environment variables, whose values may have placeholders, too.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// See [`CheckKind::kills`].
    #[serde(default)]
    pub loses: Option<String>,
    /// The folder in the guest with the content of `path`, once it is known.
    #[serde(default)]
    pub folder: String,
    /// The expectations.
    #[serde(default)]
    pub expected: Expectation,
    /// See [`Described::seconds`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u32>,
}

impl Program {
    /// Returns the program's file, from its folder in the guest on.
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
    const ABOUT: &'static str = "Runs a program of your own, from the host, in the tools root, which requires `tools = true` at the \
        top of the scenario.";
    const KEYS: &'static [Key] = &[
        Key::required(
            "path",
            "The program's file on the host, or a folder with it and its other files, relative to the scenario. `{peerbar}` at its start is the folder \
             of peerbar's own programs.",
        ),
        Key::required("program", "The program's path in the folder, if `path` is a folder.")
            .or("`path` is the program"),
        Key::required(
            "build",
            "A line for the host's `sh -c`, such as `\"make\"`, which runs before the guest boots, in the folder that has the \
             program.",
        )
        .or("nothing is built"),
        Key::required(
            "arguments",
            "Its arguments, in which `{NAME}` and `{NAME:PART}` are placeholders for devices.",
        )
        .or("none"),
        Key::required(
            "environment",
            "Environment variables, `{ NAME = \"value\" }`. Values may have placeholders, too.",
        )
        .or("`PATH`, `HOME` and `LC_ALL`"),
        Key::required(
            "loses",
            "Name of a `[[gpu]]` or `[[nvme]]` whose server one of peerbar's own programs may kill, or of a `[[device]]` whose server may end. Later checks can only use the other devices.",
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
            loses: keys.optional_server("loses")?,
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

/// Reads the program's path in the folder, which must stay inside of it.
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
            let message = format!("`environment`: invalid variable name {name:?}");
            return Err(TableError::new(value.span(), message));
        }
        Ok((name, word(keys, value)?))
    });
    variables.collect()
}

/// Checks a word with placeholders that becomes an argument or a variable of a process.
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
