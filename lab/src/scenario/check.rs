//! A `[[check]]` table: one of the agent's checks, told apart by `kind`.
//!
//! All keys of all kinds are read first and then matched against the kind, so that every mistake is reported with
//! its own line; serde's tagged enums lose the place.

mod gpu;
mod pool;

use std::ops::Range;

use peerbar_report::{Buffer, Calls, Check, Command, Copy, Medium, Probe};
use serde::Deserialize;
use toml::Spanned;

use super::error::Problem;
use super::{Gpu, Nvme};
use crate::size::Size;

/// Transfers are whole pages, as p2pmem is.
const PAGE: u64 = 4096;

/// What a check can name.
pub(super) struct Devices<'a> {
    pub(super) nvmes: &'a [Nvme],
    pub(super) gpus: &'a [Gpu],
    /// The guest's processors.
    pub(super) cpus: u32,
    /// Whether there is a tools root.
    pub(super) tools: bool,
    /// Whether the machine has a virtio-gpu.
    pub(super) virtio_gpu: bool,
}

/// The keys of every kind of check.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CheckTable {
    /// What the table of results calls it.
    pub(super) name: Option<Spanned<String>>,
    kind: Spanned<Kind>,
    device: Option<Spanned<String>>,
    from: Option<Spanned<String>>,
    to: Option<Spanned<String>>,
    provider: Option<Spanned<String>>,
    client: Option<Spanned<String>>,
    through: Option<Spanned<Through>>,
    sizes: Option<Spanned<Vec<Size>>>,
    offsets: Option<Spanned<Vec<Size>>>,
    threads: Option<Spanned<u32>>,
    run: Option<Spanned<String>>,
    status: Option<Spanned<i32>>,
    expect: Option<Spanned<Vec<String>>>,
    kernel: Option<Spanned<Vec<String>>>,
    show: Option<Spanned<bool>>,
    gpu: Option<Spanned<String>>,
    disk: Option<Spanned<String>>,
    disks: Option<Spanned<Vec<Spanned<String>>>>,
    on: Option<Spanned<Medium>>,
    by: Option<Spanned<Calls>>,
    bounce: Option<Spanned<bool>>,
    with: Option<Spanned<Through>>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Provider,
    QueuesInCmb,
    Copy,
    BufferedRead,
    PoolExhausted,
    Probe,
    ControllerReset,
    Command,
    GpuFile,
    GpuUnaligned,
    GpuBatch,
    GpuRefused,
    GpuCompute,
    GpuAtomics,
    GpuCopy,
    GpuDmaBuf,
    GpuVirtio,
    GpuFaults,
    GpuBeyondAperture,
    GpuMapping,
    GpuPins,
    GpuLifetimes,
    GpuReset,
    GpuLong,
    GpuOwners,
    GpuLost,
    GpuUnload,
}

/// `through = "guest-ram"` or `through = { p2pmem = "disk0" }`.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Through {
    P2pmem(String),
    GuestRam,
}

impl CheckTable {
    /// Refuses the check where others follow it.
    pub(super) fn may_be_followed(&self) -> Result<(), Problem> {
        match self.kind.get_ref() {
            Kind::GpuLost => Err(Problem::new(
                self.kind.span(),
                "nothing is left to check once a GPU is lost: move this check to the end",
            )),
            _ => Ok(()),
        }
    }

    /// The check, once every key fits its kind and every name a device.
    pub(super) fn into_check(mut self, devices: &Devices<'_>) -> Result<Check, Problem> {
        let nvmes = devices.nvmes;
        let check = match *self.kind.get_ref() {
            Kind::Provider => Check::Provider {
                device: provider(self.device()?, devices)?,
            },
            Kind::QueuesInCmb => Check::QueuesInCmb {
                device: with_queues(self.device()?, nvmes)?,
            },
            Kind::ControllerReset => Check::ControllerReset {
                device: known(self.device()?, nvmes)?.name.clone(),
            },
            Kind::PoolExhausted => Check::PoolExhausted {
                provider: provider(self.provider()?, devices)?,
            },
            Kind::Probe => Check::Probe(Probe {
                provider: provider(self.provider()?, devices)?,
                client: self.client(devices)?,
            }),
            Kind::BufferedRead => Check::BufferedRead {
                from: known(self.from()?, nvmes)?.name.clone(),
                provider: provider(self.provider()?, devices)?,
            },
            Kind::Copy => Check::Copy(self.copy(devices)?),
            Kind::Command => Check::Command(self.command(devices)?),
            Kind::GpuFile => Check::GpuFile(self.gpu_file(devices)?),
            Kind::GpuUnaligned => {
                let (gpu, disk) = self.gpu_and_disk(devices)?;
                Check::GpuUnaligned { gpu, disk }
            }
            Kind::GpuBatch => {
                let (gpu, disk) = self.paged_gpu_and_disk(devices)?;
                Check::GpuBatch { gpu, disk }
            }
            Kind::GpuRefused => {
                let (gpu, disk) = self.gpu_and_disk(devices)?;
                Check::GpuRefused { gpu, disk }
            }
            Kind::GpuCompute => self.gpu_compute(devices)?,
            Kind::GpuAtomics => Check::GpuAtomics {
                gpu: self.gpu(devices)?.name.clone(),
            },
            Kind::GpuCopy => Check::GpuCopy(self.gpu_copy(devices)?),
            Kind::GpuDmaBuf => self.gpu_dma_buf(devices)?,
            Kind::GpuVirtio => self.gpu_virtio(devices)?,
            Kind::GpuFaults => Check::GpuFaults {
                gpu: self.gpu(devices)?.name.clone(),
            },
            Kind::GpuBeyondAperture => Check::GpuBeyondAperture {
                gpu: self.gpu_with_hidden_vram(devices)?,
            },
            Kind::GpuMapping => Check::GpuMapping {
                gpu: self.gpu(devices)?.name.clone(),
            },
            Kind::GpuPins => {
                let (gpu, disk) = self.gpu_and_disk(devices)?;
                Check::GpuPins { gpu, disk }
            }
            Kind::GpuLifetimes => {
                let (gpu, disk) = self.paged_gpu_and_disk(devices)?;
                Check::GpuLifetimes { gpu, disk }
            }
            Kind::GpuReset => Check::GpuReset {
                gpu: self.gpu(devices)?.name.clone(),
            },
            Kind::GpuLong => Check::GpuLong {
                gpu: self.gpu_with_long_aperture(devices)?,
            },
            Kind::GpuOwners => Check::GpuOwners {
                gpu: self.gpu(devices)?.name.clone(),
            },
            Kind::GpuLost => {
                let (gpu, disk) = self.paged_gpu_and_disk(devices)?;
                Check::GpuLost { gpu, disk }
            }
            Kind::GpuUnload => {
                let (gpu, disk) = self.paged_gpu_and_disk(devices)?;
                Check::GpuUnload { gpu, disk }
            }
        };
        self.nothing_left()?;
        Ok(check)
    }

    /// A GPU that a disk can write to.
    fn paged_gpu_and_disk(&mut self, devices: &Devices<'_>) -> Result<(String, String), Problem> {
        let gpu = self.gpu.as_ref().map(|name| {
            let copy = Spanned::new(name.span(), name.get_ref().clone());
            provider(copy, devices)
        });
        gpu.transpose()?;
        self.gpu_and_disk(devices)
    }

    fn copy(&mut self, devices: &Devices<'_>) -> Result<Copy, Problem> {
        let nvmes = devices.nvmes;
        let from = known(self.from()?, nvmes)?;
        let to = known(self.to()?, nvmes)?;
        let through = self.through.take();
        let through = required(through, "through", self.kind.span())?;
        let sizes = required(self.sizes.take(), "sizes", self.kind.span())?;
        let offsets = required(self.offsets.take(), "offsets", self.kind.span())?;
        let block = u64::from(from.block_size.max(to.block_size));
        let at = sizes.span();
        let threads = self.threads()?;
        let copy = Copy {
            from: from.name.clone(),
            to: to.name.clone(),
            through: buffer(through, devices)?,
            sizes: multiples(sizes, "sizes", PAGE, 1)?,
            offsets: multiples(offsets, "offsets", block, 0)?,
            threads,
        };
        let disk = from.disk_bytes.min(to.disk_bytes);
        fits(&copy.sizes, &copy.offsets, threads, disk)
            .and_then(|()| pool::holds(&copy.through, &copy.sizes, threads, devices))
            .map_err(|message| Problem::new(at, message))?;
        Ok(copy)
    }

    fn threads(&mut self) -> Result<u32, Problem> {
        match self.threads.take() {
            Some(threads) if !(1..=64).contains(threads.get_ref()) => {
                let message = format!(
                    "`threads = {}`: from 1 to 64 threads can copy",
                    threads.get_ref()
                );
                Err(Problem::new(threads.span(), message))
            }
            threads => Ok(threads.map_or(1, Spanned::into_inner)),
        }
    }

    fn command(&mut self, devices: &Devices<'_>) -> Result<Command, Problem> {
        if !devices.tools {
            let message = "a command is run in the tools root: write `tools = true` at the top";
            return Err(Problem::new(self.kind.span(), message));
        }
        let through = self.through.take().map(|through| buffer(through, devices));
        Ok(Command {
            run: required(self.run.take(), "run", self.kind.span())?.into_inner(),
            status: self.status.take().map_or(0, Spanned::into_inner),
            through: through.transpose()?,
            expect: texts(self.expect.take()),
            kernel: texts(self.kernel.take()),
            show: self.show.take().is_some_and(Spanned::into_inner),
        })
    }

    fn device(&mut self) -> Result<Spanned<String>, Problem> {
        required(self.device.take(), "device", self.kind.span())
    }

    fn from(&mut self) -> Result<Spanned<String>, Problem> {
        required(self.from.take(), "from", self.kind.span())
    }

    fn to(&mut self) -> Result<Spanned<String>, Problem> {
        required(self.to.take(), "to", self.kind.span())
    }

    fn provider(&mut self) -> Result<Spanned<String>, Problem> {
        required(self.provider.take(), "provider", self.kind.span())
    }

    /// A disk, or a GPU with a copy engine.
    fn client(&mut self, devices: &Devices<'_>) -> Result<String, Problem> {
        let name = required(self.client.take(), "client", self.kind.span())?;
        let is_gpu = devices.gpus.iter().any(|gpu| gpu.name == *name.get_ref());
        if is_gpu {
            return Ok(name.into_inner());
        }
        Ok(known(name, devices.nvmes)?.name.clone())
    }

    /// Refuses a key that the kind has no use for: it would be a wish that nobody fulfils.
    fn nothing_left(&self) -> Result<(), Problem> {
        let keys = [
            ("device", span(&self.device)),
            ("from", span(&self.from)),
            ("to", span(&self.to)),
            ("provider", span(&self.provider)),
            ("client", span(&self.client)),
            ("through", span(&self.through)),
            ("sizes", span(&self.sizes)),
            ("offsets", span(&self.offsets)),
            ("threads", span(&self.threads)),
            ("run", span(&self.run)),
            ("status", span(&self.status)),
            ("expect", span(&self.expect)),
            ("kernel", span(&self.kernel)),
            ("show", span(&self.show)),
            ("gpu", span(&self.gpu)),
            ("disk", span(&self.disk)),
            ("disks", span(&self.disks)),
            ("on", span(&self.on)),
            ("by", span(&self.by)),
            ("bounce", span(&self.bounce)),
            ("with", span(&self.with)),
        ];
        for (key, place) in keys {
            if let Some(at) = place {
                return Err(Problem::new(
                    at,
                    format!("a check of this kind has no key `{key}`"),
                ));
            }
        }
        Ok(())
    }
}

fn span<T>(value: &Option<Spanned<T>>) -> Option<Range<usize>> {
    value.as_ref().map(Spanned::span)
}

fn texts(list: Option<Spanned<Vec<String>>>) -> Vec<String> {
    list.map_or_else(Vec::new, Spanned::into_inner)
}

fn required<T>(
    value: Option<Spanned<T>>,
    key: &str,
    kind: Range<usize>,
) -> Result<Spanned<T>, Problem> {
    value.ok_or_else(|| Problem::new(kind, format!("a check of this kind needs the key `{key}`")))
}

fn known(name: Spanned<String>, nvmes: &[Nvme]) -> Result<&Nvme, Problem> {
    let found = nvmes.iter().find(|nvme| nvme.name == *name.get_ref());
    found.ok_or_else(|| {
        let names: Vec<&str> = nvmes.iter().map(|nvme| nvme.name.as_str()).collect();
        let message = format!(
            "no [[nvme]] is named `{}`: there is {}",
            name.get_ref(),
            names.join(", ")
        );
        Problem::new(name.span(), message)
    })
}

/// A device that has p2pmem.
fn provider(name: Spanned<String>, devices: &Devices<'_>) -> Result<String, Problem> {
    let at = name.span();
    if let Some(gpu) = devices.gpus.iter().find(|gpu| gpu.name == *name.get_ref()) {
        if gpu.window {
            let message = format!(
                "`{0}` has no p2pmem: a window is none, give [[gpu]] {0} the `mode = \"static\"`",
                gpu.name
            );
            return Err(Problem::new(at, message));
        }
        return Ok(gpu.name.clone());
    }
    let nvme = known(name, devices.nvmes)?;
    if nvme.cmb.is_none() {
        let message = format!("`{0}` has no p2pmem: give [[nvme]] {0} a `cmb`", nvme.name);
        return Err(Problem::new(at, message));
    }
    Ok(nvme.name.clone())
}

fn with_queues(name: Spanned<String>, nvmes: &[Nvme]) -> Result<String, Problem> {
    let at = name.span();
    let nvme = known(name, nvmes)?;
    if !nvme.cmb_queues {
        let message = format!(
            "`{0}` takes no queues in a CMB: give [[nvme]] {0} `cmb-queues = true`",
            nvme.name
        );
        return Err(Problem::new(at, message));
    }
    Ok(nvme.name.clone())
}

fn buffer(through: Spanned<Through>, devices: &Devices<'_>) -> Result<Buffer, Problem> {
    let at = through.span();
    match through.into_inner() {
        Through::P2pmem(name) => Ok(Buffer::P2pmem(provider(Spanned::new(at, name), devices)?)),
        Through::GuestRam => Ok(Buffer::GuestRam),
    }
}

/// Each thread copies between two areas of its own, as [`Copy::offsets`] says.
fn fits(sizes: &[u64], offsets: &[u64], threads: u32, disk: u64) -> Result<(), String> {
    let largest = |list: &[u64]| list.iter().copied().max().unwrap_or(0);
    let area = largest(offsets).checked_add(largest(sizes));
    let needed = area.and_then(|area| area.checked_mul(2 * u64::from(threads)));
    match needed {
        Some(needed) if needed <= disk => Ok(()),
        _ => {
            let (size, offset) = (Size(largest(sizes)), Size(largest(offsets)));
            let disk = Size(disk);
            Err(format!(
                "{threads} x 2 areas of {size} at {offset} do not fit a disk of {disk}: enlarge the namespaces"
            ))
        }
    }
}

fn multiples(
    sizes: Spanned<Vec<Size>>,
    key: &str,
    unit: u64,
    least: u64,
) -> Result<Vec<u64>, Problem> {
    let at = sizes.span();
    let bytes: Vec<u64> = sizes.into_inner().into_iter().map(|size| size.0).collect();
    if bytes.is_empty() {
        return Err(Problem::new(
            at,
            format!("`{key}` is empty: a copy needs at least one"),
        ));
    }
    match bytes
        .iter()
        .find(|&&bytes| bytes % unit != 0 || bytes < least)
    {
        Some(&bad) => {
            let message = format!("`{key}`: {} is no multiple of {}", Size(bad), Size(unit));
            Err(Problem::new(at, message))
        }
        None => Ok(bytes),
    }
}
