//! The GPU's memory as dma-bufs, by each policy and for each kind of importer. The importers are those of a kernel module,
//! which uses no hardware; that the memory is still there is seen by another GPU, which imports it too.

mod killed;
mod unbound;

use super::{CheckOutcome, Run};
use std::io;
use std::os::fd::OwnedFd;

use anyhow::{Context, bail, ensure};
use peerbar_gds::{Buffer, Error, ExportPolicy, Gpu};
use peerbar_mapping::Mapping;
use peerbar_report::{Buffer as With, GpuExport, Measure};

use super::gpu_access;
use super::gpu_load::{GPU_PAGE, memory_is_back};
use super::route::judge;
use crate::counters::TrafficWatch;
use crate::dma_buf_importer::{Import, Importer, Kind};
use crate::gpus;
use crate::guest_context::GuestContext;
use crate::pci_function::PciFunction;

const POLICIES: [ExportPolicy; 3] = [
    ExportPolicy::Revocable,
    ExportPolicy::Pinned,
    ExportPolicy::Static,
];
const KINDS: [Kind; 4] = [Kind::Notified, Kind::Pinning, Kind::Static, Kind::HostOnly];

const MARK: u64 = 0x6578_706f_6578_706f;

impl Run for GpuExport {
    fn run(&self, guest: &GuestContext, measure: &mut Measure) -> anyhow::Result<CheckOutcome> {
        let (gpu, other) = (guest.gpu(&self.gpu)?, guest.gpu(&self.importer)?);
        let bench = Bench {
            guest,
            gpu,
            importer: Importer::open()?,
            function: PciFunction::of(&other.pci)?,
        };
        let is_window = {
            let opened = gpu.open()?;
            revoked_from_importers(&bench, &opened).context("revocable")?;
            let is_window = opened.properties().window;
            if is_window {
                refused_for_a_window(&opened)?;
            } else {
                permitted_importers(&bench, &opened)?;
                kept_while_pinned(&bench, &opened).context("pinned")?;
                kept_while_mapped(&bench, &opened, Kind::Static).context("static")?;
            }
            is_window
        };
        memory_is_back(guest, gpu)?;
        let mut watch = TrafficWatch::new(guest);
        if !is_window {
            measure.bytes = watch.watch(|| killed::memory_stays(&bench, other))?;
            unbound::waits_for_holders(&bench)?;
        }
        watch.write_to(measure);
        let through = With::P2pmem(gpu.name.clone());
        judge(&through, &[other.share(measure.bytes)], watch.traffic()?)?;
        Ok(CheckOutcome::Passed)
    }
}

/// The GPU whose memory it is, and the module that imports it for the PCI function of another.
struct Bench<'a> {
    guest: &'a GuestContext,
    gpu: &'a gpus::Gpu,
    importer: Importer,
    function: PciFunction,
}

impl Bench<'_> {
    fn attach(&self, dma_buf: &OwnedFd, kind: Kind) -> io::Result<Import<'_>> {
        self.importer.attach(dma_buf, kind, Some(self.function))
    }

    /// Attaches, pins where that is all that an importer of this kind can do, and maps.
    fn import(&self, dma_buf: &OwnedFd, kind: Kind) -> io::Result<Import<'_>> {
        let import = self.attach(dma_buf, kind)?;
        if kind == Kind::Pinning {
            import.pin()?;
        }
        import.map()?;
        Ok(import)
    }
}

/// Each kind of importer gets the memory by the policies that permit it, and EOPNOTSUPP by the others.
fn permitted_importers(bench: &Bench<'_>, gpu: &Gpu) -> anyhow::Result<()> {
    let buffer = gpu.allocate(GPU_PAGE)?;
    for policy in POLICIES {
        let dma_buf = buffer.export_as(policy)?;
        for kind in KINDS {
            let import = bench.import(&dma_buf, kind);
            let is_right = match (policy, kind) {
                (_, Kind::HostOnly)
                | (ExportPolicy::Revocable, Kind::Pinning | Kind::Static)
                | (ExportPolicy::Pinned, Kind::Static) => fails_with(&import, libc::EOPNOTSUPP),
                _ => import.is_ok(),
            };
            ensure!(
                is_right,
                "{kind:?} importers, where the export is {policy:?}: {import:?}"
            );
        }
        let no_function = bench.importer.attach(&dma_buf, Kind::Static, None);
        ensure!(
            fails_with(&no_function, libc::EOPNOTSUPP),
            "a device that is no PCI function, where the export is {policy:?}: {no_function:?}"
        );
    }
    Ok(())
}

fn refused_for_a_window(gpu: &Gpu) -> anyhow::Result<()> {
    let buffer = gpu.allocate(GPU_PAGE)?;
    for policy in [ExportPolicy::Pinned, ExportPolicy::Static] {
        is_refused(buffer.export_as(policy), libc::EOPNOTSUPP)
            .with_context(|| format!("an export of a window that is {policy:?}"))?;
    }
    Ok(())
}

/// Importers are notified, whether they have pinned or not, and it is over with the memory.
fn revoked_from_importers(bench: &Bench<'_>, gpu: &Gpu) -> anyhow::Result<()> {
    let buffer = gpu.allocate(GPU_PAGE)?;
    let dma_buf = buffer.export()?;
    let mapped = bench.import(&dma_buf, Kind::Notified)?;
    let pinned = bench.import(&dma_buf, Kind::Notified)?;
    let by_processor = Mapping::of_file(&dma_buf, 0, GPU_PAGE).context("mmap of a dma-buf")?;
    ensure!(
        gpu_access::store(&by_processor, GPU_PAGE - 1, 1)?,
        "a mapping of a dma-buf shows no memory"
    );
    match pinned.pin() {
        // A kernel on which an importer cannot say that it can be notified nevertheless.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
        other => other?,
    }
    buffer.revoke()?;
    for import in [&mapped, &pinned] {
        is_notified(import)?;
        is_gone(import)?;
    }
    gpu_access::is_gone(&by_processor).context("a mapping of the processor")?;
    let late = bench.attach(&dma_buf, Kind::Notified);
    ensure!(
        fails_with(&late, libc::ENODEV),
        "attaching to what is revoked: {late:?}"
    );
    Ok(())
}

/// A revoke is refused while a pin or a mapping is left, and then has no effect.
fn kept_while_pinned(bench: &Bench<'_>, gpu: &Gpu) -> anyhow::Result<()> {
    let buffer = gpu.allocate(GPU_PAGE)?;
    let (dma_buf, revocable) = (buffer.export_as(ExportPolicy::Pinned)?, buffer.export()?);
    let bystander = bench.import(&revocable, Kind::Notified)?;
    let pinning = bench.import(&dma_buf, Kind::Pinning)?;
    is_refused(buffer.revoke(), libc::EBUSY).context("a revoke while it is pinned and mapped")?;
    pinning.unmap()?;
    is_refused(buffer.revoke(), libc::EBUSY).context("a revoke while it is pinned")?;
    let state = bystander.state()?;
    ensure!(
        (state.notified, state.mapped) == (0, 1),
        "a revoke that was refused has notified another importer: {state:?}"
    );
    gpu.fill(buffer.span(..)?, MARK)?;
    pinning.unpin()?;
    buffer.revoke().context("a revoke after the last pin")?;
    is_notified(&bystander)?;
    is_gone(&pinning)?;
    if bench.attach(&buffer_of(gpu)?.1, Kind::Pinning).is_err() {
        // This kernel knows which importers cannot be notified.
        kept_while_mapped(bench, gpu, Kind::Pinning).context("mapped without a pin")?;
    }
    Ok(())
}

/// A revocable dma-buf, with its buffer.
fn buffer_of(gpu: &Gpu) -> anyhow::Result<(Buffer, OwnedFd)> {
    let buffer = gpu.allocate(GPU_PAGE)?;
    let dma_buf = buffer.export()?;
    Ok((buffer, dma_buf))
}

/// A mapping keeps the memory if its importer cannot be notified.
fn kept_while_mapped(bench: &Bench<'_>, gpu: &Gpu, kind: Kind) -> anyhow::Result<()> {
    let buffer = gpu.allocate(GPU_PAGE)?;
    let dma_buf = buffer.export_as(ExportPolicy::Static)?;
    let import = bench.attach(&dma_buf, kind)?;
    let (address, length) = import.map()?;
    ensure!(
        address != 0 && length == buffer.size(),
        "{length} bytes are mapped at {address:#x}, of {}",
        buffer.size()
    );
    is_refused(buffer.revoke(), libc::EBUSY).context("a revoke while it is mapped")?;
    import.unmap()?;
    buffer.revoke().context("a revoke after the last mapping")?;
    let late = import.map();
    ensure!(
        fails_with(&late, libc::ENODEV),
        "mapping what is revoked: {late:?}"
    );
    Ok(())
}

fn is_notified(import: &Import<'_>) -> anyhow::Result<()> {
    let state = import.state()?;
    ensure!(
        (state.notified, state.pins, state.mapped) == (1, 0, 0),
        "an importer that was to be notified once has: {state:?}"
    );
    Ok(())
}

/// It can neither be pinned nor mapped again.
fn is_gone(import: &Import<'_>) -> anyhow::Result<()> {
    for (what, outcome) in [
        ("pinning", import.pin()),
        ("mapping", import.map().map(drop)),
    ] {
        ensure!(
            fails_with(&outcome, libc::ENODEV),
            "{what} what is revoked: {outcome:?}"
        );
    }
    Ok(())
}

fn fails_with<T>(outcome: &io::Result<T>, errno: i32) -> bool {
    matches!(outcome, Err(error) if error.raw_os_error() == Some(errno))
}

fn is_refused<T>(outcome: peerbar_gds::Result<T>, errno: i32) -> anyhow::Result<()> {
    match outcome {
        Err(Error::Driver { source, .. }) if source.raw_os_error() == Some(errno) => Ok(()),
        Err(other) => bail!("it fails with {other:?}, not with errno {errno}"),
        Ok(_) => bail!("it succeeds"),
    }
}
