//! The device: a copy engine behind the crate's trait.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_INFO_EVENTFD, VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSIX_IRQ_INDEX,
    VFIO_PCI_NUM_IRQS, VFIO_PCI_NUM_REGIONS, VFIO_REGION_INFO_FLAG_MMAP,
    VFIO_REGION_INFO_FLAG_READ, VFIO_REGION_INFO_FLAG_WRITE, vfio_region_info,
    vfio_region_sparse_mmap_area,
};
use vfio_user::{
    DmaMapFlags, DmaUnmapFlags, IrqInfo, Server, ServerBackend, ServerRegion, SparseArea,
};
use vm_memory::{FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

use crate::config_space::{BYTES, ConfigSpace, REGISTER_BAR_BYTES};
use crate::mappings::Mappings;
use crate::registers::{
    COPIES, IDENTITY, IDENTITY_VALUE, LENGTH, MEMORY_BAR, MEMORY_BYTES, REGISTER_BAR,
    REGISTER_BYTES, SOURCE, START, Status, TARGET,
};

/// How the device misbehaves.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Time that each answer is late.
    pub slow: Duration,
    /// The number of copies after which the next order kills the process.
    pub die_after: Option<u32>,
    /// Set if it keeps memory that its client has unmapped, and goes on using it.
    pub keep_mappings: bool,
}

/// Serves the device at `socket`, to one client after another.
///
/// # Errors
/// The socket cannot be made, or a client breaks its connection off.
pub fn serve(socket: &Path, options: Options) -> anyhow::Result<()> {
    let memory = memfd_create("copy-engine", MemfdFlags::CLOEXEC).context("cannot make memory")?;
    ftruncate(&memory, MEMORY_BYTES.into()).context("cannot size memory")?;
    let server = Server::new(socket, true, interrupts(), regions(&memory));
    let server = server.with_context(|| format!("cannot listen at {}", socket.display()))?;
    loop {
        let memory = memory.try_clone().context("cannot copy a descriptor")?;
        let mut engine = CopyEngine::new(memory, options)?;
        if let Err(error) = server.run(&mut engine) {
            eprintln!("{}: {error}", socket.display());
        }
    }
}

fn interrupts() -> Vec<IrqInfo> {
    let interrupt = |index| IrqInfo {
        index,
        flags: VFIO_IRQ_INFO_EVENTFD,
        count: u32::from(index == VFIO_PCI_MSIX_IRQ_INDEX),
    };
    (0..VFIO_PCI_NUM_IRQS).map(interrupt).collect()
}

fn regions(memory: &OwnedFd) -> Vec<ServerRegion> {
    (0..VFIO_PCI_NUM_REGIONS)
        .map(|index| region(index, memory))
        .collect()
}

fn region(index: u32, memory: &OwnedFd) -> ServerRegion {
    let is_memory = index == MEMORY_BAR;
    let (size, mappable) = match index {
        REGISTER_BAR => (REGISTER_BAR_BYTES.into(), 0),
        MEMORY_BAR => (MEMORY_BYTES.into(), VFIO_REGION_INFO_FLAG_MMAP),
        VFIO_PCI_CONFIG_REGION_INDEX => (BYTES as u64, 0),
        _ => (0, 0),
    };
    let area = vfio_region_sparse_mmap_area { offset: 0, size };
    ServerRegion {
        region_info: vfio_region_info {
            argsz: u32::try_from(size_of::<vfio_region_info>()).unwrap_or(u32::MAX),
            flags: VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE | mappable,
            index,
            size,
            ..Default::default()
        },
        // The crate passes a descriptor only along with areas.
        sparse_areas: is_memory
            .then_some(SparseArea { area })
            .into_iter()
            .collect(),
        mmap_fd: is_memory.then(|| memory.as_raw_fd()),
    }
}

/// A device for one client.
pub struct CopyEngine {
    config: ConfigSpace,
    registers: [u8; REGISTER_BYTES],
    status: Status,
    copies: u32,
    /// Copies since the process was started.
    all_copies: u32,
    memory: MmapRegion,
    mappings: Mappings,
    interrupt: Option<File>,
    options: Options,
}

impl CopyEngine {
    /// Returns a device after power-on, with its own `memory`.
    ///
    /// # Errors
    /// The memory cannot be mapped.
    pub fn new(memory: OwnedFd, options: Options) -> anyhow::Result<Self> {
        let file = FileOffset::new(memory.into(), 0);
        let memory = MmapRegion::from_file(file, usize::try_from(MEMORY_BYTES)?);
        Ok(Self {
            config: ConfigSpace::default(),
            registers: [0; REGISTER_BYTES],
            status: Status::Idle,
            copies: 0,
            all_copies: 0,
            memory: memory.context("cannot map the device's own memory")?,
            mappings: Mappings::default(),
            interrupt: None,
            options,
        })
    }

    /// Returns the registers from `offset` on as the client reads them.
    fn read_registers(&self, offset: u64, data: &mut [u8]) {
        let mut registers = self.registers;
        for (register, value) in [
            (IDENTITY, IDENTITY_VALUE),
            (COPIES, self.copies),
            (START, self.status.value()),
        ] {
            put(&mut registers, register, &value.to_le_bytes());
        }
        get(&registers, offset, data);
    }

    fn write_registers(&mut self, offset: u64, data: &[u8]) {
        put(&mut self.registers, offset, data);
        let end = offset.saturating_add(data.len() as u64);
        if (offset..end).contains(&START) {
            self.start();
        }
    }

    /// Executes the copy that the registers describe, and signals its end.
    fn start(&mut self) {
        if self.options.die_after == Some(self.all_copies) {
            eprintln!("dies as told, after {} copies", self.all_copies);
            process::exit(1);
        }
        self.all_copies = self.all_copies.saturating_add(1);
        self.copies = self.copies.saturating_add(1);
        self.status = match self.config.is_master() {
            true => self.copy().err().unwrap_or(Status::Done),
            false => Status::NotMaster,
        };
        let signalled = self.interrupt.as_mut();
        let signalled = signalled.map(|event| event.write_all(&1u64.to_le_bytes()));
        if let Some(Err(error)) = signalled {
            eprintln!("no interrupt: {error}");
        }
    }

    /// Copies piece by piece, because a transfer may span mappings.
    fn copy(&self) -> Result<(), Status> {
        let [source, target, length] = self.order();
        let mut done = 0;
        while done < length {
            let (from, to) = (source.checked_add(done), target.checked_add(done));
            let left = usize::try_from(length.saturating_sub(done)).unwrap_or(usize::MAX);
            let from = from.and_then(|at| self.find(at, left, DmaMapFlags::READ));
            let from = from.ok_or(Status::SourceUnmapped)?;
            let to = to.and_then(|at| self.find(at, from.len(), DmaMapFlags::WRITE));
            let to = to.ok_or(Status::TargetUnmapped)?;
            from.copy_to_volatile_slice(to);
            done = done.saturating_add(to.len() as u64);
        }
        Ok(())
    }

    /// Returns source, target and length.
    fn order(&self) -> [u64; 3] {
        let number = |at| {
            let mut bytes = [0; 8];
            get(&self.registers, at, &mut bytes);
            u64::from_le_bytes(bytes)
        };
        let length = number(LENGTH) & u64::from(u32::MAX);
        [number(SOURCE), number(TARGET), length]
    }

    /// Returns own memory, or memory of the client, at a bus address.
    fn find(&self, address: u64, length: usize, access: DmaMapFlags) -> Option<VolatileSlice<'_>> {
        let own = address.checked_sub(self.config.memory_address());
        let own = own.filter(|at| *at < u64::from(MEMORY_BYTES));
        let Some(at) = own.and_then(|at| usize::try_from(at).ok()) else {
            return self.mappings.find(address, length, access);
        };
        let memory = self.memory.as_volatile_slice();
        let length = memory.len().checked_sub(at)?.min(length);
        memory.subslice(at, length).ok()
    }

    fn reset_registers(&mut self) {
        self.config = ConfigSpace::default();
        self.registers = [0; REGISTER_BYTES];
        self.status = Status::Idle;
        self.copies = 0;
    }
}

impl ServerBackend for CopyEngine {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        thread::sleep(self.options.slow);
        match region {
            REGISTER_BAR => self.read_registers(offset, data),
            MEMORY_BAR => {
                let memory = self.memory.as_volatile_slice();
                part(&memory, offset, data.len())?.copy_to(data);
            }
            VFIO_PCI_CONFIG_REGION_INDEX => self.config.read(offset, data),
            _ => data.fill(0xff),
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        thread::sleep(self.options.slow);
        match region {
            REGISTER_BAR => self.write_registers(offset, data),
            MEMORY_BAR => {
                let memory = self.memory.as_volatile_slice();
                part(&memory, offset, data.len())?.copy_from(data);
            }
            VFIO_PCI_CONFIG_REGION_INDEX => {
                let is_reset = self.config.write(offset, data);
                if is_reset {
                    self.reset_registers();
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn dma_map(
        &mut self,
        flags: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        file: Option<File>,
    ) -> io::Result<()> {
        thread::sleep(self.options.slow);
        match file {
            Some(file) => self.mappings.add(flags, address, size, file, offset),
            // It cannot send requests for this memory.
            None => Ok(()),
        }
    }

    fn dma_unmap(&mut self, flags: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        thread::sleep(self.options.slow);
        if self.options.keep_mappings {
            return Ok(());
        }
        match flags.contains(DmaUnmapFlags::UNMAP_ALL) {
            true => self.mappings = Mappings::default(),
            false => self.mappings.remove(address, size),
        }
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        thread::sleep(self.options.slow);
        self.reset_registers();
        Ok(())
    }

    fn set_irqs(
        &mut self,
        index: u32,
        _flags: u32,
        _start: u32,
        _count: u32,
        mut files: Vec<File>,
    ) -> io::Result<()> {
        thread::sleep(self.options.slow);
        // Of the interrupts there is only the first vector of MSI-X.
        if index == VFIO_PCI_MSIX_IRQ_INDEX {
            self.interrupt = files.pop();
        }
        Ok(())
    }
}

/// Returns the `length` bytes of `memory` at `offset`.
fn part<'a>(
    memory: &VolatileSlice<'a>,
    offset: u64,
    length: usize,
) -> io::Result<VolatileSlice<'a>> {
    let offset = usize::try_from(offset).map_err(io::Error::other)?;
    memory.subslice(offset, length).map_err(io::Error::other)
}

/// Reads `registers` from `offset` on. There are zeros behind the end.
fn get(registers: &[u8; REGISTER_BYTES], offset: u64, data: &mut [u8]) {
    let at = usize::try_from(offset).unwrap_or(REGISTER_BYTES);
    data.fill(0);
    for (byte, value) in data.iter_mut().zip(registers.iter().skip(at)) {
        *byte = *value;
    }
}

/// Writes `data` to `registers` from `offset` on.
fn put(registers: &mut [u8; REGISTER_BYTES], offset: u64, data: &[u8]) {
    let at = usize::try_from(offset).unwrap_or(REGISTER_BYTES);
    for (byte, value) in registers.iter_mut().skip(at).zip(data) {
        *byte = *value;
    }
}
