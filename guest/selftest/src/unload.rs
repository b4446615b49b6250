//! The driver is unbound from a GPU in use, the GPU is removed while in use, and the driver is unloaded: nothing leaks.

use std::ffi::CString;
use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use peerbar_agent::gpus;
use peerbar_agent::guest_context::GuestContext;
use peerbar_agent::modules::DIRECTORY;
use peerbar_gds::Mapping;
use peerbar_gds::{Buffer, Error, FileOptions, Gpu};
use rustix::io::Errno;
use rustix::system::{delete_module, finit_module};

use crate::expect::works;
use crate::load::{GPU_PAGE, Load, TIME_OUT, memory_is_back};
use crate::pin_holder::Holder;
use crate::{Test, access};

/// In the order in which they can be loaded.
const MODULES: [&str; 2] = ["peerbar_gpu", "peerbar_gpu_pin_test"];

const SIZE: u64 = 1 << 20;
const THREADS: u64 = 2;
const MARK: u64 = 0x7070_7070_7070_7070;

pub(crate) fn run(test: &Test<'_>) -> anyhow::Result<()> {
    let guest = test.guest;
    let (gpu, disk) = (test.gpu()?, test.disk()?);
    is_in_use(gpu).context("unloading with a file open")?;
    let unbind = || write(&gpu.pci.join("driver/unbind"), &address(gpu)?);
    leaves_under_load(guest, gpu, &disk.disk.node, unbind)
        .context("the driver leaves a GPU in use")?;
    let driver = Path::new("/sys/bus/pci/drivers/peerbar_gpu");
    write(&driver.join("bind"), &address(gpu)?)?;
    works_again(guest, gpu).context("after the driver took the GPU back")?;
    let remove = || write(&gpu.pci.join("remove"), "1");
    leaves_under_load(guest, gpu, &disk.disk.node, remove).context("a GPU in use is removed")?;
    write(Path::new("/sys/bus/pci/rescan"), "1")?;
    works_again(guest, gpu).context("after the bus was scanned for the GPU")?;
    for name in MODULES.iter().rev() {
        unload(name)?;
    }
    for name in MODULES {
        load(name)?;
    }
    works_again(guest, gpu).context("after the modules were loaded again")?;
    Ok(())
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(file, text).with_context(|| format!("cannot write {text} to {}", file.display()))
}

fn address(gpu: &gpus::Gpu) -> anyhow::Result<String> {
    let name = gpu.pci.file_name().context("a GPU without an address")?;
    Ok(name.to_string_lossy().into_owned())
}

fn is_in_use(gpu: &gpus::Gpu) -> anyhow::Result<()> {
    let _opened = gpu.open()?;
    for name in MODULES.iter().take(1) {
        match delete_module(&CString::new(*name)?, libc::O_NONBLOCK) {
            Err(Errno::AGAIN | Errno::BUSY) => {}
            Err(error) => bail!("{name}: {error}, not that it is in use"),
            Ok(()) => bail!("{name} was unloaded"),
        }
    }
    Ok(())
}

fn unload(name: &str) -> anyhow::Result<()> {
    delete_module(&CString::new(name)?, libc::O_NONBLOCK)
        .with_context(|| format!("cannot unload {name}"))
}

fn load(name: &str) -> anyhow::Result<()> {
    let path = format!("{DIRECTORY}/{name}.ko");
    let file = File::open(&path).with_context(|| format!("cannot open {path}"))?;
    finit_module(&file, c"", 0).with_context(|| format!("cannot load {name}"))
}

/// Lets `leave` take the GPU away while commands, transfers, a mapping, a dma-buf and a pin exist.
fn leaves_under_load(
    guest: &GuestContext,
    gpu: &gpus::Gpu,
    disk: &Path,
    leave: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let opened = gpu.open()?;
    let holder = Holder::open()?;
    let buffer = opened.allocate(SIZE)?;
    opened.fill(buffer.span(..)?, MARK)?;
    let pin = holder.pin(&opened, buffer.handle()?, (0, SIZE), 0)?;
    let dma_buf = buffer.export()?;
    let shared = Mapping::of_file(&dma_buf, 0, SIZE).context("mmap of a dma-buf")?;
    ensure!(
        access::store(&shared, 0, 1)?,
        "a mapping of a dma-buf shows no memory"
    );
    let imported = opened.import(&dma_buf)?;
    opened.fill(imported.span(..)?, MARK)?;
    let load = Load::start(&opened, THREADS);
    let file = FileOptions::new().open(&opened, disk)?;
    file.read_at(&buffer, .., 0)?;

    leave()?;

    ensure!(load.end().is_err(), "commands go on without a driver");
    ensure!(
        pin.state()?.callbacks == 1,
        "the holder of a pin was notified {} times",
        pin.state()?.callbacks
    );
    is_out_of_reach(&opened, &buffer, &shared)?;
    let read = file.read_at(&buffer, .., 0);
    ensure!(
        matches!(read, Err(Error::Withdrawn { .. })),
        "a read into memory that is gone ends with {read:?}"
    );
    drop((imported, shared, dma_buf, holder, buffer, file, opened));
    guest.uevents.wait_for(TIME_OUT, || {
        ensure!(!gpu.node_path().exists(), "its device file is still there");
        Ok(())
    })
}

fn is_out_of_reach(gpu: &Gpu, buffer: &Buffer, shared: &Mapping) -> anyhow::Result<()> {
    ensure!(gpu.allocate(GPU_PAGE).is_err(), "memory can be allocated");
    access::is_gone(buffer.mapping())?;
    access::is_gone(shared).context("of a dma-buf")
}

fn works_again(guest: &GuestContext, gpu: &gpus::Gpu) -> anyhow::Result<()> {
    let opened = guest.uevents.wait_for(TIME_OUT, || gpu.open())?;
    works(&opened)?;
    drop(opened);
    memory_is_back(guest, gpu)
}
