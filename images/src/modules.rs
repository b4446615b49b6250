//! The modules of a kernel: their files, the built-in ones, and the order in which they load.
//!
//! `depmod` need not have run: a module names its dependencies itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::io_error;
use crate::unpack::unpack;
use crate::{ImageError, cache, elf};

const SUFFIXES: [&str; 4] = [".ko", ".ko.xz", ".ko.zst", ".ko.gz"];

/// The modules below a kernel's module folder or build tree.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    files: BTreeMap<String, PathBuf>,
    builtin: BTreeSet<String>,
    /// Modules by an additional name, if depmod has run.
    aliases: BTreeMap<String, Vec<String>>,
    /// Changes when any module changes.
    pub(crate) stamp: String,
}

impl Tree {
    pub(crate) fn read(dir: &Path) -> Result<Self, ImageError> {
        let mut tree = Self::default();
        tree.walk(dir)?;
        let list = dir.join("modules.builtin");
        if list.is_file() {
            let list = fs::read_to_string(&list).map_err(io_error("read", &list))?;
            tree.builtin = list
                .lines()
                .filter_map(|line| name_of(Path::new(line)))
                .collect();
        }
        let list = dir.join("modules.alias");
        if list.is_file() {
            let list = fs::read_to_string(&list).map_err(io_error("read", &list))?;
            tree.aliases = aliases(&list);
        }
        Ok(tree)
    }

    /// Adds a module from elsewhere, in place of one with the same name.
    pub(crate) fn add(&mut self, path: &Path) -> Result<(), ImageError> {
        if let Some(name) = name_of(path) {
            self.stamp.push_str(&cache::stamp(path)?);
            self.files.insert(name, path.to_path_buf());
        }
        Ok(())
    }

    fn walk(&mut self, dir: &Path) -> Result<(), ImageError> {
        let mut entries: Vec<_> = fs::read_dir(dir)
            .and_then(Iterator::collect::<Result<_, _>>)
            .map_err(io_error("list", dir))?;
        // Modules added to a kernel take precedence over the kernel's own, as in depmod(8).
        entries.sort_by_key(|entry: &fs::DirEntry| {
            (entry.file_name() == "updates", entry.file_name())
        });
        for entry in entries {
            let path = entry.path();
            let kind = entry.file_type().map_err(io_error("read", &path))?;
            if kind.is_dir() && !entry.file_name().to_string_lossy().starts_with('.') {
                self.walk(&path)?;
            } else if let Some(name) = name_of(&path).filter(|_| kind.is_file()) {
                let metadata = entry.metadata().map_err(io_error("read", &path))?;
                let stamp = format!(
                    "{} {} {}.{}\n",
                    path.display(),
                    metadata.size(),
                    metadata.mtime(),
                    metadata.mtime_nsec()
                );
                self.stamp.push_str(&stamp);
                self.files.insert(name, path);
            }
        }
        Ok(())
    }

    /// Returns the names of all modules.
    pub(crate) fn into_names(self) -> impl Iterator<Item = String> {
        self.files.into_keys().chain(self.builtin)
    }

    /// Returns the files of all modules.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.values().map(PathBuf::as_path)
    }

    /// Returns the source of module `name`, or `None` if there is none.
    pub(crate) fn find(&self, name: &str) -> Option<ModuleSource<'_>> {
        match self.files.get(name) {
            Some(path) => Some(ModuleSource::File(path)),
            None => self.builtin.contains(name).then_some(ModuleSource::BuiltIn),
        }
    }

    /// Returns the modules that the `names` of a soft dependency stand for, if they are files.
    pub(crate) fn resolve(&self, names: &[String]) -> Vec<String> {
        let modules = names.iter().flat_map(|name| match self.find(name) {
            Some(_) => std::slice::from_ref(name),
            None => self.aliases.get(name).map_or(&[][..], Vec::as_slice),
        });
        let files = modules.filter(|name| self.files.contains_key(*name));
        files.cloned().collect()
    }
}

/// The location of a module.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ModuleSource<'a> {
    File(&'a Path),
    BuiltIn,
}

/// A module, uncompressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Module {
    /// Its name, as in `/proc/modules`.
    pub(crate) name: String,
    /// The modules that must be loaded first.
    pub(crate) needs: Vec<String>,
    /// Its soft dependencies.
    pub(crate) soft: SoftDependencies,
    pub(crate) content: Vec<u8>,
}

/// Modules that are loaded with another one, which works without them (modprobe.d(5), `softdep`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SoftDependencies {
    /// Those that are loaded before it.
    pub(crate) before: Vec<String>,
    /// Those that are loaded after it.
    pub(crate) after: Vec<String>,
}

impl SoftDependencies {
    /// Parses the text in a module's section `.modinfo`. Words that follow neither `pre:` nor
    /// `post:` are ignored, as by modprobe.
    fn of_facts(facts: &[u8]) -> Self {
        let mut soft = Self::default();
        for fact in facts.split(|&byte| byte == 0) {
            let words = fact.strip_prefix(b"softdep=").unwrap_or_default();
            let mut list = None;
            for word in String::from_utf8_lossy(words).split_whitespace() {
                match (word, &mut list) {
                    ("pre:", _) => list = Some(&mut soft.before),
                    ("post:", _) => list = Some(&mut soft.after),
                    (word, Some(list)) => list.push(normal(word)),
                    (_, None) => {}
                }
            }
        }
        soft
    }

    /// Returns those that `tree` has as files, by their own names.
    pub(crate) fn within(&self, tree: &Tree) -> Self {
        Self {
            before: tree.resolve(&self.before),
            after: tree.resolve(&self.after),
        }
    }

    /// Drops those that `keep` refuses.
    fn retain(&mut self, keep: impl Fn(&String) -> bool) {
        self.before.retain(&keep);
        self.after.retain(keep);
    }
}

impl Module {
    pub(crate) fn read(name: &str, path: &Path) -> Result<Self, ImageError> {
        let packed = fs::read(path).map_err(io_error("read", path))?;
        let bad = |reason: String| ImageError::BadModule {
            path: path.to_path_buf(),
            reason,
        };
        let content = unpack(&packed)
            .map_err(|error| bad(error.to_string()))?
            .into_owned();
        let facts = elf::section(&content, ".modinfo");
        let needs = facts.and_then(needs_of);
        let needs = needs.ok_or_else(|| bad("it has no .modinfo section".to_owned()))?;
        let soft = facts.map(SoftDependencies::of_facts).unwrap_or_default();
        Ok(Self {
            name: name.to_owned(),
            needs,
            soft,
            content,
        })
    }
}

/// Returns a module by its name and the name of the module that needs it, or `None` if it is built
/// in.
type Load<'a> = dyn FnMut(&str, Option<&str>) -> Result<Option<Module>, ImageError> + 'a;

/// Returns `wanted` and their dependencies, each after its own dependencies. Soft dependencies are
/// included if they can be loaded.
pub(crate) fn in_order(wanted: &[String], load: &mut Load<'_>) -> Result<Vec<Module>, ImageError> {
    let mut order = Order {
        load,
        seen: BTreeMap::new(),
        modules: Vec::new(),
    };
    for name in wanted {
        order.visit(&normal(name), None)?;
    }
    let mut modules = order.modules;
    let names: BTreeSet<String> = modules.iter().map(|module| module.name.clone()).collect();
    for module in &mut modules {
        module.soft.retain(|name| names.contains(name));
    }
    Ok(modules)
}

struct Order<'a, 'b> {
    load: &'a mut Load<'b>,
    /// The modules visited so far; `true` for one that is a file.
    seen: BTreeMap<String, bool>,
    modules: Vec<Module>,
}

impl Order<'_, '_> {
    fn visit(&mut self, name: &str, needed_by: Option<&str>) -> Result<(), ImageError> {
        if self.seen.contains_key(name) {
            return Ok(());
        }
        let module = (self.load)(name, needed_by)?;
        self.seen.insert(name.to_owned(), module.is_some());
        let Some(mut module) = module else {
            return Ok(());
        };
        self.visit_soft(&module.soft.before)?;
        for need in &module.needs {
            if let Err(error) = self.visit(need, Some(name)) {
                self.seen.remove(name);
                return Err(error);
            }
        }
        module
            .needs
            .retain(|need| self.seen.get(need) == Some(&true));
        let after = module.soft.after.clone();
        self.modules.push(module);
        self.visit_soft(&after)
    }

    /// Visits soft dependencies, except those that lack a module that they need.
    fn visit_soft(&mut self, names: &[String]) -> Result<(), ImageError> {
        for name in names {
            match self.visit(name, None) {
                Ok(()) | Err(ImageError::NoModule { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Returns the name of the module in a file, as in `/proc/modules`, or `None` if the file is not a
/// module.
fn name_of(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    SUFFIXES
        .iter()
        .find_map(|suffix| file.strip_suffix(suffix))
        .map(normal)
}

/// Normalises a name: the kernel does not distinguish `-` and `_`, and shows `_`.
fn normal(name: &str) -> String {
    name.replace('-', "_")
}

/// Returns the names in a `modules.alias` that stand for modules. Names with a wildcard match
/// devices.
fn aliases(list: &str) -> BTreeMap<String, Vec<String>> {
    let mut aliases: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in list.lines() {
        let mut words = line.split_whitespace();
        if let (Some("alias"), Some(alias), Some(module)) =
            (words.next(), words.next(), words.next())
        {
            if !alias.contains(['*', '?', '[']) {
                let modules = aliases.entry(normal(alias)).or_default();
                modules.push(normal(module));
            }
        }
    }
    aliases
}

/// Returns the dependencies that a module states in its section `.modinfo` (Linux,
/// `scripts/mod/modpost.c`, `add_depends`).
fn needs_of(facts: &[u8]) -> Option<Vec<String>> {
    let depends = facts
        .split(|&byte| byte == 0)
        .find_map(|fact| fact.strip_prefix(b"depends="))?;
    let depends = std::str::from_utf8(depends).ok()?;
    Some(
        depends
            .split(',')
            .filter(|name| !name.is_empty())
            .map(normal)
            .collect(),
    )
}

/// Returns the option of the kernel's configuration that builds the module, for modules that a
/// guest needs.
pub(crate) fn option_of(module: &str) -> String {
    let option = match module {
        "9p" => "9P_FS",
        "9pnet" => "NET_9P",
        "9pnet_virtio" => "NET_9P_VIRTIO",
        "configfs" => "CONFIGFS_FS",
        "efa" => "INFINIBAND_EFA",
        "ext4" => "EXT4_FS",
        "ib_uverbs" => "INFINIBAND_USER_ACCESS",
        "netfs" => "NETFS_SUPPORT",
        "nvme" => "BLK_DEV_NVME",
        "overlay" => "OVERLAY_FS",
        "raid1" => "MD_RAID1",
        "vgem" => "DRM_VGEM",
        "virtio_gpu" => "DRM_VIRTIO_GPU",
        "virtio_net" => "VIRTIO_NET",
        "vmw_vsock_virtio_transport" => "VIRTIO_VSOCKETS",
        "xfs" => "XFS_FS",
        name => &name.to_uppercase(),
    };
    format!("CONFIG_{option}")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::elf::tests::with_section;
    use crate::unpack::tests::{gzip, zstd};

    /// Returns a module with only its facts.
    pub(crate) fn module(modinfo: &[u8]) -> Vec<u8> {
        with_section(".modinfo", modinfo)
    }

    fn names(modules: &[Module]) -> Vec<&str> {
        modules.iter().map(|module| module.name.as_str()).collect()
    }

    /// Orders `wanted` in a kernel of three modules on top of each other and one that is built in.
    fn order(wanted: &[&str]) -> Result<Vec<Module>, ImageError> {
        let wanted: Vec<_> = wanted.iter().map(|&name| name.to_owned()).collect();
        in_order(&wanted, &mut |name, needed_by| {
            let needs: &[&str] = match name {
                "nvme" => &["nvme_core", "nvme_auth"],
                "nvme_core" => &["nvme_auth", "t10_pi"],
                "nvme_auth" => &[],
                "t10_pi" => return Ok(None),
                "loop_a" => &["loop_b"],
                "loop_b" => &["loop_a"],
                "vfio" => &[],
                "vfio_pci" | "vfio_iommu_type1" => &["vfio"],
                "half" => &["absent"],
                _ => {
                    return Err(ImageError::NoModule {
                        name: name.to_owned(),
                        needed_by: needed_by.map(str::to_owned),
                        release: "7.2".to_owned(),
                        option: option_of(name),
                    });
                }
            };
            let list = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
            let (before, after): (&[&str], &[&str]) = match name {
                "vfio" => (&[], &["vfio_iommu_type1", "half"]),
                "vfio_pci" => (&["t10_pi"], &[]),
                _ => (&[], &[]),
            };
            Ok(Some(Module {
                name: name.to_owned(),
                needs: list(needs),
                soft: SoftDependencies {
                    before: list(before),
                    after: list(after),
                },
                content: Vec::new(),
            }))
        })
    }

    #[test]
    fn each_module_comes_after_what_it_needs_and_once() {
        let modules = order(&["nvme", "nvme-core", "nvme"]).unwrap();
        assert_eq!(names(&modules), ["nvme_auth", "nvme_core", "nvme"]);
        assert_eq!(modules[1].needs, ["nvme_auth"]);
        assert_eq!(modules[2].needs, ["nvme_core", "nvme_auth"]);
    }

    #[test]
    fn built_in_modules_are_left_out_and_a_circle_ends() {
        assert_eq!(order(&["t10-pi"]).unwrap(), []);
        assert_eq!(names(&order(&["loop_a"]).unwrap()), ["loop_b", "loop_a"]);
    }

    #[test]
    fn soft_dependencies_come_along_if_they_can_be_loaded() {
        let modules = order(&["vfio_pci"]).unwrap();
        assert_eq!(names(&modules), ["vfio", "vfio_iommu_type1", "vfio_pci"]);
        assert_eq!(modules[0].soft.after, ["vfio_iommu_type1"]);
        assert_eq!(modules[2].soft, SoftDependencies::default());
        let itself = order(&["vfio_iommu_type1"]).unwrap();
        assert_eq!(names(&itself), ["vfio", "vfio_iommu_type1"]);
        let error = order(&["vfio", "half"]).unwrap_err().to_string();
        assert!(error.contains("no module absent"), "{error}");
    }

    #[test]
    fn soft_dependencies_are_read_off_the_module() {
        let dir = tempfile::tempdir().unwrap();
        let facts = b"depends=\0softdep=stray pre: crypto-crc32c b-c post: vfio-iommu-type1 built\0softdep=post: absent\0";
        for (file, content) in [
            ("a.ko", module(facts)),
            ("crc32c_generic.ko", module(b"depends=\0")),
            ("vfio_iommu_type1.ko", module(b"depends=\0")),
            ("b_c.ko", module(b"depends=\0")),
            ("modules.builtin", b"kernel/built.ko\n".to_vec()),
            (
                "modules.alias",
                b"# Aliases\nalias pci:v* a\nalias crypto-crc32c crc32c-generic\n".to_vec(),
            ),
        ] {
            fs::write(dir.path().join(file), content).unwrap();
        }
        let tree = Tree::read(dir.path()).unwrap();
        let soft = Module::read("a", &dir.path().join("a.ko")).unwrap().soft;
        assert_eq!(soft.after, ["vfio_iommu_type1", "built", "absent"]);
        let soft = soft.within(&tree);
        assert_eq!(soft.before, ["crc32c_generic", "b_c"]);
        assert_eq!(soft.after, ["vfio_iommu_type1"]);
    }

    #[test]
    fn missing_module_is_named_with_its_config_option() {
        let error = order(&["virtio-iommu"]).unwrap_err().to_string();
        assert!(
            error.contains("kernel 7.2 has no module virtio_iommu:"),
            "{error}"
        );
        assert!(error.contains("CONFIG_VIRTIO_IOMMU=m"), "{error}");
        assert_eq!(option_of("nvme"), "CONFIG_BLK_DEV_NVME");
        assert_eq!(option_of("ext4"), "CONFIG_EXT4_FS");
        assert_eq!(option_of("raid1"), "CONFIG_MD_RAID1");
        let vsock = option_of("vmw_vsock_virtio_transport");
        assert_eq!(vsock, "CONFIG_VIRTIO_VSOCKETS");
    }

    #[test]
    fn dependencies_are_read_off_the_module() {
        let needs = |module: &[u8]| needs_of(elf::section(module, ".modinfo")?);
        let nvme = module(b"license=GPL v2\0depends=nvme-core,nvme-auth\0name=nvme\0");
        assert_eq!(needs(&nvme).unwrap(), ["nvme_core", "nvme_auth"]);
        assert_eq!(needs(&module(b"depends=\0name=netfs\0")), Some(vec![]));
        assert_eq!(needs(&module(b"name=x\0")), None);
        assert_eq!(needs(b"\x7fELF"), None);
        let whole = module(b"depends=a\0");
        for end in 0..whole.len() {
            assert_eq!(needs(&whole[..end]), None);
        }
    }

    #[test]
    fn tree_finds_packed_files_and_built_in_modules() {
        let dir = tempfile::tempdir().unwrap();
        let plain = module(b"depends=\0");
        for (file, content) in [
            ("kernel/drivers/nvme-core.ko", plain.clone()),
            ("kernel/fs/9p.ko.gz", gzip(&plain)),
            ("kernel/fs/netfs.ko.zst", zstd(&plain)),
            ("kernel/drivers/gve.ko", b"old".to_vec()),
            ("updates/gve.ko", plain.clone()),
            (".git/hidden.ko", plain.clone()),
            (
                "modules.builtin",
                b"kernel/drivers/virtio/virtio-pci.ko\n".to_vec(),
            ),
        ] {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let tree = Tree::read(dir.path()).unwrap();
        for name in ["nvme_core", "9p", "netfs", "gve"] {
            let Some(ModuleSource::File(path)) = tree.find(name) else {
                panic!("{name} is not a file")
            };
            assert_eq!(Module::read(name, path).unwrap().content, plain);
        }
        assert_eq!(tree.find("virtio_pci"), Some(ModuleSource::BuiltIn));
        assert_eq!(tree.find("hidden"), None);
        fs::write(dir.path().join("kernel/drivers/nvme-core.ko"), b"changed").unwrap();
        assert_ne!(Tree::read(dir.path()).unwrap().stamp, tree.stamp);
    }
}
