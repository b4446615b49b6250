//! A program cannot choose the addresses that the GPU's DMA goes to: where a command wants an address, the driver takes a
//! buffer and nothing else.

#![allow(unsafe_code)]

use std::fs::File;

use anyhow::{Context, bail};
use rustix::io::Errno;
use rustix::ioctl::{Updater, ioctl, opcode};

use crate::gpus;

const OPERANDS: usize = 13;

/// `PEERBAR_GPU_SUBMIT`.
const SUBMIT: u32 = opcode::read_write::<Submit>(b'P', 0x45);

/// Operations of the device whose first operand is an address.
const ADDRESSED: [(u32, &str); 5] = [
    (1, "COPY"),
    (2, "FILL"),
    (3, "COMPARE"),
    (4, "CRC32C"),
    (5, "LAUNCH"),
];

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Operand {
    space: u32,
    handle: u32,
    offset: u64,
}

/// `struct peerbar_gpu_submit`. The library has no way to say such nonsense.
#[repr(C)]
#[derive(Debug, Default)]
struct Submit {
    opcode: u32,
    kernel: u32,
    operand: [Operand; OPERANDS],
    address_mask: u32,
    pad: u32,
    length: [u64; OPERANDS],
    fence: u64,
}

/// Gives the driver commands whose operands are all numbers.
pub(super) fn refused(gpu: &gpus::Gpu) -> anyhow::Result<()> {
    let path = gpu.node_path();
    let file = File::options()
        .read(true)
        .write(true)
        .open(&path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    for (opcode, name) in ADDRESSED {
        match submit(&file, opcode) {
            Err(Errno::INVAL) => {}
            Err(error) => {
                bail!("{name} at an address of the program's was to be EINVAL, but: {error}")
            }
            Ok(()) => bail!("{name} at an address of the program's was taken"),
        }
    }
    Ok(())
}

fn submit(file: &File, opcode: u32) -> Result<(), Errno> {
    let mut submit = Submit {
        opcode,
        ..Submit::default()
    };
    // SAFETY: the number names exactly this type, which is plain numbers without holes.
    let request = unsafe { Updater::<SUBMIT, Submit>::new(&mut submit) };
    // SAFETY: as above; the driver touches nothing but the structure.
    unsafe { ioctl(file, request) }
}
