//! Probes of the host's resources. Each is a function of its observations, so that tests can try
//! any machine.

use std::path::Path;

use peerbar_lab::size::human;
use peerbar_lab::temporary_folder::TemporaryFolderError;

use super::finding::Finding;

/// The lowest soft limit of open files with which a run of many devices works: QEMU has an event
/// descriptor for each interrupt vector of each device, and a server has one for each memory file
/// of the guest.
const FILES: u64 = 1024;

/// Checks that the guest and the memory of the devices fit into the free memory.
pub(super) fn memory(meminfo: &str, needed: u64) -> Finding {
    const PROBE: &str = "memory";
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    let Some(free) = kib.map(|kib| kib.saturating_mul(1024)) else {
        return Finding::limited(
            PROBE,
            "/proc/meminfo has no MemAvailable",
            "see with `free` whether the scenario fits",
        );
    };
    let found = format!("{} free, the scenario needs {}", human(free), human(needed));
    if free < needed {
        let mend = "end other programs, or set smaller sizes in the scenario (`memory`, `ram`, `cmb`, `vram`)";
        return Finding::failed(PROBE, found, mend);
    }
    Finding::ok(PROBE, found)
}

/// Checks that a folder's file system has enough space.
pub(super) fn disk(probe: &'static str, folder: &Path, free: Option<u64>, needed: u64) -> Finding {
    let folder = folder.display();
    let Some(free) = free else {
        let mend = "make it, or name another folder";
        return Finding::failed(probe, format!("{folder} cannot be read"), mend);
    };
    let found = format!("{} free in {folder}, {} needed", human(free), human(needed));
    if free < needed {
        let mend = "`peerbar cache prune` frees some";
        return Finding::failed(probe, found, mend);
    }
    Finding::ok(probe, found)
}

/// The machine's properties that affect memory files.
pub(super) struct MemoryFiles<'a> {
    /// `Ok` if a file of the guest's size was made, sized and sealed, else the system's error.
    pub(super) made: Result<(), String>,
    /// The sysctl `vm.memfd_noexec`, if there is one.
    pub(super) noexec: Option<&'a str>,
    /// The soft limit of the size of files, if there is one (getrlimit(2), RLIMIT_FSIZE).
    pub(super) largest: Option<u64>,
}

/// Checks that guest RAM and the devices' memory can be files in memory (memfd_create(2)).
pub(super) fn memory_files(files: &MemoryFiles<'_>, largest: u64) -> Finding {
    const PROBE: &str = "memfd";
    if files.noexec.is_some_and(|value| value.trim() == "2") {
        let found = "vm.memfd_noexec is 2, so QEMU cannot make guest RAM";
        return Finding::failed(PROBE, found, "sysctl vm.memfd_noexec=1");
    }
    if let Some(limit) = files.largest.filter(|limit| *limit < largest) {
        let found = format!(
            "files may have {}, guest RAM has {}",
            human(limit),
            human(largest)
        );
        return Finding::failed(PROBE, found, "ulimit -f unlimited");
    }
    match &files.made {
        Ok(()) => Finding::ok(
            PROBE,
            format!("a sealed file of {} can be made", human(largest)),
        ),
        Err(error) => Finding::failed(
            PROBE,
            format!("no sealed file of {} can be made ({error})", human(largest)),
            "allow memfd_create and its seals in the container or sandbox that this runs in",
        ),
    }
}

/// Checks that enough files may be open at once. `None` means no limit.
pub(super) fn open_files(soft: Option<u64>, hard: Option<u64>) -> Finding {
    const PROBE: &str = "open files";
    let Some(limit) = soft.filter(|limit| *limit < FILES) else {
        let limit = soft.map_or("no limit".to_owned(), |limit| format!("{limit} at once"));
        return Finding::ok(PROBE, limit);
    };
    let found = format!("only {limit} at once, {FILES} are needed");
    let mend = match hard {
        Some(hard) if hard < FILES => {
            "raise `nofile` in /etc/security/limits.conf and log in again".to_owned()
        }
        _ => format!("ulimit -n {FILES}"),
    };
    Finding::failed(PROBE, found, mend)
}

/// Checks that the paths of the sockets fit an address.
pub(super) fn socket_paths(folder: &Path, checked: Result<(), String>) -> Finding {
    const PROBE: &str = "socket paths";
    match checked {
        Ok(()) => Finding::ok(
            PROBE,
            format!("those in {} fit an address", folder.display()),
        ),
        Err(error) => {
            let found = error.split(';').next().unwrap_or_default().to_owned();
            Finding::failed(PROBE, found, "export TMPDIR=/tmp")
        }
    }
}

/// Returns the failure of the folder for temporary files.
pub(super) fn no_temporary_folder(error: TemporaryFolderError) -> Finding {
    Finding::failed("TMPDIR", error.problem, error.way_out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::State;

    const GIB: u64 = 1 << 30;

    #[test]
    fn memory_is_compared_with_what_is_wanted() {
        let meminfo = "MemTotal:       8000000 kB\nMemAvailable:   2097152 kB\n";
        let enough = memory(meminfo, 2 * GIB);
        assert_eq!(
            (enough.state, enough.found.as_str()),
            (State::Ok, "2 GiB free, the scenario needs 2 GiB")
        );
        let short = memory(meminfo, 3 * GIB);
        assert_eq!(short.state, State::Failed);
        assert!(
            short
                .line(None)
                .ends_with("(`memory`, `ram`, `cmb`, `vram`)\n"),
            "{}",
            short.line(None)
        );
        assert_eq!(memory("", GIB).state, State::Limited);
    }

    #[test]
    fn disk_without_room_or_folder_fails() {
        let disk = |free| disk("cache", Path::new("/c"), free, GIB);
        assert_eq!(
            disk(Some(GIB)),
            Finding::ok("cache", "1 GiB free in /c, 1 GiB needed")
        );
        assert_eq!(disk(Some(GIB - 1)).state, State::Failed);
        assert_eq!(disk(None).found, "/c cannot be read");
    }

    #[test]
    fn each_limit_of_memory_files_has_its_mend() {
        let files = |made, noexec, largest| {
            let files = MemoryFiles {
                made,
                noexec,
                largest,
            };
            let finding = memory_files(&files, GIB);
            (finding.state, finding.mend.unwrap_or_default())
        };
        assert_eq!(files(Ok(()), Some("1\n"), None), (State::Ok, String::new()));
        assert_eq!(files(Ok(()), None, Some(GIB)), (State::Ok, String::new()));
        let noexec = (State::Failed, "sysctl vm.memfd_noexec=1".to_owned());
        assert_eq!(files(Ok(()), Some("2\n"), None), noexec);
        let size = (State::Failed, "ulimit -f unlimited".to_owned());
        assert_eq!(files(Ok(()), None, Some(GIB - 1)), size);
        let refused = files(Err("Operation not permitted".to_owned()), None, None);
        assert!(refused.1.starts_with("allow memfd_create"), "{refused:?}");
    }

    #[test]
    fn open_files_are_raised_where_that_is_allowed() {
        assert_eq!(open_files(Some(1024), Some(4096)).state, State::Ok);
        assert_eq!(open_files(None, None).found, "no limit");
        let raised = open_files(Some(256), Some(4096));
        assert_eq!(
            (raised.state, raised.mend.as_deref()),
            (State::Failed, Some("ulimit -n 1024"))
        );
        let bound = open_files(Some(256), Some(512));
        assert!(bound.mend.unwrap().contains("limits.conf"));
    }

    #[test]
    fn long_socket_path_says_how_to_shorten_it() {
        let error = "/x/y.sock is longer than the 107 bytes of a socket address; set TMPDIR to a shorter folder";
        let finding = socket_paths(Path::new("/x"), Err(error.to_owned()));
        let expected = "FAILED   socket paths   /x/y.sock is longer than the 107 bytes of a socket address: export TMPDIR=/tmp\n";
        assert_eq!(finding.line(None), expected);
        assert_eq!(socket_paths(Path::new("/x"), Ok(())).state, State::Ok);
    }

    #[test]
    fn missing_temporary_folder_has_its_way_out() {
        let finding = no_temporary_folder(TemporaryFolderError {
            problem: "TMPDIR is /x: no such folder".to_owned(),
            way_out: "unset it".to_owned(),
        });
        let expected = "FAILED   TMPDIR         TMPDIR is /x: no such folder: unset it\n";
        assert_eq!(finding.line(None), expected);
    }
}
