//! The user's programs are built before the guest boots.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::child::Child;
use crate::events::{Event, EventSource, Events};
use crate::exit::Failure;
use crate::folder::Folder;
use crate::parent_death;
use crate::scenario::HostProgram;
use crate::signals::Signals;
use crate::terminal::say;

/// File in a run's folder: the output of builds.
const LOG: &str = "build.log";
/// Bytes at the end of a build's output that are shown; the file has them all.
const SHOWN: usize = 64 << 10;
/// Time limit of a build.
const LIMIT: Duration = Duration::from_secs(24 * 60 * 60);

/// Builds `programs`, each command once, and checks that the guest can start them. The output is in
/// `build.log` of the run's `folder`. It is shown if a build fails, and while it runs if that is
/// `live`.
///
/// # Errors
/// A build that fails, or a program that is missing afterwards.
pub(crate) fn build(
    programs: &[HostProgram],
    live: bool,
    folder: &Folder,
    signals: &Signals,
) -> Result<(), Failure> {
    let mut built: Vec<(&Path, &str)> = Vec::new();
    let builds = programs
        .iter()
        .filter_map(|program| Some((program, program.build.as_deref()?)));
    // A lab may build more than once, also while its guest runs.
    let mut log = None;
    for (program, line) in builds {
        if built.contains(&(&program.folder, line)) {
            continue;
        }
        let log = match &mut log {
            Some(log) => log,
            none => none.insert(folder.append(LOG)?),
        };
        let (status, printed) = run(program, line, log, live, signals)?;
        if !status.success() {
            if !live {
                printed
                    .lines()
                    .for_each(|line| say(format_args!("  {line}")));
            }
            let (name, source) = (&program.name, program.folder.display());
            return Err(Failure::Usage(anyhow!(
                "check `{name}`: `{line}` in {source} ended with {status}; the end of its output is above, all of it is in {}",
                folder.path().join(LOG).display()
            )));
        }
        built.push((&program.folder, line));
    }
    let mut programs = programs.iter();
    programs
        .try_for_each(HostProgram::is_runnable)
        .map_err(Failure::Usage)
}

/// Runs `line` by a shell, to its end or to a signal. Returns its status, and the end of its output
/// on both streams.
fn run(
    program: &HostProgram,
    line: &str,
    log: &mut impl Write,
    live: bool,
    signals: &Signals,
) -> Result<(ExitStatus, String), Failure> {
    let (mut build, output) = start(program, line)?;
    let mut events = Events::new(signals);
    events.add_bytes(EventSource::Console, output);
    events.add_child(EventSource::Run(0), build.pidfd())?;
    let deadline = Instant::now() + LIMIT;
    let mut printed = Vec::new();
    loop {
        // The output comes before the end.
        match events.next(deadline)? {
            Some(Event::Data(_, bytes)) => {
                log.write_all(&bytes).context("cannot write build.log")?;
                if live {
                    let text = String::from_utf8_lossy(&bytes);
                    text.lines()
                        .for_each(|line| say(format_args!("{}: {line}", program.name)));
                }
                printed.extend_from_slice(&bytes);
                printed.drain(..printed.len().saturating_sub(SHOWN));
            }
            Some(Event::Ended(_)) => {
                let status = build.ended()?.context("a build that ended and did not")?;
                return Ok((status, String::from_utf8_lossy(&printed).into_owned()));
            }
            Some(Event::Signal(signal)) => {
                end(&build);
                return Err(Failure::Interrupted(signal));
            }
            Some(Event::Closed(_) | Event::Connected(..)) => {}
            None => {
                end(&build);
                return Err(anyhow!("check `{}`: `{line}` does not end", program.name).into());
            }
        }
    }
}

/// Starts the build in a separate process group.
fn start(program: &HostProgram, line: &str) -> Result<(Child, File), Failure> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).context("cannot create a pipe")?;
    let mut shell = Command::new("sh");
    shell.args(["-c", line]);
    let mut wrapped = parent_death::wrapped(&shell)?;
    let errors = writer.try_clone().context("cannot share a pipe")?;
    wrapped
        .current_dir(&program.folder)
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(errors);
    let child = Child::spawn(wrapped).with_context(|| {
        let (name, folder) = (&program.name, program.folder.display());
        format!("check `{name}`: cannot run `{line}` in {folder}")
    });
    Ok((child.map_err(Failure::Usage)?, File::from(reader)))
}

/// Ends all processes of a build. ESRCH only means that nothing is left.
fn end(build: &Child) {
    let group = i32::try_from(build.id()).ok().and_then(Pid::from_raw);
    if let Some(group) = group {
        let _ = kill_process_group(group, Signal::KILL);
    }
}
