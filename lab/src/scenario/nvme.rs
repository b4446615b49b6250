//! Checks a `[[nvme]]` table.

use std::fs;
use std::path::Path;

use peerbar_fault::{Faults, Kind};
use peerbar_nvme::{Config, PMR_SIZES, VECTORS};
use toml::Spanned;

use super::attach::AttachPoints;
use super::contents::{Namespace, Nvme, Pmr};
use super::error::Problem;
use super::fault::faults;
use super::file::Model;
use super::file::{NamespaceTable, NvmeTable, PmrTable};
use super::link::{link, speed};
use super::qemu_nvme;
use super::settings::Settings;
use crate::size::Size;

/// Checks one controller, whose name is known to fit; images are relative to `folder`.
pub(super) fn nvme(
    table: NvmeTable,
    settings: Settings<Config>,
    attach_points: &AttachPoints,
    folder: &Path,
) -> Result<Nvme, Problem> {
    if table.model == Model::Qemu {
        qemu_nvme::check(&table, &settings)?;
    }
    let name = table.name.into_inner();
    let attach = attach_points.of_device(table.below)?;
    let link = link(table.link, &name, &attach)?;
    let link_speed = speed(table.link_latency, table.link_bandwidth)?;
    let checked = settings.config.check_keys();
    checked.map_err(|(key, error)| settings.problem(key, error))?;
    let config = Config {
        serial: name.clone(),
        ..settings.config
    };
    let pmr = table.pmr.map(|pmr| self::pmr(pmr, folder)).transpose()?;
    let (namespaces, sizes) = namespaces(table.namespaces, &name, config.block_bytes, folder)?;
    let disk_bytes = sizes.first().copied().unwrap_or(0);
    Ok(Nvme {
        name,
        model: table.model,
        attach,
        link,
        link_speed,
        ats: table.ats.is_some_and(Spanned::into_inner),
        config,
        pmr,
        disk_bytes,
        faults: faults(&table.faults, &fault_subjects(namespaces.len()))?,
        namespaces,
        counted: table.counted.unwrap_or(true),
    })
}

/// Returns the subjects for fault injection at a controller with this number of namespaces.
fn fault_subjects(namespaces: usize) -> Faults {
    let subjects = Faults::default();
    subjects.serve(&Kind::OF_DISKS);
    subjects.set_vectors(VECTORS.into());
    subjects.set_namespaces(u32::try_from(namespaces).unwrap_or(u32::MAX));
    subjects
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
                "`pmr`: {} is not a regular file of {bytes} bytes: give `size` its size, or name another file",
                path.display()
            );
            Err(Problem::new(at, message))
        }
        _ => Ok(Pmr { bytes, file }),
    }
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

/// Returns a namespace, and its size in bytes.
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
            Err(format!("image {shown} is not a regular file"))
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
