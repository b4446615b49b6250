//! One run of mmdebstrap: its arguments, and the progress in its output.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::thread;

use rustix::process::{Pid, Signal, kill_process_group};

use crate::ImageError;
use crate::cache::BuildLock;
use crate::error::io_error;
use crate::pipe::pipe_to;
use crate::progress::{Progress, Unit, rounded};
use crate::recipe::{BACKPORTS, PREFERENCES, SUITE};
use crate::{Cache, manifest, mirror, package_names};

/// Lines of output that a failure shows.
const TAIL: usize = 12;

/// Folder of the packages' archives until their names have been read.
const ARCHIVES: &str = "var/cache/apt/archives";

/// The results of unpacking a tree.
pub(crate) struct Bootstrapped {
    /// The suite's release file had expired, and the date check, but no other, was off.
    pub(crate) expired: bool,
    /// The version of every package, by name.
    pub(crate) packages: BTreeMap<String, String>,
}

/// Unpacks `packages` and their dependencies into `target`. The names of all packages are kept in
/// `cache`.
pub(crate) fn run(
    target: &Path,
    packages: &[&str],
    cache: &Cache,
    lock: &BuildLock,
    progress: &Progress,
) -> Result<Bootstrapped, ImageError> {
    let mirror = mirror::find();
    let log = log(cache);
    let expired = unpack(target, packages, mirror.as_deref(), &log, lock, progress)?;
    package_names::keep(target, cache.path())?;
    let archives = target.join(ARCHIVES);
    let packages = manifest::packages_in(&archives)?;
    fs::remove_dir_all(&archives).map_err(io_error("remove", &archives))?;
    Ok(Bootstrapped { expired, packages })
}

/// Returns the path of the output of the last mmdebstrap.
pub(crate) fn log(cache: &Cache) -> PathBuf {
    cache.path().join("mmdebstrap.log")
}

/// Unpacks them, and leaves the archives and the lists. Returns `true` if the suite's release file
/// had expired.
fn unpack(
    target: &Path,
    packages: &[&str],
    mirror: Option<&str>,
    log: &Path,
    lock: &BuildLock,
    progress: &Progress,
) -> Result<bool, ImageError> {
    let first = arguments(target, packages, mirror, DateCheck::On);
    let first = attempt(&first, log, lock, progress)?;
    if first.status.success() {
        return Ok(false);
    }
    if !first.output.expired {
        return Err(first.into_error(log, progress));
    }
    progress.say("the archive's release file has expired: going on without the date check (signatures stay checked)");
    if target.exists() {
        fs::remove_dir_all(target).map_err(io_error("remove", target))?;
    }
    let second = arguments(target, packages, mirror, DateCheck::Off);
    let second = attempt(&second, log, lock, progress)?;
    if second.status.success() {
        Ok(true)
    } else {
        Err(second.into_error(log, progress))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DateCheck {
    On,
    Off,
}

fn arguments(
    target: &Path,
    packages: &[&str],
    mirror: Option<&str>,
    dates: DateCheck,
) -> Vec<String> {
    // The hook runs before the package lists are fetched. Backports are in the archive that the
    // suite comes from.
    let sources = format!(
        "mkdir -p \"$1/etc/apt/preferences.d\" \"$1/etc/apt/sources.list.d\" && \
         printf '{PREFERENCES}' > \"$1/etc/apt/preferences.d/backports\" && \
         sed -n 's/^\\(deb .*\\) {SUITE} main$/\\1 {BACKPORTS} main/p' \"$1/etc/apt/sources.list\" \
         > \"$1/etc/apt/sources.list.d/backports.list\""
    );
    let mut arguments = vec![
        "--debug".to_owned(),
        "--variant=extract".to_owned(),
        // No maintainer script runs in this variant, so no script can harm the host. Without a
        // chroot a killed run leaves no mounts behind, and neither root nor subordinate user ids
        // are needed.
        "--mode=chrootless".to_owned(),
        "--skip=check/chrootless,cleanup/apt/cache,cleanup/apt/lists".to_owned(),
        "--architectures=amd64".to_owned(),
        "--aptopt=Apt::Install-Recommends \"false\"".to_owned(),
        "--aptopt=Acquire::Retries \"3\"".to_owned(),
    ];
    if dates == DateCheck::Off {
        arguments.push("--aptopt=Acquire::Check-Valid-Until \"false\"".to_owned());
    }
    arguments.push(format!("--setup-hook={sources}"));
    arguments.push(format!("--include={}", packages.join(",")));
    arguments.push(SUITE.to_owned());
    arguments.push(target.display().to_string());
    arguments.extend(mirror.map(str::to_owned));
    arguments
}

struct Attempt {
    status: ExitStatus,
    output: Output,
}

impl Attempt {
    fn into_error(self, log: &Path, progress: &Progress) -> ImageError {
        if let Some(name) = self.output.missing_package() {
            return ImageError::NoPackage {
                name: name.to_owned(),
                suites: [SUITE, BACKPORTS],
            };
        }
        for line in &self.output.tail {
            progress.say(&format!("| {line}"));
        }
        ImageError::Mmdebstrap {
            status: self.status.to_string(),
            reason: self
                .output
                .first_error
                .unwrap_or_else(|| "it printed no error".to_owned()),
            log: log.to_path_buf(),
        }
    }
}

fn attempt(
    arguments: &[String],
    log: &Path,
    lock: &BuildLock,
    progress: &Progress,
) -> Result<Attempt, ImageError> {
    let log_file = File::create(log).map_err(io_error("create", log))?;
    let (output, input) = pipe_to(Path::new("mmdebstrap"))?;
    let mut child = Command::new("mmdebstrap")
        .args(arguments)
        .env("LC_ALL", "C.UTF-8")
        .env_remove("TMPDIR")
        .stdin(lock.stdin()?)
        .stdout(
            input
                .try_clone()
                .map_err(io_error("share the pipe of", Path::new("mmdebstrap")))?,
        )
        .stderr(input)
        // Only this process may ask it to end, so that it cleans up.
        .process_group(0)
        .spawn()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => ImageError::NoMmdebstrap,
            _ => io_error("run", &PathBuf::from("mmdebstrap"))(error),
        })?;
    let group = Pid::from_child(&child);
    let (seen, stopped) = end_if_stopped(group, lock, || follow(output, log_file, log, progress))?;
    let status = child
        .wait()
        .map_err(io_error("wait for", Path::new("mmdebstrap")))?;
    if stopped {
        return Err(ImageError::Stopped);
    }
    Ok(Attempt {
        status,
        output: seen?,
    })
}

/// Reads the output to its end.
fn follow(
    output: File,
    mut log_file: File,
    log: &Path,
    progress: &Progress,
) -> Result<Output, ImageError> {
    let mut seen = Output::default();
    for line in BufReader::new(output).split(b'\n') {
        let line = line.map_err(io_error("read the output of", Path::new("mmdebstrap")))?;
        let line = String::from_utf8_lossy(&line);
        writeln!(log_file, "{line}").map_err(io_error("write", log))?;
        seen.line(line.trim_end(), progress);
    }
    Ok(seen)
}

/// Runs `work`, which ends when the processes of `group` end. Terminates them if the work must
/// stop. Returns `true` in that case.
fn end_if_stopped<T>(
    group: Pid,
    lock: &BuildLock,
    work: impl FnOnce() -> T,
) -> Result<(T, bool), ImageError> {
    let (over, working) = pipe_to(Path::new("mmdebstrap"))?;
    thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let stopped = lock.wait_for_stop(&[over.as_fd()], None)?;
            if stopped {
                kill_process_group(group, Signal::TERM)
                    .map_err(|errno| io_error("end", Path::new("mmdebstrap"))(errno.into()))?;
            }
            Ok(stopped)
        });
        let done = work();
        drop(working);
        let stopped = watch.join().unwrap_or(Ok(false))?;
        Ok((done, stopped))
    })
}

/// The state of the output up to now.
#[derive(Default)]
struct Output {
    packages: u64,
    /// Bytes of the package that is being downloaded.
    downloading: u64,
    unpacking: bool,
    expired: bool,
    first_error: Option<String>,
    tail: VecDeque<String>,
}

impl Output {
    fn line(&mut self, line: &str, progress: &Progress) {
        match Sign::of(line) {
            Some(Sign::Packages(count)) => self.packages = count,
            Some(Sign::Size(size)) => {
                let (packages, bytes) = (self.packages, rounded(size));
                progress.say(&format!("packages: {packages}, {bytes} to download"));
                progress.part("downloading", Unit::Bytes, Some(size));
            }
            // Downloads before the count of packages are package lists. The line comes when a
            // download begins.
            Some(Sign::Download(size)) if self.packages > 0 => {
                progress.add(std::mem::replace(&mut self.downloading, size));
            }
            Some(Sign::Unpack(name)) => {
                if !self.unpacking {
                    progress.say(&format!("unpacking packages: {}", self.packages));
                    progress.part("unpacking", Unit::Packages, Some(self.packages));
                    self.unpacking = true;
                }
                progress.step(name, 1);
            }
            Some(Sign::Expired) => self.expired = true,
            Some(Sign::Download(..)) | None => {}
        }
        self.remember(line);
    }

    /// Returns the package that the archive does not have, if that caused the failure.
    fn missing_package(&self) -> Option<&str> {
        let error = self.first_error.as_deref()?;
        let missing = error.strip_prefix("Unable to locate package ");
        let virtual_one = || {
            let rest = error.strip_prefix("Package '")?;
            rest.strip_suffix("' has no installation candidate")
        };
        missing.or_else(virtual_one)
    }

    fn remember(&mut self, line: &str) {
        if self.first_error.is_none() {
            self.first_error = line.strip_prefix("E: ").map(str::to_owned);
        }
        // `--debug` is on for the progress; its own lines and backtraces do not help a user.
        if line.is_empty() || line.starts_with('\t') || line.starts_with("D: ") {
            return;
        }
        if self.tail.len() == TAIL {
            self.tail.pop_front();
        }
        self.tail.push_back(line.to_owned());
    }
}

/// A line of apt's or mmdebstrap's output that shows progress.
#[derive(Debug, PartialEq, Eq)]
enum Sign<'a> {
    /// The number of packages to install.
    Packages(u64),
    /// The size of the download in bytes.
    Size(u64),
    /// The download of a package, or of a list of packages, of so many bytes begins.
    Download(u64),
    /// A package is being unpacked.
    Unpack(&'a str),
    /// The release file is too old.
    Expired,
}

impl<'a> Sign<'a> {
    fn of(line: &'a str) -> Option<Self> {
        if let Some((_, installed)) = line.split_once(" upgraded, ") {
            return installed
                .split_once(" newly installed")
                .and_then(|(count, _)| count.parse().ok())
                .map(Self::Packages);
        }
        if let Some(size) = line.strip_prefix("Need to get ") {
            // The missing part comes first, then the whole: "Need to get 1 MB/3 MB of archives."
            let size = size.strip_suffix(" of archives.")?;
            let size = size.split_once('/').map_or(size, |(missing, _)| missing);
            return bytes(size).map(Self::Size);
        }
        if line.starts_with("Get:") {
            // Get:21 URL SUITE/COMPONENT ARCHITECTURE PACKAGE ARCHITECTURE VERSION [SIZE]
            let size = line
                .rsplit_once(" [")
                .and_then(|(_, size)| bytes(size.strip_suffix(']')?));
            return Some(Self::Download(size.unwrap_or(0)));
        }
        if let Some((_, archive)) = line.split_once("running dpkg-deb --fsys-tarfile ") {
            let file = archive.rsplit('/').next()?;
            return file.split('_').next().map(Self::Unpack);
        }
        (line.starts_with("E: Release file for ") && line.contains(" is expired "))
            .then_some(Self::Expired)
    }
}

/// Returns the bytes of a size that apt writes: "263 MB".
fn bytes(size: &str) -> Option<u64> {
    let (number, unit) = size.split_once(' ')?;
    let factor = match unit {
        "B" => 1,
        "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        _ => return None,
    };
    let (whole, tenths) = match number.split_once('.') {
        Some((whole, tenths)) if tenths.len() == 1 => (whole, tenths.parse::<u64>().ok()?),
        Some(_) => return None,
        None => (number, 0),
    };
    // Numbers from a thousand on have a comma.
    let whole: u64 = whole.replace(',', "").parse().ok()?;
    whole.checked_mul(factor)?.checked_add(tenths * factor / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_decimal() {
        for (text, size) in [
            ("263 MB", Some(263_000_000)),
            ("98.5 kB", Some(98_500)),
            ("1,234 B", Some(1234)),
            ("1.2 GB", Some(1_200_000_000)),
            ("99999999999999999999 B", None),
            ("99999999999 GB", None),
            ("1.25 MB", None),
            ("much", None),
        ] {
            assert_eq!(bytes(text), size, "{text}");
        }
    }

    #[test]
    fn arguments_without_mirror_name_no_archive() {
        let arguments = arguments(Path::new("/cache/root"), &["fio"], None, DateCheck::On);
        assert_eq!(arguments.last().map(String::as_str), Some("/cache/root"));
        assert!(
            arguments.iter().all(|argument| !argument.contains("://")),
            "{arguments:?}"
        );
        assert!(
            arguments
                .iter()
                .all(|argument| !argument.contains("Check-Valid-Until")),
            "{arguments:?}"
        );
    }

    #[test]
    fn mirror_is_last_and_expired_suite_skips_only_the_date_check() {
        let arguments = arguments(
            Path::new("/cache/root"),
            &["fio", "sed"],
            Some("http://a.example/debian"),
            DateCheck::Off,
        );
        assert_eq!(
            arguments[arguments.len() - 3..],
            ["trixie", "/cache/root", "http://a.example/debian"]
        );
        assert!(arguments.contains(&"--include=fio,sed".to_owned()));
        assert!(arguments.contains(&"--aptopt=Acquire::Check-Valid-Until \"false\"".to_owned()));
        assert!(
            arguments
                .iter()
                .all(|argument| !argument.contains("Insecure") && !argument.contains("trusted"))
        );
    }

    #[test]
    fn output_lines_are_recognised() {
        assert_eq!(
            Sign::of("0 upgraded, 179 newly installed, 0 to remove and 0 not upgraded."),
            Some(Sign::Packages(179))
        );
        assert_eq!(
            Sign::of("Need to get 263 MB of archives."),
            Some(Sign::Size(263_000_000))
        );
        assert_eq!(
            Sign::of(
                "Get:21 http://a.example/debian trixie/main amd64 dash amd64 0.5.12-12 [98.5 kB]"
            ),
            Some(Sign::Download(98_500))
        );
        assert_eq!(
            Sign::of(
                "D: 1 2631 running dpkg-deb --fsys-tarfile /c/root//var/cache/apt/archives/libc6_2.41-12_amd64.deb"
            ),
            Some(Sign::Unpack("libc6"))
        );
        assert_eq!(
            Sign::of(
                "E: Release file for http://a.example/debian/dists/trixie/InRelease is expired (invalid since 14d)."
            ),
            Some(Sign::Expired)
        );
        assert_eq!(Sign::of("Reading package lists..."), None);
        assert_eq!(Sign::of("Get:"), Some(Sign::Download(0)));
    }

    #[test]
    fn package_that_the_archive_lacks_is_named() {
        let progress = Progress::start("a test");
        for (line, name) in [
            ("E: Unable to locate package no-such", Some("no-such")),
            (
                "E: Package 'awk' has no installation candidate",
                Some("awk"),
            ),
            ("E: Some index files failed to download.", None),
        ] {
            let mut output = Output::default();
            output.line(line, &progress);
            assert_eq!(output.missing_package(), name);
        }
    }

    #[test]
    fn failure_keeps_the_first_error_and_the_last_lines() {
        let progress = Progress::start("a test");
        let mut output = Output::default();
        for count in 0..40 {
            output.line(&format!("line {count}"), &progress);
            output.line("D: noise", &progress);
        }
        output.line("E: the reason", &progress);
        output.line("E: a consequence", &progress);
        output.line("\tmain::error(\"a consequence\") called", &progress);
        assert_eq!(output.first_error.as_deref(), Some("the reason"));
        assert_eq!(output.tail.len(), TAIL);
        assert_eq!(
            output.tail.back().map(String::as_str),
            Some("E: a consequence")
        );
        assert!(output.tail.iter().all(|line| !line.starts_with("D: ")));
    }
}
