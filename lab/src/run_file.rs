//! A file of a run's folder, for a later command that reads or adds it.
//!
//! With `--share-rw` the guest may have put anything in its place: a FIFO, whose open(2) waits, a
//! link to a file of the user, or a file of any length.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// The most bytes that are read of a file.
const MOST: u64 = 1 << 30;

/// Opens the file at `path`, without waiting and not through a link.
///
/// # Errors
/// Those of the system; [`ErrorKind::InvalidInput`] if it is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        let text = "it is not a regular file: a guest with --share-rw may have replaced it";
        Err(io::Error::new(ErrorKind::InvalidInput, text))
    }
}

/// Returns all bytes of the file at `path`.
///
/// # Errors
/// Those of [`open`]; [`ErrorKind::FileTooLarge`] beyond 1 GiB.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    if file.metadata()?.len() > MOST {
        return Err(ErrorKind::FileTooLarge.into());
    }
    let mut bytes = Vec::new();
    file.take(MOST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the text of the file at `path`.
///
/// # Errors
/// Those of [`read`]; [`ErrorKind::InvalidData`] if it is not UTF-8.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

/// Makes a new file at `path`, and replaces any present one. Nothing is written through a link.
///
/// # Errors
/// Those of the system.
pub fn replace(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => File::create_new(path),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, FileType, mknodat};

    use super::*;

    #[test]
    fn file_is_read_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("verdict");
        assert_eq!(read(&path).unwrap_err().kind(), ErrorKind::NotFound);
        fs::write(&path, "passed").unwrap();
        assert_eq!(read_to_string(&path).unwrap(), "passed");
    }

    #[test]
    fn what_a_guest_puts_in_its_place_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (fifo, link) = (folder.path().join("fifo"), folder.path().join("link"));
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).unwrap();
        let error = read(&fifo).unwrap_err();
        assert!(error.to_string().contains("--share-rw"), "{error}");
        let other = folder.path().join("other");
        fs::write(&other, "secret").unwrap();
        symlink(&other, &link).unwrap();
        assert!(read(&link).is_err());
        let mut fresh = replace(&link).unwrap();
        io::Write::write_all(&mut fresh, b"new").unwrap();
        assert_eq!(read(&other).unwrap(), b"secret");
        assert_eq!(read(&link).unwrap(), b"new");
        let large = File::create(folder.path().join("large")).unwrap();
        large.set_len(MOST + 1).unwrap();
        let error = read(&folder.path().join("large")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
    }
}
