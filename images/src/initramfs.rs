//! The guest's first root: the agent as its first program, and the modules that the guest needs.

use std::fs;
use std::path::{Path, PathBuf};

use object::LittleEndian;
use object::elf::{FileHeader64, PT_INTERP};
use object::read::elf::{FileHeader, ProgramHeader};

use crate::cache::Kind;
use crate::cpio::Archive;
use crate::error::io_error;
use crate::modules::{self, Module, ModuleSource, Tree};
use crate::{Cache, ImageError, Kernel, btf, cache};

const DIRECTORIES: [&str; 8] = [
    "dev", "mnt", "modules", "proc", "run", "sys", "tmp", "tools",
];

/// Returns the initramfs of `kernel`, which is started from `image`, with `agent` as `/init`. Makes
/// it if the cache has none with these inputs.
///
/// It holds `modules`, their dependencies and soft dependencies, uncompressed, as
/// `/modules/NAME.ko`, and `/modules/index`: a line `NAME NEED… pre: NAME… post: NAME…` for each,
/// after the lines of its dependencies. Names are as in `/proc/modules`. Built-in modules are left
/// out, and so are soft dependencies that the kernel lacks. `/layout` has the facts that the agent
/// needs to watch the kernel; it is empty for a packed image.
///
/// # Errors
/// [`ImageError::NoModule`] for a module that the kernel lacks, [`ImageError::BadModule`],
/// [`ImageError::BadAgent`], and [`ImageError::Io`].
pub fn initramfs(
    cache: &Cache,
    kernel: &Kernel,
    image: &Path,
    modules: &[String],
    agent: &Path,
) -> Result<PathBuf, ImageError> {
    let mut tree = kernel
        .modules
        .as_deref()
        .map(Tree::read)
        .transpose()?
        .unwrap_or_default();
    for module in &kernel.added {
        tree.add(module)?;
    }
    let mut inputs = vec![
        cache::stamp(agent)?,
        cache.stamp(image)?,
        kernel.release.clone(),
        tree.stamp.clone(),
    ];
    inputs.extend_from_slice(modules);
    cache.entry(Kind::Initramfs, &cache::key(inputs), |path, _| {
        let modules = modules::in_order(modules, &mut |name, needed_by| {
            load(&tree, kernel, name, needed_by)
        })?;
        let program = fs::read(agent).map_err(io_error("read", agent))?;
        check_agent(agent, &program)?;
        let layout = btf::facts(&fs::read(image).map_err(io_error("read", image))?);
        fs::write(path, archive(&program, &layout, &modules)?).map_err(io_error("write", path))
    })
}

fn load(
    tree: &Tree,
    kernel: &Kernel,
    name: &str,
    needed_by: Option<&str>,
) -> Result<Option<Module>, ImageError> {
    match tree.find(name) {
        Some(ModuleSource::File(path)) => {
            let mut module = Module::read(name, path)?;
            module.soft = module.soft.within(tree);
            Ok(Some(module))
        }
        Some(ModuleSource::BuiltIn) => Ok(None),
        None if kernel
            .config
            .as_ref()
            .is_some_and(|config| config.builds_in(name)) =>
        {
            Ok(None)
        }
        None => Err(ImageError::NoModule {
            name: name.to_owned(),
            needed_by: needed_by.map(str::to_owned),
            release: kernel.release.clone(),
            option: modules::option_of(name),
        }),
    }
}

/// Checks that the agent needs no dynamic loader: the guest's first root has none.
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
    let mut segments = segments().ok_or_else(|| bad("it is not a program for x86-64"))?;
    if segments.any(|kind| kind == PT_INTERP) {
        Err(bad("it is not static"))
    } else {
        Ok(())
    }
}

/// Makes the archive, uncompressed: under emulation, a guest unpacks it more slowly than it copies
/// it.
fn archive(agent: &[u8], layout: &str, modules: &[Module]) -> Result<Vec<u8>, ImageError> {
    let mut archive = Archive::default();
    for name in DIRECTORIES {
        archive.directory(name)?;
    }
    archive.character_device("dev/console", 5, 1)?;
    archive.file("init", 0o755, agent)?;
    archive.file("layout", 0o644, layout.as_bytes())?;
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
        let mut words = vec![module.name.as_str()];
        words.extend(module.needs.iter().map(String::as_str));
        for (word, names) in [("pre:", &module.soft.before), ("post:", &module.soft.after)] {
            if !names.is_empty() {
                words.push(word);
                words.extend(names.iter().map(String::as_str));
            }
        }
        words.join(" ") + "\n"
    };
    modules.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::modules::tests::module;

    /// Returns the entries of an archive: name and contents.
    fn entries(archive: &[u8]) -> Vec<(String, Vec<u8>)> {
        let mut entries = Vec::new();
        let mut rest = archive;
        while !rest.is_empty() {
            let field = |index: usize| {
                let digits = std::str::from_utf8(&rest[6 + 8 * index..14 + 8 * index]).unwrap();
                usize::from_str_radix(digits, 16).unwrap()
            };
            let (size, name_size) = (field(6), field(11));
            let content_at = (110 + name_size).next_multiple_of(4);
            let name = String::from_utf8(rest[110..110 + name_size - 1].to_vec()).unwrap();
            entries.push((name, rest[content_at..content_at + size].to_vec()));
            rest = &rest[(content_at + size).next_multiple_of(4)..];
        }
        entries
    }

    fn text_of(entries: &[(String, Vec<u8>)], name: &str) -> String {
        let (_, content) = entries.iter().find(|(found, _)| found == name).unwrap();
        String::from_utf8(content.clone()).unwrap()
    }

    /// Returns a kernel with a plain `nvme` on top of a plain `nvme-core`, and a built-in virtio.
    fn kernel(dir: &Path) -> Kernel {
        fs::write(dir.join("nvme.ko"), module(b"depends=nvme-core,virtio\0")).unwrap();
        fs::write(dir.join("nvme-core.ko"), module(b"depends=\0")).unwrap();
        fs::write(dir.join("bzImage"), "packed").unwrap();
        fs::write(
            dir.join("modules.builtin"),
            "kernel/drivers/virtio/virtio.ko\n",
        )
        .unwrap();
        Kernel {
            config: None,
            image: dir.join("bzImage"),
            release: "7.2.12-x".to_owned(),
            modules: Some(dir.to_path_buf()),
            added: Vec::new(),
        }
    }

    /// A static program: an ELF file without an interpreter.
    fn agent(dir: &Path) -> PathBuf {
        let path = dir.join("agent");
        fs::write(&path, module(b"agent")).unwrap();
        path
    }

    fn wanted(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn made(
        cache: &Cache,
        kernel: &Kernel,
        modules: &[String],
        agent: &Path,
    ) -> Result<PathBuf, ImageError> {
        initramfs(cache, kernel, &kernel.image, modules, agent)
    }

    #[test]
    fn archive_holds_agent_and_modules_in_load_order() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(&dir.path().join("cache")).unwrap();
        let (kernel, agent) = (kernel(dir.path()), agent(dir.path()));
        let path = made(&cache, &kernel, &wanted(&["nvme", "virtio"]), &agent).unwrap();
        let entries = entries(&fs::read(path).unwrap());
        let names: Vec<_> = entries.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names[..8], DIRECTORIES);
        assert_eq!(
            names[8..],
            [
                "dev/console",
                "init",
                "layout",
                "modules/index",
                "modules/nvme_core.ko",
                "modules/nvme.ko",
                "TRAILER!!!"
            ]
        );
        assert_eq!(
            text_of(&entries, "modules/index"),
            "nvme_core\nnvme nvme_core\n"
        );
    }

    #[test]
    fn changed_input_rebuilds_the_initramfs() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(&dir.path().join("cache")).unwrap();
        let (kernel, agent) = (kernel(dir.path()), agent(dir.path()));
        let make = |modules| made(&cache, &kernel, &wanted(modules), &agent).unwrap();
        let first = make(&["nvme"]);
        assert_eq!(make(&["nvme"]), first);
        assert_ne!(make(&["nvme_core"]), first);
        fs::write(
            dir.path().join("nvme-core.ko"),
            module(b"depends=\0version=2\0"),
        )
        .unwrap();
        let second = make(&["nvme"]);
        assert_ne!(second, first);
        fs::write(&agent, module(b"another agent")).unwrap();
        assert_ne!(make(&["nvme"]), second);
    }

    #[test]
    fn use_of_a_kernel_in_the_cache_keeps_its_initramfs() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(&dir.path().join("cache")).unwrap();
        let (kernel, agent) = (kernel(dir.path()), agent(dir.path()));
        let make = |image: &Path| initramfs(&cache, &kernel, image, &[], &agent).unwrap();
        let entry = || {
            let write = |path: &Path| fs::write(path, "kernel").map_err(io_error("write", path));
            let entry = cache.entry(Kind::Kernel, "0123456789abcdef", |path, _| write(path));
            entry.unwrap()
        };
        let first = make(&entry());
        let long_ago = SystemTime::UNIX_EPOCH;
        let image = fs::File::open(entry()).unwrap();
        image.set_modified(long_ago).unwrap();
        assert_eq!(make(&entry()), first);
        assert!(image.metadata().unwrap().modified().unwrap() > long_ago);
        assert_ne!(make(&kernel.image), first);
    }

    #[test]
    fn added_module_brings_its_dependencies() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(&dir.path().join("cache")).unwrap();
        let (mut kernel, agent) = (kernel(dir.path()), agent(dir.path()));
        let added = dir.path().join("built").join("peerbar-gpu.ko");
        fs::create_dir(added.parent().unwrap()).unwrap();
        fs::write(&added, module(b"depends=nvme-core\0")).unwrap();
        kernel.added.push(added);
        let path = made(&cache, &kernel, &wanted(&["peerbar_gpu"]), &agent).unwrap();
        assert_eq!(
            text_of(&entries(&fs::read(path).unwrap()), "modules/index"),
            "nvme_core\npeerbar_gpu nvme_core\n"
        );
    }

    #[test]
    fn soft_dependencies_are_in_the_index() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(&dir.path().join("cache")).unwrap();
        let (kernel, agent) = (kernel(dir.path()), agent(dir.path()));
        let facts = b"depends=\0softdep=pre: virtio nvme-core post: absent late\0";
        fs::write(dir.path().join("soft.ko"), module(facts)).unwrap();
        fs::write(dir.path().join("late.ko"), module(b"depends=soft\0")).unwrap();
        let path = made(&cache, &kernel, &wanted(&["soft"]), &agent).unwrap();
        assert_eq!(
            text_of(&entries(&fs::read(path).unwrap()), "modules/index"),
            "nvme_core\nsoft pre: nvme_core post: late\nlate soft\n"
        );
    }

    #[test]
    fn missing_module_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(&dir.path().join("cache")).unwrap();
        let (kernel, agent) = (kernel(dir.path()), agent(dir.path()));
        let error = made(&cache, &kernel, &wanted(&["9p"]), &agent)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("7.2.12-x") && error.contains("CONFIG_9P_FS"),
            "{error}"
        );
        fs::write(dir.path().join("nvme-core.ko"), "nonsense").unwrap();
        let error = made(&cache, &kernel, &wanted(&["nvme"]), &agent).unwrap_err();
        assert!(matches!(error, ImageError::BadModule { .. }), "{error}");
    }

    #[test]
    fn dynamic_agent_is_refused() {
        let this_test = std::env::current_exe().unwrap();
        let error = check_agent(&this_test, &fs::read(&this_test).unwrap())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("not static") && error.contains("crt-static"),
            "{error}"
        );
        assert!(check_agent(Path::new("script"), b"#!/bin/sh\n").is_err());
        assert!(check_agent(Path::new("agent"), &module(b"")).is_ok());
    }
}
