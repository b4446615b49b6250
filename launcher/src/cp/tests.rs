use std::ffi::OsStr;
use std::fs;
use std::io::Seek;
use std::process::{Command, Stdio};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;

const LIMIT: Size = Size(1 << 20);

/// Returns the output of a script of the guest, and its status, in the folder `at`.
fn run(script: &str, words: &[&str], at: &Path) -> (Vec<u8>, i32) {
    let mut command = Command::new("sh");
    command.args(["-c", script, "cp"]).args(words);
    command.current_dir(at).stdin(Stdio::null());
    let output = command.output().unwrap();
    (output.stdout, output.status.code().unwrap())
}

/// Packs `from` as the guest does, and unpacks it as `to`.
fn pack_and_unpack(from: &Path, to: &Path) {
    let folder = parent_of(to);
    let beside = folder.join("beside");
    let words = [from, &beside].map(|path| path.to_str().unwrap());
    let (output, status) = run(PACK, &words, &folder);
    assert_eq!(status, 0, "{}", from.display());
    let mut output = output.as_slice();
    let (needed, _) = sizes(&mut output).unwrap();
    let budget = unpack::Budget::new(LIMIT, &folder, needed).unwrap();
    let copy = unpack::unpack(output, "/from", &folder, budget).unwrap();
    copy.rename_to(to).unwrap();
}

fn parent_of(path: &Path) -> PathBuf {
    unpack::parent_of(path)
}

#[test]
fn scripts_tell_what_is_not_there_or_in_the_way() {
    let folder = tempfile::tempdir().unwrap();
    let status = |script: &str, words: &[&str]| run(script, words, folder.path()).1;
    assert_eq!(status(PACK, &["none", "beside"]), NOT_THERE);
    assert_eq!(
        status(UNPACK, &["./no/such", "x", "1", "beside"]),
        NOT_THERE
    );
    fs::create_dir_all(folder.path().join("there/full/x")).unwrap();
    assert_eq!(
        status(UNPACK, &["./there", "full", "1", "beside"]),
        NOT_EMPTY
    );
    let much = (1_u64 << 60).to_string();
    let (free, status) = run(UNPACK, &["./new", "x", &much, "beside"], folder.path());
    assert_eq!(status, NO_SPACE);
    let free = String::from_utf8(free).unwrap();
    assert!(free.trim_end().parse::<u64>().unwrap() > 0, "{free}");
    let there = fs::read_dir(folder.path().join("there")).unwrap();
    assert_eq!(there.count(), 1);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn guest_path_is_whole_and_has_a_prefix() {
    assert_eq!(of_guest(Path::new("guest:/a/b")).unwrap(), Some("/a/b"));
    assert_eq!(of_guest(Path::new("./guest:/a")).unwrap(), None);
    let error = of_guest(Path::new("guest:a")).unwrap_err().to_string();
    let expected = "guest:a is not an absolute path: write guest:/a";
    assert_eq!(error, expected);
    let error = of_guest(Path::new(OsStr::from_bytes(b"guest:/a\xff")));
    let error = error.unwrap_err().to_string();
    assert!(
        error.starts_with("guest:/a\u{fffd} is not UTF-8: "),
        "{error}"
    );
}

#[test]
fn sizes_come_in_one_short_line() {
    let mut output = &b"12 345\nrest"[..];
    assert_eq!(sizes(&mut output).unwrap(), (12, 345));
    assert_eq!(output, b"rest");
    for output in [&b""[..], b"12", b"12 x\n", b"-1 1\n", &[b'1'; 100]] {
        sizes(&mut &*output).unwrap_err();
    }
}

#[test]
fn script_replaces_no_link_device_or_fifo() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("folder")).unwrap();
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, at("fifo"), FileType::Fifo, mode, 0).unwrap();
    mknodat(CWD, at("folder/fifo"), FileType::Fifo, mode, 0).unwrap();
    fs::write(at("file"), "kept").unwrap();
    for (target, link) in [("file", "to-file"), ("none", "broken"), ("folder", "in")] {
        std::os::unix::fs::symlink(target, at(link)).unwrap();
    }
    for (to, name, replaced) in [
        ("./fifo", "x", "./fifo\n"),
        ("./folder", "fifo", "./folder/fifo\n"),
        ("./in", "fifo", "./in/fifo\n"),
        ("./to-file", "x", "./to-file\n"),
        ("./broken", "x", "./broken\n"),
    ] {
        let (output, status) = run(UNPACK, &[to, name, "1", "beside"], folder.path());
        assert_eq!(status, NOT_FILE, "{to}");
        assert_eq!(String::from_utf8(output).unwrap(), replaced);
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 6);
}

#[test]
fn script_replaces_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("from"), "new").unwrap();
    fs::write(at("to"), "old").unwrap();
    fs::create_dir(at("folder")).unwrap();
    std::os::unix::fs::symlink("folder", at("link")).unwrap();
    for (to, written) in [("./to", "to"), ("./link", "folder/from")] {
        let source = pack::Source::new(&at("from")).unwrap();
        let mut archive = tempfile::tempfile().unwrap();
        let mut packing = source.pack(Progress::of("x", Unit::Bytes));
        io::copy(&mut packing, &mut archive).unwrap();
        archive.rewind().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", UNPACK, "cp", to, "from", "1", "beside"]);
        let status = command.current_dir(folder.path()).stdin(archive).status();
        assert!(status.unwrap().success(), "{to}");
        fs::remove_dir_all(parent_of(&at(written)).join("beside")).unwrap();
        assert_eq!(fs::read_to_string(at(written)).unwrap(), "new");
    }
}

#[test]
fn device_of_the_host_is_not_copied() {
    let refused = pack::Source::new(Path::new("/dev/zero")).err();
    let reason = refused.map(|error| error.to_string()).unwrap_or_default();
    assert!(
        reason.starts_with("/dev/zero is neither a file nor a folder"),
        "{reason}"
    );
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
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("to");
        pack_and_unpack(Path::new(path), &to);
        assert_eq!(fs::read(&to).unwrap(), expected, "{path}");
    }
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
    let to = folder.path().join("to");
    pack_and_unpack(&from, &to);
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
