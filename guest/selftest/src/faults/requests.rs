//! Requests to the GPU's driver as a hostile program makes them: the library cannot express them
//! (guest/gpu-driver/include/peerbar_gpu.h).

#![expect(unsafe_code)]

use std::fs::File;

use anyhow::Context;
use peerbar_agent::gpus;
use peerbar_gds::uapi::{self, Alloc, Submit, Wait};
use rustix::io::Errno;
use rustix::ioctl::{Updater, ioctl};

/// Time limit of a command, in nanoseconds.
const TIME_OUT_NS: u64 = 30_000_000_000;

/// The GPU's device file.
#[derive(Debug)]
pub(crate) struct Node {
    file: File,
}

impl Node {
    pub(crate) fn open(gpu: &gpus::Gpu) -> anyhow::Result<Self> {
        let path = gpu.node_path();
        let file = File::options().read(true).write(true).open(&path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        Ok(Node { file })
    }

    /// Allocates `size` bytes of VRAM. Returns the handle.
    pub(crate) fn allocate(&self, size: u64) -> Result<u32, Errno> {
        let mut alloc = Alloc {
            size,
            ..Alloc::default()
        };
        // SAFETY: the number names exactly this type, which is plain numbers without holes.
        let request = unsafe { Updater::<{ uapi::ALLOC }, Alloc>::new(&mut alloc) };
        // SAFETY: as above; the driver accesses only the structure.
        unsafe { ioctl(&self.file, request) }?;
        Ok(alloc.handle)
    }

    /// Submits a command. Returns its fence.
    pub(super) fn submit(&self, submit: &Submit) -> Result<u64, Errno> {
        let mut submit = *submit;
        // SAFETY: as in `allocate`.
        let request = unsafe { Updater::<{ uapi::SUBMIT }, Submit>::new(&mut submit) };
        // SAFETY: as above.
        unsafe { ioctl(&self.file, request) }?;
        Ok(submit.fence)
    }

    /// Waits for a command. Returns its error: 0, or a fault code.
    pub(super) fn wait(&self, fence: u64) -> Result<u32, Errno> {
        let mut wait = Wait {
            fence,
            timeout_ns: TIME_OUT_NS,
            ..Wait::default()
        };
        // SAFETY: as in `allocate`.
        let request = unsafe { Updater::<{ uapi::WAIT }, Wait>::new(&mut wait) };
        // SAFETY: as above.
        unsafe { ioctl(&self.file, request) }?;
        Ok(wait.error)
    }
}
