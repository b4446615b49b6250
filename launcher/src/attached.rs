//! A guest that another peerbar has started.

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use peerbar_lab::events::{Event, EventSource, Events};
use peerbar_lab::exit::Failure;
use peerbar_lab::finished_run::SCENARIO;
use peerbar_lab::guest_program::socket_of;
use peerbar_lab::run_file;
use peerbar_lab::scenario::Scenario;
use peerbar_lab::signals::Signals;
use peerbar_lab::started::Started;
use peerbar_lab::terminal::say;
use peerbar_report::exec::HOST_FOLDER;

/// Longest wait for an event.
const ATTENDED: Duration = Duration::from_secs(3600);

/// Does `work` in the guest of the run in the folder `run`, as [`crate::guest_session::in_guest`].
/// A scenario that has become unreadable is not checked.
///
/// # Errors
/// A run without such a guest, or the reason why `work` is impossible.
pub(crate) fn in_running_guest<T: Send>(
    run: &Path,
    check: impl FnOnce(&Scenario) -> Result<(), Failure>,
    work: impl FnOnce(&Path, &str, UnixStream) -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    let socket = socket_of(run).map_err(|error| Failure::Usage(error.into()))?;
    if let Some(scenario) = scenario_of(run) {
        check(&scenario)?;
    }
    let here = std::env::current_dir().context("cannot tell the current folder")?;
    let folder = match shared_folder(run) {
        Some(shared) => inside(&shared, &here).unwrap_or_else(|| {
            let shared = shared.display();
            say(format_args!(
                "peerbar: {HOST_FOLDER} of that guest is {shared}, not the current folder"
            ));
            HOST_FOLDER.to_owned()
        }),
        None => HOST_FOLDER.to_owned(),
    };
    let signals = Signals::new()?;
    let pair = || UnixStream::pair().context("cannot make a socket pair");
    let (done, tells_done) = pair()?;
    let (numbers, received_numbers) = pair()?;
    let mut events = Events::new(&signals);
    events.add_bytes(EventSource::Work, done);
    thread::scope(|scope| {
        let worker = scope.spawn(move || {
            let _tells_done = tells_done;
            work(&socket, &folder, received_numbers)
        });
        let passed = pass_signals(&mut events, numbers);
        let done = worker.join().map_err(|_| anyhow!("the work panicked"))?;
        passed?;
        done.map_err(|failure| naming(run, failure))
    })
}

/// Names the folder of the run whose guest or machine has failed: the error may point to files in it.
pub(crate) fn naming(run: &Path, failure: Failure) -> Failure {
    match failure {
        Failure::Environment(error) => {
            Failure::Environment(error.context(run.display().to_string()))
        }
        failure => failure,
    }
}

/// Passes signals on until the work is done.
fn pass_signals(events: &mut Events<'_>, mut numbers: UnixStream) -> anyhow::Result<()> {
    loop {
        match events.next(Instant::now() + ATTENDED)? {
            Some(Event::Closed(EventSource::Work)) => return Ok(()),
            Some(Event::Signal(number)) => {
                let number = u8::try_from(number).unwrap_or_default();
                // The error is ignored: work that has ended reads no signals.
                let _ = numbers.write_all(&[number]);
            }
            _ => {}
        }
    }
}

/// Returns the scenario of a run. Its paths are relative to the original folder of its file.
fn scenario_of(run: &Path) -> Option<Scenario> {
    let path = Started::read(run).ok()?.scenario?;
    let text = run_file::read_to_string(&run.join(SCENARIO)).ok()?;
    Scenario::parse_interactive(&path, text).ok()
}

/// Returns the folder that a run's guest sees as `/host`: the current folder of the run's process.
fn shared_folder(run: &Path) -> Option<PathBuf> {
    let started = Started::read(run).ok()?;
    fs::read_link(format!("/proc/{}/cwd", started.process)).ok()
}

/// Returns the path of the folder `here` in the guest, or `None` if the guest does not see it.
fn inside(shared: &Path, here: &Path) -> Option<String> {
    let below = here.strip_prefix(shared).ok()?;
    let inside = Path::new(HOST_FOLDER).join(below);
    // Requests to the guest are text.
    Some(inside.to_str()?.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use peerbar_lab::guest_program::ProgramError;

    use super::*;

    #[test]
    fn lost_guest_is_one_of_a_named_run() {
        let lost = Failure::Environment(ProgramError::Gone(None).into());
        let error = naming(Path::new("runs/x"), lost);
        assert_eq!(error.code(), 69);
        let error = error.to_string();
        assert!(error.starts_with("runs/x: the connection"), "{error}");
    }

    #[test]
    fn folder_below_the_shared_one_is_in_host() {
        let inside = |here: &str| inside(Path::new("/work"), Path::new(here));
        assert_eq!(inside("/work").unwrap(), "/host");
        assert_eq!(inside("/work/a/b").unwrap(), "/host/a/b");
        assert_eq!(inside("/workshop"), None);
    }
}
