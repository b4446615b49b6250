//! Faults for the devices of a running guest, and impairments for the fabric between its adapters.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use peerbar_fabric::Impairment;
pub use peerbar_fault::Rule;
use thiserror::Error;

use crate::terminal::printable;

/// Longest time that a device may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The longest answer that is read: the most rules of a fabric, each as long as an order may be.
const LONGEST: usize = 256 << 10;
/// Suffix of the name of the link to a control socket.
const LINK: &str = ".control";
/// The name of the fabric's server, which no device has.
pub const FABRIC: &str = "fabric";

/// The reason why a device did not take a rule.
#[derive(Debug, Error)]
pub enum InjectError {
    /// The run has no such device at this moment.
    #[error("{}: no device {device} is served there{}: name a device of a running guest, or its run with --run", run.display(), but(served))]
    NoDevice {
        /// The run's folder.
        run: PathBuf,
        /// The device's name.
        device: String,
        /// The names of those that are served there, and of the fabric.
        served: Vec<String>,
    },
    /// The device is of `peerbar devices`, which starts no QEMU.
    #[error("{}: no QEMU of peerbar runs there, so no port above {device} can be asked: peerbar run, shell and exec start one", run.display())]
    NoPort {
        /// The run's folder.
        run: PathBuf,
        /// The device's name.
        device: String,
    },
    /// The device cannot be asked.
    #[error("cannot ask device {device}")]
    Socket {
        /// The device's name.
        device: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The device rejects it.
    #[error("device {device}: {cause}")]
    Refused {
        /// The device's name.
        device: String,
        /// The cause.
        cause: String,
    },
}

impl InjectError {
    /// The run does not have that device.
    pub(crate) fn no_device(run: &Path, device: &str) -> Self {
        Self::NoDevice {
            run: run.to_owned(),
            device: device.to_owned(),
            served: served(run),
        }
    }
}

/// Adds a rule to the device `device` of the run in the folder `run`, after its current rules.
/// Returns the answer of the device.
///
/// # Errors
/// A device that is not there, or that does not take the rule.
pub fn inject(run: &Path, device: &str, rule: &Rule) -> Result<String, InjectError> {
    ask(run, device, &rule.to_string())
}

/// Removes all rules of a device, and returns the same as [`inject`].
///
/// # Errors
/// A device that is not there.
pub fn clear_faults(run: &Path, device: &str) -> Result<String, InjectError> {
    ask(run, device, "clear")
}

/// Adds a rule to the fabric of the run in the folder `run`, as [`inject`] does to a device. Of
/// several rules for the same packets the last one applies. Once this returns, the rule applies to
/// each packet.
///
/// # Errors
/// A run without a fabric, or one that does not take the rule.
pub fn impair(run: &Path, rule: &Impairment) -> Result<String, InjectError> {
    ask(run, FABRIC, &rule.to_string())
}

/// Removes all rules of the fabric, and returns the same as [`impair`].
///
/// # Errors
/// A run without a fabric.
pub fn clear_impairments(run: &Path) -> Result<String, InjectError> {
    ask(run, FABRIC, "clear")
}

/// Returns the current rules of a device, or of the fabric, with the number of matches and
/// injections of each rule of a device.
///
/// # Errors
/// A device that is not there, or does not answer.
pub fn rules_in_force(run: &Path, device: &str) -> Result<Vec<String>, InjectError> {
    let answer = ask(run, device, "rules")?;
    let rules = answer.trim_start_matches("in force: ");
    Ok(match rules {
        "nothing" => Vec::new(),
        rules => rules.split("; ").map(str::to_owned).collect(),
    })
}

/// Name of the link in a run's folder to the control socket of a device.
pub(crate) fn link_name(device: &str) -> String {
    format!("{device}{LINK}")
}

fn ask(run: &Path, device: &str, line: &str) -> Result<String, InjectError> {
    let device = device.to_owned();
    let Some(socket) = socket(run, &device) else {
        return Err(InjectError::no_device(run, &device));
    };
    let answer = match exchange(&socket, line) {
        Ok(answer) => answer,
        Err(source) => return Err(InjectError::Socket { device, source }),
    };
    match answer.split_once(' ') {
        Some(("ok", done)) => Ok(done.to_owned()),
        _ => {
            let cause = answer.trim_start_matches("error ").to_owned();
            Err(InjectError::Refused { device, cause })
        }
    }
}

/// Returns the control socket of a device, if that is served.
fn socket(run: &Path, device: &str) -> Option<PathBuf> {
    // The run's folder may be too deep for a socket's address, but the target of the link is not.
    let socket = fs::read_link(run.join(link_name(device)));
    socket.ok().filter(|socket| socket.exists())
}

/// Returns the names of the servers there that take rules.
fn served(run: &Path) -> Vec<String> {
    let files = fs::read_dir(run).into_iter().flatten().flatten();
    let names = files.filter_map(|file| {
        let name = file.file_name().into_string().ok()?;
        name.strip_suffix(LINK).map(str::to_owned)
    });
    let mut served: Vec<String> = names.filter(|name| socket(run, name).is_some()).collect();
    served.sort();
    served
}

/// Returns the devices that there are.
fn but(served: &[String]) -> String {
    match served {
        [] => String::new(),
        served => format!(", but {}", served.join(", ")),
    }
}

fn exchange(socket: &Path, line: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    let deadline = Instant::now() + TIMEOUT;
    stream.set_write_timeout(Some(TIMEOUT))?;
    // A line fits into the socket's buffer, so this waits once at most.
    stream.write_all(format!("{line}\n").as_bytes())?;
    let mut answer = Vec::new();
    while !answer.contains(&b'\n') && answer.len() < LONGEST {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let mut bytes = [0; 4096];
        match stream.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(bytes.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let line = answer.split(|byte| *byte == b'\n').next();
    Ok(printable(line.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    /// Returns the result of a rule at a device with this answer.
    fn injected(answer: &'static str) -> Result<String, String> {
        let rule = "drop  dma nth=2".parse().unwrap();
        let (asked, done) = answered(answer, |run| inject(run, "disk0", &rule));
        assert_eq!(asked, "drop dma nth=2\n");
        done.map_err(|error| error.to_string())
    }

    /// Returns the request that disk0, which gives this answer, received, and the result.
    fn answered<T>(answer: &'static str, ask: impl FnOnce(&Path) -> T) -> (String, T) {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        symlink(&socket, folder.path().join("disk0.control")).unwrap();
        let device = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut asked = String::new();
            BufReader::new(&stream).read_line(&mut asked).unwrap();
            (&stream).write_all(answer.as_bytes()).unwrap();
            asked
        });
        let done = ask(folder.path());
        (device.join().unwrap(), done)
    }

    #[test]
    fn rules_in_force_are_read_one_by_one() {
        let rules = |answer| {
            let (asked, rules) = answered(answer, |run| rules_in_force(run, "disk0"));
            assert_eq!(asked, "rules\n");
            rules.unwrap()
        };
        assert!(rules("ok in force: nothing\n").is_empty());
        let two = rules("ok in force: drop dma (injected 1, matched 2); fail dma\n");
        assert_eq!(two, ["drop dma (injected 1, matched 2)", "fail dma"]);
    }

    #[test]
    fn device_s_answer_is_passed_on() {
        assert_eq!(injected("ok in force\n"), Ok("in force".to_owned()));
        assert_eq!(injected("error no\n"), Err("device disk0: no".to_owned()));
        assert_eq!(injected(""), Err("device disk0: ".to_owned()));
        let steering = injected("ok \x1b[2Jdone\n\x07");
        assert_eq!(steering, Ok("[2Jdone".to_owned()));
    }

    #[test]
    fn fabric_is_asked_by_its_name() {
        let rule = "a<->b partition".parse().unwrap();
        let error = impair(Path::new("/no/run"), &rule).unwrap_err();
        assert!(
            error.to_string().contains("no device fabric is served"),
            "{error}"
        );
        let error = clear_impairments(Path::new("/no/run")).unwrap_err();
        assert!(matches!(error, InjectError::NoDevice { device, .. } if device == FABRIC));
    }

    #[test]
    fn device_that_is_not_served_is_named() {
        let error = clear_faults(Path::new("/no/run"), "disk9").unwrap_err();
        let message = "/no/run: no device disk9 is served there: name a device of a running guest, or its run with --run";
        assert_eq!(error.to_string(), message);
    }

    #[test]
    fn devices_that_are_served_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let _listener = UnixListener::bind(&socket).unwrap();
        for name in ["nic0", "fabric"] {
            symlink(&socket, folder.path().join(link_name(name))).unwrap();
        }
        symlink("/no/socket", folder.path().join(link_name("gone"))).unwrap();
        let error = clear_faults(folder.path(), "fabrik")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("no device fabrik is served there, but fabric, nic0: name a device"),
            "{error}"
        );
    }
}
