use std::io;
use std::time::Instant;

use rustix::fs::FileType;
use tar::{Builder, Header};

use super::*;

const LIMIT: Size = Size(64 << 10);

/// Unpacks an archive in `folder`, under the name `to`.
fn unpack_to(archive: &[u8], to: &Path, limit: Size) -> Result<(), String> {
    let parent = parent_of(to);
    let copied = Budget::new(limit, &parent, 0)
        .and_then(|budget| unpack(archive, "/guest", &parent, budget))
        .and_then(|copy| copy.rename_to(to));
    copied.map_err(|error| format!("{error:#}"))
}

fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_mtime(1_000_000_000);
    header.set_size(size);
    header
}

/// Returns an archive with an entry of this type, which the builder would not make.
fn archive(kind: EntryType, mode: u32, size: u64) -> Vec<u8> {
    let mut archive = Builder::new(Vec::new());
    let content = vec![7; usize::try_from(size).unwrap()];
    let mut header = header(kind, mode, size);
    archive
        .append_data(&mut header, TOP, content.as_slice())
        .unwrap();
    archive.into_inner().unwrap()
}

/// Returns an archive of empty entries with exactly these paths. The builder would reject some that
/// a hostile guest can send.
fn archive_of(kind: EntryType, paths: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut archive = Builder::new(Vec::new());
    for path in paths {
        let mut header = header(kind, 0o755, 0);
        match header.as_old_mut().name.get_mut(..path.len()) {
            Some(name) => name.copy_from_slice(&path),
            None => {
                let length = u64::try_from(path.len()).unwrap();
                let mut long = self::header(EntryType::GNULongName, 0o644, length);
                long.set_cksum();
                archive.append(&long, path.as_slice()).unwrap();
            }
        }
        header.set_cksum();
        archive.append(&header, io::empty()).unwrap();
    }
    archive.into_inner().unwrap()
}

fn entries_of(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

#[test]
fn file_of_a_guest_keeps_no_special_mode() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("to");
    unpack_to(&archive(EntryType::Regular, 0o7755, 5), &to, LIMIT).unwrap();
    let metadata = fs::metadata(&to).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o7777, 0o755);
    let modified = metadata.modified().unwrap();
    let since = modified.duration_since(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(since.as_secs(), 1_000_000_000);
    assert_eq!(fs::read(&to).unwrap(), [7; 5]);
    assert_eq!(entries_of(folder.path()), 1);
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
        let error = unpack_to(&archive(kind, 0o644, 0), &to, LIMIT).unwrap_err();
        assert!(
            error.starts_with("/guest: it is not a file, folder or link"),
            "{error}"
        );
    }
    let long = archive(EntryType::GNULongName, 0o644, LONGEST_PATH + 1);
    let error = unpack_to(&long, &to, Size(1 << 30)).unwrap_err();
    assert!(error.starts_with("a path of 4097 bytes"), "{error}");
    assert_eq!(entries_of(folder.path()), 0);
}

#[test]
fn error_names_the_path_in_the_guest() {
    for (path, shown) in [
        ("x", "/tmp/d"),
        ("x/a/b", "/tmp/d/a/b"),
        ("xa/b", "xa/b"),
        ("../x", "../x"),
    ] {
        for from in ["/tmp/d", "/tmp/d/"] {
            assert_eq!(path_in_guest(from, path.as_bytes()), shown.as_bytes());
        }
    }
}

#[test]
fn archive_beyond_the_limit_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("to");
    let sized = |size| archive(EntryType::Regular, 0o644, size);
    unpack_to(&sized(LIMIT.0 - ENTRY), &to, LIMIT).unwrap();
    let error = unpack_to(&sized(LIMIT.0 - ENTRY + 1), &to, LIMIT).unwrap_err();
    let message = "more than 64K: raise --limit";
    assert_eq!(error, message);
    let many = (0..17).map(|number| format!("{TOP}/{number}").into_bytes());
    let error = unpack_to(&archive_of(EntryType::Regular, many), &to, LIMIT).unwrap_err();
    assert!(error.ends_with(message), "{error}");
}

#[test]
fn copy_that_does_not_fit_is_refused_first() {
    let folder = tempfile::tempdir().unwrap();
    let limit = Size(1 << 60);
    let error = Budget::new(limit, folder.path(), 3 << 50).err().unwrap();
    let error = error.to_string();
    assert!(error.starts_with("it needs 3072 TiB, and "), "{error}");
    assert!(error.ends_with(" free"), "{error}");
    // A guest that lies does not fill the disk either.
    let mut budget = Budget::new(limit, folder.path(), 0).unwrap();
    let error = budget.spend(3 << 50).unwrap_err().to_string();
    assert!(error.contains("that are free in"), "{error}");
    let error = Budget::new(LIMIT, folder.path(), LIMIT.0 + 1).err();
    assert_eq!(error.unwrap().to_string(), "more than 64K: raise --limit");
}

#[test]
fn size_that_an_archive_does_not_have_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("to");
    let mut huge = header(EntryType::Regular, 0o644, 1 << 40);
    huge.as_old_mut().name[..1].copy_from_slice(b"x");
    huge.set_cksum();
    let error = unpack_to(huge.as_bytes(), &to, LIMIT).unwrap_err();
    assert_eq!(error, "more than 64K: raise --limit");
    let whole = archive(EntryType::Regular, 0o644, 5000);
    unpack_to(&whole[..3000], &to, LIMIT).unwrap_err();
    assert_eq!(entries_of(folder.path()), 0);
}

#[test]
fn folders_that_an_archive_implies_count() {
    let folder = tempfile::tempdir().unwrap();
    // A path of the header alone, and one for which a long name comes first.
    for folders in [20, 60] {
        let path = format!("{TOP}/{}f", "a/".repeat(folders)).into_bytes();
        let archive = archive_of(EntryType::Regular, [path]);
        let to = folder.path().join(folders.to_string());
        let error = unpack_to(&archive, &to, LIMIT).unwrap_err();
        assert!(error.ends_with("more than 64K: raise --limit"), "{error}");
        unpack_to(&archive, &to, Size(4 << 20)).unwrap();
    }
}

#[test]
fn folder_of_several_entries_counts_once() {
    let folder = tempfile::tempdir().unwrap();
    // A path of the header alone, and one for which a long name comes first.
    for (folders, entries) in [(20, 1), (60, 2)] {
        let path = |number| format!("{TOP}/{}{number}", "a/".repeat(folders)).into_bytes();
        let long: u64 = match entries {
            2 => (0..10).map(|number| path(number).len() as u64).sum(),
            _ => 0,
        };
        let archive = archive_of(EntryType::Regular, (0..10).map(path));
        let counted = (1 + folders as u64 + 10 * entries) * ENTRY + long;
        let to = |name: &str| folder.path().join(format!("{folders}{name}"));
        unpack_to(&archive, &to("enough"), Size(counted)).unwrap();
        unpack_to(&archive, &to("less"), Size(counted - 1)).unwrap_err();
    }
}

#[test]
fn hostile_tree_takes_no_time() {
    let folder = tempfile::tempdir().unwrap();
    let to = |name: &str| folder.path().join(name);
    let limit = Size(1 << 30);
    let begun = Instant::now();
    let deep =
        |count| (1..=count).map(|depth| [TOP, &"/a".repeat(depth - 1)].concat().into_bytes());
    let error = unpack_to(
        &archive_of(EntryType::Directory, deep(1500)),
        &to("deep"),
        limit,
    );
    let error = error.unwrap_err();
    assert!(
        error.ends_with("more than 128 folders deep"),
        "{:?}",
        error.len()
    );
    let most = archive_of(EntryType::Directory, deep(DEEPEST));
    unpack_to(&most, &to("most"), limit).unwrap();
    // Each path has the greatest depth, and none shares a folder with the former one.
    let far = |number| format!("{TOP}/{number}{}", "/a".repeat(DEEPEST - 2)).into_bytes();
    let far = archive_of(EntryType::Directory, (0..5).map(far));
    unpack_to(&far, &to("far"), limit).unwrap();
    let beside = (0..1500).map(|number| format!("{TOP}/{number}").into_bytes());
    unpack_to(
        &archive_of(EntryType::Directory, beside),
        &to("beside"),
        limit,
    )
    .unwrap();
    assert_eq!(entries_of(&to("beside")), 1500);
    assert_eq!(entries_of(folder.path()), 3);
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
}

#[test]
fn names_may_have_any_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let names = [&b"x/\x1b[2J\xff\xfe"[..], b"x/a b\n", b"x/-rf", b"x/\\"];
    let archive = archive_of(EntryType::Regular, names.map(<[u8]>::to_vec));
    let to = folder.path().join("to");
    unpack_to(&archive, &to, Size(1 << 20)).unwrap();
    assert_eq!(entries_of(&to), names.len());
    // The error message for one has no escape sequences.
    let twice = archive_of(EntryType::Regular, [names[0].to_vec(), names[0].to_vec()]);
    let error = unpack_to(&twice, &folder.path().join("twice"), LIMIT).unwrap_err();
    assert!(!error.contains('\x1b'), "{error:?}");
}

/// Returns an archive of folders of these modes, each in the former one.
fn archive_of_folders(modes: &[u32]) -> Vec<u8> {
    let mut archive = Builder::new(Vec::new());
    let mut path = PathBuf::from(TOP);
    for mode in modes {
        let mut header = header(EntryType::Directory, *mode, 0);
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
    for (number, mode) in (1..).zip([0o555, 0]) {
        let to = folder.path().join(number.to_string());
        unpack_to(&archive_of_folders(&[mode]), &to, LIMIT).unwrap();
        let copied = fs::metadata(&to).unwrap().permissions().mode();
        assert_eq!(copied & 0o7777, mode);
        assert_eq!(entries_of(folder.path()), number);
    }
    // A folder does not replace a file.
    let file = folder.path().join("file");
    fs::write(&file, "kept").unwrap();
    unpack_to(&archive_of_folders(&[0o555, 0, 0o555]), &file, LIMIT).unwrap_err();
    assert_eq!(entries_of(folder.path()), 3);
}

/// Returns an archive with a link to `target`, and then a file below it.
fn archive_with_link(kind: EntryType, target: &str, then: &[u8]) -> Vec<u8> {
    let mut archive = Builder::new(Vec::new());
    let mut link = header(kind, 0o777, 0);
    archive.append_link(&mut link, "x/link", target).unwrap();
    let mut file = header(EntryType::Regular, 0o644, 4);
    file.as_old_mut().name[..then.len()].copy_from_slice(then);
    file.set_cksum();
    archive.append(&file, &b"evil"[..]).unwrap();
    archive.into_inner().unwrap()
}

#[test]
fn archive_of_a_hostile_guest_stays_in_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("inner");
    fs::create_dir(&inner).unwrap();
    fs::write(folder.path().join("secret"), "secret").unwrap();
    let outside = folder.path().to_str().unwrap();
    let secret = format!("{outside}/secret");
    for archive in [
        archive_of(EntryType::Regular, [b"../escape".to_vec()]),
        archive_of(EntryType::Regular, [b"x/../../escape".to_vec()]),
        archive_of(EntryType::Regular, [b"y".to_vec()]),
        archive_of(EntryType::Directory, [b"/".to_vec()]),
        archive_with_link(EntryType::Symlink, outside, b"x/link/escape"),
        archive_with_link(EntryType::Symlink, &secret, b"x/link"),
        archive_with_link(EntryType::Symlink, ".", b"x/link/escape"),
        archive_with_link(EntryType::Link, &secret, b"x/other"),
        archive_with_link(EntryType::Link, "x/../../secret", b"x/other"),
        archive_with_link(EntryType::Link, "x/none", b"x/other"),
    ] {
        unpack_to(&archive, &inner.join("to"), LIMIT).unwrap_err();
        assert_eq!(entries_of(folder.path()), 2);
        assert_eq!(entries_of(&inner), 0);
    }
    let secret = fs::read_to_string(secret).unwrap();
    assert_eq!(secret, "secret");
}

#[test]
fn copy_replaces_a_file_but_no_link_or_fifo() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let file = archive(EntryType::Regular, 0o644, 5);
    fs::write(at("file"), "old").unwrap();
    unpack_to(&file, &at("file"), LIMIT).unwrap();
    assert_eq!(fs::read(at("file")).unwrap(), [7; 5]);
    std::os::unix::fs::symlink("file", at("link")).unwrap();
    std::os::unix::fs::symlink("none", at("broken")).unwrap();
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), FileType::Fifo, mode, 0).unwrap();
    for name in ["link", "broken", "fifo"] {
        let before = fs::symlink_metadata(at(name)).unwrap().file_type();
        for archive in [&file, &archive_of_folders(&[0o755])] {
            let error = unpack_to(archive, &at(name), LIMIT).unwrap_err();
            assert_eq!(error, format!("{} {SPECIAL}", at(name).display()));
        }
        let after = fs::symlink_metadata(at(name)).unwrap().file_type();
        assert_eq!(before, after);
    }
    assert_eq!(entries_of(folder.path()), 4);
}

#[test]
fn link_in_place_of_a_copy_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut archive = Builder::new(Vec::new());
    let mut header = header(EntryType::Symlink, 0o777, 0);
    archive.append_link(&mut header, TOP, "/etc").unwrap();
    let archive = archive.into_inner().unwrap();
    let to = folder.path().join("to");
    let error = unpack_to(&archive, &to, LIMIT).unwrap_err();
    assert!(error.contains("a link instead of the copy"), "{error}");
    let nothing = Builder::new(Vec::new()).into_inner().unwrap();
    let error = unpack_to(&nothing, &to, LIMIT).unwrap_err();
    assert!(error.starts_with("the guest has sent nothing"), "{error}");
    assert_eq!(entries_of(folder.path()), 0);
}
