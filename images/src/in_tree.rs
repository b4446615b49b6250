//! Modules of the kernel's own tree that a distribution's kernel was built without, built from the
//! source of the same version, against the packaged headers.

use std::io::{BufReader, Read};
use std::path::{Component, Path, PathBuf};

use crate::error::io_error;
use crate::out_of_tree::{Author, ModuleBuild, Sources};
use crate::progress::{Counted, Progress};
use crate::{Cache, ImageError, Kernel, PackageTree, Root, cache, out_of_tree};

/// Modules that belong together: they are built with options that the kernel was built without.
#[derive(Debug)]
struct ModuleSet {
    /// The module that a kernel with these options has.
    name: &'static str,
    /// The parts of the kernel's tree that are used: whole folders, and files.
    sources: &'static [&'static str],
    /// Options that are set: as make variables, and as macros for the preprocessor.
    options: &'static [(&'static str, &'static str)],
    /// Files that are added or, with a name that the tree has, appended to.
    additions: &'static [(&'static str, &'static str)],
}

/// iommufd, and vfio with character devices, whose structures differ from those of a vfio without.
const IOMMUFD: ModuleSet = ModuleSet {
    name: "iommufd",
    sources: &["drivers/iommu", "drivers/vfio", "lib/interval_tree.c"],
    options: &[
        ("CONFIG_IOMMUFD", "m"),
        ("CONFIG_VFIO_DEVICE_CDEV", "y"),
        ("CONFIG_INTERVAL_TREE_SPAN_ITER", "y"),
        ("CONFIG_VFIO_MDEV", "n"),
    ],
    additions: &[
        ("Kbuild", "obj-y += drivers/iommu/iommufd/ drivers/vfio/\n"),
        // The kernel's interval tree lacks the iterator over spans. A file that includes another is
        // compiled in the folder of its module.
        (
            "drivers/iommu/iommufd/interval_tree_spans.c",
            "#include \"../../../lib/interval_tree.c\"\n",
        ),
        (
            "drivers/iommu/iommufd/Makefile",
            "\niommufd-y += interval_tree_spans.o\nCFLAGS_interval_tree_spans.o := -D__DISABLE_EXPORTS\n",
        ),
    ],
};

/// The driver of the Elastic Fabric Adapter, for the RDMA core of the kernel.
const EFA: ModuleSet = ModuleSet {
    name: "efa",
    sources: &["drivers/infiniband/hw/efa"],
    options: &[("CONFIG_INFINIBAND_EFA", "m")],
    additions: &[("Kbuild", "obj-y += drivers/infiniband/hw/efa/\n")],
};

/// All sets.
const SETS: [&ModuleSet; 2] = [&IOMMUFD, &EFA];

/// The largest size of the sources of a set, in bytes.
const LARGEST: u64 = 64 << 20;

impl Kernel {
    /// Like [`Kernel::with_sources`], for modules that also include `headers` of the kernel's own
    /// tree, which packages of headers lack. For the kernel of `root` they come from its source,
    /// which is fetched if the cache lacks it.
    ///
    /// # Errors
    /// [`ImageError::NoPrivateHeader`] for a user's kernel without them, and those of
    /// [`Kernel::with_sources`] and [`Kernel::with_missing_modules`].
    pub fn with_sources_and_headers(
        mut self,
        cache: &Cache,
        root: Option<&Root>,
        sources: &Path,
        headers: &'static [&'static str],
    ) -> Result<Self, ImageError> {
        let built = with_headers(cache, &self, root, sources, headers)?;
        self.added.extend(built);
        Ok(self)
    }

    /// Adds modules to this kernel, which must be that of `root`: those that `wanted` names, that
    /// the kernel was built without, and that can be built from its source: iommufd, and vfio with
    /// character devices. Builds them if the cache lacks them, which fetches the source.
    ///
    /// # Errors
    /// [`ImageError::NoPackage`] if Debian has no such source, [`ImageError::OtherSource`] if it is
    /// of another version, [`ImageError::ModuleBuild`], [`ImageError::Io`].
    pub fn with_missing_modules(
        mut self,
        cache: &Cache,
        root: &Root,
        wanted: &[String],
    ) -> Result<Self, ImageError> {
        for set in SETS {
            if wanted.iter().any(|name| name == set.name) && !self.has_module(set.name)? {
                let built = build(cache, &self, root, set)?;
                self.added.extend(built);
            }
        }
        Ok(self)
    }

    /// Returns Debian's package with its source, such as `linux-source-7.3`.
    #[must_use]
    pub fn source_package(&self) -> String {
        source_package(&self.release)
    }

    /// Returns `true` if [`Kernel::with_missing_modules`] may need the kernel's source for the
    /// modules that `wanted` names. Without a `kernel` its modules are not known.
    ///
    /// # Errors
    /// [`ImageError::Io`] if its modules cannot be listed.
    pub fn needs_source(kernel: Option<&Self>, wanted: &[String]) -> Result<bool, ImageError> {
        for set in SETS {
            if wanted.iter().any(|name| name == set.name) {
                let has_it = kernel
                    .map(|kernel| kernel.has_module(set.name))
                    .transpose()?;
                if has_it != Some(true) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// Returns the names of the modules that a kernel without them gets from its source.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    SETS.into_iter().map(|set| set.name)
}

fn build(
    cache: &Cache,
    kernel: &Kernel,
    root: &Root,
    set: &ModuleSet,
) -> Result<Vec<PathBuf>, ImageError> {
    let archive = source_archive(cache, kernel, root)?;
    let build = ModuleBuild {
        folder: &archive,
        author: Author::Linux,
        options: set.make_variables(),
        inputs: vec![cache::stamp(&archive)?, format!("{set:?}")],
        read: &|| set.read(&archive),
    };
    out_of_tree::build(cache, kernel, Some(root), &build)
}

/// Returns the modules that the folder `sources` of this project builds for `kernel` with `headers`
/// of the kernel's own tree, which packages of headers lack. For the kernel of `root` they come
/// from its source; a user's kernel has them in its build tree.
///
/// # Errors
/// [`ImageError::NoPrivateHeader`], and those of [`Kernel::with_missing_modules`].
fn with_headers(
    cache: &Cache,
    kernel: &Kernel,
    root: Option<&Root>,
    sources: &Path,
    headers: &'static [&'static str],
) -> Result<Vec<PathBuf>, ImageError> {
    let own = |modules: &&Path| root.is_some_and(|root| modules.starts_with(root.path()));
    let of_root = kernel.modules.as_deref().filter(own).and(root);
    let Some(root) = of_root else {
        out_of_tree::check_headers(kernel, headers)?;
        return out_of_tree::build_folder(cache, kernel, root, sources, Author::Peerbar);
    };
    let archive = source_archive(cache, kernel, root)?;
    let folder = Sources::read(sources)?;
    let build = ModuleBuild {
        folder: sources,
        author: Author::Peerbar,
        options: Vec::new(),
        inputs: vec![
            folder.key(),
            cache::stamp(&archive)?,
            format!("{headers:?}"),
        ],
        read: &|| {
            let mut sources = folder.clone();
            sources.extend(read_archive(&archive, headers)?);
            Ok(sources)
        },
    };
    out_of_tree::build(cache, kernel, Some(root), &build)
}

/// Returns the archive with the source of `kernel`, the kernel of `root`. Fetches it if the cache
/// lacks it.
fn source_archive(cache: &Cache, kernel: &Kernel, root: &Root) -> Result<PathBuf, ImageError> {
    let package = source_package(&kernel.release);
    let tree = PackageTree::get(cache, std::slice::from_ref(&package))?;
    check_version(&package, &tree, &kernel.release, root)?;
    Ok(tree.path().join("usr/src").join(package + ".tar.xz"))
}

/// Returns Debian's package with the source of `release`: for `7.3.4+deb13-amd64` it is
/// `linux-source-7.3`.
fn source_package(release: &str) -> String {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    let major = numbers.next().unwrap_or_default();
    let minor = numbers.next().unwrap_or_default();
    format!("linux-source-{major}.{minor}")
}

/// Checks that the source in `tree` has exactly the version of `root`'s kernel: the modules share
/// private structures with the kernel, and no check refuses to load mismatched ones.
fn check_version(
    package: &str,
    tree: &PackageTree,
    release: &str,
    root: &Root,
) -> Result<(), ImageError> {
    let kernel = root.manifest().version(&format!("linux-image-{release}"));
    let source = tree.versions().get(package).map(String::as_str);
    if is_same(kernel, source) {
        return Ok(());
    }
    let text = |version: Option<&str>| version.unwrap_or("unknown").to_owned();
    let entry = |path: &Path| path.parent().unwrap_or(path).to_path_buf();
    Err(ImageError::OtherSource {
        package: package.to_owned(),
        source_version: text(source),
        kernel_version: text(kernel),
        source_entry: entry(tree.path()),
        root_entry: entry(root.path()),
    })
}

/// Returns `true` if two packages are of one version of their source. A number `+b1` at the end
/// counts builds of one source.
fn is_same(kernel: Option<&str>, source: Option<&str>) -> bool {
    fn of_source(version: &str) -> &str {
        match version.rsplit_once("+b") {
            Some((source, build)) if build.parse::<u32>().is_ok() => source,
            _ => version,
        }
    }
    let kernel = kernel.map(of_source);
    kernel.is_some() && kernel == source.map(of_source)
}

impl ModuleSet {
    fn make_variables(&self) -> Vec<String> {
        let variable = |(name, value): &(&str, &str)| format!("{name}={value}");
        let mut variables: Vec<String> = self.options.iter().map(variable).collect();
        variables.push(format!("KCFLAGS={}", self.macros().join(" ")));
        variables
    }

    /// Returns the definitions that `include/generated/autoconf.h` would have for the options.
    fn macros(&self) -> Vec<String> {
        let options = self.options.iter();
        let set = options.filter_map(|(name, value)| match *value {
            "y" => Some(format!("-D{name}=1")),
            "m" => Some(format!("-D{name}_MODULE=1")),
            _ => None,
        });
        set.collect()
    }

    fn read(&self, archive: &Path) -> Result<Sources, ImageError> {
        let files = self.add_to(read_archive(archive, self.sources)?);
        Ok(Sources::of_files(files))
    }

    fn add_to(&self, mut files: Vec<(PathBuf, Vec<u8>)>) -> Vec<(PathBuf, Vec<u8>)> {
        for (path, text) in self.additions {
            match files.iter_mut().find(|(known, _)| known == Path::new(path)) {
                Some((_, content)) => content.extend_from_slice(text.as_bytes()),
                None => files.push((PathBuf::from(path), text.as_bytes().to_vec())),
            }
        }
        files
    }
}

/// Extracts the files that `wanted` names, and those in the folders that it names, from the archive
/// of a kernel's tree.
fn read_archive(archive: &Path, wanted: &[&str]) -> Result<Vec<(PathBuf, Vec<u8>)>, ImageError> {
    let progress = Progress::start(&format!("reading {}", archive.display()));
    let stream = Counted::open(archive, "reading", &progress)?;
    let stream = lzma_rust2::XzReader::new(BufReader::new(stream), true);
    read_tar(stream, wanted).map_err(io_error("read", archive))
}

fn read_tar(stream: impl Read, wanted: &[&str]) -> std::io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut files = Vec::new();
    let mut left = LARGEST;
    for entry in tar::Archive::new(stream).entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        // All of it is in one folder, `linux-source-7.3`.
        let relative: PathBuf = path.iter().skip(1).collect();
        let is_wanted = wanted.iter().any(|source| relative.starts_with(source));
        if !is_wanted || !entry.header().entry_type().is_file() {
            continue;
        }
        let is_inside = |part| matches!(part, Component::Normal(_));
        if !relative.components().all(is_inside) {
            let message = format!("{} leaves the kernel's tree", path.display());
            return Err(std::io::Error::other(message));
        }
        left = left.checked_sub(entry.size()).ok_or_else(|| {
            std::io::Error::other(format!("more than {} MiB of sources", LARGEST >> 20))
        })?;
        let mut content = Vec::new();
        entry.read_to_end(&mut content)?;
        files.push((relative, content));
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_of_a_release_is_that_of_its_first_numbers() {
        assert_eq!(source_package("7.3.4+deb13-amd64"), "linux-source-7.3");
        assert_eq!(source_package("6.12.0-rc1"), "linux-source-6.12");
    }

    #[test]
    fn source_of_another_version_is_not_the_kernel_s() {
        let kernel = Some("7.3.4-1~bpo13+1");
        assert!(is_same(kernel, kernel));
        assert!(is_same(Some("7.3.4-1+b2"), Some("7.3.4-1")));
        for other in [Some("7.3.6-1~bpo13+1"), Some("7.3.4-2~bpo13+1"), None] {
            assert!(!is_same(kernel, other), "{other:?}");
        }
        assert!(!is_same(None, None));
    }

    #[test]
    fn options_are_make_variables_and_macros() {
        let variables = IOMMUFD.make_variables();
        assert_eq!(variables[0], "CONFIG_IOMMUFD=m");
        let macros = "KCFLAGS=-DCONFIG_IOMMUFD_MODULE=1 -DCONFIG_VFIO_DEVICE_CDEV=1 \
                      -DCONFIG_INTERVAL_TREE_SPAN_ITER=1";
        assert_eq!(variables.last().unwrap(), macros);
    }

    #[test]
    fn each_set_is_known_by_a_module_and_has_a_build_file() {
        let names: Vec<&str> = SETS.iter().map(|set| set.name).collect();
        assert_eq!(names, ["iommufd", "efa"]);
        for set in SETS {
            let rules = set.additions.iter().find(|(path, _)| *path == "Kbuild");
            let (_, text) = rules.unwrap();
            for source in set.sources.iter().filter(|path| !path.ends_with(".c")) {
                assert!(text.contains(source), "{}: {source}", set.name);
            }
        }
    }

    #[test]
    fn wanted_folders_and_additions_are_taken_of_a_tree() {
        let mut archive = tar::Builder::new(Vec::new());
        for (name, text) in [
            (
                "linux-source-7.3/drivers/iommu/iommufd/Makefile",
                "iommufd-y := main.o\n",
            ),
            ("linux-source-7.3/drivers/iommufdx.c", "no"),
            ("linux-source-7.3/drivers/vfio/pci/vfio_pci.c", "yes"),
            ("linux-source-7.3/lib/interval_tree.c", "tree"),
        ] {
            let mut header = tar::Header::new_gnu();
            header.set_size(u64::try_from(text.len()).unwrap());
            archive
                .append_data(&mut header, name, text.as_bytes())
                .unwrap();
        }
        let archive = archive.into_inner().unwrap();
        let files = IOMMUFD.add_to(read_tar(&archive[..], IOMMUFD.sources).unwrap());
        let paths: Vec<&str> = files
            .iter()
            .map(|(path, _)| path.to_str().unwrap())
            .collect();
        assert_eq!(
            paths,
            [
                "drivers/iommu/iommufd/Makefile",
                "drivers/vfio/pci/vfio_pci.c",
                "lib/interval_tree.c",
                "Kbuild",
                "drivers/iommu/iommufd/interval_tree_spans.c",
            ]
        );
        let makefile = String::from_utf8(files[0].1.clone()).unwrap();
        assert!(
            makefile.starts_with("iommufd-y := main.o\n\niommufd-y += "),
            "{makefile}"
        );
    }
}
