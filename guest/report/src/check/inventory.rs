//! The devices of a scenario that checks can name, and the machine around them.

use std::time::Duration;

use toml::Spanned;

use super::{Buffer, TableError};
use crate::placeholder::{fill_in, of_disk, of_function, of_gpu, of_nic, unknown_placeholder};
use crate::{Gpu, Nic, NvmeDevice, Size};

/// The most that Linux takes of a CMB for one submission queue: `io_queue_depth` entries, 1024 by
/// default, of 64 bytes.
const QUEUE_BYTES: u64 = 64 << 10;
/// Bytes of an RDMA end's memory before and behind its transfers: `MARGIN` of `guest/rdma-end`,
/// twice.
const AROUND_TRANSFER: u64 = 2 * 4096;
/// The unit in which the GPU's driver allocates memory: `PB_GPU_PAGE` of `guest/gpu-driver`.
const VRAM_UNIT: u64 = 64 << 10;

/// The devices of a scenario, and the machine around them.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    /// The NVMe controllers.
    pub nvmes: Vec<NvmeDevice>,
    /// The devices with servers of other projects that may be NVMe controllers.
    pub foreign_disks: Vec<NvmeDevice>,
    /// The names of the other devices with servers of other projects.
    pub functions: Vec<String>,
    /// The GPUs.
    pub gpus: Vec<Gpu>,
    /// The RDMA network adapters.
    pub nics: Vec<Nic>,
    /// The guest's processors.
    pub cpus: u32,
    /// `true` if there is a tools root.
    pub tools: bool,
    /// Time limit of the guest.
    pub timeout: Duration,
}

impl Inventory {
    /// Returns the controller of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn disk(&self, name: Spanned<String>) -> Result<&NvmeDevice, TableError> {
        let disks = self.nvmes.iter().chain(&self.foreign_disks);
        let found = disks.clone().find(|nvme| nvme.name == *name.get_ref());
        found.ok_or_else(|| unknown("nvme", &name, disks.map(|nvme| &*nvme.name)))
    }

    /// Returns the GPU of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn gpu(&self, name: Spanned<String>) -> Result<&Gpu, TableError> {
        let found = self.find_gpu(name.get_ref());
        found.ok_or_else(|| unknown("gpu", &name, self.gpus.iter().map(|gpu| &*gpu.name)))
    }

    /// Returns the GPU of this name, or `None` if the name is not a GPU's.
    pub fn find_gpu(&self, name: &str) -> Option<&Gpu> {
        self.gpus.iter().find(|gpu| gpu.name == name)
    }

    /// Returns the name, if it is a disk's or a GPU's.
    ///
    /// # Errors
    /// There is no such device.
    pub fn device(&self, name: Spanned<String>) -> Result<String, TableError> {
        match self.find_gpu(name.get_ref()) {
            Some(gpu) => Ok(gpu.name.clone()),
            None => Ok(self.disk(name)?.name.clone()),
        }
    }

    /// Returns the adapter of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn nic(&self, name: Spanned<String>) -> Result<&Nic, TableError> {
        let found = self.nics.iter().find(|nic| nic.name == *name.get_ref());
        found.ok_or_else(|| unknown("nic", &name, self.nics.iter().map(|nic| &*nic.name)))
    }

    /// Checks that each placeholder of `text` is defined in the guest.
    ///
    /// # Errors
    /// The first one that is not, and the defined ones.
    pub fn check_placeholders(&self, text: &str) -> Result<(), String> {
        let disks = self.nvmes.iter().chain(&self.foreign_disks);
        let disks = disks.map(|nvme| of_disk(&nvme.name, nvme.namespaces, nvme.cmb_bytes > 0));
        let gpus = self.gpus.iter().map(|gpu| of_gpu(&gpu.name, !gpu.window));
        let nics = self.nics.iter().map(|nic| of_nic(&nic.name));
        let functions = self.functions.iter().map(|name| of_function(name));
        let known = disks.chain(gpus).chain(nics).chain(functions);
        let known: Vec<String> = known.flatten().collect();
        let check = |key: &str| match known.iter().any(|known| known == key) {
            true => Ok(String::new()),
            false => Err(unknown_placeholder(key, known.iter().map(String::as_str))),
        };
        fill_in(text, check).map(drop)
    }

    /// Returns a text whose placeholders are all defined.
    ///
    /// # Errors
    /// As for [`Inventory::check_placeholders`].
    pub(super) fn with_placeholders(&self, text: Spanned<String>) -> Result<String, TableError> {
        let checked = self.check_placeholders(text.get_ref());
        checked.map_err(|message| TableError::new(text.span(), message))?;
        Ok(text.into_inner())
    }

    /// Returns the name of a device that has p2pmem.
    ///
    /// # Errors
    /// There is no such device, or it has no p2pmem.
    pub fn provider(&self, name: Spanned<String>) -> Result<String, TableError> {
        let at = name.span();
        if let Some(gpu) = self.find_gpu(name.get_ref()) {
            if gpu.window {
                let message = format!(
                    "`{0}` has no p2pmem, because its aperture is a window: give [[gpu]] {0} `mode = \"static\"`",
                    gpu.name
                );
                return Err(TableError::new(at, message));
            }
            return Ok(gpu.name.clone());
        }
        let mut disks = self.nvmes.iter().chain(&self.foreign_disks);
        let is_disk = disks.any(|nvme| nvme.name == *name.get_ref());
        if !is_disk && !self.gpus.is_empty() {
            let disks = self.nvmes.iter().map(|nvme| nvme.name.as_str());
            let all = disks.chain(self.gpus.iter().map(|gpu| gpu.name.as_str()));
            return Err(unknown("nvme]] or [[gpu", &name, all));
        }
        let nvme = self.disk(name)?;
        if nvme.cmb_bytes == 0 {
            let name = &nvme.name;
            let message = match self.nvmes.iter().any(|nvme| nvme.name == *name) {
                true => format!("`{name}` has no p2pmem: give [[nvme]] {name} a `cmb`"),
                false => format!(
                    "`{name}` is a [[device]], whose memory no check uses: name an [[nvme]] with a `cmb`, or a [[gpu]]"
                ),
            };
            return Err(TableError::new(at, message));
        }
        Ok(nvme.name.clone())
    }

    /// Returns a buffer whose p2pmem, if any, exists.
    ///
    /// # Errors
    /// As for [`Inventory::provider`].
    pub fn buffer(&self, buffer: Spanned<Buffer>) -> Result<Spanned<Buffer>, TableError> {
        if let Buffer::P2pmem(name) = buffer.get_ref() {
            self.provider(Spanned::new(buffer.span(), name.clone()))?;
        }
        Ok(buffer)
    }

    /// Checks that `threads` buffers of the largest of `sizes` fit into the buffer's p2pmem.
    ///
    /// # Errors
    /// Sizes that do not fit.
    pub fn holds(&self, buffer: &Buffer, sizes: &[u64], threads: u32) -> Result<(), String> {
        let Buffer::P2pmem(name) = buffer else {
            return Ok(());
        };
        let largest = largest(sizes);
        let needed = largest.saturating_mul(threads.into());
        let (pool, queues) = self.pool(name);
        if needed <= pool.saturating_sub(queues) {
            return Ok(());
        }
        let beside = match queues {
            0 => String::new(),
            queues => format!(", and its queues may take {} of that", Size(queues)),
        };
        Err(format!(
            "{threads} x {} do not fit the p2pmem of `{name}`: it has {}{beside}",
            Size(largest),
            Size(pool)
        ))
    }

    /// Checks that the buffer of an RDMA end for the largest of `sizes` fits into the memory of
    /// each of `gpus`, which may name one twice.
    ///
    /// # Errors
    /// Sizes that do not fit.
    pub fn vram_holds(&self, gpus: &[&str], sizes: &[u64]) -> Result<(), String> {
        let largest = largest(sizes);
        let buffer = largest.saturating_add(AROUND_TRANSFER);
        let buffer = buffer.checked_next_multiple_of(VRAM_UNIT);
        for gpu in &self.gpus {
            let buffers = gpus.iter().filter(|name| **name == gpu.name).count();
            // The driver takes it out of the p2pmem, if the GPU has p2pmem.
            let (memory, bytes) = match gpu.window {
                true => ("VRAM", gpu.vram_bytes),
                false => ("aperture", gpu.aperture_bytes),
            };
            let count = u64::try_from(buffers).unwrap_or(u64::MAX);
            let needed = buffer.map_or(u64::MAX, |buffer| buffer.saturating_mul(count));
            if buffers > 0 && needed > bytes {
                return Err(format!(
                    "{buffers} x {} with a page before and behind each do not fit the {memory} of `{}`: it has {}",
                    Size(largest),
                    gpu.name,
                    Size(bytes)
                ));
            }
        }
        Ok(())
    }

    /// Returns the bytes of p2pmem that the device `name` has, and the bytes of it that queues may
    /// take, one for each processor.
    fn pool(&self, name: &str) -> (u64, u64) {
        if let Some(gpu) = self.find_gpu(name) {
            return (gpu.aperture_bytes, 0);
        }
        match self.nvmes.iter().find(|nvme| nvme.name == name) {
            Some(nvme) if nvme.cmb_queues => (nvme.cmb_bytes, QUEUE_BYTES * u64::from(self.cpus)),
            nvme => (nvme.map_or(0, |nvme| nvme.cmb_bytes), 0),
        }
    }
}

fn unknown<'a>(
    table: &str,
    name: &Spanned<String>,
    known: impl Iterator<Item = &'a str> + Clone,
) -> TableError {
    let message = format!("no [[{table}]] is named `{}`", name.get_ref());
    TableError::unknown(name.span(), message, name.get_ref(), known)
}

/// Checks that a disk of `bytes` holds `threads * 2 * (largest offset + largest size)` bytes: two
/// areas for each thread, since the target's offset differs from the source's.
///
/// # Errors
/// Sizes that do not fit.
pub(super) fn fits(sizes: &[u64], offsets: &[u64], threads: u32, bytes: u64) -> Result<(), String> {
    let area = largest(offsets).checked_add(largest(sizes));
    let needed = area.and_then(|area| area.checked_mul(2 * u64::from(threads)));
    match needed {
        Some(needed) if needed <= bytes => Ok(()),
        _ => Err(format!(
            "{threads} x 2 areas of {} at {} do not fit a disk of {}: enlarge the namespaces",
            Size(largest(sizes)),
            Size(largest(offsets)),
            Size(bytes)
        )),
    }
}

fn largest(sizes: &[u64]) -> u64 {
    sizes.iter().copied().max().unwrap_or(0)
}
