//! A `[[nvme]]` table that makes sense.

use std::fs;
use std::path::Path;

use peerbar_fault::{Faults, Kind};
use peerbar_nvme::{
    BLOCK_SIZES, CMB_UNIT, LARGEST_CMB, MDTS, MOST_SPARE_QUEUES, PMR_SIZES, PollPolicy,
    SeededFault, UnknownFault, VECTORS, WORKERS,
};
use toml::Spanned;

use super::attach::AttachPoints;
use super::error::Problem;
use super::fault::faults;
use super::file::{NamespaceTable, NvmeTable, PmrTable};
use super::link::{link, speed};
use super::qemu_nvme;
use super::{Model, Namespace, Nvme, Pmr};
use crate::size::Size;

/// Checks one controller, whose name is known to fit; images are relative to `folder`.
pub(super) fn nvme(
    table: NvmeTable,
    attach_points: &AttachPoints,
    folder: &Path,
) -> Result<Nvme, Problem> {
    if table.model == Model::Qemu {
        qemu_nvme::check(&table)?;
    }
    let name = table.name.into_inner();
    let attach = attach_points.of_device(table.below)?;
    let link = link(table.link, &name, &attach)?;
    let link_speed = speed(table.link_latency, table.link_bandwidth)?;
    let cmb = table.cmb.map(cmb).transpose()?;
    let of_cmb = |key, value| of_cmb(key, value, &name, cmb);
    let cmb_queues = of_cmb("cmb-queues", table.cmb_queues)?;
    let cmb_legacy = of_cmb("cmb-legacy", table.cmb_legacy)?;
    let pmr = table.pmr.map(|pmr| self::pmr(pmr, folder)).transpose()?;
    let block_size = table.block_size.map_or(Ok(512), block_size)?;
    let mdts = table.mdts.map(mdts).transpose()?;
    let spare_queues = table.spare_queues.map_or(Ok(0), spare_queues)?;
    let workers = table.workers.map(workers).transpose()?;
    let poll = table.poll.map(poll).transpose()?;
    let (namespaces, sizes) = namespaces(table.namespaces, &name, block_size, folder)?;
    let seeded_faults = table.seed_fault.into_iter().map(seeded_fault);
    let seeded_faults = seeded_faults.collect::<Result<_, _>>()?;
    let disk_bytes = sizes.first().copied().unwrap_or(0);
    Ok(Nvme {
        name,
        model: table.model,
        attach,
        link,
        link_speed,
        ats: table.ats.is_some_and(Spanned::into_inner),
        cmb,
        cmb_queues,
        cmb_legacy,
        pmr,
        block_size,
        mdts,
        spare_queues,
        workers,
        poll,
        disk_bytes,
        faults: faults(&table.faults, &fault_subjects(namespaces.len()))?,
        namespaces,
        seeded_faults,
        counted: table.counted.unwrap_or(true),
    })
}

/// What faults can be injected into at a controller with this number of namespaces.
fn fault_subjects(namespaces: usize) -> Faults {
    let subjects = Faults::default();
    subjects.serve(&Kind::OF_DISKS);
    subjects.set_vectors(VECTORS.into());
    subjects.set_namespaces(u32::try_from(namespaces).unwrap_or(u32::MAX));
    subjects
}

fn cmb(size: Spanned<Size>) -> Result<u64, Problem> {
    let bytes = size.get_ref().0;
    if bytes == 0 || bytes > LARGEST_CMB || bytes % CMB_UNIT != 0 {
        let message = format!(
            "`cmb = \"{}\"`: Linux takes multiples of {} only, and {} is the most",
            size.get_ref(),
            Size(CMB_UNIT),
            Size(LARGEST_CMB)
        );
        return Err(Problem::new(size.span(), message));
    }
    Ok(bytes)
}

/// The `value` of a `key` that only a controller with a CMB can have.
fn of_cmb(
    key: &str,
    value: Option<Spanned<bool>>,
    name: &str,
    cmb: Option<u64>,
) -> Result<bool, Problem> {
    match value {
        Some(value) if *value.get_ref() && cmb.is_none() => Err(Problem::new(
            value.span(),
            format!("`{key}`: `{name}` has no CMB: give it a `cmb`"),
        )),
        value => Ok(value.is_some_and(Spanned::into_inner)),
    }
}

fn pmr(table: Spanned<PmrTable>, folder: &Path) -> Result<Pmr, Problem> {
    let at = table.span();
    let PmrTable { size, file } = table.into_inner();
    let bytes = size.0;
    if !bytes.is_power_of_two() || !PMR_SIZES.contains(&bytes) {
        let message = format!(
            "`pmr` of {size}: the region is a whole BAR, so its size is a power of two from {} to {}",
            Size(*PMR_SIZES.start()),
            Size(*PMR_SIZES.end())
        );
        return Err(Problem::new(at, message));
    }
    let file = file.map(|file| folder.join(file));
    if let Some(path) = &file {
        check_path(path).map_err(|message| Problem::new(at.clone(), message))?;
    }
    match file.as_deref().map(|path| (path, fs::metadata(path))) {
        Some((path, Ok(metadata))) if !metadata.is_file() || metadata.len() != bytes => {
            let message = format!(
                "`pmr`: {} is no regular file of {bytes} bytes: give `size` its size, or name another file",
                path.display()
            );
            Err(Problem::new(at, message))
        }
        _ => Ok(Pmr { bytes, file }),
    }
}

fn block_size(size: Spanned<u32>) -> Result<u32, Problem> {
    if !BLOCK_SIZES.contains(size.get_ref()) {
        let message = format!(
            "`block-size = {}`: blocks have 512 or 4096 bytes",
            size.get_ref()
        );
        return Err(Problem::new(size.span(), message));
    }
    Ok(size.into_inner())
}

fn mdts(power: Spanned<u8>) -> Result<u8, Problem> {
    if !MDTS.contains(power.get_ref()) {
        let message = format!(
            "`mdts = {}`: from {} to {}",
            power.get_ref(),
            MDTS.start(),
            MDTS.end()
        );
        return Err(Problem::new(power.span(), message));
    }
    Ok(power.into_inner())
}

fn seeded_fault(word: Spanned<String>) -> Result<SeededFault, Problem> {
    let fault = word.get_ref().parse();
    fault.map_err(|error: UnknownFault| {
        let message = format!("`seed-fault`: `{}` {error}", word.get_ref());
        Problem::new(word.span(), message)
    })
}

fn spare_queues(count: Spanned<u16>) -> Result<u16, Problem> {
    if *count.get_ref() > MOST_SPARE_QUEUES {
        let message = format!(
            "`spare-queues = {}`: at most {MOST_SPARE_QUEUES}, of 64 queues for I/O",
            count.get_ref()
        );
        return Err(Problem::new(count.span(), message));
    }
    Ok(count.into_inner())
}

fn workers(count: Spanned<i64>) -> Result<u8, Problem> {
    let workers = u8::try_from(*count.get_ref()).ok();
    workers
        .filter(|workers| WORKERS.contains(workers))
        .ok_or_else(|| {
            let (least, most) = (WORKERS.start(), WORKERS.end());
            let message = format!("`workers = {}`: from {least} to {most}", count.get_ref());
            Problem::new(count.span(), message)
        })
}

fn poll(word: Spanned<String>) -> Result<PollPolicy, Problem> {
    word.get_ref().parse().map_err(|error| {
        let message = format!("`poll`: `{}` {error}", word.get_ref());
        Problem::new(word.span(), message)
    })
}

fn namespaces(
    tables: Spanned<Vec<Spanned<NamespaceTable>>>,
    name: &str,
    block_size: u32,
    folder: &Path,
) -> Result<(Vec<Namespace>, Vec<u64>), Problem> {
    let at = tables.span();
    let tables = tables.into_inner();
    if tables.is_empty() {
        let message =
            format!("`{name}` has no namespace: write `namespaces = [{{ ram = \"64M\" }}]`");
        return Err(Problem::new(at, message));
    }
    let pairs = tables
        .into_iter()
        .map(|table| namespace(table, block_size, folder));
    Ok(pairs.collect::<Result<Vec<_>, _>>()?.into_iter().unzip())
}

/// A namespace, and how many bytes it has.
fn namespace(
    table: Spanned<NamespaceTable>,
    block_size: u32,
    folder: &Path,
) -> Result<(Namespace, u64), Problem> {
    let at = table.span();
    let NamespaceTable {
        ram,
        null,
        image,
        file,
        size,
    } = table.into_inner();
    let namespace = match (ram, null, image, file, size) {
        (Some(Size(bytes)), None, None, None, None) => Namespace::Ram(bytes),
        (None, Some(Size(bytes)), None, None, None) => Namespace::Null(bytes),
        (None, None, Some(Size(bytes)), None, None) => Namespace::Image(bytes),
        (None, None, None, Some(file), size) => Namespace::File {
            path: folder.join(file),
            create: size.map(|size| size.0),
        },
        _ => {
            let message = "a namespace is `{ ram = SIZE }`, `{ null = SIZE }`, `{ image = SIZE }`, `{ file = PATH }` or `{ file = PATH, size = SIZE }`";
            return Err(Problem::new(at, message));
        }
    };
    let bytes = namespace_bytes(&namespace).map_err(|message| Problem::new(at.clone(), message))?;
    if bytes < u64::from(block_size) {
        let message =
            format!("a namespace of {bytes} bytes is smaller than one block of {block_size}");
        return Err(Problem::new(at, message));
    }
    Ok((namespace, bytes))
}

/// Checks that a server's option, and QEMU's, can have the path of a file.
fn check_path(path: &Path) -> Result<(), String> {
    match path.to_str() {
        Some(_) => Ok(()),
        None => Err(format!(
            "{} is not UTF-8, as the path of a disk's file must be: run peerbar in the scenario's folder, or move it",
            path.display()
        )),
    }
}

/// Size of a namespace as it will be, without touching anything.
fn namespace_bytes(namespace: &Namespace) -> Result<u64, String> {
    let (path, create) = match namespace {
        Namespace::Ram(bytes) | Namespace::Null(bytes) | Namespace::Image(bytes) => {
            return Ok(*bytes);
        }
        Namespace::File { path, create } => (path, *create),
    };
    check_path(path)?;
    let shown = path.display();
    match (fs::metadata(path), create) {
        (Ok(metadata), _) if !metadata.is_file() => {
            Err(format!("image {shown} is no regular file"))
        }
        (Ok(metadata), Some(wanted)) if metadata.len() != wanted => Err(format!(
            "image {shown} has {} bytes, not {wanted}: leave `size` out to use it as it is",
            metadata.len()
        )),
        (Ok(metadata), _) => Ok(metadata.len()),
        (Err(_), Some(wanted)) => Ok(wanted),
        (Err(error), None) => Err(format!(
            "image {shown} cannot be used ({error}): give a `size` to have it created"
        )),
    }
}
