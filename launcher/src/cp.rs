//! `peerbar cp`: files and folders into a running guest, and out of it, as tar archives.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::guest_folder::GuestName;
use anyhow::{Context, anyhow, bail, ensure};
use clap::Args;
use peerbar_exec::ProgramRequest;
use peerbar_lab::exit::Failure;
use peerbar_lab::guest_program::{GuestProgram, ProgramError, socket_of};
use peerbar_lab::limited::Limited;
use peerbar_lab::size::Size;
use peerbar_lab::terminal::printable;
use tar::{Archive, Builder, EntryType};

/// What comes before a path of the guest.
const GUEST: &str = "guest:";
/// The only entry at the top of an archive.
const TOP: &str = "x";

/// How many bytes of a program's errors are shown.
const MOST_OUTPUT: usize = 4 << 10;
/// What an entry counts beside its size, and each folder that unpacking it makes, so that a limit of bytes is one of files and
/// folders, too.
const ENTRY: u64 = 4096;
/// Mode bits of an owner with all rights.
const OWNERS: u32 = 0o700;
/// Longest path of an entry, or of a link's target.
const LONGEST_PATH: u64 = 64 << 10;
/// What to do about a larger copy.
const MORE: &str = "raise --limit";

/// Exit status of a script whose path is not there.
const NOT_THERE: i32 = 44;
/// Exit status of a script that would replace a folder that is not empty.
const NOT_EMPTY: i32 = 45;

/// Unpacks an archive beside `$1`, or in it if it is a folder, under the name `$2`, and renames it to that name in one step.
const UNPACK: &str = r#"to=$1
[ -d "$to" ] && to=${to%/}/$2
in=$(dirname "$to")
[ -d "$in" ] || exit 44
[ -d "$to" ] && [ -n "$(ls -A "$to")" ] && exit 45
at=$(mktemp -d "$in/.peerbar.XXXXXX") || exit
tar -xf - -C "$at" && mv -T "$at/x" "$to"
status=$?
rm -rf "$at"
exit $status"#;
/// Packs `$1` without its name. Links in it keep their targets. A file without blocks is copied first: those of procfs, sysfs,
/// debugfs and tracefs do not tell how long they are.
const PACK: &str = r#"[ -e "$1" ] || exit 44
if [ -d "$1" ]; then cd "$1" && exec tar -cf - --transform 's,^\.,x,S' .; fi
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
    /// Which guest of it.
    #[command(flatten)]
    pub guest: GuestName,
    /// The most disk space that a copy out of the guest may take. Each entry counts its size, and 4K for itself and for each folder that it makes
    #[arg(long, value_name = "SIZE", default_value = "4G")]
    pub limit: Size,
}

/// Copies.
pub(crate) fn cp(options: &Cp) -> Result<ExitCode, Failure> {
    let attached = options.guest.folder(&options.attach)?;
    let socket = || socket_of(&attached).map_err(|error| Failure::Usage(error.into()));
    match (of_guest(&options.from)?, of_guest(&options.to)?) {
        (None, Some(to)) => into_guest(&socket()?, &options.from, to)?,
        (Some(from), None) => out_of_guest(&socket()?, from, &options.to, options.limit)?,
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
    let (mut archive, name) = packed(from).map_err(Failure::Failed)?;
    let request = ProgramRequest::new(["sh", "-c", UNPACK, "cp", to, &name]);
    let end = transfer(socket, &request, &mut archive, &mut io::sink());
    let (status, words) = end.map_err(|error| not_copied(to, error))?;
    Err(Failure::Failed(match status {
        0 => return Ok(()),
        NOT_THERE => {
            let folder = Path::new(to).parent().unwrap_or(Path::new("/"));
            anyhow!("{GUEST}{} is not there: make it first", folder.display())
        }
        NOT_EMPTY => anyhow!(
            "{GUEST}{to} has a folder {name} that is not empty: remove it first, or name another path"
        ),
        _ => anyhow!("cannot write {GUEST}{to}: {words}"),
    }))
}

/// An archive of what is at `from`, and its name.
fn packed(from: &Path) -> anyhow::Result<(File, String)> {
    let cannot_read = || format!("cannot read {}", from.display());
    let whole = fs::canonicalize(from).with_context(cannot_read)?;
    let name = whole.file_name().and_then(|name| name.to_str());
    let name = name.with_context(|| format!("{} has no name for the guest", from.display()))?;
    let mut archive = Builder::new(spool()?);
    archive.follow_symlinks(false);
    let packed = match whole.is_dir() {
        true => archive.append_dir_all(TOP, &whole),
        false => archive.append_path_with_name(&whole, TOP),
    };
    packed.with_context(cannot_read)?;
    let mut archive = archive.into_inner().context("cannot write an archive")?;
    archive.rewind().context("cannot read an archive")?;
    Ok((archive, name.to_owned()))
}

fn out_of_guest(socket: &Path, from: &str, to: &Path, limit: Size) -> Result<(), Failure> {
    let to = match to.is_dir() {
        true => to.join(Path::new(from).file_name().unwrap_or_default()),
        false => to.to_owned(),
    };
    let mut archive = Limited::new(spool()?, limit, MORE);
    let request = ProgramRequest::new(["sh", "-c", PACK, "cp", from]);
    let end = transfer(socket, &request, &mut io::empty(), &mut archive);
    let (status, words) = end.map_err(|error| not_copied(from, error))?;
    let unpacked = match status {
        0 => unpack(archive.into_inner(), &to, limit)
            .with_context(|| format!("cannot copy {GUEST}{from} to {}", to.display())),
        NOT_THERE => Err(anyhow!("{GUEST}{from} is not there")),
        _ => Err(anyhow!("cannot read {GUEST}{from}: {words}")),
    };
    unpacked.map_err(Failure::Failed)
}

/// A guest that is gone is no failure of the copy.
fn not_copied(path: &str, error: ProgramError) -> Failure {
    let is_ours = matches!(error, ProgramError::Input(_) | ProgramError::Output(_));
    let error = anyhow::Error::from(error).context(format!("cannot copy {GUEST}{path}"));
    match is_ours {
        true => Failure::Failed(error),
        false => Failure::Environment(error),
    }
}

/// Unpacks an archive of the guest beside `to` and renames it to `to` in one step.
fn unpack(mut archive: File, to: &Path, limit: Size) -> anyhow::Result<()> {
    check(&mut archive, limit)?;
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    let beside = tempfile::Builder::new()
        .prefix(".peerbar.")
        .tempdir_in(parent)
        .with_context(|| format!("cannot make a folder in {}", parent.display()))?;
    let moved = unpack_and_rename(archive, beside.path(), to);
    if moved.is_err() {
        make_removable(beside.path());
    }
    moved
}

/// Unpacks an archive in the folder `beside` and moves it to `to`.
fn unpack_and_rename(archive: File, beside: &Path, to: &Path) -> anyhow::Result<()> {
    // The crate refuses entries that would leave the folder, and drops setuid, setgid and sticky bits.
    Archive::new(archive).unpack(beside)?;
    let top = beside.join(TOP);
    let metadata = fs::symlink_metadata(&top)?;
    // What is written to such a name later would go elsewhere.
    ensure!(
        !metadata.is_symlink(),
        "the guest sends a link in place of the copy"
    );
    if !metadata.is_dir() {
        return Ok(fs::rename(top, to)?);
    }
    // Only a folder that its owner may write can be moved (rename(2), EACCES).
    let mode = metadata.permissions().mode();
    fs::set_permissions(&top, fs::Permissions::from_mode(mode | OWNERS))?;
    fs::rename(top, to)?;
    Ok(fs::set_permissions(to, metadata.permissions())?)
}

/// Gives the owner all rights to a folder and those in it, as far as that is possible.
fn make_removable(folder: &Path) {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        if let Err(error) = fs::set_permissions(&folder, fs::Permissions::from_mode(OWNERS)) {
            log::debug!("cannot change {}: {error}", folder.display());
        }
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let inner = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        folders.extend(inner.map(|entry| entry.path()));
    }
}

/// Checks that an archive has only files, folders and links, which take no more than `limit` of the disk. Sparse files and
/// extended headers, which GNU tar writes only on request, could stand for more than they take.
fn check(archive: &mut File, limit: Size) -> anyhow::Result<()> {
    archive.rewind().context("cannot read an archive")?;
    let mut left = limit.0;
    let (mut former, mut long_path) = (Vec::new(), None);
    for entry in Archive::new(&*archive).entries_with_seek()?.raw(true) {
        let mut entry = entry?;
        let most = match entry.header().entry_type() {
            EntryType::Regular | EntryType::Directory | EntryType::Symlink | EntryType::Link => {
                u64::MAX
            }
            EntryType::GNULongName | EntryType::GNULongLink => LONGEST_PATH,
            _ => 0,
        };
        if entry.size() > most || most == 0 {
            let path = printable(&entry.path_bytes());
            bail!("{path} is no file, folder or link, and nothing else is copied out of a guest");
        }
        let mut taken = entry.size().saturating_add(ENTRY);
        match entry.header().entry_type() {
            EntryType::GNULongName => {
                let path = long_path.insert(Vec::new());
                entry.read_to_end(path)?;
            }
            EntryType::GNULongLink => {}
            _ => {
                let path = long_path
                    .take()
                    .unwrap_or_else(|| entry.path_bytes().into_owned());
                taken = taken.saturating_add(ENTRY.saturating_mul(new_folders(&former, &path)));
                former = path;
            }
        }
        let rest = left.checked_sub(taken);
        left = rest.with_context(|| format!("more than {limit}: {MORE}"))?;
    }
    archive.rewind().context("cannot read an archive")
}

/// How many folders at most unpacking `path` makes after `former`: an archive lists a tree in order, so those that both have are there.
fn new_folders(former: &[u8], path: &[u8]) -> u64 {
    let is_slash = |byte: &u8| *byte == b'/';
    let path = path.strip_suffix(b"/").unwrap_or(path);
    let both = former.split(is_slash).zip(path.split(is_slash));
    let known = both.take_while(|(former, name)| former == name).count();
    let folders = path.split(is_slash).count().saturating_sub(1);
    folders.saturating_sub(known) as u64
}

fn spool() -> anyhow::Result<File> {
    tempfile::tempfile().context("cannot make a temporary file")
}

/// Runs a program of the guest between two files: its exit status, and what it says of an error, in one line. A signal ends this
/// process, and the guest the program then.
fn transfer(
    socket: &Path,
    request: &ProgramRequest,
    input: &mut dyn Read,
    output: &mut dyn Write,
) -> Result<(i32, String), ProgramError> {
    let mut errors = BoundedOutput::default();
    let program = GuestProgram::start(socket, request)?;
    let end = program.run(input, output, &mut errors)?;
    let lines = errors.0.split(|byte| *byte == b'\n').map(printable);
    let lines: Vec<String> = lines.filter(|line| !line.is_empty()).collect();
    Ok((end.status(), lines.join("; ")))
}

/// The first bytes that a program prints: a hostile guest may print more than there is memory.
#[derive(Default)]
struct BoundedOutput(Vec<u8>);

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
mod tests {
    use super::*;

    const LIMIT: Size = Size(64 << 10);

    /// An archive with an entry of this type, which the builder would not make.
    fn archive(kind: EntryType, mode: u32, size: u64) -> File {
        let mut archive = Builder::new(spool().unwrap());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(size);
        let content = vec![7; usize::try_from(size).unwrap()];
        archive
            .append_data(&mut header, TOP, content.as_slice())
            .unwrap();
        archive.into_inner().unwrap()
    }

    #[test]
    fn file_of_a_guest_keeps_no_special_mode() {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("to");
        unpack(archive(EntryType::Regular, 0o7755, 5), &to, LIMIT).unwrap();
        let mode = fs::metadata(&to).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o755);
        assert_eq!(fs::read(&to).unwrap(), [7; 5]);
    }

    #[test]
    fn archive_with_more_than_files_and_links_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("to");
        for kind in [
            EntryType::Char,
            EntryType::Block,
            EntryType::Fifo,
            EntryType::GNUSparse,
            EntryType::XHeader,
            EntryType::XGlobalHeader,
        ] {
            let error = unpack(archive(kind, 0o644, 0), &to, LIMIT).unwrap_err();
            let error = error.to_string();
            assert!(error.starts_with("x is no file, folder or link"), "{error}");
        }
        let long = archive(EntryType::GNULongName, 0o644, LONGEST_PATH + 1);
        assert!(unpack(long, &to, Size(1 << 30)).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn archive_beyond_the_limit_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("to");
        let sized = |size| archive(EntryType::Regular, 0o644, size);
        unpack(sized(LIMIT.0 - ENTRY), &to, LIMIT).unwrap();
        let error = unpack(sized(LIMIT.0 - ENTRY + 1), &to, LIMIT).unwrap_err();
        let message = "more than 64K: raise --limit";
        assert_eq!(error.to_string(), message);
        let mut many = Builder::new(spool().unwrap());
        for number in 0..17 {
            let mut header = tar::Header::new_gnu();
            header.set_size(0);
            let path = format!("{TOP}/{number}");
            many.append_data(&mut header, path, io::empty()).unwrap();
        }
        let error = unpack(many.into_inner().unwrap(), &to, LIMIT).unwrap_err();
        assert_eq!(error.to_string(), message);
    }

    #[test]
    fn folders_that_an_archive_implies_count() {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("to");
        // A path of the header alone, and one for which a long name comes first.
        for folders in [20, 60] {
            let mut archive = Builder::new(spool().unwrap());
            let mut header = tar::Header::new_gnu();
            header.set_size(0);
            let path = format!("{TOP}/{}f", "a/".repeat(folders));
            archive.append_data(&mut header, path, io::empty()).unwrap();
            let archive = archive.into_inner().unwrap();
            let again = archive.try_clone().unwrap();
            let error = unpack(archive, &to, LIMIT).unwrap_err();
            assert_eq!(error.to_string(), "more than 64K: raise --limit");
            unpack(
                again,
                &folder.path().join(folders.to_string()),
                Size(4 << 20),
            )
            .unwrap();
        }
    }

    #[test]
    fn folder_of_several_entries_counts_once() {
        // A path of the header alone, and one for which a long name comes first.
        for (folders, entries) in [(20, 1), (60, 2)] {
            let mut archive = Builder::new(spool().unwrap());
            for number in 0..10 {
                let mut header = tar::Header::new_gnu();
                header.set_size(0);
                let path = format!("{TOP}/{}{number}", "a/".repeat(folders));
                archive.append_data(&mut header, path, io::empty()).unwrap();
            }
            let mut archive = archive.into_inner().unwrap();
            let counted = 1 + folders as u64 + 10 * entries;
            let long_names = if entries == 2 { 10 * 512 } else { 0 };
            check(&mut archive, Size(counted * ENTRY + long_names)).unwrap();
            check(&mut archive, Size(counted * ENTRY - 1)).unwrap_err();
        }
        assert_eq!(new_folders(b"x/a/b", b"x/a/c"), 0);
        assert_eq!(new_folders(b"x/a", b"x/b/a/c"), 2);
        assert_eq!(new_folders(b"", b"x/a/"), 1);
    }

    /// Folders of these modes, each in the former one.
    fn archive_of_folders(modes: &[u32]) -> File {
        let mut archive = Builder::new(spool().unwrap());
        let mut path = PathBuf::from(TOP);
        for mode in modes {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(EntryType::Directory);
            header.set_mode(*mode);
            header.set_size(0);
            archive
                .append_data(&mut header, &path, io::empty())
                .unwrap();
            path.push("inner");
        }
        archive.into_inner().unwrap()
    }

    #[test]
    fn folder_that_its_owner_may_not_write_is_copied_and_cleaned_up() {
        // Of this thread alone: as an ordinary user.
        let ordinary = rustix::thread::CapabilitySets {
            effective: rustix::thread::CapabilitySet::empty(),
            ..rustix::thread::capabilities(None).unwrap()
        };
        rustix::thread::set_capabilities(None, ordinary).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let entries = || fs::read_dir(folder.path()).unwrap().count();
        for (number, mode) in (1..).zip([0o555, 0]) {
            let to = folder.path().join(number.to_string());
            unpack(archive_of_folders(&[mode]), &to, LIMIT).unwrap();
            let copied = fs::metadata(&to).unwrap().permissions().mode();
            assert_eq!(copied & 0o7777, mode);
            assert_eq!(entries(), number);
        }
        // A folder does not replace a file.
        let file = folder.path().join("file");
        fs::write(&file, "kept").unwrap();
        unpack(archive_of_folders(&[0o555, 0, 0o555]), &file, LIMIT).unwrap_err();
        assert_eq!(entries(), 3);
    }

    #[test]
    fn scripts_tell_what_is_not_there_or_in_the_way() {
        let folder = tempfile::tempdir().unwrap();
        let status = |script: &str, words: &[&str]| {
            let mut command = std::process::Command::new("sh");
            command.args(["-c", script, "cp"]).args(words);
            command.current_dir(folder.path());
            command.stdin(std::process::Stdio::null());
            command.output().unwrap().status.code().unwrap()
        };
        assert_eq!(status(PACK, &["none"]), NOT_THERE);
        assert_eq!(status(UNPACK, &["no/such", "x"]), NOT_THERE);
        fs::create_dir_all(folder.path().join("there/full/x")).unwrap();
        assert_eq!(status(UNPACK, &["there", "full"]), NOT_EMPTY);
        assert_eq!(
            fs::read_dir(folder.path().join("there")).unwrap().count(),
            1
        );
    }

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
            unpack(archive, &to, LIMIT).unwrap();
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
        assert!(unpack(archive, &inner.join("to"), LIMIT).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(fs::read_dir(&inner).unwrap().count(), 0);
    }

    #[test]
    fn link_in_place_of_a_copy_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut archive = Builder::new(spool().unwrap());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        archive.append_link(&mut header, TOP, "/etc").unwrap();
        let mut archive = archive.into_inner().unwrap();
        archive.rewind().unwrap();
        let to = folder.path().join("to");
        let error = unpack(archive, &to, LIMIT).unwrap_err().to_string();
        assert!(error.contains("a link in place of the copy"), "{error}");
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
        unpack(archive, &to, Size(1 << 20)).unwrap();
        for (number, target) in (0..).zip(targets) {
            let link = fs::read_link(to.join(format!("a/{number}"))).unwrap();
            assert_eq!(link, Path::new(target));
        }
        assert_eq!(fs::read_to_string(to.join("second")).unwrap(), "text");
    }

    #[test]
    fn endless_errors_take_little_memory() {
        let mut output = BoundedOutput::default();
        for _ in 0..3 {
            output.write_all(&[b'x'; 3000]).unwrap();
        }
        assert_eq!(output.0.len(), MOST_OUTPUT);
    }
}
