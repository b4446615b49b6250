//! Processes that hold device memory: by an open file, or by a mapping, which outlives the file's descriptor.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The process that holds memory of a device, by the device's name. If there are several, any of
/// them.
pub(super) type Holders = BTreeMap<String, String>;

/// Returns the processes below `proc` that hold one of `files`, each given by the name of its
/// device and the end of its path, which is the same in each root. A process that ends during the
/// search holds nothing.
pub(super) fn holders(proc: &Path, files: &[(String, String)]) -> Holders {
    let mut holders = Holders::new();
    let processes = fs::read_dir(proc).into_iter().flatten().flatten();
    let is_process = |name: &str| name.bytes().all(|letter| letter.is_ascii_digit());
    let processes = processes.filter(|entry| entry.file_name().to_str().is_some_and(is_process));
    for process in processes.map(|entry| entry.path()) {
        let held = held(&process);
        let found = files
            .iter()
            .filter(|(_, end)| held.iter().any(|path| path.ends_with(end.as_str())));
        for (device, _) in found {
            let name = describe(&process);
            holders.entry(device.clone()).or_insert(name);
        }
    }
    holders
}

/// Returns the paths of the files that a process has open, and the lines of those that it has
/// mapped, which end with their paths (proc_pid_maps(5)).
fn held(process: &Path) -> Vec<String> {
    let open = fs::read_dir(process.join("fd")).into_iter().flatten();
    let open = open
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok());
    let open = open.map(|path: PathBuf| path.to_string_lossy().into_owned());
    let maps = fs::read(process.join("maps")).unwrap_or_default();
    let maps = String::from_utf8_lossy(&maps);
    let mapped = maps.lines().filter(|line| line.contains('/'));
    open.chain(mapped.map(str::to_owned)).collect()
}

/// Describes a process by its name and number.
fn describe(process: &Path) -> String {
    let number = process.file_name().unwrap_or_default().to_string_lossy();
    let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
    format!("`{}` (process {number})", name.trim_end())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn open_and_mapped_files_are_held_whatever_the_root() {
        let folder = tempfile::tempdir().unwrap();
        let process = |number: &str, name: &str, open: &[&str], maps: &str| {
            let process = folder.path().join(number);
            fs::create_dir_all(process.join("fd")).unwrap();
            for (number, path) in open.iter().enumerate() {
                symlink(path, process.join(format!("fd/{number}"))).unwrap();
            }
            fs::write(process.join("maps"), maps).unwrap();
            fs::write(process.join("comm"), format!("{name}\n")).unwrap();
        };
        let pool = "/devices/pci0000:00/0000:01:00.0/p2pmem/allocate";
        let mapping = format!("7f00-7f01 rw-s 00000000 00:15 9999 /tools/sys{pool}\n");
        process("1", "init", &["/dev/console"], "");
        process("12", "maps", &["socket:[5]"], &mapping);
        process(
            "13",
            "opens",
            &["pipe:[7]", "/tools/dev/peerbar-gpu1"],
            "55-56 r-xp 0 0:1 2 /bin/x\n",
        );
        process("self", "other", &["/dev/peerbar-gpu10"], "");
        let file = |device: &str, end: &str| (device.to_owned(), end.to_owned());
        let files = [
            file("disk0", pool),
            file("gpu0", "/dev/peerbar-gpu10"),
            file("gpu1", "/dev/peerbar-gpu1"),
        ];
        let expected = [
            ("disk0", "`maps` (process 12)"),
            ("gpu1", "`opens` (process 13)"),
        ];
        let expected = expected.map(|(device, process)| file(device, process));
        assert_eq!(holders(folder.path(), &files), Holders::from(expected));
    }
}
