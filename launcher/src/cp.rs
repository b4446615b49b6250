//! `peerbar cp`: files and folders into a running guest, and out of it, as tar archives.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow, ensure};
use clap::Args;
use peerbar_exec::ProgramRequest;
use peerbar_lab::exit::Failure;
use peerbar_lab::guest_program::{GuestProgram, socket_of};
use tar::{Archive, Builder};

/// What comes before a path of the guest.
const GUEST: &str = "guest:";
/// The only entry at the top of an archive.
const TOP: &str = "x";

/// Bytes of a program's errors that are told.
const MOST_WORDS: usize = 4 << 10;

/// Unpacks an archive beside `$1`, or in it if it is a folder, under the name `$2`, and moves it into its place in one step.
const UNPACK: &str = r#"to=$1
[ -d "$to" ] && to=${to%/}/$2
at=$(mktemp -d "$(dirname "$to")/.peerbar.XXXXXX") || exit
tar -xf - -C "$at" && mv -T "$at/x" "$to"
status=$?
rm -rf "$at"
exit $status"#;
/// Packs `$1` without its name. Links in it keep their targets. A file without blocks is copied first: those of procfs, sysfs,
/// debugfs and tracefs do not tell how long they are.
const PACK: &str = r#"if [ -d "$1" ]; then cd "$1" && exec tar -cf - --transform 's,^\.,x,S' .; fi
if [ -f "$1" ] && [ "$(stat -Lc %b "$1")" = 0 ]; then
    at=$(mktemp -d) || exit
    cp --sparse=always --preserve=mode,timestamps "$1" "$at/x" && tar -cf - -C "$at" x
    status=$?
    rm -rf "$at"
    exit $status
fi
cd "$(dirname "$1")" && exec tar -chf - --transform 's,.*,x,' -- "$(basename "$1")""#;

/// Copies a file or a folder into a running guest, or out of it. A path of the guest begins with `guest:`.
#[derive(Args)]
pub(crate) struct Cp {
    /// What is copied.
    pub from: PathBuf,
    /// Where it goes: into a folder that is there, or to that name.
    pub to: PathBuf,
    /// Folder of the guest's run.
    #[arg(long, value_name = "RUN", default_value = "runs/latest")]
    pub attach: PathBuf,
}

/// Copies.
pub(crate) fn cp(options: &Cp) -> Result<ExitCode, Failure> {
    let socket = || socket_of(&options.attach).map_err(|error| Failure::Usage(error.into()));
    match (of_guest(&options.from)?, of_guest(&options.to)?) {
        (None, Some(to)) => into_guest(&socket()?, &options.from, to)?,
        (Some(from), None) => out_of_guest(&socket()?, from, &options.to)?,
        _ => {
            let error = anyhow!("one of the two paths is the guest's: write it as {GUEST}/path");
            return Err(Failure::Usage(error));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The path in the guest, if it is one.
fn of_guest(path: &Path) -> Result<Option<&str>, Failure> {
    let Some(text) = path.to_str() else {
        return Ok(None);
    };
    match text.strip_prefix(GUEST) {
        Some(path) if path.starts_with('/') => Ok(Some(path)),
        Some(path) => Err(Failure::Usage(anyhow!(
            "{GUEST}{path} is no whole path of the guest: write {GUEST}/{path}"
        ))),
        None => Ok(None),
    }
}

fn into_guest(socket: &Path, from: &Path, to: &str) -> Result<(), Failure> {
    let whole = fs::canonicalize(from).with_context(|| format!("cannot read {}", from.display()));
    let whole = whole.map_err(Failure::Usage)?;
    let name = whole.file_name().and_then(|name| name.to_str());
    let name = name.with_context(|| format!("{} has no name for the guest", from.display()))?;
    let mut archive = Builder::new(spool()?);
    archive.follow_symlinks(false);
    let packed = match whole.is_dir() {
        true => archive.append_dir_all(TOP, &whole),
        false => archive.append_path_with_name(&whole, TOP),
    };
    packed.with_context(|| format!("cannot read {}", from.display()))?;
    let mut archive = archive.into_inner().context("cannot write an archive")?;
    archive.rewind().context("cannot read an archive")?;
    let request = ProgramRequest::new(["sh", "-c", UNPACK, "cp", to, name]);
    transfer(socket, &request, &mut archive, &mut io::sink())
        .with_context(|| format!("cannot copy to {GUEST}{to}"))?;
    Ok(())
}

fn out_of_guest(socket: &Path, from: &str, to: &Path) -> Result<(), Failure> {
    let to = match to.is_dir() {
        true => to.join(Path::new(from).file_name().unwrap_or_default()),
        false => to.to_owned(),
    };
    let mut archive = spool()?;
    let request = ProgramRequest::new(["sh", "-c", PACK, "cp", from]);
    transfer(socket, &request, &mut io::empty(), &mut archive)
        .with_context(|| format!("cannot copy {GUEST}{from}"))?;
    archive.rewind().context("cannot read an archive")?;
    unpack(archive, &to).with_context(|| format!("cannot write {}", to.display()))?;
    Ok(())
}

/// Unpacks an archive beside `to` and moves it into its place in one step.
fn unpack(archive: File, to: &Path) -> anyhow::Result<()> {
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    let beside = tempfile::Builder::new()
        .prefix(".peerbar.")
        .tempdir_in(parent)
        .with_context(|| format!("cannot make a folder in {}", parent.display()))?;
    // The crate refuses entries that would leave the folder.
    Archive::new(archive).unpack(beside.path())?;
    let top = beside.path().join(TOP);
    // What is written to such a name later would go elsewhere.
    ensure!(!top.is_symlink(), "the guest sends a link in its place");
    fs::rename(top, to)?;
    Ok(())
}

fn spool() -> anyhow::Result<File> {
    tempfile::tempfile().context("cannot make a temporary file")
}

/// Runs a program of the guest between two files. A signal ends this process, and the guest the program then.
fn transfer(
    socket: &Path,
    request: &ProgramRequest,
    input: &mut dyn Read,
    output: &mut dyn Write,
) -> anyhow::Result<()> {
    let mut errors = Words::default();
    let program = GuestProgram::start(socket, request)?;
    let end = program.run(input, output, &mut errors)?;
    let said = String::from_utf8_lossy(&errors.0);
    ensure!(end.status() == 0, "{}", said.trim().replace('\n', "; "));
    Ok(())
}

/// The first words of a program: a hostile guest may say more than there is memory.
#[derive(Default)]
struct Words(Vec<u8>);

impl Write for Words {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = MOST_WORDS.saturating_sub(self.0.len());
        let kept = bytes.get(..room).unwrap_or(bytes);
        self.0.extend_from_slice(kept);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_path_is_whole_and_has_a_prefix() {
        assert_eq!(of_guest(Path::new("guest:/a/b")).unwrap(), Some("/a/b"));
        assert_eq!(of_guest(Path::new("./guest:/a")).unwrap(), None);
        let error = of_guest(Path::new("guest:a")).unwrap_err().to_string();
        assert!(error.contains("write guest:/a"), "{error}");
    }

    #[test]
    fn file_that_does_not_tell_its_length_is_packed_whole() {
        for path in [
            "/proc/version",
            "/sys/kernel/mm/transparent_hugepage/enabled",
        ] {
            let Ok(expected) = fs::read(path) else {
                continue;
            };
            let mut archive = spool().unwrap();
            let mut command = std::process::Command::new("sh");
            command.args(["-c", PACK, "cp", path]);
            let packed = command.stdout(archive.try_clone().unwrap()).status();
            assert!(packed.unwrap().success(), "{path}");
            archive.rewind().unwrap();
            let folder = tempfile::tempdir().unwrap();
            let to = folder.path().join("to");
            unpack(archive, &to).unwrap();
            assert_eq!(fs::read(&to).unwrap(), expected, "{path}");
        }
    }

    #[test]
    fn archive_of_a_hostile_guest_stays_in_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let mut archive = Builder::new(spool().unwrap());
        let mut header = tar::Header::new_gnu();
        header.set_size(4);
        header.set_mode(0o644);
        // The builder refuses such a name, a guest does not.
        header.as_old_mut().name[..9].copy_from_slice(b"../escape");
        header.set_cksum();
        archive.append(&header, &b"evil"[..]).unwrap();
        let mut archive = archive.into_inner().unwrap();
        archive.rewind().unwrap();
        let inner = folder.path().join("inner");
        fs::create_dir(&inner).unwrap();
        assert!(unpack(archive, &inner.join("to")).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(fs::read_dir(&inner).unwrap().count(), 0);
    }

    #[test]
    fn link_in_the_place_of_a_copy_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut archive = Builder::new(spool().unwrap());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        archive.append_link(&mut header, TOP, "/etc").unwrap();
        let mut archive = archive.into_inner().unwrap();
        archive.rewind().unwrap();
        let to = folder.path().join("to");
        let error = unpack(archive, &to).unwrap_err().to_string();
        assert!(error.contains("a link in its place"), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn packed_folder_keeps_the_targets_of_its_links() {
        let folder = tempfile::tempdir().unwrap();
        let from = folder.path().join("from");
        fs::create_dir_all(from.join("a")).unwrap();
        fs::write(from.join("file"), "text").unwrap();
        let targets = ["../file", "./b", "..hidden", "/etc/hosts"];
        for (number, target) in (0..).zip(targets) {
            std::os::unix::fs::symlink(target, from.join(format!("a/{number}"))).unwrap();
        }
        fs::hard_link(from.join("file"), from.join("second")).unwrap();
        let mut archive = spool().unwrap();
        let packed = std::process::Command::new("sh")
            .args(["-c", PACK, "cp"])
            .arg(&from)
            .stdout(archive.try_clone().unwrap())
            .status();
        assert!(packed.unwrap().success());
        archive.rewind().unwrap();
        let to = folder.path().join("to");
        unpack(archive, &to).unwrap();
        for (number, target) in (0..).zip(targets) {
            let link = fs::read_link(to.join(format!("a/{number}"))).unwrap();
            assert_eq!(link, Path::new(target));
        }
        assert_eq!(fs::read_to_string(to.join("second")).unwrap(), "text");
    }

    #[test]
    fn endless_errors_take_little_memory() {
        let mut words = Words::default();
        for _ in 0..3 {
            words.write_all(&[b'x'; 3000]).unwrap();
        }
        assert_eq!(words.0.len(), MOST_WORDS);
    }
}
