//! Kernels for peerbar, built from source.
//!
//! A kernel is configured with the smallest set of options that the scenarios need, and kept in the cache as a build tree
//! against which modules can be built. Tools and Debian's sources come from the Debian archive of the root; a user's tree is
//! copied, so that nothing in it changes.

mod export;
mod fragments;
mod make;
mod snapshot;
mod source;

use std::fs::{self, File};
use std::path::PathBuf;
use std::thread;
use std::time::SystemTime;

use rustix::fs::{FlockOperation, flock};

use self::fragments::Fragments;
use self::make::Make;
use self::source::Prepared;
use crate::build_tools::{self, BuildTools};
use crate::cache::Kind;
use crate::error::io_error;
use crate::progress::{Progress, say};
use crate::{Cache, ImageError, PackageTree, cache};

pub(crate) use self::export::TOOLS;
pub use self::source::KernelSource;

/// A kernel to build.
#[derive(Clone, Debug)]
pub struct KernelBuild {
    /// The source.
    pub source: KernelSource,
    /// Whether it looks for mistakes of drivers, and has symbols for a debugger.
    pub debug: bool,
    /// Files with further options.
    pub fragments: Vec<PathBuf>,
    /// Jobs of make at once; one for each processor if none.
    pub jobs: Option<usize>,
}

/// The parts of a work folder, which stays so that the next state of a tree is built from that of the last.
struct WorkFolder {
    path: PathBuf,
    /// Held while anything is built there.
    _lock: File,
}

impl KernelBuild {
    /// The kernel's folder in the cache, for [`crate::Kernel::user`]; built if the cache has none of this state of the
    /// source with these options.
    ///
    /// # Errors
    /// [`ImageError::NoKernelTree`], [`ImageError::NoRepository`], [`ImageError::Git`] about the source,
    /// [`ImageError::DroppedOptions`], [`ImageError::ModuleBuild`] with the compiler's first complaint, and what
    /// [`PackageTree::get`] says.
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
        let make = self.build(&prepared, &work, &fragments, &tools, &progress)?;
        let built = cache.entry(Kind::BuiltKernel, &key, |entry, _| {
            export::export(&make, tree, entry)
        })?;
        if prepared.is_final() {
            fs::remove_dir_all(&work.path).map_err(io_error("remove", &work.path))?;
        }
        Ok(built)
    }

    fn build<'a>(
        &self,
        prepared: &Prepared<'_>,
        work: &WorkFolder,
        fragments: &Fragments,
        tools: &'a BuildTools<'a>,
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
        make.run(&["allnoconfig"], &config, progress)?;
        fragments.check(&make.build.join(".config"))?;
        progress.say(&format!(
            "this takes some minutes; all output is in {}",
            make.log.display()
        ));
        let scripts = self.debug.then_some("scripts_gdb");
        let targets: Vec<&str> = ["bzImage", "modules"].into_iter().chain(scripts).collect();
        make.run(&targets, &config, progress)?;
        Ok(make)
    }
}

impl WorkFolder {
    fn of(cache: &Cache, key: &str) -> Result<Self, ImageError> {
        let path = cache.path_of(Kind::KernelWork, key);
        fs::create_dir_all(&path).map_err(io_error("create", &path))?;
        let lock = File::open(&path).map_err(io_error("open", &path))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            say(&format!("waiting for another build in {}", path.display()));
            flock(&lock, FlockOperation::LockExclusive)
                .map_err(|errno| io_error("lock", &path)(errno.into()))?;
        }
        // It counts as used today. Nothing can be built in a cache of another user's, so a failure shows below.
        let _ = lock.set_modified(SystemTime::now());
        Ok(Self { path, _lock: lock })
    }
}
