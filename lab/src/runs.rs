//! The folders of runs: their names, and the rules by which former runs stay.

use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use anyhow::{Context, anyhow};
use clap::Args;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use thiserror::Error;

use crate::count::count;
use crate::exit::Failure;
use crate::folder::{Folder, LATEST};
use crate::run_series::RunSeries;
use crate::started::{STARTED, Started};
use crate::temporary_folder::try_file;

/// Default folder of the runs.
pub const DEFAULT: &str = "runs";
/// Default number of runs that stay there.
const KEPT: usize = 20;
/// End of the name of a folder that is being removed.
const REMOVED: &str = ".removed";

/// Where a run leaves its folder, what that is called, and how many stay.
#[derive(Args, Clone, Debug)]
pub struct Runs {
    /// Folder for the folders of the runs.
    #[arg(long = "runs", value_name = "DIR", default_value = DEFAULT)]
    pub folder: PathBuf,
    /// Name of this run's folder, which then is not removed [default: the time and the scenario].
    #[arg(long)]
    pub name: Option<RunName>,
    /// Number of unnamed runs to keep, the newest [default: 20 in `runs`, all in a folder of
    /// --runs].
    #[arg(long, value_name = "N", value_parser = count::<NonZero<usize>>)]
    pub keep_runs: Option<NonZero<usize>>,
    /// This run's folder, made by the process that runs its series; used by peerbar itself.
    #[arg(
        long,
        hide = true,
        value_name = "DIR",
        requires = "run_series",
        conflicts_with = "name"
    )]
    run_folder: Option<PathBuf>,
    /// The identifier of that series.
    #[arg(long, hide = true, value_name = "ID", requires = "run_folder")]
    run_series: Option<String>,
    /// Former runs have been removed: this is done once, so that a series removes none of its own.
    #[arg(skip)]
    pruned: OnceLock<()>,
    /// The series of all runs that begin here.
    #[arg(skip)]
    series: OnceLock<Arc<RunSeries>>,
}

impl Default for Runs {
    fn default() -> Self {
        Self::below(Path::new(DEFAULT))
    }
}

impl Runs {
    /// Runs below `folder`, without a name.
    pub fn below(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            name: None,
            keep_runs: None,
            run_folder: None,
            run_series: None,
            pruned: OnceLock::new(),
            series: OnceLock::new(),
        }
    }

    /// Checks that a run can begin here, which a command does before its downloads. The folder of
    /// all runs is made later, so that a command without a run leaves none.
    ///
    /// # Errors
    /// [`Failure::Usage`] if the name, or that of the link to the latest run, is taken; those of
    /// the file system.
    pub fn check(&self) -> Result<(), Failure> {
        if self.run_folder.is_some() {
            return Ok(());
        }
        let named = self.name.as_ref().map(|name| self.folder.join(&name.0));
        if let Some(path) = named.filter(|path| path.exists()) {
            let path = path.display();
            return Err(Failure::Usage(anyhow!(
                "{path} exists: choose another --name, or remove it"
            )));
        }
        let latest = self.folder.join(LATEST);
        if latest.is_dir() && !latest.is_symlink() {
            let latest = latest.display();
            return Err(Failure::Usage(anyhow!(
                "{latest} is a folder, in place of the link to the latest run: move it away, or name another folder with --runs"
            )));
        }
        let tried = std::path::absolute(&self.folder).and_then(|folder| {
            let present = folder.ancestors().find(|it| it.exists());
            present.map_or(Ok(()), try_file)
        });
        tried.with_context(|| {
            let folder = self.folder.display();
            format!("no run can be kept in {folder}: name another folder with --runs")
        })?;
        Ok(())
    }

    /// Makes the folder of a run of `scenario`, and removes those of former runs that do not stay.
    ///
    /// # Errors
    /// [`Failure::Usage`] if the name is taken; those of the file system.
    pub fn begin(&self, scenario: &str) -> Result<Folder, Failure> {
        if let (Some(folder), Some(series)) = (&self.run_folder, &self.run_series) {
            return Ok(Folder::opened(folder.clone())?.of_series(series));
        }
        self.check()?;
        let folder = match &self.name {
            Some(name) => Folder::named(&self.folder, &name.0)?,
            None => Folder::create(&self.folder, scenario, SystemTime::now())?,
        };
        let folder = folder.of_series(self.series().id());
        let kept = self.kept().filter(|_| self.pruned.set(()).is_ok());
        if let Some(Err(error)) = kept.map(|kept| prune(&self.folder, kept)) {
            let folder = self.folder.display();
            log::warn!("cannot remove former runs from {folder}: {error}");
        }
        Ok(folder)
    }

    /// Returns the words of a command line with which another process makes the run of `folder`,
    /// which began here.
    pub fn words_of(&self, folder: &Folder) -> [OsString; 4] {
        let series = self.series().id();
        [
            "--run-folder".into(),
            folder.path().into(),
            "--run-series".into(),
            series.into(),
        ]
    }

    /// Returns the series of all runs that begin here.
    pub fn series(&self) -> &RunSeries {
        let begin = || Arc::new(RunSeries::begin(&self.folder));
        self.series.get_or_init(begin)
    }

    /// Returns the number of runs that stay; `None` for all.
    fn kept(&self) -> Option<usize> {
        let by_default = (self.folder == Path::new(DEFAULT)).then_some(KEPT);
        self.keep_runs.map(NonZero::get).or(by_default)
    }
}

/// A name that a user gives a run's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunName(String);

/// The reason why a text is no name of a run.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "invalid run name `{0}`: use letters, digits, `-`, `_` and inner dots, and neither `latest` nor a time"
)]
pub struct RunNameError(String);

impl FromStr for RunName {
    type Err = RunNameError;

    fn from_str(text: &str) -> Result<Self, RunNameError> {
        let is_plain =
            |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
        let is_name = !text.is_empty() && text.len() <= 100 && text.chars().all(is_plain);
        if !is_name || text.starts_with(['.', '-']) || text == LATEST || is_timed(text) {
            return Err(RunNameError(text.to_owned()));
        }
        Ok(Self(text.to_owned()))
    }
}

/// Returns `true` if `name` begins with a time, as the folder of a run without a name does:
/// `20261121T031500Z-`.
fn is_timed(name: &str) -> bool {
    const PATTERN: &[u8] = b"00000000T000000Z-";
    let like = |(pattern, byte): (&u8, &u8)| match pattern {
        b'0' => byte.is_ascii_digit(),
        other => byte == other,
    };
    name.len() >= PATTERN.len() && PATTERN.iter().zip(name.as_bytes()).all(like)
}

/// Removes all runs of `folder` without a name, except the newest `kept`. Current runs stay, as do
/// those of a series that continues, the target of the link to the newest, and those that cannot be
/// removed. Links and other files are not touched. Another process may do the same at the same
/// time.
fn prune(folder: &Path, kept: usize) -> io::Result<()> {
    let latest = fs::read_link(folder.join(LATEST)).unwrap_or_default();
    let mut runs = Vec::new();
    for found in fs::read_dir(folder)? {
        let found = found?;
        let Ok(name) = found.file_name().into_string() else {
            continue;
        };
        RunSeries::remove_leftover(&found.path());
        if !is_timed(&name) || !found.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let path = folder.join(&name);
        if name.ends_with(REMOVED) {
            tell_failure(&path, fs::remove_dir_all(&path));
        } else if path.join(STARTED).is_file() {
            runs.push(name);
        }
    }
    // The names begin with the time, so this is the order of time.
    runs.sort_unstable();
    let former = runs.len().saturating_sub(kept);
    for name in runs
        .iter()
        .take(former)
        .filter(|name| Path::new(name) != latest)
    {
        let run = folder.join(name);
        if !goes_on(&run, folder) {
            tell_failure(&run, remove(&run));
        }
    }
    Ok(())
}

/// Returns `true` if the series of `run` may have more runs.
fn goes_on(run: &Path, folder: &Path) -> bool {
    let series = Started::read(run).ok().and_then(|started| started.series);
    series.is_some_and(|id| RunSeries::is_at_work(folder, &id))
}

/// Tells that `run` cannot be removed, unless another process has done it. The next run tries
/// again.
fn tell_failure(run: &Path, removed: io::Result<()>) {
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            let run = run.display();
            log::warn!("cannot remove the former run {run}: {error}; remove it yourself");
        }
        Ok(()) | Err(_) => {}
    }
}

/// Removes a run that has ended. It gets another name first: a run that is removed in part is not
/// mistaken for a run.
fn remove(run: &Path) -> io::Result<()> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let lock = rustix::fs::open(run, flags, Mode::empty())?;
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(());
    }
    log::info!("removing the former run {}", run.display());
    let mut removed = run.as_os_str().to_owned();
    removed.push(REMOVED);
    fs::rename(run, &removed)?;
    fs::remove_dir_all(&removed)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::started::Versions;

    /// Returns a folder with runs that are over, one for each day of January 2026.
    fn over(days: std::ops::RangeInclusive<u32>) -> tempfile::TempDir {
        let runs = tempfile::tempdir().unwrap();
        for day in days {
            let run = runs.path().join(format!("202601{day:02}T120000Z-demo"));
            fs::create_dir(&run).unwrap();
            fs::write(run.join(STARTED), "{}").unwrap();
        }
        runs
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.starts_with(".series-"))
            .collect();
        names.sort();
        names
    }

    #[test]
    fn oldest_runs_go_and_others_stay() {
        let runs = over(1..=6);
        let other = [
            "mine",
            "20260101T120000Z",
            "20260101T120001Z-empty",
            "latest",
        ];
        for name in other {
            fs::create_dir(runs.path().join(name)).unwrap();
        }
        prune(runs.path(), 2).unwrap();
        let kept = ["20260105T120000Z-demo", "20260106T120000Z-demo"];
        let mut expected: Vec<&str> = other.into_iter().chain(kept).collect();
        expected.sort_unstable();
        assert_eq!(names(runs.path()), expected);
    }

    #[test]
    fn links_and_files_stay_and_keep_no_run_from_beginning() {
        let mine = over(1..=1);
        let runs = over(2..=4);
        let link = runs.path().join("20260101T120000Z-mine");
        std::os::unix::fs::symlink(mine.path().join("20260101T120000Z-demo"), link).unwrap();
        let file = format!("20260101T120000Z-notes{REMOVED}");
        fs::write(runs.path().join(&file), "").unwrap();
        let mut options = Runs::below(runs.path());
        options.keep_runs = NonZero::new(1);
        options.begin("demo").unwrap();
        let left = names(runs.path());
        let kept = [
            "20260101T120000Z-mine",
            file.as_str(),
            "20260104T120000Z-demo",
        ];
        assert_eq!(left[..3], kept, "{left:?}");
        assert_eq!(names(mine.path()).len(), 1);
    }

    #[test]
    fn processes_that_remove_the_same_runs_do_not_fail() {
        let runs = over(1..=28);
        std::thread::scope(|scope| {
            let pruned: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| prune(runs.path(), 1)))
                .collect();
            for each in pruned {
                each.join().unwrap().unwrap();
            }
        });
        assert_eq!(names(runs.path()), ["20260128T120000Z-demo"]);
    }

    #[test]
    fn running_and_latest_run_are_not_removed() {
        let runs = over(1..=3);
        let running = File::open(runs.path().join("20260101T120000Z-demo")).unwrap();
        flock(&running, FlockOperation::NonBlockingLockShared).unwrap();
        std::os::unix::fs::symlink("20260102T120000Z-demo", runs.path().join(LATEST)).unwrap();
        prune(runs.path(), 1).unwrap();
        assert_eq!(names(runs.path()).len(), 4);
        drop(running);
        prune(runs.path(), 1).unwrap();
        let kept = ["20260102T120000Z-demo", "20260103T120000Z-demo", LATEST];
        assert_eq!(names(runs.path()), kept);
    }

    #[test]
    fn named_and_running_runs_stay_and_latest_is_right() {
        let runs = over(1..=3);
        let begin = |name: Option<&str>| {
            let mut options = Runs::below(runs.path());
            options.keep_runs = NonZero::new(1);
            options.name = name.map(|name| name.parse().unwrap());
            let run = options.begin("demo")?;
            run.begin(None, Versions::default())?;
            Ok::<Folder, Failure>(run)
        };
        let _named = begin(Some("before-the-fix")).unwrap();
        assert_eq!(names(runs.path()).len(), 3);
        let taken = begin(Some("before-the-fix")).unwrap_err();
        assert!(matches!(taken, Failure::Usage(_)), "{taken}");
        let running = [begin(None).unwrap(), begin(None).unwrap()];
        let last = begin(None).unwrap();
        let left = names(runs.path());
        assert_eq!(left.len(), 5, "{left:?}");
        assert!(running.iter().all(|run| run.path().exists()));
        let latest = fs::read_link(runs.path().join(LATEST)).unwrap();
        assert_eq!(runs.path().join(latest), last.path());
    }

    #[test]
    fn series_removes_none_of_its_own_runs() {
        let runs = over(1..=3);
        let mut options = Runs::below(runs.path());
        options.keep_runs = NonZero::new(1);
        for _ in 0..3 {
            let run = options.begin("demo").unwrap();
            run.begin(None, Versions::default()).unwrap();
        }
        let left = names(runs.path());
        assert_eq!(left.len(), 5, "{left:?}");
    }

    #[test]
    fn runs_of_a_series_at_work_are_not_removed_by_others() {
        let runs = over(1..=3);
        let mut series = Runs::below(runs.path());
        series.keep_runs = NonZero::new(1);
        let begin = || {
            let run = series.begin("demo").unwrap();
            run.begin(None, Versions::default()).unwrap();
            run.path().file_name().unwrap().to_owned()
        };
        let own = [begin(), begin(), begin()];
        prune(runs.path(), 1).unwrap();
        assert_eq!(names(runs.path()).len(), 4);
        let path = series.series().path.clone();
        assert!(path.exists());
        drop(series);
        assert!(!path.exists());
        prune(runs.path(), 1).unwrap();
        let last = own[2].to_str().unwrap();
        assert_eq!(names(runs.path()), [last, LATEST]);
    }

    #[test]
    fn lock_of_a_killed_series_is_removed() {
        let runs = over(1..=1);
        let old = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
        let lock = |name: &str| {
            let path = runs.path().join(name);
            let file = File::create(&path).unwrap();
            file.set_modified(old).unwrap();
            (path, file)
        };
        let [(killed, _), (held, file), (fresh, young)] =
            [".series-1", ".series-2", ".series-3"].map(lock);
        flock(&file, FlockOperation::NonBlockingLockShared).unwrap();
        young.set_modified(std::time::SystemTime::now()).unwrap();
        prune(runs.path(), 1).unwrap();
        assert_eq!(
            [killed, held, fresh].map(|path| path.exists()),
            [false, true, true]
        );
    }

    #[test]
    fn all_runs_stay_in_a_folder_of_the_user() {
        let runs = over(1..=25);
        Runs::below(runs.path()).begin("demo").unwrap();
        assert_eq!(names(runs.path()).len(), 27);
        assert_eq!(Runs::default().kept(), Some(KEPT));
    }

    #[test]
    fn folder_that_can_keep_no_run_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut runs = Runs::below(&folder.path().join("new/runs"));
        runs.check().unwrap();
        assert!(!folder.path().join("new").exists());
        runs.name = Some("taken".parse().unwrap());
        fs::create_dir_all(runs.folder.join("taken")).unwrap();
        assert!(matches!(runs.check(), Err(Failure::Usage(_))));
        runs.name = None;
        fs::create_dir(runs.folder.join(LATEST)).unwrap();
        assert!(matches!(runs.check(), Err(Failure::Usage(_))));
        fs::write(folder.path().join("file"), "").unwrap();
        let error = Runs::below(&folder.path().join("file")).check();
        let error = error.unwrap_err().to_string();
        let file = folder.path().join("file");
        let begins = format!(
            "no run can be kept in {}: name another folder with --runs: ",
            file.display()
        );
        assert!(error.starts_with(&begins), "{error}");
    }

    #[test]
    fn names_of_runs_are_plain_words() {
        for name in ["a", "before-the-fix", "v7.3_2"] {
            assert_eq!(name.parse(), Ok(RunName(name.to_owned())));
        }
        for wrong in [
            "",
            "a/b",
            "..",
            ".x",
            "-x",
            "a b",
            "latest",
            "20261121T031500Z-x",
        ] {
            let error = wrong.parse::<RunName>().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("invalid run name `{wrong}`")),
                "{error}"
            );
        }
    }
}
