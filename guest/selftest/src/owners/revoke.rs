//! Memory that is revoked during commands that use it several times: a revoke waits for the
//! commands that use the memory, so none of them may wait for the revoke while it uses it.

use std::sync::mpsc;
use std::thread;

use anyhow::{Context, anyhow};
use peerbar_agent::gpus;
use peerbar_gds::{Command, Error, Gpu, ImportedBuffer, Kernel};

use crate::expect::driver_refused;
use crate::load::GPU_PAGE;

/// Number of rounds: both have to meet within a few instructions.
const ROUNDS: usize = 200;

pub(super) fn amid_commands(gpu: &gpus::Gpu) -> anyhow::Result<()> {
    let (owner, importer) = (gpu.open()?, gpu.open()?);
    (0..ROUNDS).try_for_each(|round| {
        once(&owner, &importer).with_context(|| format!("round {round} of {ROUNDS}"))
    })
}

fn once(owner: &Gpu, importer: &Gpu) -> anyhow::Result<()> {
    let buffer = owner.allocate(GPU_PAGE)?;
    let imported = importer.import(&buffer.export()?)?;
    let (begun, first) = mpsc::channel();
    thread::scope(|scope| {
        let commands = scope.spawn(|| submit_until_refused(importer, &imported, begun));
        first.recv()?;
        buffer.revoke()?;
        let error = commands
            .join()
            .map_err(|_| anyhow!("a thread has panicked"))?;
        driver_refused::<()>(Err(error), libc::ENODEV)
            .context("the next command, which finds no memory")
    })
}

/// Submits commands with three operands in the memory. Returns the error that stops it.
fn submit_until_refused(gpu: &Gpu, memory: &ImportedBuffer, begun: mpsc::Sender<()>) -> Error {
    let mut begun = Some(begun);
    loop {
        match submit(gpu, memory) {
            Ok(()) => drop(begun.take().map(|begun| begun.send(()))),
            Err(Error::Driver { source, .. }) if source.raw_os_error() == Some(libc::EAGAIN) => {}
            Err(error) => return error,
        }
    }
}

fn submit(gpu: &Gpu, memory: &ImportedBuffer) -> peerbar_gds::Result<()> {
    let operand = memory.span(..4)?;
    let kernel = Kernel::VectorAdd {
        a: operand,
        b: operand,
        sum: operand,
        elements: 1,
    };
    let (grid, block) = (1, 1);
    let launch = Command::Launch {
        kernel,
        grid,
        block,
    };
    gpu.submit(&launch).map(drop)
}
