//! The errors of preparing a guest.

use std::io;
use std::path::{Path, PathBuf};

/// The reason why a part of the guest or QEMU is not available. Variants that name "the user's
/// argument" are wrong usage; all others are faults of the machine.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// No environment variable names a folder for the cache.
    #[error(
        "no folder for the cache: PEERBAR_CACHE, XDG_CACHE_HOME and HOME are unset; set PEERBAR_CACHE to a folder"
    )]
    NoCacheDir,
    /// The programs that fill the cache take its path as text.
    #[error(
        "{} is not UTF-8, as the path of the cache must be: set PEERBAR_CACHE to another folder",
        path.display()
    )]
    CacheNotUtf8 {
        /// The folder.
        path: PathBuf,
    },
    /// The caller has stopped the work ([`crate::Cache::stopped_by`]).
    #[error("stopped before it was made")]
    Stopped,
    /// A file or folder cannot be read, written or made.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// The action: "read", "create".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file would be larger than the process may make one.
    #[error(
        "cannot {action} {}: it would be larger than your limit of file sizes; run `ulimit -f unlimited`",
        path.display()
    )]
    FileTooLarge {
        /// The action: "write".
        action: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// The tool that makes the root is not installed.
    #[error(
        "mmdebstrap is missing, and it is needed once to get QEMU and the guest kernel: apt-get install mmdebstrap"
    )]
    NoMmdebstrap,
    /// The tool that makes the root has failed.
    #[error(
        "mmdebstrap failed ({status}): {reason}; all of its output is in {}; check the network, or name a Debian \
         archive in PEERBAR_MIRROR",
        log.display()
    )]
    Mmdebstrap {
        /// The exit status.
        status: String,
        /// The first error that it printed.
        reason: String,
        /// The file with its whole output.
        log: PathBuf,
    },
    /// The archive has no package of a name.
    #[error("neither {} of Debian has a package `{name}`: correct its name", suites.join(" nor "))]
    NoPackage {
        /// The name.
        name: String,
        /// The suites that were searched.
        suites: [&'static str; 2],
    },
    /// The version of the kernel's source is not the kernel's: modules from it would corrupt the
    /// kernel.
    #[error(
        "{package} in the cache is version {source_version}, and the kernel of the root is {kernel_version}: remove {} if it is \
         the older one, else {}, and run again",
        source_entry.display(),
        root_entry.display()
    )]
    OtherSource {
        /// The package with the source.
        package: String,
        /// Its version.
        source_version: String,
        /// Version of the package with the kernel.
        kernel_version: String,
        /// The cache entry with the source.
        source_entry: PathBuf,
        /// The cache entry with the root.
        root_entry: PathBuf,
    },
    /// The root lacks a part of the recipe.
    #[error("mmdebstrap made a root without {what}; all of its output is in {}", log.display())]
    BrokenRoot {
        /// The missing part.
        what: &'static str,
        /// The file with its whole output.
        log: PathBuf,
    },
    /// The manifest next to the root cannot be parsed.
    #[error("cannot understand {}; remove {} and run again", path.display(), entry.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// The cache entry to remove.
        entry: PathBuf,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// The user's argument names a QEMU that does not exist.
    #[error("no QEMU at {}; leave --qemu (in a Rust test: LabOptions::qemu) out to use peerbar's own", path.display())]
    NoQemu {
        /// The path, as given.
        path: PathBuf,
    },
    /// A program that should be QEMU does not answer like QEMU.
    #[error("{} does not answer `{question}` as QEMU does: {answer:?}; leave --qemu (in a Rust test: LabOptions::qemu) out to use peerbar's own", path.display())]
    NotQemu {
        /// The program.
        path: PathBuf,
        /// Its arguments.
        question: &'static str,
        /// The first line that it printed.
        answer: String,
    },
    /// The user's argument names a QEMU that is too old.
    #[error("{} is QEMU {found}, but vfio-user needs {needed} or later; leave --qemu (in a Rust test: LabOptions::qemu) out to use peerbar's own", path.display())]
    QemuTooOld {
        /// The program.
        path: PathBuf,
        /// Its version.
        found: crate::version::Version,
        /// The lowest supported version.
        needed: crate::version::Version,
    },
    /// The user's argument names a QEMU that was built without the vfio-user client.
    #[error("{} has no vfio-user-pci device; leave --qemu (in a Rust test: LabOptions::qemu) out to use peerbar's own", path.display())]
    QemuWithoutVfioUser {
        /// The program.
        path: PathBuf,
    },
    /// The user's argument names no kernel.
    #[error("no kernel at {}; give a bzImage, a vmlinux or a kernel build tree", path.display())]
    NoKernel {
        /// The path, as given.
        path: PathBuf,
    },
    /// The user's argument names a file that is not an x86-64 Linux kernel.
    #[error(
        "{} is not an x86 Linux kernel: it has neither a boot header nor a version string in an ELF file; give a bzImage, a \
         vmlinux or a kernel build tree",
        path.display()
    )]
    NotAKernel {
        /// The path, as given.
        path: PathBuf,
    },
    /// The user's argument names a bzImage that ends before its payload does.
    #[error(
        "{} has {bytes} bytes, but its header promises a kernel that needs {needed}: it is cut off; copy or build it again",
        path.display()
    )]
    CutOff {
        /// The path, as given.
        path: PathBuf,
        /// Its size.
        bytes: usize,
        /// The least size that its header allows.
        needed: usize,
    },
    /// The user's argument names an uncompressed kernel that QEMU cannot start.
    #[error("{} has no PVH entry point, so QEMU cannot start it; give its bzImage, or build it with CONFIG_PVH=y", path.display())]
    NoPvh {
        /// The path, as given.
        path: PathBuf,
    },
    /// The user's argument names a kernel with KASAN, without the loader that it needs.
    #[error(
        "{} has KASAN, and such a kernel ends without output when QEMU starts its vmlinux; give its bzImage",
        path.display()
    )]
    KasanWithoutLoader {
        /// The path, as given.
        path: PathBuf,
    },
    /// A kernel tree holds no kernel.
    #[error(
        "the kernel tree {} has no build: run `make` in it, or `peerbar kernel build --tree {}`; or take peerbar's own \
         kernel with `--kernel default`",
        tree.display(),
        tree.display()
    )]
    NotBuilt {
        /// The tree.
        tree: PathBuf,
    },
    /// A kernel tree holds a kernel of a configuration other than its current one.
    #[error(
        "{} is older than {}: run `make` again; or name the image itself with --kernel; or take peerbar's own kernel with \
         `--kernel default`",
        image.display(),
        config.display()
    )]
    StaleBuild {
        /// The kernel.
        image: PathBuf,
        /// The configuration.
        config: PathBuf,
    },
    /// The user's argument names a folder without modules for the kernel.
    #[error(
        "no modules of kernel {release} in {}: give lib/modules/{release}, a folder that contains it, or the kernel's \
         build tree",
        path.display()
    )]
    NoModules {
        /// The path, as given.
        path: PathBuf,
        /// The kernel's release.
        release: String,
    },
    /// A module that the guest needs is neither a file nor built in.
    #[error(
        "kernel {release} has no module {name}{}: build it with {option}=m or =y, or name its modules with --modules",
        wanted_by(needed_by.as_deref())
    )]
    NoModule {
        /// The module's name, as in `/proc/modules`.
        name: String,
        /// The module that depends on it, if it was not requested itself.
        needed_by: Option<String>,
        /// The kernel's release.
        release: String,
        /// The option of the kernel's configuration that builds it.
        option: String,
    },
    /// The user's kernel has no build tree, so nothing can be built for it.
    #[error(
        "no drivers can be built for kernel {release}: {}; name its build tree, or lib/modules/{release} with a link \
         `build` to it, with --modules",
        no_build_tree(modules.as_deref())
    )]
    NoBuildTree {
        /// The kernel's release.
        release: String,
        /// The folder with its modules.
        modules: Option<PathBuf>,
    },
    /// A build tree lacks a header of the kernel's own drivers.
    #[error(
        "a module needs {header} of the source of kernel {release}, and {} has no such file: give --kernel a whole kernel tree, or the \
         kernel that this `peerbar kernel build` makes",
        tree.display()
    )]
    NoPrivateHeader {
        /// The kernel's release.
        release: String,
        /// The build tree.
        tree: PathBuf,
        /// The header, by its path in a kernel's tree.
        header: String,
    },
    /// The user's argument names a folder from which no module can be built.
    #[error("{} is not the folder of a module: it has neither a Kbuild nor a Makefile", path.display())]
    NoSources {
        /// The folder.
        path: PathBuf,
    },
    /// The user's argument names a folder with more than a module's sources.
    #[error(
        "{} has more than {megabytes} MiB of files, which are copied for a build: give the module a folder of its own",
        path.display()
    )]
    BigSources {
        /// The folder.
        path: PathBuf,
        /// The limit.
        megabytes: u64,
    },
    /// The compiler refused a driver.
    #[error("make failed ({status}): {reason}; all of its output is in {}", log.display())]
    ModuleBuild {
        /// The exit status.
        status: String,
        /// The first error that it printed.
        reason: String,
        /// The file with its whole output.
        log: PathBuf,
    },
    /// The index of a kernel's modules cannot be made.
    #[error("depmod failed on the modules of kernel {release} ({status}): {reason}")]
    Depmod {
        /// The kernel's release.
        release: String,
        /// The exit status.
        status: String,
        /// The first line that it printed.
        reason: String,
    },
    /// The user's argument names a folder that is not a kernel tree.
    #[error("{} is not a kernel tree: name the top folder of a kernel's sources", path.display())]
    NoKernelTree {
        /// The path, as given.
        path: PathBuf,
    },
    /// The user's argument names a commit of a tree that is in no repository.
    #[error("{} is not the top folder of a git repository, so it has no commits: leave out --commit", path.display())]
    NoRepository {
        /// The tree.
        path: PathBuf,
    },
    /// git refuses a command.
    #[error("git {command} fails in {}: {reason}", tree.display())]
    Git {
        /// Its arguments.
        command: String,
        /// The working tree.
        tree: PathBuf,
        /// Its error message.
        reason: String,
    },
    /// A kernel's configuration lacks options that a fragment sets.
    #[error(
        "the kernel's configuration drops {options}: set their dependencies in a fragment too, or leave them out"
    )]
    DroppedOptions {
        /// The options, with the origin of each.
        options: String,
    },
    /// The tools for building a kernel are missing.
    #[error("no compiler in {}: build the kernel again with `peerbar kernel build`", tree.display())]
    NoCompiler {
        /// The tree of the tools.
        tree: PathBuf,
    },
    /// A module's file cannot be parsed.
    #[error("{} is not a kernel module: {reason}", path.display())]
    BadModule {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The agent cannot be the guest's first program.
    #[error(
        "{} cannot be the guest's init: {reason}; build it with -C target-feature=+crt-static and an explicit --target",
        path.display()
    )]
    BadAgent {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: &'static str,
    },
    /// A file is too big for the archive format of an initramfs.
    #[error("{name} is too big for an initramfs: {bytes} bytes, and the format ends at 4 GiB")]
    TooBig {
        /// The name in the archive.
        name: String,
        /// Its size.
        bytes: usize,
    },
}

/// Returns a function that turns an I/O error into one that names the action and the path.
pub(crate) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ImageError {
    let path = path.to_path_buf();
    move |source| match source.kind() {
        io::ErrorKind::FileTooLarge => ImageError::FileTooLarge { action, path },
        _ => ImageError::Io {
            action,
            path,
            source,
        },
    }
}

fn no_build_tree(modules: Option<&Path>) -> String {
    match modules {
        Some(modules) => format!(
            "there is neither a build tree in nor a link to one from {}",
            modules.display()
        ),
        None => "its modules are not known".to_owned(),
    }
}

fn wanted_by(module: Option<&str>) -> String {
    module
        .map(|module| format!(", which {module} needs"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_of_file_sizes_is_named() {
        let error = io_error("write", Path::new("/f"))(io::ErrorKind::FileTooLarge.into());
        let expected = "cannot write /f: it would be larger than your limit of file sizes; run `ulimit -f unlimited`";
        assert_eq!(error.to_string(), expected);
    }
}
