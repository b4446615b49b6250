//! `peerbar exec` and `peerbar shell`: a program in a guest, with our standard streams.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::Args;
use peerbar_exec::{HOST_FOLDER, ProgramRequest};
use peerbar_lab::exit::Failure;
use peerbar_lab::guest_access::GuestAccess;
use peerbar_lab::guest_program::{GuestProgram, ProgramError};
use peerbar_lab::terminal::say;
use peerbar_report::HostFolder;

use crate::guest_session::{self, InGuest};
use crate::relay::{relay, terminal_size};

/// Exit status of a program that is not found, or whose libraries are not.
const NOT_FOUND: i32 = 127;
/// The guest's loader of dynamically linked programs.
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

/// Runs a program in a guest, with our input, output and signals. Its exit status is ours. It starts in /host, which is the
/// current folder.
#[derive(Args)]
pub(crate) struct Exec {
    /// Where.
    #[command(flatten)]
    pub guest: InGuest,
    /// The program, as `./test` or `fio`, and its arguments, in which `{disk0:disk}` and the like stand for the guest's names.
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
    if terminal.is_some()
        && let Ok(kind) = std::env::var("TERM")
    {
        environment.insert("TERM".to_owned(), kind);
    }
    let access = GuestAccess {
        folder: here,
        permission: match options.share_rw {
            true => HostFolder::ReadWrite,
            false => HostFolder::ReadOnly,
        },
    };
    guest_session::in_guest(options, access, |socket, folder, signals| {
        let request = ProgramRequest {
            words: words.clone(),
            folder: Some(folder.to_owned()),
            environment: environment.clone(),
            terminal,
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
                say(format_args!("peerbar: {reason}"));
                Ok(*status)
            }
            _ => Err(error.into()),
        },
    }
}

/// What to say of the libraries of a program that the guest's root lacks, if it has not run because of them.
fn missing_libraries(socket: &Path, request: &ProgramRequest, status: i32) -> Option<String> {
    let program = request
        .words
        .first()
        .filter(|program| program.contains('/'));
    let program = program.filter(|_| status == NOT_FOUND)?;
    let mut list = ProgramRequest::new([LOADER, "--list", program]);
    list.folder = request.folder.clone();
    let mut output = Vec::new();
    let asked = GuestProgram::start(socket, &list).ok()?;
    asked
        .run(&mut std::io::empty(), &mut output, &mut std::io::sink())
        .ok()?;
    let list = String::from_utf8_lossy(&output);
    let missing = libraries_not_found(&list);
    (!missing.is_empty()).then(|| {
        format!(
            "the guest has no {}, which {program} is linked with: link it statically",
            missing.join(", ")
        )
    })
}

/// The libraries that the loader's list says are not there.
fn libraries_not_found(list: &str) -> Vec<&str> {
    let lines = list.lines().filter_map(|line| line.split_once(" => "));
    let missing = lines.filter(|(_, place)| place.trim() == "not found");
    missing.map(|(library, _)| library.trim()).collect()
}

fn current_folder() -> Result<PathBuf, Failure> {
    Ok(std::env::current_dir().context("cannot tell the current folder")?)
}

/// The words for the guest: a program that is named by a path below the current folder is found in `/host`.
fn words(words: &[OsString], here: &Path) -> Result<Vec<String>, Failure> {
    let mut texts = Vec::new();
    for word in words {
        let text = word.to_str();
        let text = text.ok_or_else(|| anyhow!("{} is not UTF-8", word.display()));
        texts.push(text.map_err(Failure::Usage)?.to_owned());
    }
    if let Some(program) = texts.first_mut()
        && let Ok(below) = Path::new(program.as_str()).strip_prefix(here)
    {
        *program = format!("{HOST_FOLDER}/{}", below.display());
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
}
