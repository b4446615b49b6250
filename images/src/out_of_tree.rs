//! Modules outside a kernel's tree: built from source against its headers, once.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use crate::build_tools::{BuildTools, complaints};
use crate::cache::{BuildLock, Kind};
use crate::error::io_error;
use crate::progress::Progress;
use crate::toolchain::Toolchain;
use crate::{Cache, ImageError, Kernel, Root, cache, kernel_build};

/// Set for every build: peerbar does not read type information.
const NO_TYPE_INFO: &str = "CONFIG_DEBUG_INFO_BTF_MODULES=";

/// Files that mark a folder from which modules are built.
const RULES: [&str; 2] = ["Kbuild", "Makefile"];
/// The largest size of the files in such a folder, in bytes.
const LARGEST: u64 = 64 << 20;
/// Lines of the compiler's errors that are printed.
const SHOWN: usize = 40;
/// Suffixes of files that a build leaves.
const BUILT: [&str; 7] = [".o", ".ko", ".mod", ".mod.c", ".cmd", ".order", ".symvers"];

/// The author of the sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Author {
    /// This project: a warning is an error.
    Peerbar,
    /// The user.
    User,
    /// The kernel's own developers.
    Linux,
}

/// Sources from which modules are built.
pub(crate) struct ModuleBuild<'a> {
    /// Their origin, for messages.
    pub(crate) folder: &'a Path,
    /// Their author.
    pub(crate) author: Author,
    /// Variables for make, in addition to those of every build.
    pub(crate) options: Vec<String>,
    /// The identity of the sources.
    pub(crate) inputs: Vec<String>,
    /// Reads them, if the cache lacks the result.
    pub(crate) read: &'a dyn Fn() -> Result<Sources, ImageError>,
}

/// Debugging information is also unused, unless the kernel's versions of symbols are made from it.
const NO_DEBUG_INFO: &str = "CONFIG_DEBUG_INFO=";

/// Returns `true` if `folder` has the rules for building a module: a `Kbuild` or a `Makefile`.
#[must_use]
pub fn is_module_folder(folder: &Path) -> bool {
    RULES.iter().any(|rules| folder.join(rules).is_file())
}

impl Kernel {
    /// Adds the modules that the folder `sources` (C sources and a `Kbuild`) builds for this
    /// kernel. Builds them if the cache has none of these sources: for the kernel of `root` with
    /// the root's own compiler, for a user's kernel in its build tree, with the host's make and
    /// compiler. A warning is an error. This does not use the network.
    ///
    /// # Errors
    /// [`ImageError::NoBuildTree`] for a user's kernel without one, [`ImageError::ModuleBuild`],
    /// [`ImageError::Io`].
    pub fn with_sources(
        mut self,
        cache: &Cache,
        root: Option<&Root>,
        sources: &Path,
    ) -> Result<Self, ImageError> {
        let built = build_folder(cache, &self, root, sources, Author::Peerbar)?;
        self.added.extend(built);
        Ok(self)
    }

    /// Adds the modules that the user's folder `sources` builds for this kernel, like
    /// [`Kernel::with_sources`], but without turning warnings into errors. Returns the files of
    /// those modules as well: `NAME.ko`, with the name as in `/proc/modules`.
    ///
    /// # Errors
    /// [`ImageError::NoSources`], and those of [`Kernel::with_sources`].
    pub fn with_user_sources(
        mut self,
        cache: &Cache,
        root: Option<&Root>,
        sources: &Path,
    ) -> Result<(Self, Vec<PathBuf>), ImageError> {
        let built = build_folder(cache, &self, root, sources, Author::User)?;
        self.added.extend_from_slice(&built);
        Ok((self, built))
    }
}

/// Returns the modules that the folder `folder` (with a `Kbuild` or a `Makefile`) builds for
/// `kernel`, like [`build`].
///
/// # Errors
/// [`ImageError::NoSources`], and those of [`build`].
pub(crate) fn build_folder(
    cache: &Cache,
    kernel: &Kernel,
    root: Option<&Root>,
    folder: &Path,
    author: Author,
) -> Result<Vec<PathBuf>, ImageError> {
    if !is_module_folder(folder) {
        return Err(ImageError::NoSources {
            path: folder.to_path_buf(),
        });
    }
    let sources = Sources::read(folder)?;
    let build = ModuleBuild {
        folder,
        author,
        options: Vec::new(),
        inputs: vec![sources.key()],
        read: &|| Ok(sources.clone()),
    };
    self::build(cache, kernel, root, &build)
}

/// Checks that the build tree of `kernel`, a user's kernel, has these files of the kernel's own
/// tree.
///
/// # Errors
/// [`ImageError::NoBuildTree`], [`ImageError::NoPrivateHeader`].
pub(crate) fn check_headers(kernel: &Kernel, headers: &[&str]) -> Result<(), ImageError> {
    let target = Target::of(kernel, None)?;
    let tree = match &target {
        Target::Root { tree, .. } => tree,
        Target::Tree(tree) | Target::Built { kernel: tree, .. } => tree.as_path(),
    };
    // A folder in which a kernel was built, separate from its source, links to the source.
    let has =
        |header: &str| tree.join(header).is_file() || tree.join("source").join(header).is_file();
    match headers.iter().find(|header| !has(header)) {
        None => Ok(()),
        Some(header) => Err(ImageError::NoPrivateHeader {
            release: kernel.release.clone(),
            tree: tree.to_path_buf(),
            header: (*header).to_owned(),
        }),
    }
}

/// Returns the modules of `build` for `kernel`. Builds them if the cache has none of these sources
/// for that kernel: for the kernel of `root` with the root's own compiler, for a user's kernel with
/// the host's, in its build tree.
///
/// # Errors
/// [`ImageError::NoBuildTree`], [`ImageError::ModuleBuild`] with the compiler's first error,
/// [`ImageError::Io`].
pub(crate) fn build(
    cache: &Cache,
    kernel: &Kernel,
    root: Option<&Root>,
    build: &ModuleBuild<'_>,
) -> Result<Vec<PathBuf>, ImageError> {
    let target = Target::of(kernel, root)?;
    let mut inputs: Vec<Vec<u8>> = build
        .inputs
        .iter()
        .map(|input| input.clone().into())
        .collect();
    let of_author = format!("{:?}", build.author).into_bytes();
    inputs.extend([
        kernel.release.clone().into_bytes(),
        target.stamp(cache)?,
        of_author,
    ]);
    let entry = cache.entry(Kind::Modules, &cache::key(inputs), |path, lock| {
        let job = Job {
            target: &target,
            sources: &(build.read)()?,
            build,
            log: cache.path().join("modules.log"),
        };
        job.run(path, lock)
    })?;
    modules_in(&entry)
}

/// The build tree and the tools for modules.
enum Target<'a> {
    /// The kernel of a root, with the root's compiler.
    Root { tree: &'a Path, release: &'a str },
    /// A build tree, with the host's compiler.
    Tree(PathBuf),
    /// A kernel that [`crate::KernelBuild`] made, with the tools in a separate tree.
    Built { kernel: PathBuf, tools: PathBuf },
}

impl<'a> Target<'a> {
    fn of(kernel: &'a Kernel, root: Option<&'a Root>) -> Result<Self, ImageError> {
        let no_build_tree = || ImageError::NoBuildTree {
            release: kernel.release.clone(),
            modules: kernel.modules.clone(),
        };
        let modules = kernel.modules.as_deref().ok_or_else(no_build_tree)?;
        if let Some(tree) = root
            .map(Root::path)
            .filter(|tree| modules.starts_with(tree))
        {
            let release = &kernel.release;
            return Ok(Self::Root { tree, release });
        }
        // An installed kernel links to its build tree; the argument may also be the build tree
        // itself.
        [modules.join("build"), modules.to_path_buf()]
            .into_iter()
            .find(|dir| dir.join("Makefile").is_file())
            .map(Self::of_tree)
            .ok_or_else(no_build_tree)
    }

    fn of_tree(kernel: PathBuf) -> Self {
        match fs::read(kernel.join(kernel_build::TOOLS)) {
            Ok(tools) => Self::Built {
                kernel,
                tools: OsString::from_vec(tools).into(),
            },
            Err(_) => Self::Tree(kernel),
        }
    }

    /// Returns `true` if gendwarfksyms makes the versions of exported symbols. Debian's kernels
    /// have no such versions.
    fn has_dwarf_versions(&self) -> bool {
        let Self::Tree(tree) = self else { return false };
        fs::read_to_string(tree.join("include/config/auto.conf"))
            .is_ok_and(|config| config.lines().any(|line| line == "CONFIG_GENDWARFKSYMS=y"))
    }

    /// Changes with each build of the kernel. A root is an entry of `cache`, whose name identifies
    /// its contents: the cache may be moved.
    fn stamp(&self, cache: &Cache) -> Result<Vec<u8>, ImageError> {
        match self {
            Self::Root { tree, .. } => {
                let entry = cache.relative(tree);
                Ok(entry.as_os_str().as_encoded_bytes().to_vec())
            }
            Self::Tree(tree) | Self::Built { kernel: tree, .. } => {
                let symbols = tree.join("Module.symvers");
                let stamped = if symbols.is_file() { &symbols } else { tree };
                cache::stamp(stamped).map(String::into_bytes)
            }
        }
    }
}

/// Source files: their paths relative to the folder, and their contents. Hidden files and results
/// of a build are left out.
#[derive(Clone)]
pub(crate) struct Sources(Vec<(PathBuf, Vec<u8>)>);

impl Sources {
    /// Takes files by their paths relative to a folder.
    pub(crate) fn of_files(files: Vec<(PathBuf, Vec<u8>)>) -> Self {
        Self(files)
    }

    /// Adds files by their paths relative to the folder.
    pub(crate) fn extend(&mut self, files: Vec<(PathBuf, Vec<u8>)>) {
        self.0.extend(files);
    }

    /// Reads the files in the folder `dir`.
    pub(crate) fn read(dir: &Path) -> Result<Self, ImageError> {
        let mut files = Vec::new();
        let mut bytes: u64 = 0;
        let mut folders = vec![PathBuf::new()];
        while let Some(folder) = folders.pop() {
            let path = dir.join(&folder);
            for found in fs::read_dir(&path).map_err(io_error("list", &path))? {
                let found = found.map_err(io_error("list", &path))?;
                let relative = folder.join(found.file_name());
                let path = found.path();
                if !is_source(&found.file_name().to_string_lossy()) {
                    continue;
                }
                if path.is_dir() {
                    folders.push(relative);
                } else if path.is_file() {
                    let size = path.metadata().map_err(io_error("read", &path))?.len();
                    bytes = bytes.saturating_add(size);
                    if bytes > LARGEST {
                        return Err(ImageError::BigSources {
                            path: dir.to_path_buf(),
                            megabytes: LARGEST >> 20,
                        });
                    }
                    files.push((relative, fs::read(&path).map_err(io_error("read", &path))?));
                }
            }
        }
        files.sort();
        Ok(Self(files))
    }

    /// Returns a key that changes when any of them does.
    pub(crate) fn key(&self) -> String {
        let bytes = |path: &Path| path.as_os_str().as_encoded_bytes().to_vec();
        let files = self.0.iter();
        cache::key(files.flat_map(|(path, content)| [bytes(path), content.clone()]))
    }

    fn write(&self, dir: &Path) -> Result<(), ImageError> {
        for (relative, content) in &self.0 {
            let path = dir.join(relative);
            let folder = path.parent().unwrap_or(dir);
            fs::create_dir_all(folder).map_err(io_error("create", folder))?;
            fs::write(&path, content).map_err(io_error("write", &path))?;
        }
        Ok(())
    }
}

fn is_source(name: &str) -> bool {
    !name.starts_with('.') && !BUILT.iter().any(|end| name.ends_with(end))
}

struct Job<'a> {
    target: &'a Target<'a>,
    sources: &'a Sources,
    build: &'a ModuleBuild<'a>,
    log: PathBuf,
}

impl Job<'_> {
    /// Builds in a work folder, and keeps only the modules.
    fn run(&self, entry: &Path, lock: &BuildLock) -> Result<(), ImageError> {
        let work = entry.with_extension("work");
        let sources = work.join("sources");
        fs::create_dir_all(&sources).map_err(io_error("create", &sources))?;
        self.sources.write(&sources)?;
        let progress = Progress::start(&format!("building {}", self.build.folder.display()));
        self.make(&work, &sources, lock, &progress)?;
        fs::create_dir(entry).map_err(io_error("create", entry))?;
        for module in modules_below(&sources)? {
            let kept = entry.join(module.file_name().unwrap_or_default());
            fs::rename(&module, &kept).map_err(io_error("create", &kept))?;
        }
        Ok(())
    }

    fn make(
        &self,
        work: &Path,
        sources: &Path,
        lock: &BuildLock,
        progress: &Progress,
    ) -> Result<(), ImageError> {
        let log = File::create(&self.log).map_err(io_error("create", &self.log))?;
        let second = log.try_clone().map_err(io_error("share", &self.log))?;
        let status = self
            .command(work, sources)?
            .stdin(lock.stdin()?)
            .stdout(Stdio::from(log))
            .stderr(Stdio::from(second))
            .status()
            .map_err(io_error("run", Path::new("make")))?;
        if status.success() {
            return Ok(());
        }
        let output = fs::read(&self.log).map_err(io_error("read", &self.log))?;
        let output = self.of_user(&String::from_utf8_lossy(&output), sources);
        let complaints = complaints(&output);
        for line in complaints.iter().take(SHOWN) {
            progress.say(&format!("| {line}"));
        }
        let last = output.lines().last().unwrap_or("it printed nothing");
        let first = complaints.first().copied().unwrap_or(last);
        Err(ImageError::ModuleBuild {
            status: status.to_string(),
            reason: first.to_owned(),
            log: self.log.clone(),
        })
    }

    /// Returns the compiler's output, with the names of the user's own files.
    fn of_user(&self, output: &str, sources: &Path) -> String {
        let built_in = sources.display().to_string();
        let folder = self.build.folder.display().to_string();
        let lines = output.lines().map(|line| {
            let line = line.replace(&built_in, &folder);
            let file = line.split(':').next().unwrap_or_default();
            // Linux 6.13 and later builds inside the folder, so that names are relative to it.
            if !file.is_empty() && sources.join(file).is_file() && !Path::new(file).is_absolute() {
                format!("{folder}/{line}\n")
            } else {
                line + "\n"
            }
        });
        lines.collect()
    }

    fn command(&self, work: &Path, sources: &Path) -> Result<Command, ImageError> {
        let mut command = match self.target {
            Target::Root { tree, release } => {
                let toolchain = Toolchain::make(tree, release, &work.join("toolchain"))?;
                let mut command = Command::new(toolchain.programs.join("make"));
                command.env("PATH", before_path(&toolchain.programs));
                // The root's compiler is known, so its further warnings can be demanded, too.
                command.args((self.build.author == Author::Peerbar).then_some("W=1"));
                command.arg("-C").arg(&toolchain.kernel);
                command
            }
            Target::Built { kernel, tools } => {
                let tools = BuildTools::make(tools, &work.join("toolchain"))?;
                let mut command = tools.command();
                command.arg("-C").arg(kernel);
                command
            }
            Target::Tree(tree) => {
                let mut command = Command::new("make");
                command.arg("-C").arg(tree);
                command
            }
        };
        let jobs = thread::available_parallelism().map_or(1, usize::from);
        let mut folder = OsString::from("M=");
        folder.push(sources);
        command
            .arg(format!("-j{jobs}"))
            .arg(folder)
            .arg(NO_TYPE_INFO)
            .args((self.build.author == Author::Peerbar).then_some("KCFLAGS=-Werror"))
            .args((!self.target.has_dwarf_versions()).then_some(NO_DEBUG_INFO))
            .args(&self.build.options)
            .arg("modules")
            .env("LC_ALL", "C.UTF-8")
            .env_remove("MAKEFLAGS")
            .env_remove("MAKELEVEL");
        Ok(command)
    }
}

fn before_path(dir: &Path) -> OsString {
    let mut path = dir.as_os_str().to_owned();
    if let Some(rest) = env::var_os("PATH") {
        path.push(":");
        path.push(rest);
    }
    path
}

/// Returns all modules in a folder and in the folders below it.
fn modules_below(dir: &Path) -> Result<Vec<PathBuf>, ImageError> {
    let mut modules = modules_in(dir)?;
    for found in fs::read_dir(dir).map_err(io_error("list", dir))? {
        let found = found.map_err(io_error("list", dir))?;
        let kind = found.file_type().map_err(io_error("read", &found.path()))?;
        if kind.is_dir() {
            modules.extend(modules_below(&found.path())?);
        }
    }
    Ok(modules)
}

fn modules_in(dir: &Path) -> Result<Vec<PathBuf>, ImageError> {
    let mut modules: Vec<_> = fs::read_dir(dir)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(io_error("list", dir))?
        .iter()
        .map(fs::DirEntry::path)
        .filter(|path| path.extension().is_some_and(|extension| extension == "ko"))
        .collect();
    modules.sort();
    Ok(modules)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a build tree with the "compiler" `rule`, a driver's sources, and a cache.
    fn lab(rule: &str) -> (tempfile::TempDir, Cache, Kernel, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        let sources = dir.path().join("sources");
        fs::create_dir_all(sources.join("src")).unwrap();
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join("Makefile"), format!("modules:\n\t{rule}\n")).unwrap();
        for (name, text) in [
            ("Kbuild", "obj-m := a.o"),
            ("src/a.c", "int a;"),
            ("src/a.mod.c", "left"),
            ("a.ko", "left"),
        ] {
            fs::write(sources.join(name), text).unwrap();
        }
        let cache = Cache::at(&dir.path().join("cache")).unwrap();
        let kernel = Kernel {
            image: dir.path().join("bzImage"),
            release: "7.2-x".to_owned(),
            modules: Some(tree),
            added: Vec::new(),
            config: None,
        };
        (dir, cache, kernel, sources)
    }

    #[test]
    fn modules_for_a_root_stay_good_where_the_cache_moves() {
        let stamp = |root: &str| {
            let folder = tempfile::tempdir().unwrap();
            let cache = Cache::at(&folder.path().join("cache")).unwrap();
            let tree = &cache.path().join(root);
            let target = Target::Root {
                tree,
                release: "7.2-x",
            };
            target.stamp(&cache).unwrap()
        };
        assert_eq!(stamp("root-1/root"), stamp("root-1/root"));
        assert_ne!(stamp("root-1/root"), stamp("root-2/root"));
    }

    #[test]
    fn modules_are_built_once_from_sources_alone() {
        let rule = "@cd $(M) && ls -R . > a.ko && echo $(KCFLAGS) >> a.ko";
        let (_dir, cache, kernel, sources) = lab(rule);
        let modules = build_folder(&cache, &kernel, None, &sources, Author::Peerbar).unwrap();
        let text = fs::read_to_string(&modules[0]).unwrap();
        assert!(text.contains("Kbuild") && text.contains("a.c"), "{text}");
        assert!(
            text.ends_with("-Werror\n") && !text.contains("a.mod.c"),
            "{text}"
        );
        let tree = kernel.modules.as_deref().unwrap();
        fs::write(tree.join("Makefile"), "modules:\n\tfalse\n").unwrap();
        assert_eq!(
            build_folder(&cache, &kernel, None, &sources, Author::Peerbar).unwrap(),
            modules
        );
        fs::write(sources.join("src/a.c"), "int b;").unwrap();
        assert!(build_folder(&cache, &kernel, None, &sources, Author::Peerbar).is_err());
    }

    #[test]
    fn debug_info_is_built_only_for_gendwarfksyms() {
        let rule = "@echo '[$(origin CONFIG_DEBUG_INFO)]' > $(M)/a.ko";
        let (_dir, cache, kernel, sources) = lab(rule);
        let text = || {
            let modules = build_folder(&cache, &kernel, None, &sources, Author::Peerbar).unwrap();
            fs::read_to_string(&modules[0]).unwrap()
        };
        assert_eq!(text(), "[command line]\n");
        let config = kernel.modules.as_deref().unwrap().join("include/config");
        fs::create_dir_all(&config).unwrap();
        fs::write(config.join("auto.conf"), "CONFIG_GENDWARFKSYMS=y\n").unwrap();
        fs::write(sources.join("src/a.c"), "int c;").unwrap();
        assert_eq!(text(), "[undefined]\n");
    }

    #[test]
    fn failed_make_reports_first_error_and_keeps_the_log() {
        let rule = "@echo 'a.c:1: warning: w'; echo 'a.c:2: error: e [-Werror]'; false";
        let (_dir, cache, kernel, sources) = lab(rule);
        let error = build_folder(&cache, &kernel, None, &sources, Author::Peerbar).unwrap_err();
        let ImageError::ModuleBuild { reason, log, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(reason, "a.c:2: error: e [-Werror]");
        assert!(fs::read_to_string(log).unwrap().contains("warning: w"));
    }

    #[test]
    fn user_sees_names_of_own_files_and_no_werror() {
        let rule = "@echo 'a.c:2: error: [$(KCFLAGS)]'; echo '$(M)/b.h:1: error: b'; false";
        let (_dir, cache, kernel, sources) = lab(rule);
        fs::write(sources.join("a.c"), "").unwrap();
        let error = build_folder(&cache, &kernel, None, &sources, Author::User).unwrap_err();
        let ImageError::ModuleBuild { reason, .. } = error else {
            panic!("{error}")
        };
        let first = format!("{}/a.c:2: error: []", sources.display());
        assert_eq!(reason, first);
    }

    #[test]
    fn folder_without_rules_is_no_module() {
        let (dir, cache, kernel, _sources) = lab("false");
        let error = build_folder(&cache, &kernel, None, dir.path(), Author::User).unwrap_err();
        assert!(matches!(error, ImageError::NoSources { .. }), "{error}");
    }

    #[test]
    fn build_tree_without_a_private_header_is_refused() {
        let (_dir, _cache, kernel, _sources) = lab("false");
        let header = "drivers/nvme/host/nvme.h";
        let error = check_headers(&kernel, &[header]).unwrap_err();
        assert!(matches!(error, ImageError::NoPrivateHeader { .. }));
        assert!(error.to_string().contains(header), "{error}");
        let tree = kernel.modules.clone().unwrap();
        for dir in [tree.join("source"), tree] {
            let path = dir.join(header);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            check_headers(&kernel, &[header]).unwrap();
            fs::remove_file(&path).unwrap();
        }
        assert!(check_headers(&kernel, &[header]).is_err());
    }

    #[test]
    fn kernel_without_a_build_tree_is_refused() {
        let (dir, cache, mut kernel, sources) = lab("false");
        fs::remove_file(dir.path().join("tree/Makefile")).unwrap();
        let error = build_folder(&cache, &kernel, None, &sources, Author::Peerbar).unwrap_err();
        assert!(matches!(error, ImageError::NoBuildTree { .. }), "{error}");
        assert!(error.to_string().contains("7.2-x"), "{error}");
        kernel.modules = None;
        let error = build_folder(&cache, &kernel, None, &sources, Author::Peerbar).unwrap_err();
        assert!(error.to_string().contains("--modules"), "{error}");
    }

    #[test]
    fn installed_kernel_links_to_its_build_tree() {
        let (dir, _cache, mut kernel, _sources) = lab("false");
        let installed = dir.path().join("installed");
        fs::create_dir(&installed).unwrap();
        std::os::unix::fs::symlink(dir.path().join("tree"), installed.join("build")).unwrap();
        kernel.modules = Some(installed.clone());
        let target = Target::of(&kernel, None).unwrap();
        assert!(matches!(target, Target::Tree(tree) if tree == installed.join("build")));
    }
}
