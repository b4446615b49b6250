//! `peerbar cp`: files and folders into a running guest, and out of it, as tar archives.

mod pack;
mod unpack;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use clap::Args;
use peerbar_images::{Progress, Unit};
use peerbar_lab::exit::Failure;
use peerbar_lab::guest_program::{GuestProgram, ProgramError, socket_of};
use peerbar_lab::signals::Signals;
use peerbar_lab::size::{Size, human};
use peerbar_lab::terminal::printable;
use peerbar_report::exec::{GuestMessage, ProgramEnd, ProgramRequest};

use crate::attached::naming;
use crate::guest_folder::GuestName;

/// Prefix of a path in the guest.
const GUEST: &str = "guest:";
/// The only entry at the top of an archive.
const TOP: &str = "x";
/// Bytes of an archive's header, and of a block of its data.
const BLOCK: u64 = 512;
/// Bytes that an entry counts in addition to its size, as does each folder that unpacking makes: so
/// a limit of bytes also limits the number of files and folders.
const ENTRY: u64 = 4096;

/// Longest excerpt from a program's errors in bytes.
const MOST_OUTPUT: usize = 4 << 10;
/// Longest line with sizes: two numbers of 20 digits.
const LONGEST_SIZES: usize = 42;
/// Most bytes that a guest sends after an archive: GNU tar fills its last record.
const MOST_PADDING: u64 = 128 << 10;
/// Longest time in which a guest may neither send nor take anything.
const SILENCE: Duration = Duration::from_secs(120);

/// Exit status of a script whose path is not there.
const NOT_THERE: i32 = 44;
/// Exit status of a script that would replace a folder that is not empty.
const NOT_EMPTY: i32 = 45;
/// Exit status of a script that has printed how little is free.
const NO_SPACE: i32 = 46;
/// Exit status of a script that would replace something that is neither a file nor a folder, and
/// has printed its path.
const NOT_FILE: i32 = 47;

/// Why a copy does not replace something that is neither a file nor a folder.
const SPECIAL: &str =
    "is a link, device, FIFO or socket, which a copy would replace: name another path";

/// Unpacks an archive into the parent folder of `$1`, or into `$1` if it is a folder, under the
/// name `$2`, and renames it to that name in one step. It takes `$3` bytes. `$4` is the name of a
/// folder that the agent removes. Few programs are started: each takes a guest without KVM a tenth
/// of a second.
const UNPACK: &str = r#"to=${1%/}
[ -d "$to/" ] && to=$to/$2
[ -L "$to" ] || { [ -e "$to" ] && [ ! -f "$to" ] && [ ! -d "$to" ]; } && printf '%s\n' "$to" && exit 47
in=${to%/*}/
[ -d "$in" ] || exit 44
[ -d "$to" ] && [ -n "$(ls -A "$to")" ] && exit 45
state=$(stat -fc '%a %S %T' "$in") || exit
free=${state% *}
free=$((${free% *} * ${free#* }))
case ${state##* } in tmpfs | ramfs | overlayfs)
    while read -r key kilobytes unit; do
        [ "$key" = MemAvailable: ] && [ $((kilobytes * 1024)) -lt "$free" ] && free=$((kilobytes * 1024))
    done < /proc/meminfo
esac
if [ "$free" -lt "$3" ]; then echo "$free"; exit 46; fi
at=$in$4
mkdir -m 700 "$at" || exit
tar -xb 512 -f - -C "$at" && exec mv -T "$at/x" "$to""#;
/// Packs `$1` without its name. Links in it keep their targets. A file without blocks is copied
/// first, because those of procfs, sysfs, debugfs and tracefs do not tell their length. `$2` is a
/// folder that the agent removes. A line comes first: the disk space for unpacking, and the bytes
/// of the archive.
const PACK: &str = r#"[ -e "$1" ] || exit 44
sizes() {
    find -H "$1" -printf '%y %s\n' | awk '
        { size = $1 == "f" ? $2 : 0; disk += size + 4096; archive += 512 + 512 * int((size + 511) / 512) }
        END { printf "%.0f %.0f\n", disk, archive }'
}
if [ -d "$1" ]; then sizes "$1"; cd "$1" && exec tar -cb 128 -f - --transform 's,^\.,x,S' .; fi
if [ -f "$1" ] && [ "$(stat -Lc %b "$1")" = 0 ]; then
    mkdir -m 700 "$2" && cp --sparse=always --preserve=mode,timestamps "$1" "$2/x" || exit
    sizes "$2/x"
    exec tar -cb 128 -f - -C "$2" x
fi
sizes "$1"
cd "$(dirname "$1")" && exec tar -chb 128 -f - --transform 's,.*,x,' -- "$(basename "$1")""#;

/// Copy a file or a folder into a running guest, or out of it. A path in the guest begins with
/// `guest:`.
#[derive(Args)]
pub(crate) struct Cp {
    /// Path to copy from.
    pub from: PathBuf,
    /// Path to copy to: an existing folder to copy into, or the new name.
    pub to: PathBuf,
    /// Folder of the guest's run.
    #[arg(long, value_name = "RUN", default_value = "runs/latest")]
    pub attach: PathBuf,
    /// The guest of the run.
    #[command(flatten)]
    pub guest: GuestName,
    /// Largest disk space of a copy out of the guest. Each entry counts its size, and 4K for itself
    /// and for each folder that it makes
    #[arg(long, value_name = "SIZE", default_value = "4G")]
    pub limit: Size,
}

/// Copies.
pub(crate) fn cp(options: &Cp) -> Result<ExitCode, Failure> {
    let attached = options.guest.folder(&options.attach)?;
    let signals = Signals::new()?;
    let guest = || -> Result<Guest<'_>, Failure> {
        Ok(Guest {
            socket: socket_of(&attached).map_err(|error| Failure::Usage(error.into()))?,
            signals: &signals,
        })
    };
    let copied = match (of_guest(&options.from)?, of_guest(&options.to)?) {
        (None, Some(to)) => guest()?.copy_in(&options.from, to),
        (Some(from), None) => guest()?.copy_out(from, &options.to, options.limit),
        _ => {
            let error = anyhow!("one of the two paths is the guest's: write it as {GUEST}/path");
            return Err(Failure::Usage(error));
        }
    };
    copied.map_err(|failure| naming(&attached, failure))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the path in the guest, if it is one.
fn of_guest(path: &Path) -> Result<Option<&str>, Failure> {
    let bytes = path.as_os_str().as_bytes();
    let Some(path) = bytes.strip_prefix(GUEST.as_bytes()) else {
        return Ok(None);
    };
    match std::str::from_utf8(path) {
        Ok(path) if path.starts_with('/') => Ok(Some(path)),
        Ok(path) => Err(Failure::Usage(anyhow!(
            "{GUEST}{path} is not an absolute path: write {GUEST}/{path}"
        ))),
        Err(_) => Err(Failure::Usage(anyhow!(
            "{} is not UTF-8: copy the folder that it is in, or rename it in the guest",
            printable(bytes)
        ))),
    }
}

/// A guest that files are copied into or out of, until a signal comes.
struct Guest<'a> {
    socket: PathBuf,
    signals: &'a Signals,
}

impl Guest<'_> {
    fn copy_in(&self, from: &Path, to: &str) -> Result<(), Failure> {
        let source = pack::Source::new(from).map_err(Failure::Failed)?;
        let (name, needed) = (source.name.clone(), source.needed);
        let beside = temporary_name();
        let words = [UNPACK, "cp", to, &name, &needed.to_string(), &beside];
        // It is in the folder `to`, or in the parent folder of `to`.
        let parent = Path::new(to).parent().unwrap_or(Path::new("/"));
        let folders = [parent, Path::new(to)].map(|folder| folder.join(&beside));
        let mut archive = source.pack(Progress::of(&format!("cp {name}"), Unit::Bytes));
        let (mut output, mut errors) = (BoundedOutput::default(), BoundedOutput::default());
        let program = self.start(&words, &folders)?;
        let end = program.run(&mut archive, &mut output, &mut errors);
        let end = end.map_err(|error| self.not_copied(to, error))?;
        let folder = || parent.display();
        Err(Failure::Failed(match end.status() {
            0 => return Ok(()),
            NOT_THERE => anyhow!("{GUEST}{} is not there: make it first", folder()),
            NOT_EMPTY => anyhow!(
                "{GUEST}{to} has a folder {name} that is not empty: remove it first, or name another path"
            ),
            NOT_FILE => anyhow!("{GUEST}{} {SPECIAL}", output.line()),
            NO_SPACE => {
                let free = output
                    .line()
                    .parse()
                    .map_or_else(|_| "less".to_owned(), human);
                let needed = human(needed);
                anyhow!(
                    "cannot write {GUEST}{to}: it needs {needed}, and the guest has {free} free there"
                )
            }
            _ => anyhow!("cannot write {GUEST}{to}: {}", errors.line()),
        }))
    }

    fn copy_out(&self, from: &str, to: &Path, limit: Size) -> Result<(), Failure> {
        let name = Path::new(from).file_name().unwrap_or_default();
        let to = match to.is_dir() {
            true => to.join(name),
            false => to.to_owned(),
        };
        unpack::check_target(&to).map_err(Failure::Failed)?;
        let beside = Path::new("/tmp").join(temporary_name());
        let words = [PACK, "cp", from, &beside.to_string_lossy()];
        let program = self.start(&words, std::slice::from_ref(&beside))?;
        let shown = printable(name.as_encoded_bytes());
        let progress = Progress::of(&format!("cp {shown}"), Unit::Bytes);
        let mut output = ProgramOutput::new(program, progress);
        let copied = receive(&mut output, from, &to, limit);
        let Err(error) = copied else {
            return Ok(());
        };
        Err(match (output.lost.take(), output.status()) {
            (Some(lost), _) => self.not_copied(from, lost),
            (None, Some(NOT_THERE)) => Failure::Failed(anyhow!("{GUEST}{from} is not there")),
            (None, Some(status)) if status != 0 => {
                let errors = output.errors.line();
                Failure::Failed(anyhow!("cannot read {GUEST}{from}: {errors}"))
            }
            _ => {
                let what = format!("cannot copy {GUEST}{from} to {}", to.display());
                Failure::Failed(error.context(what))
            }
        })
    }

    /// Starts a script of the guest, which may leave something in `temporary`.
    fn start(&self, words: &[&str], temporary: &[PathBuf]) -> Result<GuestProgram, Failure> {
        let words = ["sh", "-c"].iter().chain(words);
        let request = ProgramRequest {
            temporary: temporary
                .iter()
                .map(|folder| folder.to_string_lossy().into_owned())
                .collect(),
            ..ProgramRequest::new(words.copied())
        };
        let program = GuestProgram::start(&self.socket, &request).map_err(anyhow::Error::from)?;
        let program = program.is_silent_for_at_most(SILENCE);
        Ok(match self.signals.any()? {
            Some(stop) => program.ends_with(UnixStream::from(stop)),
            None => program,
        })
    }

    /// Returns the failure of the copy. The loss of the guest is a failure of the environment.
    fn not_copied(&self, path: &str, error: ProgramError) -> Failure {
        if let (ProgramError::GivenUp, Ok(Some(signal))) = (&error, self.signals.pending()) {
            return Failure::Interrupted(signal);
        }
        let is_ours = matches!(error, ProgramError::Input(_) | ProgramError::Output(_));
        let error = anyhow::Error::from(error).context(format!("cannot copy {GUEST}{path}"));
        match is_ours {
            true => Failure::Failed(error),
            false => Failure::Environment(error),
        }
    }
}

/// Takes the copy of `from` that a guest sends, and gives it the name `to` once it is whole.
fn receive(output: &mut ProgramOutput, from: &str, to: &Path, limit: Size) -> anyhow::Result<()> {
    let (needed, archive) = sizes(output)?;
    output.progress.expect(archive);
    let parent = unpack::parent_of(to);
    let budget = unpack::Budget::new(limit, &parent, needed)?;
    let copy = unpack::unpack(&mut *output, from, &parent, budget)?;
    let padding = io::copy(&mut output.take(MOST_PADDING + 1), &mut io::sink())?;
    ensure!(
        padding <= MOST_PADDING,
        "the guest sent data after the archive"
    );
    ensure!(
        output.status() == Some(0),
        "the guest has not sent all of it"
    );
    copy.rename_to(to)
}

/// Reads the line before an archive: the disk space for unpacking, and the archive's length in
/// bytes.
fn sizes(output: &mut impl Read) -> anyhow::Result<(u64, u64)> {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while line.len() < LONGEST_SIZES {
        output.read_exact(&mut byte)?;
        if byte == *b"\n" {
            break;
        }
        line.extend(byte);
    }
    let line = printable(&line);
    let sizes = line.split_once(' ');
    let sizes = sizes.and_then(|(disk, archive)| Some((disk.parse().ok()?, archive.parse().ok()?)));
    sizes.with_context(|| format!("the guest sent {line:?} instead of two sizes"))
}

/// Returns the name of a folder that no other copy has.
fn temporary_name() -> String {
    format!(
        ".peerbar.{:016x}",
        RandomState::new().build_hasher().finish()
    )
}

/// The output of a program in the guest, as a reader. It ends with the program.
struct ProgramOutput {
    program: GuestProgram,
    /// Output that has arrived and is still unread.
    bytes: io::Cursor<Vec<u8>>,
    errors: BoundedOutput,
    end: Option<ProgramEnd>,
    /// The reason why no more output will come.
    lost: Option<ProgramError>,
    progress: Progress,
}

impl ProgramOutput {
    fn new(program: GuestProgram, progress: Progress) -> Self {
        Self {
            program,
            bytes: io::Cursor::default(),
            errors: BoundedOutput::default(),
            end: None,
            lost: None,
            progress,
        }
    }

    /// Returns its exit status once it has ended.
    fn status(&self) -> Option<i32> {
        self.end.map(ProgramEnd::status)
    }
}

impl Read for ProgramOutput {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        loop {
            let count = self.bytes.read(space)?;
            if count > 0 || space.is_empty() || self.end.is_some() {
                return Ok(count);
            }
            match self.program.wait_for_message() {
                Ok(GuestMessage::Output(bytes)) => {
                    self.progress.add(bytes.len() as u64);
                    self.bytes = io::Cursor::new(bytes);
                }
                Ok(GuestMessage::ErrorOutput(bytes)) => self.errors.write_all(&bytes)?,
                Ok(GuestMessage::Ended(end)) => self.end = Some(end),
                Ok(GuestMessage::InputTaken(_) | GuestMessage::Refused { .. }) => {}
                Err(error) => {
                    self.lost = Some(error);
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
            }
        }
    }
}

/// The first bytes that a program prints: a hostile guest may print more than there is memory.
#[derive(Default)]
struct BoundedOutput(Vec<u8>);

impl BoundedOutput {
    /// Returns the output in one line.
    fn line(&self) -> String {
        let lines = self.0.split(|byte| *byte == b'\n').map(printable);
        let lines: Vec<String> = lines.filter(|line| !line.is_empty()).collect();
        lines.join("; ")
    }
}

impl Write for BoundedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let free = MOST_OUTPUT.saturating_sub(self.0.len());
        let kept = bytes.get(..free).unwrap_or(bytes);
        self.0.extend_from_slice(kept);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
