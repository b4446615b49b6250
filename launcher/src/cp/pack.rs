//! A file or a folder of the host as an archive for a guest.

use std::fs;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use anyhow::{Context, ensure};
use peerbar_images::Progress;
use peerbar_lab::terminal::printable;
use tar::Builder;

use super::{BLOCK, ENTRY, TOP};

/// Bytes that the thread that packs hands over at once: small ones cost the guest time.
const CHUNK: usize = 256 << 10;
/// Chunks that have been packed and not sent.
const AHEAD: usize = 4;
/// Longest path in the header of an entry. A longer one takes a separate entry.
const SHORT_PATH: usize = 100;

/// A file or a folder to pack.
pub(super) struct Source {
    path: PathBuf,
    /// Its name.
    pub(super) name: String,
    /// Bytes of disk that it takes once it is unpacked.
    pub(super) needed: u64,
    /// Bytes of its archive, unless it changes.
    archive: u64,
}

impl Source {
    /// Examines the file or folder at `from`.
    pub(super) fn new(from: &Path) -> anyhow::Result<Self> {
        let path = fs::canonicalize(from).with_context(|| cannot_read(from))?;
        ensure!(
            path.is_file() || path.is_dir(),
            "{} is neither a file nor a folder, and nothing else is copied into a guest",
            from.display()
        );
        let name = path.file_name();
        let name = name.with_context(|| format!("{} has no name for the guest", from.display()))?;
        let name = name.to_str().with_context(|| {
            let shown = printable(from.as_os_str().as_bytes());
            format!(
                "{shown} has a name that is not UTF-8: copy the folder that it is in, or rename it"
            )
        })?;
        let mut source = Self {
            name: name.to_owned(),
            needed: 0,
            archive: 2 * BLOCK,
            path: path.clone(),
        };
        source.measure(&path)?;
        Ok(source)
    }

    /// Adds the files and folders at `path`.
    fn measure(&mut self, path: &Path) -> anyhow::Result<()> {
        let mut paths = vec![path.to_owned()];
        while let Some(path) = paths.pop() {
            let metadata = fs::symlink_metadata(&path).with_context(|| cannot_read(&path))?;
            let size = if metadata.is_file() {
                metadata.len()
            } else {
                0
            };
            let name = match path.as_os_str().as_bytes().len() {
                0..=SHORT_PATH => 0,
                long => BLOCK.saturating_add(blocks(long as u64)),
            };
            self.needed = self.needed.saturating_add(size.saturating_add(ENTRY));
            let archive = blocks(size).saturating_add(BLOCK).saturating_add(name);
            self.archive = self.archive.saturating_add(archive);
            if metadata.is_dir() {
                let entries = fs::read_dir(&path).with_context(|| cannot_read(&path))?;
                for entry in entries {
                    paths.push(entry.with_context(|| cannot_read(&path))?.path());
                }
            }
        }
        Ok(())
    }

    /// Begins to pack, in a thread: nothing is kept on the host's disk.
    pub(super) fn pack(self, progress: Progress) -> Packing {
        progress.expect(self.archive);
        let (packed, chunks) = sync_channel(AHEAD);
        let packer = thread::spawn(move || append(&self.path, Chunks(packed)));
        Packing {
            chunks,
            chunk: io::Cursor::default(),
            packer: Some(packer),
            progress,
        }
    }
}

/// Chunks of an archive on their way to another thread.
struct Chunks(SyncSender<Vec<u8>>);

impl Write for Chunks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.send(bytes.to_vec());
        sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn append(path: &Path, to: Chunks) -> io::Result<()> {
    let mut archive = Builder::new(BufWriter::with_capacity(CHUNK, to));
    archive.follow_symlinks(false);
    match path.is_dir() {
        true => archive.append_dir_all(TOP, path)?,
        false => archive.append_path_with_name(path, TOP)?,
    }
    archive.into_inner()?.flush()
}

/// An archive that is being made. Its end is an error if not all could be read, so that no part of a folder looks like the whole.
pub(super) struct Packing {
    chunks: Receiver<Vec<u8>>,
    chunk: io::Cursor<Vec<u8>>,
    packer: Option<JoinHandle<io::Result<()>>>,
    progress: Progress,
}

impl Read for Packing {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        loop {
            let count = self.chunk.read(space)?;
            self.progress.add(count as u64);
            if count > 0 || space.is_empty() {
                return Ok(count);
            }
            match (self.chunks.recv(), self.packer.take()) {
                (Ok(chunk), packer) => {
                    self.chunk = io::Cursor::new(chunk);
                    self.packer = packer;
                }
                (Err(_), None) => return Ok(0),
                (Err(_), Some(packer)) => {
                    let packed = packer.join();
                    packed.map_err(|_| io::Error::other("the thread that packs panicked"))??;
                }
            }
        }
    }
}

fn cannot_read(path: &Path) -> String {
    format!("cannot read {}", path.display())
}

/// Returns a size as an archive has it.
fn blocks(size: u64) -> u64 {
    size.div_ceil(BLOCK).saturating_mul(BLOCK)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use peerbar_images::Unit;

    use super::*;

    #[test]
    fn archive_has_the_bytes_that_were_measured() {
        let folder = tempfile::tempdir().unwrap();
        let from = folder.path().join("from");
        fs::create_dir_all(from.join("inner")).unwrap();
        fs::write(from.join("inner/large"), vec![7; 100_000]).unwrap();
        fs::write(from.join("small"), "text").unwrap();
        std::os::unix::fs::symlink("/none", from.join("link")).unwrap();
        let source = Source::new(&from).unwrap();
        assert_eq!(source.name, "from");
        assert_eq!(source.needed, 100_004 + 5 * ENTRY);
        let expected = source.archive;
        let mut archive = Vec::new();
        let mut packing = source.pack(Progress::of("x", Unit::Bytes));
        packing.read_to_end(&mut archive).unwrap();
        assert_eq!(archive.len() as u64, expected);
    }

    #[test]
    fn archive_of_what_is_gone_has_no_end() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "text").unwrap();
        let source = Source::new(&folder.path().join("file")).unwrap();
        drop(folder);
        let mut packing = source.pack(Progress::of("x", Unit::Bytes));
        packing.read_to_end(&mut Vec::new()).unwrap_err();
    }

    #[test]
    fn name_that_is_not_utf8_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let from = folder.path().join(OsStr::from_bytes(b"f\xff"));
        fs::write(&from, "text").unwrap();
        let error = Source::new(&from).err().unwrap().to_string();
        assert!(error.contains("/f\u{fffd} has a name that is not UTF-8: "));
        Source::new(folder.path()).unwrap();
    }
}
