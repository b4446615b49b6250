//! Kernels for peerbar, built from source.
//!
//! A kernel is configured with the smallest set of options that the scenarios need, and kept in the
//! cache as a build tree against which modules can be built. Tools and Debian's sources come from
//! the Debian archive of the root; a user's tree is copied, so that nothing in it changes.

mod export;
mod fragments;
mod make;
mod snapshot;
mod source;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::SystemTime;

use self::fragments::Fragments;
use self::make::Make;
use self::source::Prepared;
use crate::build_tools::{self, BuildTools};
use crate::cache::{BuildLock, Kind};
use crate::error::io_error;
use crate::progress::{Progress, Unit};
use crate::{Cache, ImageError, Kernel, PackageTree, Root, cache};

pub(crate) use self::export::TOOLS;
pub use self::source::KernelSource;

/// The file of the cache with the number of object files that the last whole build compiled. It is
/// an estimate for the next build.
const OBJECTS: &str = "kernel-objects";

/// More object files than the configuration of a kernel leaves, which are those of its own
/// programs.
const FEW: u64 = 100;

/// A kernel to build.
#[derive(Clone, Debug)]
pub struct KernelBuild {
    /// The source.
    pub source: KernelSource,
    /// Build a kernel that finds mistakes of drivers, with symbols for a debugger.
    pub debug: bool,
    /// Files with further options.
    pub fragments: Vec<PathBuf>,
    /// Jobs of make at once; by default one for each processor.
    pub jobs: Option<usize>,
}

/// The parts of a work folder, which stays so that the next state of a tree is built on the last
/// one.
struct WorkFolder {
    path: PathBuf,
    /// Held while anything is built there.
    _lock: BuildLock,
}

impl KernelBuild {
    /// Returns the kernel's folder in the cache, for [`crate::Kernel::user`]. Builds it if the
    /// cache has none with this state of the source and these options.
    ///
    /// # Errors
    /// [`ImageError::NoKernelTree`], [`ImageError::NoRepository`], [`ImageError::Git`] about the
    /// source, [`ImageError::DroppedOptions`], [`ImageError::ModuleBuild`] with the compiler's
    /// first error, and those of [`PackageTree::get`].
    pub fn run(&self, cache: &Cache) -> Result<PathBuf, ImageError> {
        let fragments = Fragments::read(self.debug, &self.fragments)?;
        let text = fragments.text();
        let identity = self.source.identity()?;
        let tools = PackageTree::get(cache, &build_tools::PACKAGES.map(String::from))?;
        let tree = tools.path();
        let of_tools = tree.display().to_string();
        let work = WorkFolder::of(cache, &cache::key([&identity, &text, &of_tools]))?;
        let prepared = self.source.prepare(cache, &work.path)?;
        let headers = export::PRIVATE_HEADERS.join(" ");
        let key = cache::key([&prepared.state, &text, &of_tools, &headers]);
        if let Some(known) = cache.known(Kind::BuiltKernel, &key)? {
            return Ok(known);
        }
        let config = work.path.join("fragments.config");
        fs::write(&config, &text).map_err(io_error("write", &config))?;
        let progress = Progress::start("building a kernel");
        let tools = BuildTools::make(tree, &work.path.join("tools"))?;
        let make = self.build(&prepared, &work, &fragments, &tools, cache, &progress)?;
        let built = cache.entry(Kind::BuiltKernel, &key, |entry, _| {
            export::export(&make, tree, entry)
        })?;
        if prepared.is_final() {
            fs::remove_dir_all(&work.path).map_err(io_error("remove", &work.path))?;
        }
        Ok(built)
    }

    /// Downloads the inputs for a build of Debian's source of the kernel of `root`, if the cache
    /// lacks them: the source and the tools.
    ///
    /// # Errors
    /// Those of [`PackageTree::get`].
    pub fn fetch(cache: &Cache, root: &Root) -> Result<(), ImageError> {
        PackageTree::get(cache, &build_tools::PACKAGES.map(String::from))?;
        PackageTree::get(cache, &[Kernel::from_root(root).source_package()])?;
        Ok(())
    }

    fn build<'a>(
        &self,
        prepared: &Prepared<'_>,
        work: &WorkFolder,
        fragments: &Fragments,
        tools: &'a BuildTools<'a>,
        cache: &Cache,
        progress: &Progress,
    ) -> Result<Make<'a>, ImageError> {
        let source = prepared.sources(&work.path.join("source"), progress)?;
        let make = Make {
            tools,
            source,
            build: work.path.join("build"),
            jobs: self
                .jobs
                .or_else(|| thread::available_parallelism().ok().map(usize::from))
                .unwrap_or(1),
            log: work.path.join("build.log"),
        };
        let config = work.path.join("fragments.config");
        progress.part("", Unit::Objects, None);
        make.run(&["allnoconfig"], &config, progress)?;
        fragments.check(&make.build.join(".config"))?;
        progress.say(&format!(
            "this takes some minutes; all output is in {}",
            make.log.display()
        ));
        let scripts = self.debug.then_some("scripts_gdb");
        let targets: Vec<&str> = ["bzImage", "modules"].into_iter().chain(scripts).collect();
        // The part of an earlier build that is compiled again is not known.
        let is_whole = make::objects_in(&make.build) < FEW;
        let expected = known_objects(cache).filter(|_| is_whole);
        progress.part("building", Unit::Objects, expected);
        let compiled = make.run(&targets, &config, progress)?;
        if is_whole {
            let path = cache.path().join(OBJECTS);
            fs::write(&path, compiled.to_string()).map_err(io_error("write", &path))?;
        }
        Ok(make)
    }
}

/// Returns the number of object files that the last whole build compiled, if there was one.
fn known_objects(cache: &Cache) -> Option<u64> {
    let number = |folder: &Path| fs::read_to_string(folder.join(OBJECTS)).ok()?.parse().ok();
    cache.folders().find_map(number)
}

impl WorkFolder {
    fn of(cache: &Cache, key: &str) -> Result<Self, ImageError> {
        let path = cache.path_of(Kind::KernelWork, key);
        fs::create_dir_all(&path).map_err(io_error("create", &path))?;
        let folder = File::open(&path).map_err(io_error("open", &path))?;
        // It counts as used today. No build is possible in another user's cache, so a failure shows
        // below.
        let _ = folder.set_modified(SystemTime::now());
        let lock = cache.lock_work(folder, &path)?;
        Ok(Self { path, _lock: lock })
    }
}
