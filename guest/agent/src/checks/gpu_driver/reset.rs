//! A function-level reset costs no command its result and no buffer its contents.

use std::fs;

use anyhow::{Context, ensure};

use super::{GPU_PAGE, Load, memory_is_back};
use crate::lab::Lab;

const RESETS: u32 = 4;
const THREADS: u64 = 2;
const MARK: u64 = 0x0102_0304_0506_0708;

pub(in crate::checks) fn run(lab: &Lab, gpu: &str) -> anyhow::Result<()> {
    let gpu = lab.gpu(gpu)?;
    let opened = gpu.open()?;
    let kept = opened.allocate(GPU_PAGE)?;
    opened.fill(kept.span(..)?, MARK)?;
    let file = gpu.pci.join("reset");
    for number in 1..=RESETS {
        let load = Load::start(&opened, THREADS);
        // A command that completes says that the load is on its way.
        opened.fill(kept.span(..8)?, MARK)?;
        fs::write(&file, "1")
            .with_context(|| format!("the reset through {} failed", file.display()))?;
        opened.fill(kept.span(..8)?, MARK)?;
        load.end()
            .with_context(|| format!("commands across reset {number}"))?;
    }
    let expected = opened.allocate(GPU_PAGE)?;
    opened.fill(expected.span(..)?, MARK)?;
    let different = opened.compare(kept.span(..)?, expected.span(..)?)?;
    ensure!(
        different.is_none(),
        "byte {different:?} of VRAM is different after {RESETS} resets"
    );
    drop((kept, expected, opened));
    memory_is_back(lab, gpu)
}
