//! A Persistent Memory Region over several boots, each with new servers and a new guest.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, ensure};

use crate::peerbar;

const SCENARIO: &str = r#"
name = "kept"
timeout = "5m"

[machine]
iommu = "intel"

[[module]]
name = "vfio_iommu_type1"
parameters = "allow_unsafe_interrupts=1"

[[switch]]
name = "switch0"

[[nvme]]
name = "disk0"
below = "switch0"
pmr = { size = "2M", file = "disk0.pmr" }
namespaces = [{ ram = "1M" }]

[[gpu]]
name = "gpu0"
below = "switch0"
vram = "64M"

[[check]]
kind = "pmr"
disk = "disk0"
gpu = "gpu0"
"#;

/// Offset of the check's record: a text, the number of runs, a checksum of everything before it.
const RECORD: u64 = 1 << 20;

/// Boots the guest. Returns the exit code, and the launcher's output.
fn boot(folder: &Path) -> anyhow::Result<(Option<i32>, String)> {
    let output = peerbar(&["run", "kept.toml"], folder)?;
    let printed = [output.stdout, output.stderr].concat();
    Ok((output.status.code(), String::from_utf8(printed)?))
}

fn runs(region: &File) -> anyhow::Result<u64> {
    let mut record = [0; 16];
    region.read_exact_at(&mut record, RECORD)?;
    let (text, runs) = record.split_at(8);
    ensure!(text == b"peer-PMR", "no record: {record:x?}");
    Ok(u64::from_le_bytes(runs.try_into()?))
}

/// Inverts the last byte that the record's checksum covers. The GPU's data is random, so setting
/// the byte might not change it.
fn invert_last_byte(region: &Path) -> anyhow::Result<()> {
    let region = File::options().read(true).write(true).open(region)?;
    let mut byte = [0];
    region.read_exact_at(&mut byte, RECORD - 1)?;
    region.write_all_at(&[!byte[0]], RECORD - 1)?;
    Ok(())
}

#[test]
#[ignore = "boots guests; scripts/test runs it"]
fn what_a_gpu_has_written_is_there_in_the_next_boot() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("kept.toml"), SCENARIO)?;
    for boot_number in 1..3 {
        let (code, printed) = boot(folder.path())?;
        ensure!(code == Some(0), "boot {boot_number}: {code:?}: {printed}");
        let region = File::open(folder.path().join("disk0.pmr"))?;
        ensure!(runs(&region)? == boot_number, "after boot {boot_number}");
    }
    invert_last_byte(&folder.path().join("disk0.pmr")).context("the region")?;
    let (code, printed) = boot(folder.path())?;
    ensure!(code == Some(1), "a changed byte: {code:?}: {printed}");
    ensure!(printed.contains("the data of run 2 is lost"), "{printed}");
    Ok(())
}
