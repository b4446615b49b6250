//! One kernel build: make, its log, and its errors.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::ImageError;
use crate::build_tools::{BuildTools, complaints};
use crate::error::io_error;
use crate::pipe::pipe_to;
use crate::progress::Progress;

/// Sources, and the folder in which they are built.
pub(super) struct Make<'a> {
    pub(super) tools: &'a BuildTools<'a>,
    pub(super) source: PathBuf,
    pub(super) build: PathBuf,
    pub(super) jobs: usize,
    /// Gets all output.
    pub(super) log: PathBuf,
}

impl Make<'_> {
    /// Makes `targets`; allnoconfig and similar targets start from the file `config`. Returns the
    /// number of object files that were compiled.
    pub(super) fn run(
        &self,
        targets: &[&str],
        config: &Path,
        progress: &Progress,
    ) -> Result<u64, ImageError> {
        fs::create_dir_all(&self.build).map_err(io_error("create", &self.build))?;
        let make = Path::new("make");
        let (output, input) = pipe_to(make)?;
        let mut command = self.tools.command();
        command
            .arg("-C")
            .arg(&self.source)
            .arg(format!("O={}", self.build.display()))
            .arg(format!("-j{}", self.jobs))
            .args(targets)
            .env("KCONFIG_ALLCONFIG", config)
            .stdin(Stdio::null())
            .stdout(
                input
                    .try_clone()
                    .map_err(io_error("share the pipe of", make))?,
            )
            .stderr(input);
        let mut child = command.spawn().map_err(io_error("run", make))?;
        // The command holds the other end of the pipe.
        drop(command);
        let copied = self.copy(output, progress);
        let status = child.wait().map_err(io_error("wait for", make))?;
        let compiled = copied?;
        if status.success() {
            return Ok(compiled);
        }
        let log = fs::read(&self.log).map_err(io_error("read", &self.log))?;
        Err(ImageError::ModuleBuild {
            status: status.to_string(),
            reason: first_complaint(&String::from_utf8_lossy(&log)),
            log: self.log.clone(),
        })
    }

    fn copy(&self, output: File, progress: &Progress) -> Result<u64, ImageError> {
        let mut compiled = 0;
        let mut log = File::create(&self.log).map_err(io_error("create", &self.log))?;
        for line in BufReader::new(output).split(b'\n') {
            let line = line.map_err(io_error("read the output of", Path::new("make")))?;
            let line = String::from_utf8_lossy(&line);
            writeln!(log, "{line}").map_err(io_error("write", &self.log))?;
            let line = line.trim();
            let objects = u64::from(makes_object(line));
            compiled += objects;
            progress.step(line, objects);
        }
        Ok(compiled)
    }
}

/// Returns `true` if this line of make reports that an object file is made of a source:
/// ` CC [M] drivers/nvme/host/pci.o`.
fn makes_object(line: &str) -> bool {
    let first = line.split_ascii_whitespace().next();
    matches!(first, Some("CC" | "AS")) && line.ends_with(".o")
}

/// Returns the number of object files below `folder`.
pub(super) fn objects_in(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let count = |entry: fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => objects_in(&entry.path()),
        Ok(_) if entry.path().extension().is_some_and(|end| end == "o") => 1,
        _ => 0,
    };
    entries.map(count).fold(0, u64::saturating_add)
}

/// Returns the compiler's first error, or make's last line.
fn first_complaint(log: &str) -> String {
    let first = complaints(log).first().copied();
    let last = || log.lines().last().unwrap_or("it printed nothing");
    first.unwrap_or_else(last).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_compiled_objects_are_counted() {
        for line in [
            "CC      init/main.o",
            "CC [M]  drivers/nvme/host/pci.o",
            "AS      arch/x86/lib/getuser.o",
        ] {
            assert!(makes_object(line), "{line}");
        }
        for line in [
            "AR      built-in.a",
            "LD [M]  drivers/a.ko",
            "CC      kernel/bounds.s",
            "HOSTCC  scripts/a.o",
            "",
        ] {
            assert!(!makes_object(line), "{line}");
        }
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("init")).unwrap();
        for file in ["a.o", "init/b.o", "init/b.c"] {
            fs::write(folder.path().join(file), "").unwrap();
        }
        assert_eq!(objects_in(folder.path()), 2);
    }
}
