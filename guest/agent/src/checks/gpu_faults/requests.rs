//! Requests to the GPU's driver as a hostile program makes them: the library cannot express them
//! (guest/gpu-driver/include/peerbar_gpu.h).

#![allow(unsafe_code)]

use std::fs::File;

use anyhow::Context;
use rustix::io::Errno;
use rustix::ioctl::{Updater, ioctl, opcode};

use crate::gpus;

const OPERANDS: usize = 13;

/// `PEERBAR_GPU_ALLOC`, `_SUBMIT`, `_WAIT`.
const ALLOC: u32 = opcode::read_write::<Alloc>(b'P', 0x41);
const SUBMIT: u32 = opcode::read_write::<Submit>(b'P', 0x45);
const WAIT: u32 = opcode::read_write::<Wait>(b'P', 0x46);

/// How long a command may take, in nanoseconds.
const PATIENCE: u64 = 30_000_000_000;

/// `struct peerbar_gpu_alloc`.
#[repr(C)]
#[derive(Debug, Default)]
struct Alloc {
    size: u64,
    flags: u32,
    handle: u32,
    mmap_offset: u64,
}

/// `struct peerbar_gpu_operand`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Operand {
    pub(super) space: u32,
    pub(super) handle: u32,
    pub(super) offset: u64,
}

/// `struct peerbar_gpu_submit`.
#[repr(C)]
#[derive(Clone, Debug, Default)]
pub(super) struct Submit {
    pub(super) opcode: u32,
    pub(super) kernel: u32,
    pub(super) operand: [Operand; OPERANDS],
    pub(super) address_mask: u32,
    pub(super) pad: u32,
    pub(super) length: [u64; OPERANDS],
    pub(super) fence: u64,
}

/// `struct peerbar_gpu_wait`.
#[repr(C)]
#[derive(Debug, Default)]
struct Wait {
    fence: u64,
    timeout_ns: u64,
    result: u64,
    error: u32,
    pad: u32,
}

/// The GPU's device file.
#[derive(Debug)]
pub(in crate::checks) struct Node {
    file: File,
}

impl Node {
    pub(in crate::checks) fn open(gpu: &gpus::Gpu) -> anyhow::Result<Self> {
        let path = gpu.node_path();
        let file = File::options().read(true).write(true).open(&path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        Ok(Node { file })
    }

    /// Allocates `size` bytes of VRAM; returns the handle.
    pub(in crate::checks) fn allocate(&self, size: u64) -> Result<u32, Errno> {
        let mut alloc = Alloc {
            size,
            ..Alloc::default()
        };
        // SAFETY: the number names exactly this type, which is plain numbers without holes.
        let request = unsafe { Updater::<ALLOC, Alloc>::new(&mut alloc) };
        // SAFETY: as above; the driver touches nothing but the structure.
        unsafe { ioctl(&self.file, request) }?;
        Ok(alloc.handle)
    }

    /// Submits a command; returns its fence.
    pub(super) fn submit(&self, submit: &Submit) -> Result<u64, Errno> {
        let mut submit = submit.clone();
        // SAFETY: as in `allocate`.
        let request = unsafe { Updater::<SUBMIT, Submit>::new(&mut submit) };
        // SAFETY: as above.
        unsafe { ioctl(&self.file, request) }?;
        Ok(submit.fence)
    }

    /// Waits for a command; returns its error: 0, or a fault code.
    pub(super) fn wait(&self, fence: u64) -> Result<u32, Errno> {
        let mut wait = Wait {
            fence,
            timeout_ns: PATIENCE,
            ..Wait::default()
        };
        // SAFETY: as in `allocate`.
        let request = unsafe { Updater::<WAIT, Wait>::new(&mut wait) };
        // SAFETY: as above.
        unsafe { ioctl(&self.file, request) }?;
        Ok(wait.error)
    }
}
