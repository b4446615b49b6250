//! The GPU's memory as dma-bufs, by each policy and for each kind of importer. The importers are
//! those of a kernel module, which uses no hardware. Another GPU, which imports the memory too,
//! checks that it is still there.

mod killed;
mod unbound;

use std::io;
use std::os::fd::OwnedFd;

use anyhow::{Context, ensure};
use peerbar_agent::checks::route::judge;
use peerbar_agent::counters::TrafficWatch;
use peerbar_agent::dma_buf_importer::{Import, Importer, Kind};
use peerbar_agent::gpus;
use peerbar_agent::guest_context::GuestContext;
use peerbar_agent::pci_function::PciFunction;
use peerbar_gds::Mapping;
use peerbar_gds::{Buffer, ExportPolicy, Gpu};
use peerbar_report::Buffer as With;

use crate::expect::{driver_refused, refused};
use crate::load::{GPU_PAGE, memory_is_back};
use crate::{Test, access};

const POLICIES: [ExportPolicy; 3] = [
    ExportPolicy::Revocable,
    ExportPolicy::Pinned,
    ExportPolicy::Static,
];
const KINDS: [Kind; 4] = [Kind::Notified, Kind::Pinning, Kind::Static, Kind::HostOnly];

const MARK: u64 = 0x6578_706f_6578_706f;

pub(crate) fn run(test: &Test<'_>) -> anyhow::Result<()> {
    let guest = test.guest;
    let (gpu, other) = (test.gpu()?, test.other_gpu()?);
    let fixture = Fixture {
        guest,
        gpu,
        importer: Importer::open()?,
        function: PciFunction::of(&other.pci)?,
    };
    let is_window = {
        let opened = gpu.open()?;
        revoked_from_importers(&fixture, &opened).context("revocable")?;
        let is_window = opened.properties().window;
        if is_window {
            refused_for_a_window(&opened)?;
        } else {
            permitted_importers(&fixture, &opened)?;
            kept_while_pinned(&fixture, &opened).context("pinned")?;
            kept_while_mapped(&fixture, &opened, Kind::Static).context("static")?;
        }
        is_window
    };
    memory_is_back(guest, gpu)?;
    if is_window {
        return Ok(());
    }
    let mut watch = TrafficWatch::new(guest);
    let copied = watch.watch(|| killed::memory_stays(&fixture, other))?;
    unbound::waits_for_holders(&fixture)?;
    let through = With::P2pmem(gpu.name.clone());
    judge(&through, &[other.share(copied)], watch.traffic()?)
}

/// The GPU whose memory it is, and the module that imports it for the PCI function of another one.
struct Fixture<'a> {
    guest: &'a GuestContext,
    gpu: &'a gpus::Gpu,
    importer: Importer,
    function: PciFunction,
}

impl Fixture<'_> {
    fn attach(&self, dma_buf: &OwnedFd, kind: Kind) -> io::Result<Import<'_>> {
        self.importer.attach(dma_buf, kind, Some(self.function))
    }

    /// Attaches, pins if that is all that an importer of this kind can do, and maps.
    fn import(&self, dma_buf: &OwnedFd, kind: Kind) -> io::Result<Import<'_>> {
        let import = self.attach(dma_buf, kind)?;
        if kind == Kind::Pinning {
            import.pin()?;
        }
        import.map()?;
        Ok(import)
    }
}

/// Checks that each kind of importer gets the memory by the policies that permit it, and EOPNOTSUPP
/// by the others.
fn permitted_importers(fixture: &Fixture<'_>, gpu: &Gpu) -> anyhow::Result<()> {
    let buffer = gpu.allocate(GPU_PAGE)?;
    for policy in POLICIES {
        let dma_buf = buffer.export_as(policy)?;
        for kind in KINDS {
            let import = fixture.import(&dma_buf, kind);
            let outcome = match (policy, kind) {
                (_, Kind::HostOnly)
                | (ExportPolicy::Revocable, Kind::Pinning | Kind::Static)
                | (ExportPolicy::Pinned, Kind::Static) => refused(import, libc::EOPNOTSUPP),
                _ => import.map(drop).map_err(Into::into),
            };
            outcome
                .with_context(|| format!("{kind:?} importers, where the export is {policy:?}"))?;
        }
        let no_function = fixture.importer.attach(&dma_buf, Kind::Static, None);
        refused(no_function, libc::EOPNOTSUPP).with_context(|| {
            format!("a device that is no PCI function, where the export is {policy:?}")
        })?;
    }
    Ok(())
}

fn refused_for_a_window(gpu: &Gpu) -> anyhow::Result<()> {
    let buffer = gpu.allocate(GPU_PAGE)?;
    for policy in [ExportPolicy::Pinned, ExportPolicy::Static] {
        driver_refused(buffer.export_as(policy), libc::EOPNOTSUPP)
            .with_context(|| format!("an export of a window that is {policy:?}"))?;
    }
    Ok(())
}

/// Checks that importers are notified, whether they have pinned or not, and that they lose the
/// memory.
fn revoked_from_importers(fixture: &Fixture<'_>, gpu: &Gpu) -> anyhow::Result<()> {
    let buffer = gpu.allocate(GPU_PAGE)?;
    let dma_buf = buffer.export()?;
    let mapped = fixture.import(&dma_buf, Kind::Notified)?;
    let pinned = fixture.import(&dma_buf, Kind::Notified)?;
    let by_processor = Mapping::of_file(&dma_buf, 0, GPU_PAGE).context("mmap of a dma-buf")?;
    ensure!(
        access::store(&by_processor, GPU_PAGE - 1, 1)?,
        "a mapping of a dma-buf shows no memory"
    );
    match pinned.pin() {
        // On some kernels an importer that has pinned cannot declare that it can be notified
        // nevertheless.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
        other => other?,
    }
    buffer.revoke()?;
    for import in [&mapped, &pinned] {
        is_notified(import)?;
        is_gone(import)?;
    }
    access::is_gone(&by_processor).context("a mapping of the processor")?;
    refused(fixture.attach(&dma_buf, Kind::Notified), libc::ENODEV)
        .context("attaching to revoked memory")
}

/// Checks that a revoke is refused without any effect while a pin or a mapping is left.
fn kept_while_pinned(fixture: &Fixture<'_>, gpu: &Gpu) -> anyhow::Result<()> {
    let buffer = gpu.allocate(GPU_PAGE)?;
    let (dma_buf, revocable) = (buffer.export_as(ExportPolicy::Pinned)?, buffer.export()?);
    let bystander = fixture.import(&revocable, Kind::Notified)?;
    let pinning = fixture.import(&dma_buf, Kind::Pinning)?;
    driver_refused(buffer.revoke(), libc::EBUSY)
        .context("a revoke while it is pinned and mapped")?;
    pinning.unmap()?;
    driver_refused(buffer.revoke(), libc::EBUSY).context("a revoke while it is pinned")?;
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
    if fixture.attach(&buffer_of(gpu)?.1, Kind::Pinning).is_err() {
        // This kernel knows which importers cannot be notified.
        kept_while_mapped(fixture, gpu, Kind::Pinning).context("mapped without a pin")?;
    }
    Ok(())
}

/// Makes a revocable dma-buf, with its buffer.
fn buffer_of(gpu: &Gpu) -> anyhow::Result<(Buffer, OwnedFd)> {
    let buffer = gpu.allocate(GPU_PAGE)?;
    let dma_buf = buffer.export()?;
    Ok((buffer, dma_buf))
}

/// Checks that a mapping keeps the memory if its importer cannot be notified.
fn kept_while_mapped(fixture: &Fixture<'_>, gpu: &Gpu, kind: Kind) -> anyhow::Result<()> {
    let buffer = gpu.allocate(GPU_PAGE)?;
    let dma_buf = buffer.export_as(ExportPolicy::Static)?;
    let import = fixture.attach(&dma_buf, kind)?;
    let (address, length) = import.map()?;
    ensure!(
        address != 0 && length == buffer.size(),
        "{length} bytes are mapped at {address:#x}, of {}",
        buffer.size()
    );
    driver_refused(buffer.revoke(), libc::EBUSY).context("a revoke while it is mapped")?;
    import.unmap()?;
    buffer.revoke().context("a revoke after the last mapping")?;
    refused(import.map(), libc::ENODEV).context("mapping revoked memory")
}

fn is_notified(import: &Import<'_>) -> anyhow::Result<()> {
    let state = import.state()?;
    ensure!(
        (state.notified, state.pins, state.mapped) == (1, 0, 0),
        "an importer should have been notified once: {state:?}"
    );
    Ok(())
}

/// Checks that it can neither be pinned nor mapped again.
fn is_gone(import: &Import<'_>) -> anyhow::Result<()> {
    refused(import.pin(), libc::ENODEV).context("pinning revoked memory")?;
    refused(import.map(), libc::ENODEV).context("mapping revoked memory")
}
