//! `peerbar check`: the mistakes of scenario files, found without a guest.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use peerbar_images::{Cache, module_names, package_names};
use peerbar_lab::artifacts::{OWN_MODULES, Own};
use peerbar_lab::count::counted;
use peerbar_lab::exit::Failure;
use peerbar_lab::present;
use peerbar_lab::scenario::{Known, Review, review};
use peerbar_lab::shell_word::quoted;
use peerbar_lab::terminal::{print, say};

/// Prints the mistakes of each of `files`, or that it has none. After an unreadable file, the
/// others are still checked. Nothing is fetched: processor models, packages and modules are checked
/// if the cache knows them.
pub(crate) fn check(files: &[PathBuf]) -> Result<ExitCode, Failure> {
    let known = known()?;
    let (mut code, mut unread) = (ExitCode::SUCCESS, None);
    for file in files {
        match review(file, &known) {
            Ok(review) => {
                if !review.mistakes.is_empty() {
                    code = ExitCode::FAILURE;
                }
                print(&text(file, &review))?;
            }
            Err(error) => unread = Some(Failure::from(error).report()),
        }
    }
    Ok(unread.unwrap_or(code))
}

/// Returns the processor models of QEMU, and the packages and modules that the cache lists. A line
/// on stderr names the parts that are not checked.
fn known() -> Result<Known, Failure> {
    let cache = Cache::open()?;
    let qemu = present::qemu(&Own::default(), &cache)?;
    let mut modules = module_names(&cache)?;
    if let Some(modules) = &mut modules {
        modules.extend(OWN_MODULES.map(str::to_owned));
    }
    let known = Known {
        cpus: qemu.map(|qemu| qemu.cpu_models()).transpose()?,
        packages: package_names(&cache)?,
        modules,
    };
    let unknown = [
        ("processor models", known.cpus.is_none()),
        ("names of packages", known.packages.is_none()),
        ("names of modules", known.modules.is_none()),
    ];
    let unknown = unknown.into_iter().filter(|(_, is_unknown)| *is_unknown);
    let unknown: Vec<&str> = unknown.map(|(name, _)| name).collect();
    if !unknown.is_empty() {
        say(format_args!(
            "peerbar: {} are not checked: the cache has no list of them before the first download",
            unknown.join(", ")
        ));
    }
    Ok(known)
}

/// Returns a line for each mistake, or one line that says that the file is right.
fn text(file: &Path, review: &Review) -> String {
    if !review.mistakes.is_empty() {
        let lines = review.mistakes.iter();
        return lines.map(|mistake| format!("{mistake}\n")).collect();
    }
    let (word, file) = (quoted(&file.to_string_lossy()), file.display());
    match review.checks {
        0 => format!(
            "{file}: ok, but without a [[check]]: `peerbar shell {word}` takes it, `peerbar run` does not\n"
        ),
        checks => format!("{file}: ok, {}\n", counted(checks, "check")),
    }
}
