//! Files, by Landlock (Linux Documentation/userspace-api/landlock.rst).

use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};

use crate::{SandboxError, folder};

/// The newest version of Landlock whose restrictions are requested; an older kernel applies those
/// that it knows.
const NEWEST: ABI = ABI::V6;

/// The folder of devices, which also has POSIX shared memory and huge pages.
const DEVICES: &str = "/dev";

/// A file that a server needs after its start.
#[derive(Clone, Copy, Debug)]
pub enum FileAccess<'a> {
    /// The server reads and writes this file or block device. A missing file is left out: opening
    /// it fails as it would without confinement.
    Image(&'a Path),
    /// The server maps this file, and lends it. A descriptor that is lent cannot truncate the file,
    /// which would take pages away from all processes that map it. But it can collapse a range or
    /// punch a hole (fallocate(2)), for which Landlock has no right.
    Memory(&'a Path),
    /// The server makes and removes its socket at this path.
    Socket(&'a Path),
}

impl FileAccess<'_> {
    /// Returns the path of a rule, and the access that the rule permits.
    fn rule(&self) -> (&Path, BitFlags<AccessFs>) {
        match self {
            Self::Image(path) => (
                path,
                AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev,
            ),
            Self::Memory(path) => (path, AccessFs::ReadFile | AccessFs::WriteFile),
            // The folder is opened to lock it while a stale socket is replaced.
            Self::Socket(path) => (
                folder(path),
                AccessFs::ReadDir | AccessFs::MakeSock | AccessFs::RemoveFile,
            ),
        }
    }
}

/// Permits `access` to this thread and to all threads that it starts, and no other file, TCP
/// connection, abstract socket or signal.
pub(crate) fn restrict(access: &[FileAccess<'_>]) -> Result<(), SandboxError> {
    let mut rules = ruleset()?;
    for (path, permitted) in access.iter().map(FileAccess::rule) {
        if path.exists() {
            rules = rules.add_rule(PathBeneath::new(PathFd::new(path)?, permitted))?;
        }
    }
    if rules.restrict_self()?.ruleset == RulesetStatus::NotEnforced {
        log::warn!(
            "this kernel has no Landlock: the server's files are not restricted until it serves"
        );
    }
    Ok(())
}

/// Permits reading everywhere and writing below `writable` and [`DEVICES`], and no TCP connection,
/// abstract socket or signal.
pub(crate) fn restrict_to(writable: &[impl AsRef<Path>]) -> Result<(), SandboxError> {
    let mut rules = ruleset()?.add_rule(PathBeneath::new(
        PathFd::new("/")?,
        AccessFs::from_read(NEWEST),
    ))?;
    let devices = [Path::new(DEVICES)].into_iter();
    for path in writable.iter().map(AsRef::as_ref).chain(devices) {
        // A file has no rights of folders.
        let access = match path.is_dir() {
            true => AccessFs::from_all(NEWEST),
            false => AccessFs::from_file(NEWEST),
        };
        rules = rules.add_rule(PathBeneath::new(PathFd::new(path)?, access))?;
    }
    rules.restrict_self()?;
    Ok(())
}

/// Returns rules that permit nothing yet.
fn ruleset() -> Result<RulesetCreated, SandboxError> {
    let rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?;
    Ok(rules.create()?)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::ErrorKind;
    use std::thread;

    use super::*;

    #[test]
    fn program_of_another_project_writes_only_in_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("own");
        fs::create_dir(&own).unwrap();
        let other = folder.path().join("other");
        fs::write(&other, "readable").unwrap();
        thread::spawn(move || {
            restrict_to(&[&own]).unwrap();
            fs::write(own.join("new"), "").unwrap();
            assert_eq!(fs::read_to_string(&other).unwrap(), "readable");
            let written = fs::write(&other, "").unwrap_err();
            assert_eq!(written.kind(), ErrorKind::PermissionDenied);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn restricted_thread_opens_its_image_only() {
        let folder = tempfile::tempdir().unwrap();
        let [image, other] = ["image", "other"].map(|name| folder.path().join(name));
        fs::write(&image, "data").unwrap();
        fs::write(&other, "secret").unwrap();
        let socket = folder.path().join("socket");
        thread::spawn(move || {
            restrict(&[FileAccess::Image(&image), FileAccess::Socket(&socket)]).unwrap();
            let open = |path| File::options().read(true).write(true).open(path);
            open(&image).unwrap();
            assert_eq!(
                open(&other).unwrap_err().kind(),
                ErrorKind::PermissionDenied
            );
            let made = fs::write(other.with_extension("new"), "");
            assert_eq!(made.unwrap_err().kind(), ErrorKind::PermissionDenied);
            let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
            fs::remove_file(&socket).unwrap();
        })
        .join()
        .unwrap();
    }
}
