//! The guest's first root: the agent as its first program, and the modules that the guest needs.

use std::fs;
use std::path::{Path, PathBuf};

use object::LittleEndian;
use object::elf::{FileHeader64, PT_INTERP};
use object::read::elf::{FileHeader, ProgramHeader};

use crate::cpio::Archive;
use crate::error::io_error;
use crate::modules::{self, Module, Place, Tree};
use crate::{Cache, ImageError, Kernel, cache};

const DIRECTORIES: [&str; 8] = [
    "dev", "mnt", "modules", "proc", "run", "sys", "tmp", "tools",
];

/// The initramfs of `kernel` with `agent` as `/init`; made if the cache has none of these inputs.
///
/// It holds `modules` and whatever they need, uncompressed, as `/modules/NAME.ko`, and `/modules/index`: a line `NAME
/// NEED…` for each, after the lines of what it needs. Names are as in `/proc/modules`; what is built in is left out.
///
/// # Errors
/// [`ImageError::NoModule`] for one that the kernel lacks, [`ImageError::BadModule`], [`ImageError::BadAgent`], and
/// [`ImageError::Io`].
pub fn initramfs(
    cache: &Cache,
    kernel: &Kernel,
    modules: &[String],
    agent: &Path,
) -> Result<PathBuf, ImageError> {
    let tree = kernel
        .modules
        .as_deref()
        .map(Tree::read)
        .transpose()?
        .unwrap_or_default();
    let mut inputs = vec![
        cache::stamp(agent)?,
        kernel.release.clone(),
        tree.stamp.clone(),
    ];
    inputs.extend_from_slice(modules);
    cache.entry(
        &format!("initramfs-{}.cpio", cache::key(inputs)),
        |path, _| {
            let modules = modules::in_order(modules, &mut |name, needed_by| {
                load(&tree, kernel, name, needed_by)
            })?;
            let program = fs::read(agent).map_err(io_error("read", agent))?;
            check_agent(agent, &program)?;
            fs::write(path, archive(&program, &modules)?).map_err(io_error("write", path))
        },
    )
}

fn load(
    tree: &Tree,
    kernel: &Kernel,
    name: &str,
    needed_by: Option<&str>,
) -> Result<Option<Module>, ImageError> {
    match tree.find(name) {
        Some(Place::File(path)) => Module::read(name, path).map(Some),
        Some(Place::BuiltIn) => Ok(None),
        None => Err(ImageError::NoModule {
            name: name.to_owned(),
            needed_by: needed_by.map(str::to_owned),
            release: kernel.release.clone(),
            option: modules::option_of(name),
        }),
    }
}

/// There is no dynamic loader in the guest's first root.
fn check_agent(path: &Path, program: &[u8]) -> Result<(), ImageError> {
    let bad = |reason| ImageError::BadAgent {
        path: path.to_path_buf(),
        reason,
    };
    let segments = || {
        let header = FileHeader64::<LittleEndian>::parse(program).ok()?;
        let endian = header.endian().ok()?;
        Some(
            header
                .program_headers(endian, program)
                .ok()?
                .iter()
                .map(move |segment| segment.p_type(endian)),
        )
    };
    let mut segments = segments().ok_or_else(|| bad("it is no program for x86-64"))?;
    if segments.any(|kind| kind == PT_INTERP) {
        Err(bad("it is not static"))
    } else {
        Ok(())
    }
}

/// The archive, uncompressed: to unpack it costs a guest under emulation more time than to copy it.
fn archive(agent: &[u8], modules: &[Module]) -> Result<Vec<u8>, ImageError> {
    let mut archive = Archive::default();
    for name in DIRECTORIES {
        archive.directory(name)?;
    }
    archive.character_device("dev/console", 5, 1)?;
    archive.file("init", 0o755, agent)?;
    archive.file("modules/index", 0o644, index(modules).as_bytes())?;
    for module in modules {
        archive.file(
            &format!("modules/{}.ko", module.name),
            0o644,
            &module.content,
        )?;
    }
    archive.finish()
}

fn index(modules: &[Module]) -> String {
    let line = |module: &Module| {
        [std::slice::from_ref(&module.name), &module.needs]
            .concat()
            .join(" ")
            + "\n"
    };
    modules.iter().map(line).collect()
}
