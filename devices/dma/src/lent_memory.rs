//! Mappings of files, sealed or not, that other processes lend. This process survives their loss.
//!
//! The owner of a file may shorten it, or punch a hole into a file of huge pages while their pool
//! is empty. An access to a missing page raises SIGBUS in the thread that makes it (mmap(2)). The
//! handler here looks the address up in the table of lent mappings. It marks the mapping as lost
//! and puts private zeroed memory at its address, so that the access continues. Every use checks
//! the mark after its access ([`LentMapping::is_lost`]) and fails. A SIGBUS anywhere else ends the
//! process, as it would without a handler.
//!
//! The whole mapping is replaced, not one page: each replaced page would add mappings to the
//! process, and Linux limits their number (`vm.max_map_count`), and huge pages cannot be replaced
//! in part. The kernel refuses the replacement only if it does not overcommit memory
//! (`vm.overcommit_memory` is 2) and has none left; then the process ends.
//!
//! An access by the kernel raises no signal: it fails with EFAULT before the loss is known, and
//! succeeds in the replacement afterwards. Such transfers therefore check the mark, too.
//!
//! The handler relies on these facts:
//! - A thread keeps the mappings that it accesses, so the slot of a faulting address does not
//!   change during the handler. Other slots may change; the handler skips a slot whose generation
//!   is odd or has changed since it was first read.
//! - A mapping is in the table from before its first access until its last, and no longer than it exists.
//! - Every thread passes a memory barrier after the mark is set and before the memory is replaced
//!   (membarrier(2)). An access that met the replacement therefore finds the mark, although it is
//!   checked without a barrier.
//! - The handler is async-signal-safe: it reads and writes atomics and makes system calls, without locks or allocation.
#![expect(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, compiler_fence, fence};

use libc::siginfo_t;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use rustix::thread::{MembarrierCommand, membarrier};
use vm_memory::MmapRegion;

use crate::switch_limits::{PORTS, WINDOWS};

/// Limit of a process's mappings of the client's memory files. Each has a descriptor.
pub(crate) const MOST_MAPPINGS: usize = 512;

/// Size of this process's pages.
const PAGE: usize = 4096;

/// Limit of the mappings of each peer's memory files: its windows, the former ones until their last
/// use ends, and the meters of its link.
pub(crate) const MOST_MAPPINGS_OF_A_PEER: usize = 2 * WINDOWS + 1;

/// Limit of the files that other processes share with a device at once
/// ([`crate::MemoryFile::shared`]).
pub const MOST_SHARED_FILES: usize = 16;

/// The change counts of a switch: the present one, and former ones that threads still hold.
const CHANGE_COUNTS: usize = 8;

/// Files of this process that other processes may shorten ([`crate::MemoryFile::of_own_file`]).
const OWN_FILES: usize = 1;

/// Limit of a process's lent mappings: memory of the client and of the peers, the leases of each
/// port (also the former ones until their last use ends), files that other processes share, change
/// counts, and the process's own files.
const SLOTS: usize = MOST_MAPPINGS
    + PORTS * (2 + MOST_MAPPINGS_OF_A_PEER)
    + MOST_SHARED_FILES
    + CHANGE_COUNTS
    + OWN_FILES;

static TABLE: [MappingSlot; SLOTS] = [const { MappingSlot::free() }; SLOTS];
/// Locked while a thread takes or frees a slot.
static CHANGE: Mutex<()> = Mutex::new(());

/// One lent mapping, as the handler sees it.
#[derive(Debug)]
struct MappingSlot {
    /// Odd while the extent changes.
    generation: AtomicUsize,
    start: AtomicPtr<c_void>,
    /// 0 if the slot is free.
    len: AtomicUsize,
    lost: AtomicBool,
}

impl MappingSlot {
    const fn free() -> Self {
        Self {
            generation: AtomicUsize::new(0),
            start: AtomicPtr::new(null_mut()),
            len: AtomicUsize::new(0),
            lost: AtomicBool::new(false),
        }
    }

    /// Must be called with [`CHANGE`] locked.
    fn set(&self, start: *mut c_void, len: usize) {
        let generation = self.generation.load(Relaxed);
        self.generation.store(generation.wrapping_add(1), Relaxed);
        fence(Release);
        self.start.store(start, Relaxed);
        self.len.store(len, Relaxed);
        self.lost.store(false, Relaxed);
        self.generation.store(generation.wrapping_add(2), Release);
    }

    /// Returns start and length, or `None` while they are changing.
    fn extent(&self) -> Option<(*mut c_void, usize)> {
        let generation = self.generation.load(Acquire);
        let extent = (self.start.load(Relaxed), self.len.load(Relaxed));
        fence(Acquire);
        let stable = generation % 2 == 0 && generation == self.generation.load(Relaxed);
        stable.then_some(extent)
    }

    /// Replaces the mapping if the address lies in it. Returns `true` if it did.
    fn lose(&self, address: usize) -> bool {
        let inside = |(start, len): &(*mut c_void, usize)| {
            address
                .checked_sub(start.addr())
                .is_some_and(|at| at < *len)
        };
        let Some((start, len)) = self.extent().filter(inside) else {
            return false;
        };
        self.mark_lost();
        // SAFETY: the thread that accessed the mapping keeps it mapped, and all access to it is
        // volatile.
        let replaced = unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
            mmap_anonymous(start, len, ProtFlags::READ | ProtFlags::WRITE, flags)
        };
        replaced.is_ok()
    }

    /// Marks the mapping as lost. Every later access that meets the replacement finds the mark.
    fn mark_lost(&self) {
        self.lost.store(true, SeqCst);
        // Only kernels before Linux 4.14 refuse it. There a processor's reordering is shorter than
        // the replacement takes.
        let _ = membarrier(MembarrierCommand::PrivateExpedited);
    }
}

/// A part of a file of another process, mapped until this is dropped.
#[derive(Debug)]
pub(crate) struct LentMapping {
    slot: &'static MappingSlot,
    loss_reported: AtomicBool,
    /// `true` if [`LentMapping::detach`] has marked it as lost.
    is_given_up: AtomicBool,
    /// `true` once it is a private copy of the file.
    is_detached: AtomicBool,
}

impl LentMapping {
    /// Maps `len` bytes of the file from `first` on, which must be a multiple of any page size.
    /// Also returns them as a region, which must not be used once the mapping is dropped. The
    /// memory is not reserved.
    pub(crate) fn new(
        file: &File,
        first: u64,
        len: usize,
        access: ProtFlags,
    ) -> io::Result<(Self, MmapRegion)> {
        handle_sigbus()?;
        let mapped = whole_pages(file, len)?;
        let change = CHANGE.lock();
        let slot = TABLE.iter().find(|slot| slot.len.load(Relaxed) == 0);
        let slot = slot.ok_or(Errno::NOMEM)?;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses the address. Other processes write the memory; all access to
        // it is volatile.
        let start = unsafe { mmap(null_mut(), mapped, access, flags, file, first)? };
        slot.set(start, mapped);
        drop(change);
        let mapping = Self {
            slot,
            loss_reported: AtomicBool::new(false),
            is_given_up: AtomicBool::new(false),
            is_detached: AtomicBool::new(false),
        };
        let [access, flags] =
            [access.bits(), flags.bits()].map(|bits| c_int::try_from(bits).unwrap_or(0));
        // SAFETY: the memory is mapped there for as long as the caller keeps `mapping`.
        let region = unsafe { MmapRegion::build_raw(start.cast(), len, access, flags) };
        Ok((mapping, region.map_err(io::Error::other)?))
    }

    /// Returns `true` if the file has lost pages that were accessed. In that case data read since
    /// is meaningless and data written is gone.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        // The compiler must not move earlier accesses past this. The handler takes care of the
        // processor.
        compiler_fence(SeqCst);
        self.slot.lost.load(Relaxed)
    }

    /// Maps a private copy of the file over the mapping, which begins at offset `first` of the
    /// file, and marks the mapping as lost. Only pages that are written cost memory. Huge pages are
    /// refused, since there may be none for a copy.
    pub(crate) fn detach(&self, file: &File, first: u64) -> io::Result<()> {
        let (start, len) = (self.slot.start.load(Relaxed), self.slot.len.load(Relaxed));
        if whole_pages(file, 1)? > PAGE {
            return Err(Errno::NOTSUP.into());
        }
        // The SIGBUS handler has put private memory there, or an earlier call has. If an earlier
        // call failed, this one tries again.
        let is_given_up = self.is_given_up.load(Relaxed);
        if self.is_detached.load(Relaxed) || self.is_lost() && !is_given_up {
            return Ok(());
        }
        self.is_given_up.store(true, Relaxed);
        self.slot.mark_lost();
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the mapping exists until `self` is dropped, and all access to it is volatile.
        unsafe {
            mmap(
                start,
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
                file,
                first,
            )?
        };
        self.is_detached.store(true, Relaxed);
        Ok(())
    }

    /// Keeps bytes of a detached mapping as they are now, even if the file changes: the kernel
    /// copies a page that is written.
    pub(crate) fn keep(&self, offset: u64, len: usize) -> io::Result<()> {
        let (start, mapped) = (self.slot.start.load(Relaxed), self.slot.len.load(Relaxed));
        let offset = usize::try_from(offset).map_err(|_| Errno::OVERFLOW)?;
        let end = offset.checked_add(len).filter(|end| *end <= mapped);
        let end = end.ok_or(Errno::OVERFLOW)?;
        for page in (offset / PAGE * PAGE..end).step_by(PAGE) {
            // SAFETY: the byte lies in the mapping, which exists until `self` is dropped. All
            // access to it is volatile.
            unsafe {
                let byte = start.cast::<u8>().add(page);
                byte.write_volatile(byte.read_volatile());
            }
        }
        Ok(())
    }

    /// Discards data that was written to a lost mapping, and reports the loss once.
    pub(crate) fn discard(&self) {
        if self.is_given_up.load(Relaxed) {
            return;
        }
        let (start, len) = (self.slot.start.load(Relaxed), self.slot.len.load(Relaxed));
        if !self.loss_reported.swap(true, Relaxed) {
            log::warn!(
                "{len:#x} bytes of lent memory were taken away by their owner: requests there fail until they are mapped again"
            );
        }
        // SAFETY: the mapping exists, and no byte of it is meaningful.
        let discarded = unsafe { madvise(start, len, Advice::LinuxDontNeed) };
        if let Err(error) = discarded {
            log::debug!("lost memory is not given back: {error}");
        }
    }
}

impl Drop for LentMapping {
    fn drop(&mut self) {
        let change = CHANGE.lock();
        let (start, len) = (self.slot.start.load(Relaxed), self.slot.len.load(Relaxed));
        self.slot.set(null_mut(), 0);
        // SAFETY: `LentMapping::new` has mapped this, and no access uses it any more.
        if let Err(error) = unsafe { munmap(start, len) } {
            log::error!("lent memory of {len:#x} bytes stays mapped: {error}");
            self.slot.set(start, len);
        }
        drop(change);
    }
}

/// Rounds `len` up to blocks of the file. The blocks of hugetlbfs are its huge pages, which can be
/// mapped, replaced and unmapped only as a whole, although the file may end within one
/// (fallocate(2) leaves its size unrounded).
fn whole_pages(file: &File, len: usize) -> io::Result<usize> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let block = statx(file, "", flags, StatxFlags::empty())?.stx_blksize;
    rounded(len, block).ok_or_else(|| Errno::OVERFLOW.into())
}

fn rounded(len: usize, block: u32) -> Option<usize> {
    len.checked_next_multiple_of(usize::try_from(block).ok()?.max(1))
}

/// Installs the SIGBUS handler, so that this process survives the loss of lent memory.
fn handle_sigbus() -> io::Result<()> {
    if let Err(error) = membarrier(MembarrierCommand::RegisterPrivateExpedited) {
        log::debug!("barriers across all threads are not available: {error}");
    }
    // SAFETY: all zeros are a valid value: an empty mask, no flags.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_sigbus as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler is async-signal-safe and has the signature for SA_SIGINFO.
    match unsafe { libc::sigaction(libc::SIGBUS, &action, null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn on_sigbus(_signal: c_int, info: *mut siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes valid information. Its address is set if the code is that of a
    // fault.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    let is_fault = code > 0;
    if is_fault && TABLE.iter().any(|slot| slot.lose(address)) {
        return;
    }
    // SAFETY: both are async-signal-safe. The signal is blocked until the handler returns, and then
    // ends the process.
    unsafe {
        libc::signal(libc::SIGBUS, libc::SIG_DFL);
        libc::raise(libc::SIGBUS);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use rustix::fs::{MemfdFlags, memfd_create};
    use rustix::process::{Resource, Rlimit, setrlimit};
    use vm_memory::{Bytes, FileOffset, VolatileMemory};

    use super::*;
    use crate::memory::MemoryFile;
    use crate::memory_error::MemoryError;

    const BYTES: u64 = 0x4000;
    const CHILD: &str = "PEERBAR_TEST_FAULT_ELSEWHERE";

    fn cut_short() -> (File, MemoryFile) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(BYTES).unwrap();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let lent = MemoryFile::of_other(file.try_clone().unwrap(), 0, BYTES, access).unwrap();
        file.set_len(0).unwrap();
        (file, lent)
    }

    #[test]
    fn detaching_that_failed_is_tried_again() {
        const LEN: usize = 0x4000;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lent");
        std::fs::write(&path, [7; LEN]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let (lent, _region) = LentMapping::new(&file, 0, LEN, access).unwrap();
        let unreadable = File::options().write(true).open(&path).unwrap();
        for _ in 0..2 {
            assert!(lent.detach(&unreadable, 0).is_err() && lent.is_lost());
        }
        lent.detach(&file, 0).unwrap();
        lent.keep(0, LEN).unwrap();
        file.set_len(0).unwrap();
        lent.keep(0, LEN).unwrap();
    }

    #[test]
    fn each_access_to_a_lost_mapping_fails() {
        type Access = fn(&MemoryFile) -> Result<(), MemoryError>;
        let accesses: [Access; 9] = [
            |lent| lent.read(0, &mut [0; 8]),
            |lent| lent.read(0x1001, &mut [0; 0x2000]),
            |lent| lent.write(0, &[1; 8]),
            |lent| lent.write_in_order(8, &[1; 0x1000]),
            |lent| lent.write_in_order(1, &[1; 3]),
            |lent| lent.copy_to(0, &MemoryFile::create("own", 64).unwrap(), 0, 64),
            |lent| {
                MemoryFile::create("own", 64)
                    .unwrap()
                    .copy_to(0, lent, 0, 64)
            },
            |lent| lent.load(4).map(drop),
            |lent| lent.update(8, |was| was).map(drop),
        ];
        for (number, access) in accesses.iter().enumerate() {
            let (_file, lent) = cut_short();
            assert!(!lent.is_lost());
            for _ in 0..2 {
                let failed = access(&lent);
                assert!(
                    matches!(failed, Err(MemoryError::Lost { size: BYTES })),
                    "{number}"
                );
            }
            assert!(lent.is_lost());
        }
        let (_file, lent) = cut_short();
        assert!(lent.store(0, 1).is_err());
    }

    #[test]
    fn length_is_rounded_up_to_blocks() {
        let huge = 2 << 20;
        for (len, block, whole) in [
            (1, huge, Some(2 << 20)),
            (2 << 20, huge, Some(2 << 20)),
            ((2 << 20) + 4096, huge, Some(4 << 20)),
            (4097, 4096, Some(8192)),
            (4097, 0, Some(4097)),
            (usize::MAX, huge, None),
        ] {
            assert_eq!(rounded(len, block), whole, "{len:#x} {block:#x}");
        }
    }

    /// Needs no huge pages: if the pool is empty, the access loses the mapping.
    #[test]
    fn part_of_a_huge_page_is_unmapped_as_a_whole() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        let file = match memfd_create("huge", flags) {
            Ok(fd) => File::from(fd),
            // The kernel has no hugetlbfs.
            Err(error) => return assert_eq!(error, Errno::NOSYS),
        };
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let lent = MemoryFile::of_other(file, 0, BYTES, access).unwrap();
        let failed = lent.write(0, &[1; 8]);
        assert_eq!(failed.is_err(), lent.is_lost());
        let start = format!("{:x}-", lent.pointer(0, 1).unwrap().addr());
        let is_mapped = || {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            maps.lines().any(|line| line.starts_with(&start))
        };
        assert!(is_mapped());
        drop(lent);
        assert!(!is_mapped());
    }

    #[test]
    fn lost_mapping_keeps_no_memory() {
        let (_file, lent) = cut_short();
        let pages = || {
            let status = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let start = format!("{:x}-", lent.pointer(0, 1).unwrap().addr());
            let mapping = status.lines().skip_while(|line| !line.starts_with(&start));
            let resident = mapping.into_iter().find(|line| line.starts_with("Rss:"));
            resident
                .unwrap()
                .split_whitespace()
                .nth(1)
                .unwrap()
                .to_owned()
        };
        for _ in 0..3 {
            assert!(lent.write(0, &[1; 0x4000]).is_err());
            assert_eq!(pages(), "0");
        }
    }

    #[test]
    fn fault_outside_of_lent_memory_ends_the_process() {
        if std::env::var_os(CHILD).is_some() {
            let (file, lent) = cut_short();
            assert!(lent.load(0).is_err());
            drop(lent);
            // The same file, mapped for another purpose.
            let own = MmapRegion::<()>::from_file(FileOffset::new(file, 0), 0x1000).unwrap();
            own.as_volatile_slice().load::<u32>(0, SeqCst).unwrap();
            return;
        }
        let limit = Rlimit {
            current: Some(0),
            maximum: Some(0),
        };
        setrlimit(Resource::Core, limit).unwrap();
        let name = "lent_memory::tests::fault_outside_of_lent_memory_ends_the_process";
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert_eq!(child.status.signal(), Some(libc::SIGBUS), "{child:?}");
    }
}
