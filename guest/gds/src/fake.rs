//! A driver without a GPU, for tests: VRAM is a memory file, and commands are done when they are submitted.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::alignment::{Alignment, PAGES};
use crate::driver::Driver;
use crate::{Buffer, Gpu, GpuFile, Policy, uapi};

/// Number of blocks of the disk whose queues the GPU has.
pub(crate) const DISK_BLOCKS: u64 = 1000;

/// The driver. Its GPU can copy and compare.
#[derive(Debug)]
pub(crate) struct Fake {
    vram: File,
    /// This process's memory.
    process: File,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Start of each handle's memory: in VRAM, or in this process.
    handles: BTreeMap<u32, u64>,
    /// The newest handle.
    next: u32,
    allocated: u64,
    results: Vec<u64>,
}

/// Makes a GPU with `bytes` of memory.
pub(crate) fn gpu_with(bytes: u64) -> (Arc<Fake>, Gpu) {
    let vram = File::from(memfd_create("vram", MemfdFlags::CLOEXEC).unwrap());
    ftruncate(&vram, bytes).unwrap();
    let mut process = OpenOptions::new();
    let process = process.read(true).write(true).open("/proc/self/mem");
    let fake = Arc::new(Fake {
        vram,
        process: process.unwrap(),
        state: Mutex::default(),
    });
    let gpu = Gpu::with_driver(Arc::<Fake>::clone(&fake)).unwrap();
    (fake, gpu)
}

/// Opens the file as [`FileOptions`](crate::FileOptions) does, even if its file system copies.
pub(crate) fn open_anywhere(gpu: &Gpu, path: &Path, policy: Policy) -> GpuFile {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_DIRECT);
    let file = options.open(path).unwrap();
    let alignment = Alignment::of(&file).unwrap_or(PAGES);
    GpuFile::new(gpu, file, path.to_owned(), policy, alignment)
}

/// Returns bytes of a buffer.
pub(crate) fn bytes_of(buffer: &Buffer, at: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    buffer.mapping().read(at as u64, &mut bytes).unwrap();
    bytes
}

impl Fake {
    /// Returns the number of live handles.
    pub(crate) fn handles(&self) -> usize {
        self.state.lock().unwrap().handles.len()
    }

    fn add(&self, start: u64) -> u32 {
        let mut state = self.state.lock().unwrap();
        // Handles are not reused soon, as in the driver.
        state.next += 1;
        let handle = state.next;
        state.handles.insert(handle, start);
        handle
    }

    /// Returns the location of an operand.
    fn find(&self, operand: uapi::Operand) -> io::Result<(&File, u64)> {
        let state = self.state.lock().unwrap();
        let start = state.handles.get(&operand.handle);
        let start = start.ok_or(io::Error::from_raw_os_error(libc::ENOENT))?;
        let file = match operand.space {
            0 => &self.vram,
            _ => &self.process,
        };
        Ok((file, start + operand.offset))
    }

    /// Executes the kernel `nvme io` on a disk of [`DISK_BLOCKS`] blocks: requests beyond these
    /// have the status LBA Out of Range.
    fn serve_queue(&self, submit: &uapi::Submit) -> io::Result<u64> {
        let [.., state, requests, count] = submit.operand.first_chunk::<7>().unwrap();
        let (vram, requests) = self.find(*requests)?;
        for index in 0..count.offset {
            let at = requests + index * 32;
            let mut block = [0; 8];
            vram.read_exact_at(&mut block, at)?;
            let is_there = u64::from_le_bytes(block) < DISK_BLOCKS;
            let outcome = if is_there { 1u32 << 17 } else { 1 << 17 | 0x80 };
            vram.write_all_at(&outcome.to_le_bytes(), at + 28)?;
        }
        let (vram, state) = self.find(*state)?;
        let counts = [count.offset, count.offset, 2];
        vram.write_all_at(&counts.map(u64::to_le_bytes).concat(), state)?;
        Ok(count.offset)
    }

    fn load(&self, operand: uapi::Operand, length: u64) -> io::Result<Vec<u8>> {
        let (file, at) = self.find(operand)?;
        let mut bytes = vec![0; usize::try_from(length).unwrap()];
        file.read_exact_at(&mut bytes, at)?;
        Ok(bytes)
    }
}

impl Driver for Fake {
    fn file(&self) -> BorrowedFd<'_> {
        self.vram.as_fd()
    }

    fn info(&self) -> io::Result<uapi::Info> {
        let vram_size = self.vram.metadata()?.len();
        Ok(uapi::Info {
            vram_size,
            bus: 2,
            devfn: 0x1a,
            ..uapi::Info::default()
        })
    }

    fn alloc(&self, alloc: &mut uapi::Alloc) -> io::Result<()> {
        alloc.size = alloc.size.next_multiple_of(4096);
        let start = {
            let mut state = self.state.lock().unwrap();
            if state.allocated + alloc.size > self.vram.metadata()?.len() {
                return Err(io::Error::from_raw_os_error(libc::ENOMEM));
            }
            let start = state.allocated;
            state.allocated += alloc.size;
            start
        };
        alloc.handle = self.add(start);
        alloc.mmap_offset = start;
        Ok(())
    }

    fn free(&self, handle: uapi::Handle) -> io::Result<()> {
        let removed = self.state.lock().unwrap().handles.remove(&handle.handle);
        removed
            .map(drop)
            .ok_or(io::Error::from_raw_os_error(libc::ENOENT))
    }

    fn query(&self, query: &mut uapi::Query) -> io::Result<()> {
        query.vram_offset = query.offset;
        Ok(())
    }

    #[expect(unsafe_code)]
    unsafe fn register(&self, register: &mut uapi::Register) -> io::Result<()> {
        register.handle = self.add(register.address);
        Ok(())
    }

    fn submit(&self, submit: &mut uapi::Submit) -> io::Result<()> {
        let [first, second, ..] = submit.operand;
        let length = submit.length[0];
        let loaded = self.load(first, length)?;
        let result = match submit.opcode {
            1 => {
                let (file, at) = self.find(second)?;
                file.write_all_at(&loaded, at)?;
                0
            }
            3 => {
                let other = self.load(second, length)?;
                let same = loaded.iter().zip(&other).take_while(|(a, b)| a == b);
                same.count() as u64
            }
            5 if submit.kernel == 5 => self.serve_queue(submit)?,
            _ => return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
        };
        let mut state = self.state.lock().unwrap();
        state.results.push(result);
        submit.fence = state.results.len() as u64;
        Ok(())
    }

    fn wait(&self, wait: &mut uapi::Wait) -> io::Result<()> {
        let state = self.state.lock().unwrap();
        let index = usize::try_from(wait.fence).unwrap().checked_sub(1);
        match index.and_then(|index| state.results.get(index)) {
            Some(result) => {
                wait.result = *result;
                Ok(())
            }
            None => Err(io::Error::from_raw_os_error(libc::ETIME)),
        }
    }

    fn eventfd(&self, _: uapi::EventFd) -> io::Result<()> {
        Ok(())
    }

    fn export(&self, _: &mut uapi::Export) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }

    fn import(&self, import: &mut uapi::Import) -> io::Result<()> {
        import.handle = self.add(0);
        import.size = 0x4000;
        Ok(())
    }

    fn revoke(&self, _: uapi::Handle) -> io::Result<()> {
        Ok(())
    }
}
