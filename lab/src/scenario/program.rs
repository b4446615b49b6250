//! The programs of `program` checks: their files on the host, and their places in the guest.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use peerbar_report::{Check, OWN_PROGRAMS, Program};

use crate::guest_files::{GuestFile, GuestPathError};
use crate::programs;

/// Folder of the guest that has a folder for each of them.
const FOLDER: &str = "opt/programs";
/// Folder of the guest that has the programs of this project.
const OWN: &str = "opt/peerbar";

/// A program of the host's that a check runs in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostProgram {
    /// Its name in messages: that of its check.
    pub name: String,
    /// The program's file.
    pub file: PathBuf,
    /// The folder for the build.
    pub folder: PathBuf,
    /// The command that builds it, if there is one.
    pub build: Option<String>,
    /// Its name, if it is one of peerbar's.
    pub own: Option<String>,
    /// The file or folder that is copied into the guest.
    pub brought: GuestFile,
}

impl HostProgram {
    /// Checks that it can be started.
    ///
    /// # Errors
    /// The problem with its file, and a remedy.
    pub fn is_runnable(&self) -> anyhow::Result<()> {
        if let Some(own) = &self.own {
            let found = programs::program(own);
            return found
                .map(drop)
                .map_err(|error| anyhow!("check `{}`: {error}", self.name));
        }
        let checked = runnable(&self.file, self.build.as_deref());
        checked.map_err(|message| anyhow!("check `{}`: {message}", self.name))
    }
}

/// Checks that `file`, which is made by `build` if there is one, is a program.
///
/// # Errors
/// The problem with it, and a remedy.
pub(super) fn runnable(file: &Path, build: Option<&str>) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt;

    let found = std::fs::metadata(file);
    let file = file.display();
    let Ok(found) = found else {
        let way_out = match build {
            Some(build) => format!("`{build}` does not make it: correct `build`, or the path"),
            None => "make it, write a `build`, or correct the path".to_owned(),
        };
        return Err(format!("{file} not found: {way_out}"));
    };
    if !found.is_file() {
        return Err(format!(
            "{file} is a folder: name the program in it by `program`"
        ));
    }
    match found.permissions().mode() & 0o111 {
        0 => Err(format!("{file} is not executable: `chmod +x` it")),
        _ => Ok(()),
    }
}

/// Returns the host's side of `program`, the check with this `number` and `name`, whose paths are
/// relative to `folder`. Sets its path in the guest.
///
/// # Errors
/// A path at which the guest can have no file.
pub(crate) fn assign_path(
    program: &mut Program,
    number: usize,
    name: &str,
    folder: &Path,
) -> Result<HostProgram, GuestPathError> {
    let own = program.path.strip_prefix(OWN_PROGRAMS);
    let host = match own {
        // `is_runnable` names one that is missing.
        Some(own) => programs::program(own).unwrap_or_else(|_| PathBuf::from(own)),
        None => folder.join(&program.path),
    };
    program.folder = format!("/{FOLDER}/{number}");
    let asked_by = format!("check `{name}`: `path`");
    let (file, guest, built_in) = match &program.program {
        Some(file) => (host.join(file), program.folder.clone(), host.clone()),
        None => {
            let parent = host.parent().unwrap_or(folder);
            let guest = format!("{}/{}", program.folder, program.file());
            (host.clone(), guest, parent.to_owned())
        }
    };
    Ok(HostProgram {
        name: name.to_owned(),
        file,
        folder: built_in,
        build: program.build.clone(),
        own: own.map(str::to_owned),
        brought: GuestFile::new(host, &guest, &asked_by)?,
    })
}

/// [`assign_path`] for all of `checks` that are programs.
pub(super) fn assign_paths(
    checks: &mut [Check],
    labels: &[Option<String>],
    folder: &Path,
) -> Result<Vec<HostProgram>, GuestPathError> {
    let labels = labels.iter().map(Option::as_deref);
    let mut programs = Vec::new();
    for ((number, check), label) in (1..).zip(checks).zip(labels) {
        let name = label.map_or_else(|| check.name(), str::to_owned);
        if let Check::Program(program) = check {
            programs.push(assign_path(program, number, &name, folder)?);
        }
    }
    Ok(programs)
}

/// Returns the programs `names` of this project, each once.
pub(super) fn of_project<'a>(names: impl Iterator<Item = &'a str>) -> Vec<GuestFile> {
    let names: BTreeSet<&str> = names.collect();
    let file = |name: &str| {
        // One that is missing is named when it is copied.
        let host = programs::program(name).unwrap_or_else(|_| PathBuf::from(name));
        let asked_by =
            format!("a program of peerbar's checks, which `scripts/build` makes: {name}");
        GuestFile::new(host, &format!("{OWN}/{name}"), &asked_by).ok()
    };
    names.into_iter().filter_map(file).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use crate::scenario::Scenario;

    const HEAD: &str = "name = \"x\"\ntools = true\n[[nvme]]\nname = \"d0\"\nnamespaces = [{ ram = \"1M\" }]\n\
        [[check]]\nkind = \"program\"\nname = \"mine\"\n";

    fn parse(folder: &std::path::Path, lines: &str) -> Result<Scenario, String> {
        let parsed = Scenario::parse(&folder.join("x.toml"), format!("{HEAD}{lines}\n"));
        parsed.map_err(|error| error.to_string())
    }

    #[test]
    fn program_is_known_on_both_sides() {
        let folder = std::path::Path::new("/home/me");
        let lines =
            "path = \"src\"\nprogram = \"out/copy\"\nbuild = \"make\"\narguments = [\"{d0:disk}\"]";
        let scenario = parse(folder, lines).unwrap();
        let [program] = &scenario.programs[..] else {
            panic!("{:?}", scenario.programs)
        };
        assert_eq!(program.file, folder.join("src/out/copy"));
        assert_eq!(program.folder, folder.join("src"));
        assert_eq!(program.brought.guest().to_str(), Some("opt/programs/1"));
        let alone = parse(folder, "path = \"../bin/copy\"").unwrap();
        let program = &alone.programs[0];
        assert_eq!(program.folder, folder.join("../bin"));
        assert_eq!(
            program.brought.guest().to_str(),
            Some("opt/programs/1/copy")
        );
        let own = parse(folder, "path = \"{peerbar}/peerbar-own\"").unwrap();
        let program = &own.programs[0];
        assert_eq!(program.own.as_deref(), Some("peerbar-own"));
        let error = program.is_runnable().unwrap_err().to_string();
        assert!(
            error.starts_with("check `mine`: peerbar-own is missing"),
            "{error}"
        );
        assert!(error.contains("run scripts/build"), "{error}");
    }

    #[test]
    fn program_mistake_names_its_line() {
        for (lines, message) in [
            (
                "path = \"..\"",
                "x.toml:9: `path` is a folder: name the program in it by `program`",
            ),
            (
                "path = \"a\"\nprogram = \"../b\"",
                "x.toml:10: `program = \"../b\"`: write its path from the folder `path` on",
            ),
            (
                "path = \"a\"\narguments = [\"{d1}\"]",
                "x.toml:10: unknown placeholder `{d1}` (known: {d0}); ",
            ),
            (
                "path = \"a\"\nloses = \"g\"",
                "x.toml:10: no [[nvme]] is named `g`: there is `d0`",
            ),
            (
                "path = \"a\"\nenvironment = { A = \"{d1}\" }",
                "x.toml:10: unknown placeholder `{d1}` (",
            ),
            (
                "path = \"a\"\nenvironment = { \"A=\" = \"\" }",
                "x.toml:10: `environment`: invalid variable name \"A=\"",
            ),
        ] {
            let error = parse("".as_ref(), lines).unwrap_err();
            assert!(error.starts_with(message), "{error}");
        }
    }

    #[test]
    fn program_that_cannot_be_started_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let message = |lines: &str| {
            let scenario = parse(folder.path(), lines).unwrap();
            let error = scenario.programs[0].is_runnable().unwrap_err().to_string();
            error.replace(&folder.path().display().to_string(), "~")
        };
        assert_eq!(
            message("path = \"a\""),
            "check `mine`: ~/a not found: make it, write a `build`, or correct the path"
        );
        assert_eq!(
            message("path = \"a\"\nbuild = \"make\""),
            "check `mine`: ~/a not found: `make` does not make it: correct `build`, or the path"
        );
        let file = folder.path().join("a");
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        assert_eq!(
            message("path = \"a\""),
            "check `mine`: ~/a is not executable: `chmod +x` it"
        );
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert_eq!(
            message("path = \"a\""),
            "check `mine`: ~/a is a folder: name the program in it by `program`"
        );
    }
}
