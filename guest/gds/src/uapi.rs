//! The structures of `/dev/peerbar-gpuN`: `guest/gpu-driver/include/peerbar_gpu.h`, field for
//! field.

use rustix::ioctl::{Opcode, opcode};

/// Operands of a command.
pub const OPERANDS: usize = 13;

const GROUP: u8 = b'P';

/// `enum peerbar_gpu_space`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Space {
    Vram = 0,
    Host = 1,
    DmaBuf = 2,
}

/// Bit of [`Info::features`]: the aperture is a window.
pub const FEATURE_WINDOW: u32 = 1;

/// `struct peerbar_gpu_info`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Info {
    pub vram_size: u64,
    pub aperture_size: u64,
    pub p2pmem_size: u64,
    pub channels: u32,
    pub features: u32,
    pub domain: u32,
    pub bus: u32,
    pub devfn: u32,
    pub pad: u32,
}

/// `PEERBAR_GPU_ALLOC_SCATTERED`, a bit of [`Alloc::flags`].
pub const ALLOC_SCATTERED: u32 = 1;

/// `struct peerbar_gpu_alloc`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Alloc {
    pub size: u64,
    pub flags: u32,
    pub handle: u32,
    pub mmap_offset: u64,
}

/// `struct peerbar_gpu_free`, and `struct peerbar_gpu_revoke`, which is the same.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Handle {
    pub handle: u32,
    pub pad: u32,
}

/// `struct peerbar_gpu_query`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Query {
    pub handle: u32,
    pub space: u32,
    pub offset: u64,
    pub vram_offset: u64,
    pub bus_address: u64,
    pub length: u64,
}

/// `struct peerbar_gpu_register`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Register {
    pub address: u64,
    pub size: u64,
    pub handle: u32,
    pub pad: u32,
}

/// `struct peerbar_gpu_operand`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Operand {
    pub space: u32,
    pub handle: u32,
    pub offset: u64,
}

/// `struct peerbar_gpu_submit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Submit {
    pub opcode: u32,
    pub kernel: u32,
    pub operand: [Operand; OPERANDS],
    pub address_mask: u32,
    pub pad: u32,
    pub length: [u64; OPERANDS],
    pub fence: u64,
}

/// `PEERBAR_GPU_ERROR_RESET`, the driver's own code in [`Wait::error`]: a reset has ended the
/// command.
pub const ERROR_RESET: u32 = 0x100;
/// `PEERBAR_GPU_ERROR_REVOKED`, likewise: the exporter of a dma-buf did not wait any longer for the command.
pub const ERROR_REVOKED: u32 = 0x101;

/// `struct peerbar_gpu_wait`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Wait {
    pub fence: u64,
    pub timeout_ns: u64,
    pub result: u64,
    pub error: u32,
    pub pad: u32,
}

/// `struct peerbar_gpu_eventfd`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct EventFd {
    pub fd: i32,
    pub pad: u32,
}

/// `PEERBAR_GPU_EXPORT_REVOCABLE`, a value of [`Export::policy`].
pub const EXPORT_REVOCABLE: u32 = 0;
/// `PEERBAR_GPU_EXPORT_PINNED`, a value of [`Export::policy`].
pub const EXPORT_PINNED: u32 = 1;
/// `PEERBAR_GPU_EXPORT_STATIC`, a value of [`Export::policy`].
pub const EXPORT_STATIC: u32 = 2;

/// `struct peerbar_gpu_export`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Export {
    pub handle: u32,
    pub policy: u32,
    pub fd: i32,
    pub pad: u32,
}

/// `struct peerbar_gpu_import`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Import {
    pub fd: i32,
    pub handle: u32,
    pub size: u64,
}

pub const INFO: Opcode = opcode::read::<Info>(GROUP, 0x40);
pub const ALLOC: Opcode = opcode::read_write::<Alloc>(GROUP, 0x41);
pub const FREE: Opcode = opcode::write::<Handle>(GROUP, 0x42);
pub const QUERY: Opcode = opcode::read_write::<Query>(GROUP, 0x43);
pub const REGISTER: Opcode = opcode::read_write::<Register>(GROUP, 0x44);
pub const SUBMIT: Opcode = opcode::read_write::<Submit>(GROUP, 0x45);
pub const WAIT: Opcode = opcode::read_write::<Wait>(GROUP, 0x46);
pub const EVENTFD: Opcode = opcode::write::<EventFd>(GROUP, 0x47);
pub const EXPORT: Opcode = opcode::read_write::<Export>(GROUP, 0x48);
pub const IMPORT: Opcode = opcode::read_write::<Import>(GROUP, 0x49);
pub const REVOKE: Opcode = opcode::write::<Handle>(GROUP, 0x4a);

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const HEADER: &str = include_str!("../../gpu-driver/include/peerbar_gpu.h");

    /// Returns the size of a field such as `__u64 length[13];` in bytes. `sizes` has the structures
    /// so far.
    fn field_bytes(line: &str, sizes: &BTreeMap<String, usize>) -> usize {
        let line = line.split(';').next().unwrap();
        let (kind, names) = match line.strip_prefix("struct ") {
            Some(rest) => rest.split_once(' ').unwrap(),
            None => line.split_once(' ').unwrap(),
        };
        let one = match kind {
            "__u64" => 8,
            "__u32" | "__s32" => 4,
            other => sizes[other],
        };
        let count = |name: &str| match name.split_once('[') {
            Some((_, count)) => count.trim_end_matches(']').parse::<usize>().unwrap(),
            None => 1,
        };
        names.split(',').map(|name| one * count(name)).sum()
    }

    /// Returns all structures of the header with their sizes. None has a hole, since the header has
    /// explicit padding.
    fn structures() -> BTreeMap<String, usize> {
        let mut sizes = BTreeMap::new();
        let mut open: Option<(String, usize)> = None;
        for line in HEADER.lines().map(str::trim) {
            if line.starts_with("struct ") && line.ends_with('{') {
                let name = line.split_whitespace().nth(1).unwrap();
                open = Some((name.to_owned(), 0));
            } else if line == "};" {
                sizes.extend(open.take());
            } else if let Some((_, size)) = open.as_mut().filter(|_| line.contains(';')) {
                *size += field_bytes(line, &sizes);
            }
        }
        sizes
    }

    #[test]
    fn export_policies_are_those_of_the_header() {
        let values = HEADER.lines().filter_map(|line| {
            let (name, value) = line.trim().strip_suffix(',')?.split_once(" = ")?;
            let policy = name.strip_prefix("PEERBAR_GPU_EXPORT_")?;
            Some((policy, value.parse::<u32>().unwrap()))
        });
        let ours = [
            ("REVOCABLE", EXPORT_REVOCABLE),
            ("PINNED", EXPORT_PINNED),
            ("STATIC", EXPORT_STATIC),
        ];
        assert_eq!(values.collect::<Vec<_>>(), ours);
    }

    #[test]
    fn requests_are_those_of_the_header() {
        let sizes = structures();
        let mut wanted = BTreeMap::new();
        for line in HEADER.lines().filter(|line| line.contains("('P', ")) {
            let words: Vec<&str> = line
                .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
                .filter(|word| !word.is_empty())
                .collect();
            let [_, name, macro_name, _, number, _, structure] = words[..] else {
                panic!("{words:?}");
            };
            let direction = match macro_name {
                "_IOW" => 1,
                "_IOR" => 2,
                _ => 3,
            };
            let number = u32::from_str_radix(number.trim_start_matches("0x"), 16).unwrap();
            let size = u32::try_from(sizes[structure]).unwrap();
            let value = direction << 30 | size << 16 | u32::from(b'P') << 8 | number;
            wanted.insert(name.trim_start_matches("PEERBAR_GPU_"), value);
        }
        let ours = [
            ("INFO", INFO),
            ("ALLOC", ALLOC),
            ("FREE", FREE),
            ("QUERY", QUERY),
            ("REGISTER", REGISTER),
            ("SUBMIT", SUBMIT),
            ("WAIT", WAIT),
            ("EVENTFD", EVENTFD),
            ("EXPORT", EXPORT),
            ("IMPORT", IMPORT),
            ("REVOKE", REVOKE),
        ];
        assert_eq!(wanted, BTreeMap::from(ours));
    }
}
