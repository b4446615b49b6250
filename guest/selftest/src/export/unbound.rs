//! The GPU's driver is unbound while an importer that cannot be notified holds memory: others are
//! notified at once, and the driver leaves when the last holder releases it.

use std::path::Path;
use std::{fs, thread};

use anyhow::{Context, bail, ensure};
use peerbar_agent::dma_buf_importer::{Import, Kind};
use peerbar_agent::kmsg::KernelLog;
use peerbar_gds::ExportPolicy;

use super::{Fixture, is_notified};
use crate::expect::{refused, works};
use crate::load::{GPU_PAGE, TIME_OUT, memory_is_back};

const DRIVER: &str = "/sys/bus/pci/drivers/peerbar_gpu";

/// The driver's message when it waits.
const WAITS: &str = "is not removed before the last holder of its memory releases it";

pub(super) fn waits_for_holders(fixture: &Fixture<'_>) -> anyhow::Result<()> {
    for (policy, kind) in [
        (ExportPolicy::Pinned, Kind::Pinning),
        (ExportPolicy::Static, Kind::Static),
    ] {
        once(fixture, policy, kind)
            .with_context(|| format!("the driver leaves while an export is {policy:?}"))?;
        works_again(fixture).context("after the driver came back")?;
    }
    Ok(())
}

/// Tests an importer that only pins or only maps, to check that each alone keeps the driver.
fn once(fixture: &Fixture<'_>, policy: ExportPolicy, kind: Kind) -> anyhow::Result<()> {
    let gpu = fixture.gpu.open()?;
    // The driver revokes one after the other, and none may wait for the holder of another.
    let buffers = [(); 3].map(|()| gpu.allocate(GPU_PAGE));
    let [first, held, last] = buffers;
    let (first, held, last) = (first?, held?, last?);
    let revocable = [first.export()?, last.export()?];
    let bystanders = [
        fixture.import(&revocable[0], Kind::Notified)?,
        fixture.import(&revocable[1], Kind::Notified)?,
    ];
    let dma_buf = held.export_as(policy)?;
    let import = fixture.attach(&dma_buf, kind)?;
    match kind {
        Kind::Static => import.map().map(drop)?,
        _ => import.pin()?,
    }
    let mut log = KernelLog::from_now_on()?;
    let ended = thread::scope(|scope| {
        let unbind = scope.spawn(|| write("unbind", fixture));
        let seen = is_waiting(fixture, &mut log, &bystanders);
        let late = fixture.attach(&dma_buf, kind).map(drop);
        let ended_early = unbind.is_finished();
        // Whatever was seen, the thread ends only now.
        drop(import);
        let ended = unbind.join();
        seen?;
        ensure!(!ended_early, "the driver has left a GPU with a holder");
        refused(late, libc::ENODEV).context("attaching to memory of a GPU that leaves")?;
        match ended {
            Ok(ended) => ended,
            Err(_) => bail!("the thread that unbinds has panicked"),
        }
    });
    drop((first, held, last, gpu));
    ended?;
    write("bind", fixture)
}

/// Checks that all importers that can be notified were notified, and that the driver reports that
/// it waits.
fn is_waiting(
    fixture: &Fixture<'_>,
    log: &mut KernelLog,
    bystanders: &[Import<'_>],
) -> anyhow::Result<()> {
    fixture.guest.uevents.wait_for(TIME_OUT, || {
        ensure!(
            log.new_messages().any(|line| line.contains(WAITS)),
            "the driver does not wait for the holder of a dma-buf"
        );
        anyhow::Ok(())
    })?;
    bystanders.iter().try_for_each(is_notified)
}

fn write(file: &str, fixture: &Fixture<'_>) -> anyhow::Result<()> {
    let name = fixture.gpu.pci.file_name();
    let name = name.context("a GPU without an address")?;
    let path = Path::new(DRIVER).join(file);
    fs::write(&path, name.as_encoded_bytes())
        .with_context(|| format!("cannot write to {}", path.display()))
}

fn works_again(fixture: &Fixture<'_>) -> anyhow::Result<()> {
    let uevents = &fixture.guest.uevents;
    let gpu = uevents.wait_for(TIME_OUT, || fixture.gpu.open())?;
    works(&gpu)?;
    drop(gpu);
    memory_is_back(fixture.guest, fixture.gpu)
}
