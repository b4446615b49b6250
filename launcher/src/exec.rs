//! `peerbar exec` and `peerbar shell`: a program in a guest, with our standard streams.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use peerbar_lab::exit::Failure;
use peerbar_lab::guest_access::GuestAccess;
use peerbar_lab::guest_program::{GuestProgram, ProgramError};
use peerbar_lab::limited::Limited;
use peerbar_lab::scenario::Scenario;
use peerbar_lab::size::Size;
use peerbar_lab::terminal::{printable, say};
use peerbar_report::exec::{HOST_FOLDER, ProgramRequest};
use peerbar_report::{HostFolder, Inventory};

use crate::guest_session::{self, InGuest};
use crate::relay::{relay, terminal_size};

/// Exit status of a program that is not found, or whose libraries are not.
const NOT_FOUND: i32 = 127;
/// The guest's loader of dynamically linked programs.
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
/// Longest list of libraries that is read.
const LONGEST_LIST: Size = Size(64 << 10);
/// Most libraries of it that are looked for.
const MOST_LIBRARIES: usize = 16;
/// Longest time that the guest may take to list them.
const LISTED: Duration = Duration::from_secs(10);

/// Run a program in a guest, in /host, which is the current folder. It has the input, output and
/// signals of this command, which ends with the program's exit status.
#[derive(Args)]
pub(crate) struct Exec {
    /// The guest.
    #[command(flatten)]
    pub guest: InGuest,
    /// The program, such as `./test` or `fio`, and its arguments. `{disk0:disk}` and the like are
    /// replaced by the guest's names.
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    pub words: Vec<OsString>,
}

/// Runs a program in a guest.
pub(crate) fn exec(options: &Exec) -> Result<ExitCode, Failure> {
    let here = current_folder()?;
    let words = words(&options.words, &here)?;
    run(&options.guest, here, words, false)
}

/// Runs a shell in a guest.
pub(crate) fn shell(options: &InGuest) -> Result<ExitCode, Failure> {
    run(options, current_folder()?, Vec::new(), true)
}

fn run(
    options: &InGuest,
    here: PathBuf,
    words: Vec<String>,
    wants_terminal: bool,
) -> Result<ExitCode, Failure> {
    let terminal = terminal_size().filter(|_| wants_terminal);
    let mut environment = BTreeMap::new();
    if terminal.is_some() {
        let kind = std::env::var("TERM").ok();
        environment.extend(kind.map(|kind| ("TERM".to_owned(), kind)));
    }
    let access = GuestAccess {
        folder: here,
        permission: match options.share_rw {
            true => HostFolder::ReadWrite,
            false => HostFolder::ReadOnly,
        },
    };
    let are_known = |scenario: &Scenario| are_known(&words, &scenario.inventory());
    guest_session::in_guest(options, access, are_known, |socket, folder, signals| {
        let request = ProgramRequest {
            words: words.clone(),
            folder: Some(folder.to_owned()),
            environment: environment.clone(),
            terminal,
            ..ProgramRequest::default()
        };
        run_program(socket, &request, signals)
    })
}

/// Runs a program to its end; its exit status.
fn run_program(
    socket: &Path,
    request: &ProgramRequest,
    signals: UnixStream,
) -> Result<i32, Failure> {
    let program = GuestProgram::start(socket, request).map_err(anyhow::Error::from)?;
    match relay(program, request.terminal.is_some(), signals) {
        Ok(status) => {
            if let Some(libraries) = missing_libraries(socket, request, status) {
                say(format_args!("peerbar: {libraries}"));
            }
            Ok(status)
        }
        Err(error) => match error.downcast_ref() {
            Some(ProgramError::Refused { reason, status }) => {
                let reason = printable(reason.as_bytes());
                let hint = is_here(request).filter(|_| *status == NOT_FOUND);
                say(format_args!(
                    "peerbar: {reason}{}",
                    hint.unwrap_or_default()
                ));
                Ok(*status)
            }
            _ => Err(error.into()),
        },
    }
}

/// Checks that each placeholder of `words` stands for something in the guest.
fn are_known(words: &[String], inventory: &Inventory) -> Result<(), Failure> {
    let mut words = words.iter();
    let checked = words.try_for_each(|word| inventory.check_placeholders(word));
    checked.map_err(|message| Failure::Usage(anyhow!(message)))
}

/// Returns advice for a program of the current folder, because the guest's `PATH` does not lead
/// there.
fn is_here(request: &ProgramRequest) -> Option<String> {
    let program = request
        .words
        .first()
        .filter(|program| !program.contains('/'))?;
    let is_file = Path::new(program).is_file();
    is_file.then(|| format!("; the current folder has it: write ./{program}"))
}

/// Returns a message about the libraries of a program that the guest's root lacks, if these have
/// prevented its start.
fn missing_libraries(socket: &Path, request: &ProgramRequest, status: i32) -> Option<String> {
    let program = request
        .words
        .first()
        .filter(|program| program.contains('/'));
    let program = program.filter(|_| status == NOT_FOUND)?;
    let mut list = ProgramRequest::new([LOADER, "--list", program]);
    list.folder = request.folder.clone();
    let mut output = Limited::new(Vec::new(), LONGEST_LIST, "");
    let asked = GuestProgram::start(socket, &list).ok()?;
    asked
        .ends_within(LISTED)
        .run(&mut std::io::empty(), &mut output, &mut std::io::sink())
        .ok()?;
    let output = output.into_inner();
    let list = String::from_utf8_lossy(&output);
    let missing = libraries_not_found(&list);
    let packages = missing.iter().map(|library| package_of(library)).collect();
    (!missing.is_empty()).then(|| missing_text(program, &missing, packages))
}

/// Returns a message about `missing` libraries. Some are of known Debian packages.
fn missing_text(program: &str, missing: &[&str], packages: Vec<Option<String>>) -> String {
    let library_of = |(library, package): (&&str, &Option<String>)| {
        let file = format!("\"usr/lib/{library}\" = \"FILE OF THE HOST\"");
        package.is_none().then_some(file)
    };
    let files: Vec<String> = missing
        .iter()
        .zip(&packages)
        .filter_map(library_of)
        .collect();
    let mut packages: Vec<String> = packages.into_iter().flatten().collect();
    packages.sort_unstable();
    packages.dedup();
    let mut keys = Vec::new();
    if !packages.is_empty() {
        keys.push(format!("`packages = {packages:?}`"));
    }
    if !files.is_empty() {
        keys.push(format!("`files = {{ {} }}`", files.join(", ")));
    }
    let (missing, keys) = (missing.join(", "), keys.join(" and "));
    let report = format!(
        "the guest has no {missing}, which {program} is linked with: link it statically, or add it to the scenario with {keys}"
    );
    printable(report.as_bytes())
}

/// Returns the Debian package that has a library, if the host is a Debian that knows it.
fn package_of(library: &str) -> Option<String> {
    let mut search = Command::new("dpkg-query");
    search.args(["--search", &format!("*/{library}")]);
    let found = search.stdin(Stdio::null()).output().ok()?;
    let found = String::from_utf8_lossy(&found.stdout);
    package_in(&found).map(str::to_owned)
}

/// Returns the package in lines of `dpkg-query --search`, such as
/// `libc6:amd64: /lib/x86_64-linux-gnu/libc.so.6`.
fn package_in(found: &str) -> Option<&str> {
    let packages = found.lines().filter_map(|line| line.split_once(": "));
    let mut packages = packages.filter(|(package, _)| !package.starts_with("diversion"));
    packages.next()?.0.split([':', ',']).next()
}

/// Returns the libraries that the loader's list says are not there, each once: at most
/// [`MOST_LIBRARIES`], as the guest writes the list and each is looked for.
fn libraries_not_found(list: &str) -> Vec<&str> {
    let lines = list.lines().filter_map(|line| line.split_once(" => "));
    let missing = lines.filter(|(_, path)| path.trim() == "not found");
    let mut libraries = Vec::new();
    for (library, _) in missing {
        let library = library.trim();
        if libraries.len() < MOST_LIBRARIES && is_library(library) && !libraries.contains(&library)
        {
            libraries.push(library);
        }
    }
    libraries
}

/// Returns `true` if it is a file name without patterns.
fn is_library(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
    (1..=100).contains(&name.len()) && name.chars().all(is_plain)
}

fn current_folder() -> Result<PathBuf, Failure> {
    Ok(std::env::current_dir().context("cannot tell the current folder")?)
}

/// The words for the guest: a program that is named by a path below the current folder is found in `/host`.
fn words(words: &[OsString], here: &Path) -> Result<Vec<String>, Failure> {
    let mut texts = Vec::new();
    for word in words {
        let text = word.to_str();
        let text = text.ok_or_else(|| anyhow!("{} is not UTF-8", word.to_string_lossy()));
        texts.push(text.map_err(Failure::Usage)?.to_owned());
    }
    if let Some(program) = texts.first_mut() {
        if program.is_empty() {
            let error = anyhow!("the first word after `--` is empty: name a program there");
            return Err(Failure::Usage(error));
        }
        if let Ok(below) = Path::new(program.as_str()).strip_prefix(here) {
            *program = format!("{HOST_FOLDER}/{}", below.display());
        }
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_libraries_are_read_off_the_loaders_list() {
        let list = "\tlinux-vdso.so.1 (0x00007fff)\n\tlibnone.so.1 => not found\n\tlibc.so.6 => /lib/libc.so.6 (0x00007f)\n";
        assert_eq!(libraries_not_found(list), ["libnone.so.1"]);
        assert!(libraries_not_found("statically linked").is_empty());
        let list: String = (0..4000)
            .map(|number| {
                format!(
                    "\t{} => not found\n",
                    ["*", "a/b"]
                        .get(number)
                        .map_or(format!("l{}", number / 2), ToString::to_string)
                )
            })
            .collect();
        let libraries = libraries_not_found(&list);
        assert_eq!(
            (libraries.len(), libraries[0], libraries[1]),
            (MOST_LIBRARIES, "l1", "l2")
        );
    }

    #[test]
    fn missing_libraries_are_named_with_their_packages() {
        let found =
            "diversion by x from: /usr/lib/libb.so\nlibb1:amd64, libb1:i386: /usr/lib/libb.so\n";
        assert_eq!(package_in(found), Some("libb1"));
        assert_eq!(package_in(""), None);
        let report = |packages: [Option<&str>; 2]| {
            let packages = packages.map(|package| package.map(str::to_owned));
            missing_text("./x", &["liba.so", "libb.so"], packages.to_vec())
        };
        let start = "the guest has no liba.so, libb.so, which ./x is linked with: link it statically, or add it to \
                     the scenario with";
        let both = report([Some("libab1"), Some("libab1")]);
        assert_eq!(both, format!("{start} `packages = [\"libab1\"]`"));
        let one = report([None, Some("libb1")]);
        let file = "\"usr/lib/liba.so\" = \"FILE OF THE HOST\"";
        let keys = format!("`packages = [\"libb1\"]` and `files = {{ {file} }}`");
        assert_eq!(one, format!("{start} {keys}"));
    }

    #[test]
    fn placeholders_of_no_device_are_refused() {
        let inventory = Scenario::demo().unwrap().inventory();
        let known = |word: &str| are_known(&["ls".to_owned(), word.to_owned()], &inventory);
        known("{disk0:disk}").unwrap();
        let error = known("{disk9}").unwrap_err();
        assert_eq!(error.code(), 2);
        let report = error.to_string();
        assert!(
            report.starts_with("unknown placeholder `{disk9}`"),
            "{report}"
        );
    }

    #[test]
    fn program_of_the_current_folder_is_hinted_at() {
        // Tests run in the folder of their package.
        let hint = |program: &str| is_here(&ProgramRequest::new([program]));
        let report = "; the current folder has it: write ./Cargo.toml";
        assert_eq!(hint("Cargo.toml").as_deref(), Some(report));
        assert_eq!(hint("src"), None);
        assert_eq!(hint("./Cargo.toml"), None);
    }

    #[test]
    fn program_below_the_current_folder_is_in_host() {
        let words = |program: &str| {
            let given = [program.into(), "/here/data".into()];
            super::words(&given, Path::new("/here")).unwrap()
        };
        assert_eq!(words("/here/a/test"), ["/host/a/test", "/here/data"]);
        assert_eq!(words("./test")[0], "./test");
        assert_eq!(words("/usr/bin/fio")[0], "/usr/bin/fio");
        assert_eq!(words("fio")[0], "fio");
    }

    #[test]
    fn program_without_a_name_is_refused_before_a_boot() {
        let error = words(&["".into(), "x".into()], Path::new("/here")).unwrap_err();
        assert_eq!(error.code(), 2);
        let expected = "the first word after `--` is empty: name a program there";
        assert_eq!(error.to_string(), expected);
    }
}
