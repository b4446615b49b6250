//! A daemon's `main`: from a device to a socket that serves it until a signal arrives.

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use peerbar_host::server_log::ServerLog;
use peerbar_sandbox::{Connections, FileAccess, SandboxError, ServerKind};
use peerbar_vfio_user::{BindError, ListenError, Listener, Options, Stop};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use thiserror::Error;

use crate::options::{DeviceOptions, FaultError};
use crate::recording::RecordFiles;
use crate::running::{Served, StartError};

/// Exit status for an invalid command line (sysexits(3) has 64; clap and this project use 2).
const USAGE: u8 = 2;
/// Exit status for a machine that lacks something (sysexits(3), EX_UNAVAILABLE).
const ENVIRONMENT: u8 = 69;

/// The cause of a daemon's failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The command line.
    Usage,
    /// The machine.
    Environment,
}

/// The reason why a device is not served, or no longer served.
#[derive(Debug, Error)]
enum ServeError {
    /// The socket cannot be made.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// No further client can be accepted.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The daemon cannot be confined.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// Signals cannot be handled, or standard output is gone.
    #[error("cannot set the daemon up")]
    SetUp(#[from] io::Error),
}

/// Runs the program `daemon`: starts its device and serves it until a signal arrives, confined to
/// its `files` and its socket. `fault` names the cause if the configuration is invalid.
pub fn run<S: Served, C: Error + 'static>(
    daemon: &str,
    options: &DeviceOptions,
    files: &[FileAccess<'_>],
    start: impl FnOnce() -> Result<S, StartError<C>>,
    fault: impl FnOnce(&C) -> Fault,
) -> ExitCode {
    let _log = ServerLog::start("warn");
    let files = match confined_files(options, files) {
        Ok(files) => files,
        Err(error) => return give_up(daemon, error.as_ref(), Fault::Environment),
    };
    let mut device = match start() {
        Ok(device) => device,
        Err(error) => {
            let fault = match &error {
                StartError::Config(error) => fault(error),
                _ => Fault::Environment,
            };
            return give_up(daemon, &error, fault);
        }
    };
    match serve_by(options, files, &mut device) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let fault = match error.is::<FaultError>() {
                true => Fault::Usage,
                false => Fault::Environment,
            };
            give_up(daemon, error.as_ref(), fault)
        }
    }
}

/// Makes the files in which the device records, and confines the daemon to the other files that it
/// needs. Returns the files that were made.
fn confined_files(
    options: &DeviceOptions,
    access: &[FileAccess<'_>],
) -> Result<RecordFiles, Box<dyn Error>> {
    let files = options.recording.make()?;
    let socket = FileAccess::Socket(&options.socket_path);
    let control = options.control.as_deref().map(FileAccess::Socket);
    let access: Vec<_> = access
        .iter()
        .copied()
        .chain([socket])
        .chain(control)
        .collect();
    options
        .sandbox
        .restrict_files(ServerKind::Device, &access)?;
    Ok(files)
}

fn serve_by<S: Served>(
    options: &DeviceOptions,
    files: RecordFiles,
    device: &mut S,
) -> Result<(), Box<dyn Error>> {
    let faults_changed = device.fault_observer();
    let endpoint = device.endpoint();
    files.start(endpoint);
    options.add_faults(endpoint)?;
    let _control = options.control(endpoint, faults_changed)?;
    options.link.apply(endpoint, &options.socket_path)?;
    let served = serve(options, device);
    device.endpoint().end_record();
    served?;
    device.failure().map_or(Ok(()), Err)
}

/// Serves a device at its socket, to one client after another, until SIGTERM or SIGINT, or until the
/// device itself ends. Writes the line `ready` to standard output once clients can connect.
fn serve<S: Served>(options: &DeviceOptions, device: &mut S) -> Result<(), ServeError> {
    let connections = match device.connections() {
        Connections::None => options.link.connections(),
        connections => connections,
    };
    let stop = Stop::new().map_err(io::Error::from)?;
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let handle = signals.handle();
    let triggered = stop.clone();
    let watcher = std::thread::spawn(move || signals.forever().for_each(|_| triggered.trigger()));
    let listener = Listener::bind(&options.socket_path)?;
    let mut sessions = Options::new(stop);
    device.prepare(&mut sessions);
    options.sandbox.restrict_calls(connections)?;
    let mut out = io::stdout();
    writeln!(out, "ready").and_then(|()| out.flush())?;
    let served = listener.run(device.device(), &sessions);
    handle.close();
    if watcher.join().is_err() {
        log::error!("the thread that waits for signals has panicked");
    }
    Ok(served?)
}

/// Reports on standard error, in one line, why `daemon` ends, with all causes. Returns the exit
/// status.
fn give_up(daemon: &str, error: &dyn Error, fault: Fault) -> ExitCode {
    let mut line = format!("{daemon}: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        line.push_str(&format!(": {error}"));
        cause = error.source();
    }
    eprintln!("{line}");
    ExitCode::from(match fault {
        Fault::Usage => USAGE,
        Fault::Environment => ENVIRONMENT,
    })
}
