//! Files, and transfers between them and GPU memory.

use std::fs::File;
use std::io;
use std::ops::RangeBounds;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::alignment::{Alignment, Split};
use crate::bounce::Bounce;
use crate::error::{FileTransfer, refuses_peer_memory};
use crate::traffic::Counters;
use crate::transfer::{Direction, FileRange, Transfer};
use crate::{Buffer, Error, Gpu, Policy, Result, Traffic};

/// The end of all offsets in files that the kernel accepts.
const LAST_OFFSET: u64 = i64::MAX as u64;

/// A file or block device, opened without the page cache by [`FileOptions`](crate::FileOptions).
/// Clones are the same file and count together. Several threads may use it at once; their bounces
/// take turns.
#[derive(Clone, Debug)]
pub struct GpuFile {
    shared: Arc<SharedFile>,
}

/// The state that the clones share.
#[derive(Debug)]
struct SharedFile {
    gpu: Gpu,
    file: File,
    path: PathBuf,
    alignment: Alignment,
    policy: Policy,
    counters: Counters,
    /// Made when the first byte has to bounce.
    bounce: Mutex<Option<Bounce>>,
}

impl GpuFile {
    pub(crate) fn new(
        gpu: &Gpu,
        file: File,
        path: PathBuf,
        policy: Policy,
        alignment: Alignment,
    ) -> Self {
        let shared = SharedFile {
            alignment,
            gpu: gpu.clone(),
            file,
            path,
            policy,
            counters: Counters::default(),
            bounce: Mutex::new(None),
        };
        GpuFile {
            shared: Arc::new(shared),
        }
    }

    /// Reads into all of `range` of `buffer`, from `offset` in the file on. Returns the number of
    /// bytes read, which is smaller only where the file ends. At the last block of a file more of
    /// the buffer's range may change than is returned.
    ///
    /// # Errors
    /// [`Error::Unaligned`] and [`Error::PeerToPeer`] if it cannot go peer to peer and must not
    /// bounce; [`Error::ForeignBuffer`] if the buffer does not belong to the opening of the GPU
    /// that the file was opened for; [`Error::Freed`]; [`Error::Withdrawn`];
    /// [`Error::OutOfBounds`]; [`Error::Transfer`]; those of [`Gpu::run`] for bounces.
    pub fn read_at(
        &self,
        buffer: &Buffer,
        range: impl RangeBounds<u64>,
        offset: u64,
    ) -> Result<u64> {
        let transfer = self.plan(Direction::Read, buffer, range, offset)?;
        self.carry_out(&transfer, buffer, None)
    }

    /// Writes all of `range` of `buffer` to `offset` in the file. The data is on the disk after
    /// [`GpuFile::sync`].
    ///
    /// If an end of it is not a whole block and may bounce, the block is read, changed and written
    /// back: nothing else may write to that block at the same time. Several writes may extend the
    /// file at once.
    ///
    /// # Errors
    /// As for [`GpuFile::read_at`]; [`Error::ShortWrite`] if the disk takes only a part.
    pub fn write_at(
        &self,
        buffer: &Buffer,
        range: impl RangeBounds<u64>,
        offset: u64,
    ) -> Result<()> {
        let transfer = self.plan(Direction::Write, buffer, range, offset)?;
        self.carry_out(&transfer, buffer, None).map(drop)
    }

    /// Waits until all written data is on the disk.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn sync(&self) -> Result<()> {
        self.shared.file.sync_data().map_err(|source| Error::File {
            what: "flush",
            path: self.shared.path.clone(),
            source,
        })
    }

    /// Returns the bytes that went peer to peer, and that bounced, since it was opened.
    pub fn traffic(&self) -> Traffic {
        self.shared.counters.traffic()
    }

    /// Returns its alignment for transfers that go peer to peer as a whole.
    pub fn alignment(&self) -> Alignment {
        self.shared.alignment
    }

    /// Returns the path by which it was opened.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Finds the route of each part, and refuses parts that the policy forbids.
    pub(crate) fn plan(
        &self,
        direction: Direction,
        buffer: &Buffer,
        range: impl RangeBounds<u64>,
        offset: u64,
    ) -> Result<Transfer> {
        let range = buffer.resolve(&self.shared.gpu.driver, range)?;
        let length = range.end.saturating_sub(range.start);
        let alignment = self.shared.alignment;
        let transfer = Transfer {
            direction,
            offset,
            split: match self.shared.policy {
                Policy::BounceOnly => Split::bounced_whole(length),
                Policy::PeerOnly | Policy::AllowBounce => {
                    alignment.split(offset, range.start, length)
                }
            },
            range,
        };
        let end = offset.checked_add(length).and_then(|end| alignment.up(end));
        if end.is_none_or(|end| end > LAST_OFFSET) {
            let source = io::Error::from_raw_os_error(libc::EFBIG);
            return Err(self.failed(&transfer.file_range(0, length), source));
        }
        self.permit(&transfer)?;
        Ok(transfer)
    }

    fn permit(&self, transfer: &Transfer) -> Result<()> {
        let bounced = transfer.split.bounced();
        if self.shared.policy == Policy::PeerOnly && bounced > 0 {
            return Err(Error::Unaligned {
                path: self.shared.path.clone(),
                offset: transfer.offset,
                length: transfer.length(),
                bounced,
                block: self.shared.alignment.block,
                memory: self.shared.alignment.memory,
            });
        }
        Ok(())
    }

    /// Executes the transfer. `first` is the outcome of a first attempt at the middle, if there was
    /// one.
    pub(crate) fn carry_out(
        &self,
        transfer: &Transfer,
        buffer: &Buffer,
        first: Option<io::Result<u64>>,
    ) -> Result<u64> {
        let Split { head, middle, tail } = transfer.split;
        let to_tail = head.saturating_add(middle);
        let mut done = self.bounce(&transfer.file_range(0, head), buffer)?;
        if done == head {
            let moved = self.peer_to_peer(&transfer.middle(), buffer, first)?;
            done = done.saturating_add(moved);
        }
        if done == to_tail {
            let moved = self.bounce(&transfer.file_range(to_tail, tail), buffer)?;
            done = done.saturating_add(moved);
        }
        if transfer.direction == Direction::Write && done < transfer.length() {
            let at = self.at(&transfer.file_range(0, transfer.length()));
            return Err(Error::ShortWrite { at, done });
        }
        Ok(done)
    }

    /// Moves a range of whole blocks peer to peer. Returns the number of bytes that it has.
    fn peer_to_peer(
        &self,
        file_range: &FileRange,
        buffer: &Buffer,
        first: Option<io::Result<u64>>,
    ) -> Result<u64> {
        let mut done: u64 = 0;
        let mut first = first;
        while done < file_range.length() {
            let rest = file_range.after(done);
            let attempt = first.take().unwrap_or_else(|| self.attempt(&rest, buffer));
            let count = match attempt {
                Ok(count) => count,
                Err(error) if refuses_peer_memory(&error) => {
                    return Ok(done.saturating_add(self.refused(&rest, buffer, error)?));
                }
                Err(error) => return Err(self.failed(&rest, error)),
            };
            self.shared.counters.peer(count);
            done = done.saturating_add(count);
            // An incomplete block is the last of the file.
            if count == 0 || self.shared.alignment.down(count) != count {
                break;
            }
        }
        Ok(done)
    }

    /// Calls the kernel once, which moves the bytes by the disk's own DMA.
    fn attempt(&self, file_range: &FileRange, buffer: &Buffer) -> io::Result<u64> {
        let (mapping, file) = (buffer.mapping(), &self.shared.file);
        match file_range.direction {
            Direction::Read => mapping.read_file(file_range.range.clone(), file, file_range.offset),
            Direction::Write => {
                mapping.write_file(file_range.range.clone(), file, file_range.offset)
            }
        }
    }

    fn refused(&self, file_range: &FileRange, buffer: &Buffer, source: io::Error) -> Result<u64> {
        if self.shared.policy == Policy::AllowBounce {
            return self.bounce(file_range, buffer);
        }
        let at = self.at(file_range);
        if source.raw_os_error() == Some(libc::EFAULT) && !self.shared.gpu.properties().window {
            return Err(Error::Withdrawn { at, source });
        }
        Err(Error::PeerToPeer { at, source })
    }

    /// Moves a range through host memory. Returns the number of bytes that it has.
    fn bounce(&self, file_range: &FileRange, buffer: &Buffer) -> Result<u64> {
        if file_range.length() == 0 {
            return Ok(0);
        }
        let shared = &self.shared;
        let mut slot = shared.bounce.lock();
        let bounce = match &mut *slot {
            Some(bounce) => bounce,
            empty => empty.insert(Bounce::new(&shared.gpu, shared.alignment)?),
        };
        let failed = |source| self.failed(file_range, source);
        match file_range.direction {
            Direction::Read => {
                bounce.read(&shared.file, file_range, buffer, &shared.counters, failed)
            }
            Direction::Write => {
                bounce.write(&shared.file, file_range, buffer, &shared.counters, failed)
            }
        }
    }

    fn failed(&self, file_range: &FileRange, source: io::Error) -> Error {
        let at = self.at(file_range);
        Error::Transfer { at, source }
    }

    fn at(&self, file_range: &FileRange) -> FileTransfer {
        FileTransfer {
            path: self.shared.path.clone(),
            direction: file_range.direction,
            offset: file_range.offset,
            length: file_range.length(),
        }
    }
}

impl AsFd for GpuFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use tempfile::NamedTempFile;

    use super::*;
    use crate::FileOptions;
    use crate::fake::{Fake, bytes_of, gpu_with, open_anywhere};

    const SIZE: usize = 40_000;

    fn pattern(seed: u32, length: usize) -> Vec<u8> {
        (0..length)
            .map(|index| u8::try_from((index * 31 + index / 251 + seed as usize) % 256).unwrap())
            .collect()
    }

    /// Returns a GPU, its one buffer, and an open file that holds `pattern(1)`.
    fn lab(policy: Policy) -> (Arc<Fake>, Gpu, Buffer, GpuFile, NamedTempFile) {
        let (fake, gpu) = gpu_with(1 << 20);
        let buffer = gpu.allocate(1 << 18).unwrap();
        let named = NamedTempFile::new().unwrap();
        named.as_file().write_all_at(&pattern(1, SIZE), 0).unwrap();
        named.as_file().sync_all().unwrap();
        let file = open_anywhere(&gpu, named.path(), policy);
        (fake, gpu, buffer, file, named)
    }

    #[test]
    fn aligned_read_is_peer_to_peer_and_ends_with_the_file() {
        let (_fake, _gpu, buffer, file, _named) = lab(Policy::PeerOnly);
        let read = file.read_at(&buffer, 4096.., 0).unwrap();
        assert_eq!(read, SIZE as u64);
        assert_eq!(bytes_of(&buffer, 4096, SIZE), pattern(1, SIZE));
        assert_eq!(
            file.traffic(),
            Traffic {
                peer_bytes: SIZE as u64,
                bounced_bytes: 0
            }
        );
        assert_eq!(file.read_at(&buffer, ..4096, 1 << 20).unwrap(), 0);
    }

    #[test]
    fn unaligned_ends_bounce_only_where_they_may() {
        let (_fake, _gpu, buffer, file, _named) = lab(Policy::PeerOnly);
        let error = file.read_at(&buffer, ..9000, 100).unwrap_err();
        assert!(matches!(error, Error::Unaligned { .. }), "{error}");
        assert_eq!(file.traffic(), Traffic::default());

        let (_fake, _gpu, buffer, file, _named) = lab(Policy::AllowBounce);
        let block = file.alignment().block;
        let head = block - 100;
        let middle = (20_000 - head) / block * block;
        let (at, end) = (block - head, block - head + 20_000);
        assert_eq!(file.read_at(&buffer, at..end, 100).unwrap(), 20_000);
        let at = usize::try_from(at).unwrap();
        assert_eq!(bytes_of(&buffer, at, 20_000), pattern(1, SIZE)[100..20_100]);
        let traffic = file.traffic();
        assert_eq!(traffic.peer_bytes, middle);
        assert_eq!(traffic.bounced_bytes, 20_000 - middle);
    }

    #[test]
    fn unaligned_writes_keep_the_bytes_around_them() {
        for (offset, length, at) in [
            (100, 20_000, 100),
            (4095, 2, 7),
            (511, 4098, 511),
            (39_990, 300, 0),
            (50_001, 77, 3),
        ] {
            let (_fake, _gpu, buffer, file, named) = lab(Policy::AllowBounce);
            buffer.mapping().write(at, &pattern(9, length)).unwrap();
            let end = at + length as u64;
            file.write_at(&buffer, at..end, offset as u64).unwrap();
            let mut wanted = pattern(1, SIZE);
            wanted.resize(wanted.len().max(offset + length), 0);
            wanted[offset..offset + length].copy_from_slice(&pattern(9, length));
            assert_eq!(
                std::fs::read(named.path()).unwrap(),
                wanted,
                "{length} at {offset}"
            );
            let traffic = file.traffic();
            assert_eq!(traffic.peer_bytes + traffic.bounced_bytes, length as u64);
        }
    }

    #[test]
    fn write_to_a_read_only_file_says_how_to_open_it() {
        let (_fake, gpu, buffer, _, named) = lab(Policy::PeerOnly);
        let options = FileOptions::new().policy(Policy::BounceOnly);
        let file = options.open(&gpu, named.path()).unwrap();
        let error = file.write_at(&buffer, ..4096, 0).unwrap_err();
        assert!(
            error.to_string().ends_with("FileOptions::write(true)"),
            "{error}"
        );
    }

    #[test]
    fn a_file_that_grows_at_two_offsets_at_once_keeps_both() {
        let (_fake, _gpu, buffer, file, named) = lab(Policy::AllowBounce);
        buffer.mapping().write(0, &pattern(9, 100_000)).unwrap();
        for round in 0..300 {
            named.as_file().set_len(0).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| file.write_at(&buffer, ..5000, 0).unwrap());
                // Later in each round, so that some writes coincide with the other thread's changes
                // of the file's end.
                (0..round * 50).for_each(|_| std::hint::spin_loop());
                file.write_at(&buffer, ..8192, 81_920).unwrap();
            });
            let mut wanted = pattern(9, 5000);
            wanted.resize(81_920, 0);
            wanted.extend(pattern(9, 8192));
            assert!(std::fs::read(named.path()).unwrap() == wanted);
        }
    }

    #[test]
    fn forced_bounce_moves_all_bytes() {
        let (_fake, gpu, buffer, _, named) = lab(Policy::PeerOnly);
        let options = FileOptions::new().write(true).policy(Policy::BounceOnly);
        let file = options.open(&gpu, named.path()).unwrap();
        assert_eq!(file.read_at(&buffer, 5.., 3).unwrap(), SIZE as u64 - 3);
        assert_eq!(bytes_of(&buffer, 5, SIZE - 3), pattern(1, SIZE)[3..]);
        assert_eq!(file.traffic().peer_bytes, 0);
        assert_eq!(file.traffic().bounced_bytes, SIZE as u64 - 3);
    }

    #[test]
    fn a_refused_mapping_is_explained_or_bounced() {
        let refusal = || Some(Err(io::Error::from_raw_os_error(libc::EREMOTEIO)));
        let (_fake, _gpu, buffer, file, _named) = lab(Policy::PeerOnly);
        let transfer = file.plan(Direction::Read, &buffer, ..8192, 0).unwrap();
        let error = file.carry_out(&transfer, &buffer, refusal()).unwrap_err();
        assert!(matches!(error, Error::PeerToPeer { .. }), "{error}");

        let (_fake, _gpu, buffer, file, _named) = lab(Policy::AllowBounce);
        let transfer = file.plan(Direction::Read, &buffer, ..8192, 0).unwrap();
        assert_eq!(file.carry_out(&transfer, &buffer, refusal()).unwrap(), 8192);
        assert_eq!(bytes_of(&buffer, 0, 8192), pattern(1, SIZE)[..8192]);
        assert_eq!(
            file.traffic(),
            Traffic {
                peer_bytes: 0,
                bounced_bytes: 8192
            }
        );
    }

    #[test]
    fn revoked_buffer_is_distinguished_from_a_refusal() {
        let (_fake, _gpu, buffer, file, _named) = lab(Policy::PeerOnly);
        let transfer = file.plan(Direction::Read, &buffer, ..8192, 0).unwrap();
        let fault = Some(Err(io::Error::from_raw_os_error(libc::EFAULT)));
        let error = file.carry_out(&transfer, &buffer, fault).unwrap_err();
        assert!(matches!(error, Error::Withdrawn { .. }), "{error}");
    }

    #[test]
    fn buffer_of_another_opening_is_refused_on_every_route() {
        let (_fake, _gpu, _buffer, file, _named) = lab(Policy::AllowBounce);
        let (_, other) = gpu_with(1 << 20);
        let foreign = other.allocate(8192).unwrap();
        for offset in [0, 5] {
            let read = file.read_at(&foreign, ..4096, offset);
            assert!(matches!(read, Err(Error::ForeignBuffer)));
            let written = file.write_at(&foreign, ..4096, offset);
            assert!(matches!(written, Err(Error::ForeignBuffer)));
        }
        assert_eq!(file.traffic(), Traffic::default());
    }

    #[test]
    fn a_freed_buffer_and_the_end_of_offsets_are_refused() {
        let (_fake, _gpu, buffer, file, _named) = lab(Policy::AllowBounce);
        let error = file.write_at(&buffer, ..4096, u64::MAX - 10).unwrap_err();
        assert!(matches!(error, Error::Transfer { .. }), "{error}");
        let error = file
            .write_at(&buffer, ..4096, LAST_OFFSET - 10)
            .unwrap_err();
        assert!(matches!(error, Error::Transfer { .. }), "{error}");
        buffer.free().unwrap();
        assert!(matches!(
            file.read_at(&buffer, ..4096, 0),
            Err(Error::Freed)
        ));
        assert!(matches!(buffer.free(), Err(Error::Freed)));
    }
}
