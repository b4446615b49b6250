//! The parts of a run: QEMU, a kernel, an initramfs, our programs.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::{Args, ValueEnum};
use peerbar_images::{
    Cache, GuestImage, ImageError, Kernel, KernelConfig, KernelTree, PackageTree, Qemu, Root,
    module_tree,
};
use peerbar_report::Plan;

use crate::accel::{Accel, AccelChoice};
use crate::exit::Failure;
use crate::firmware::Firmware;
use crate::guest_needs::GuestNeeds;
use crate::kernel_needs;
use crate::module_sources::BuiltModules;
use crate::programs::program;
use crate::qemu::{Boot, SharedFolder};
use crate::scenario::{Machine, Scenario};
use crate::signals::Signals;
use crate::socket_folder::SocketFolder;
use crate::started::Versions;
use crate::terminal::say;

/// The word for peerbar's own kernel, in place of a path.
const DEFAULT_KERNEL: &str = "default";

/// Makes the tools root writable. A kernel without it has a read-only root without layers.
const OVERLAY: &str = "overlay";

/// The file system with which programs configure parts of the kernel, such as NVMe targets.
const CONFIGFS: &str = "configfs";

/// The user's own QEMU, kernel and the like, instead of peerbar's.
#[derive(Args, Clone, Debug, Default)]
pub struct Own {
    /// QEMU to use [default: the one on PATH if it has vfio-user, or peerbar's own].
    #[arg(long, value_name = "PATH")]
    pub qemu: Option<PathBuf>,
    /// Kernel to boot: a bzImage, a vmlinux, a build tree, or `default` for peerbar's own [default:
    /// that of the kernel tree around the current folder, or peerbar's own].
    #[arg(long, value_name = "PATH")]
    pub kernel: Option<PathBuf>,
    /// Modules of that kernel: lib/modules/RELEASE, or a folder that contains it.
    #[arg(long, value_name = "DIR", requires = "kernel")]
    pub modules: Option<PathBuf>,
    /// Parameters for the guest's kernel, after all others.
    #[arg(
        long,
        value_name = "PARAMETERS",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    pub append: String,
    /// Accelerator of the guest: KVM or TCG.
    #[arg(long, value_enum, default_value_t)]
    pub accel: AccelChoice,
    /// Further argument of QEMU, at your own risk; repeat it for more.
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub qemu_arg: Vec<String>,
}

impl Own {
    /// Uses the kernel of the tree around the current folder, if no kernel is named, and says so on
    /// stderr.
    ///
    /// # Errors
    /// [`Failure::Usage`] for a tree without a build, or with one that is older than its
    /// configuration.
    pub fn or_kernel_tree_here(&self) -> Result<Self, Failure> {
        let mut own = self.clone();
        let here = std::env::current_dir().ok();
        let tree = here.as_deref().and_then(KernelTree::around);
        if let (None, Some(tree)) = (&self.kernel, tree) {
            let image = tree.image().map_err(image_failure)?;
            say(format_args!(
                "peerbar: the kernel is {}, of the kernel tree here; `--kernel default` takes peerbar's own",
                image.display()
            ));
            own.kernel = Some(image);
        }
        Ok(own)
    }

    /// Returns the words of a command line that ask for the same.
    pub fn words(&self) -> Vec<OsString> {
        let paths = [
            ("--qemu", &self.qemu),
            ("--kernel", &self.kernel),
            ("--modules", &self.modules),
        ];
        let mut words = Vec::new();
        for (option, path) in paths {
            let path = path.as_ref().map(OsString::from);
            words.extend(path.into_iter().flat_map(|path| [option.into(), path]));
        }
        let accel = self.accel.to_possible_value();
        let accel = accel.map(|accel| format!("--accel={}", accel.get_name()).into());
        words.extend(accel);
        if !self.append.is_empty() {
            words.push(format!("--append={}", self.append).into());
        }
        let arguments = self.qemu_arg.iter();
        words.extend(arguments.map(|word| format!("--qemu-arg={word}").into()));
        words
    }

    /// Returns the user's own kernel, or `None`.
    pub(crate) fn kernel(&self) -> Option<&Path> {
        let kernel = self.kernel.as_deref();
        kernel.filter(|kernel| *kernel != Path::new(DEFAULT_KERNEL))
    }
}

/// Everything that is there before a guest starts.
pub struct Artifacts {
    /// The QEMU to start.
    pub qemu: Qemu,
    /// Kernel and initramfs from which the guest boots.
    pub guest: GuestImage,
    /// The Debian tree, if anything of it is used.
    pub root: Option<Root>,
    /// The accelerator of the guest.
    pub accel: Accel,
    /// The user's parameters for the guest's kernel.
    pub append: String,
    /// The configuration of the user's own kernel, if it is known.
    pub kernel_config: Option<KernelConfig>,
    /// Keeps all of it from being pruned.
    pub cache: Cache,
    /// The user's own words for QEMU.
    pub qemu_arguments: Vec<String>,
    /// Packages in addition to those of the tree.
    pub packages: Option<PackageTree>,
    /// Modules that were built for the guest's kernel.
    pub built: BuiltModules,
    /// Set if the guest can lay folders over the tree, and write in it.
    pub has_overlay: bool,
    /// The modules of a user's kernel, for modprobe.
    module_tree: Option<PathBuf>,
}

impl Artifacts {
    /// Finds or makes all parts in `needs`, with `init` as the guest's first program. The tree is
    /// made only if the user has no QEMU or no kernel, or if `needs` asks for it. A signal ends it.
    pub fn prepare(
        own: &Own,
        needs: &GuestNeeds,
        init: &Path,
        signals: &Signals,
    ) -> Result<Self, Failure> {
        if !needs.is_dry_run {
            // Before a download, which may take minutes.
            SocketFolder::parent()?;
        }
        until_a_signal(signals, |cache| Self::make(own, needs, init, cache))
    }

    fn make(own: &Own, needs: &GuestNeeds, init: &Path, cache: &Cache) -> Result<Self, Failure> {
        let qemu = Qemu::find(own.qemu.as_deref(), cache).map_err(|error| match own.qemu {
            Some(_) => Failure::Usage(error.into()),
            None => error.into(),
        })?;
        if needs.network && !qemu.has_user_network()? {
            return Err(no_user_network(&qemu));
        }
        let accel = Accel::choose(own.accel, &qemu)?;
        let users_kernel = own.kernel().map(|kernel| {
            let kernel = Kernel::user(kernel, own.modules.as_deref()).map_err(image_failure)?;
            cache.mark_used(&kernel.image)?;
            Ok::<_, Failure>(kernel)
        });
        let users_kernel = users_kernel.transpose()?;
        let root = if needs.tools || own.kernel().is_none() {
            Some(Root::get(cache)?)
        } else {
            None
        };
        let packages = package_tree(needs, cache)?;
        let kernel = match (users_kernel, &root) {
            (Some(kernel), _) => kernel,
            (None, Some(root)) => Kernel::from_root(root),
            (None, None) => return Err(anyhow!("no kernel found").into()),
        };
        let mut modules = needs.modules.clone();
        let has_overlay = needs.tools && (needs.layers || kernel.has_module(OVERLAY)?);
        modules.extend(has_overlay.then(|| OVERLAY.to_owned()));
        if needs.tools && kernel.has_module(CONFIGFS)? {
            modules.push(CONFIGFS.to_owned());
        }
        if let Some(config) = &kernel.config {
            kernel_needs::check_modules(config, &modules)?;
        }
        let module_tree = match &root {
            Some(root) if has_overlay => module_tree(cache, &kernel, root)?,
            _ => None,
        };
        let kernel = match (&root, own.kernel()) {
            (Some(root), None) => kernel.with_missing_modules(cache, root, &modules)?,
            _ => kernel,
        };
        let kernel = with_own_drivers(kernel, &modules, cache, root.as_ref())?;
        let (kernel, built) = with_users_modules(kernel, needs, cache, root.as_ref())?;
        modules.extend(built.loaded.iter().map(|module| module.name.clone()));
        let guest = GuestImage::prepare(cache, &kernel, &modules, init).map_err(image_failure)?;
        Ok(Self {
            qemu,
            guest,
            root,
            accel,
            append: own.append.clone(),
            kernel_config: kernel.config,
            cache: cache.clone(),
            qemu_arguments: own.qemu_arg.clone(),
            packages,
            built,
            has_overlay,
            module_tree,
        })
    }

    /// Returns the `machine` that boots it, without a debugger.
    pub fn boot<'a>(&'a self, machine: &'a Machine) -> Boot<'a> {
        Boot {
            accel: self.accel,
            machine,
            append: &self.append,
            gdb: None,
            firmware: if self.qemu.qboot {
                machine.firmware
            } else {
                Firmware::Seabios
            },
            kernel: &self.guest.kernel,
            initramfs: &self.guest.initramfs,
            qemu_arguments: &self.qemu_arguments,
            sandbox: self.qemu.sandbox,
        }
    }

    /// Returns the folders that the guest of `scenario` may mount: the folder `files` of its files
    /// and the tools root. Each lies over those after it.
    pub fn shared<'a>(
        &'a self,
        scenario: &Scenario,
        files: Option<&'a Path>,
    ) -> Vec<SharedFolder<'a>> {
        let root = self.root.as_ref().filter(|_| scenario.tools);
        let Some(root) = root else { return Vec::new() };
        let files = files.map(|folder| (Plan::FILES_TAG, folder));
        let packages = self.packages.as_ref();
        let packages = packages.map(|tree| (Plan::PACKAGES_TAG, tree.path()));
        let modules = self.module_tree.as_deref();
        let modules = modules.map(|folder| (Plan::MODULES_TAG, folder));
        let layers = files.into_iter().chain(packages).chain(modules);
        let folders = layers.chain([(Plan::TOOLS_TAG, root.path())]);
        folders
            .map(|(tag, folder)| SharedFolder { tag, folder })
            .collect()
    }

    /// Puts the kernel's configuration into `files`, the guest's view of the host's files, as
    /// `/boot/config-RELEASE`, unless the user has put one there or none is known.
    ///
    /// # Errors
    /// Those of the system about the file.
    pub(crate) fn stage_configuration(&self, files: &Path) -> anyhow::Result<()> {
        let release = &self.guest.release;
        let path = files.join("boot").join(format!("config-{release}"));
        let packaged = format!("usr/lib/modules/{release}/config");
        let root = self.root.as_ref();
        let has_package = root.is_some_and(|root| root.path().join(&packaged).is_file());
        if path.symlink_metadata().is_ok() || (self.kernel_config.is_none() && !has_package) {
            return Ok(());
        }
        fs::create_dir_all(files.join("boot"))
            .and_then(|()| match &self.kernel_config {
                Some(config) => fs::write(&path, config.text()),
                None => symlink(Path::new("..").join(packaged), &path),
            })
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Versions of all of it, for the record.
    pub fn versions(&self) -> Versions {
        let root = self.root.as_ref();
        let mut packages = root.map(|root| root.manifest().packages.clone());
        if let (Some(packages), Some(further)) = (&mut packages, &self.packages) {
            packages.extend(further.versions().clone());
        }
        Versions {
            peerbar: env!("CARGO_PKG_VERSION").to_owned(),
            qemu: self.qemu.version.to_string(),
            kernel: self.guest.release.clone(),
            packages,
        }
    }
}

/// Does `work` in the user's cache. A signal ends it.
///
/// # Errors
/// Those of `work`; [`Failure::Interrupted`] after a signal.
pub fn until_a_signal<T>(
    signals: &Signals,
    work: impl FnOnce(&Cache) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let cache = Cache::open()?;
    let cache = match signals.any()? {
        Some(signal) => cache.stopped_by(signal),
        None => cache,
    };
    let done = work(&cache);
    match signals.pending()? {
        Some(signal) => Err(Failure::Interrupted(signal)),
        None => done,
    }
}

fn no_user_network(qemu: &Qemu) -> Failure {
    let program = qemu.program.display();
    Failure::Environment(anyhow!(
        "`network = true`: {program} was built without a user network (libslirp): name another by --qemu, or leave the key out"
    ))
}

/// Returns the packages that the scenario names, if it names any.
fn package_tree(needs: &GuestNeeds, cache: &Cache) -> Result<Option<PackageTree>, Failure> {
    if needs.packages.is_empty() {
        return Ok(None);
    }
    let packages = match needs.is_dry_run {
        true => PackageTree::planned(cache, &needs.packages),
        false => PackageTree::get(cache, &needs.packages),
    };
    packages.map(Some).map_err(|error| match error {
        ImageError::NoPackage { .. } => Failure::Usage(anyhow!("`packages`: {error}")),
        error => error.into(),
    })
}

/// The module that makes queues in addition to those of nvme.
pub(crate) const NVME_QUEUES: &str = "peerbar_nvme_queues";
/// The modules of this project.
pub const OWN_MODULES: [&str; 4] = [
    "peerbar_gpu",
    "peerbar_gpu_pin_test",
    "peerbar_gpu_import_test",
    NVME_QUEUES,
];
/// Headers of the kernel's tree that it includes.
const NVME_HEADERS: &[&str] = &["drivers/nvme/host/nvme.h"];

/// Returns the kernel with the modules of this project, as far as `modules` names one that is built
/// with them.
fn with_own_drivers(
    mut kernel: Kernel,
    modules: &[String],
    cache: &Cache,
    root: Option<&Root>,
) -> Result<Kernel, Failure> {
    let is_of_gpu = |name: &String| name.starts_with("peerbar_") && name != NVME_QUEUES;
    if modules.iter().any(is_of_gpu) {
        let sources = source_folder("gpu-driver")?;
        kernel = kernel
            .with_sources(cache, root, &sources)
            .map_err(image_failure)?;
    }
    if modules.iter().any(|name| name == NVME_QUEUES) {
        let sources = source_folder("nvme-queues")?;
        kernel = kernel
            .with_sources_and_headers(cache, root, &sources, NVME_HEADERS)
            .map_err(image_failure)?;
    }
    Ok(kernel)
}

/// Returns the folder `name` with the sources of modules, which is in the same folder as this
/// project's programs.
fn source_folder(name: &str) -> Result<PathBuf, Failure> {
    let rules = program(&format!("{name}/Kbuild"))?;
    Ok(rules.parent().unwrap_or(&rules).to_path_buf())
}

/// Returns the kernel with the modules that the user has as sources, and all modules that were
/// built for it.
fn with_users_modules(
    mut kernel: Kernel,
    needs: &GuestNeeds,
    cache: &Cache,
    root: Option<&Root>,
) -> Result<(Kernel, BuiltModules), Failure> {
    let mut all = BuiltModules::default();
    for sources in &needs.module_sources {
        let built = kernel.with_user_sources(cache, root, &sources.folder);
        let (with_built, files) = built.map_err(|error| match error {
            ImageError::ModuleBuild { .. } => Failure::Usage(error.into()),
            error => image_failure(error),
        })?;
        kernel = with_built;
        all.add(sources, &files)?;
    }
    all.files.clone_from(&kernel.added);
    Ok((kernel, all))
}

/// Classifies an error: a wrong argument is the user's mistake, any other error the machine's.
fn image_failure(error: ImageError) -> Failure {
    use ImageError::{
        BigSources, CutOff, KasanWithoutLoader, NoBuildTree, NoKernel, NoModules, NoPrivateHeader,
        NoPvh, NoSources, NotAKernel, NotBuilt, StaleBuild,
    };
    match error {
        BigSources { .. } | NoSources { .. } => Failure::Usage(error.into()),
        NoKernel { .. } | NotAKernel { .. } | NoPvh { .. } => Failure::Usage(error.into()),
        NotBuilt { .. } | StaleBuild { .. } | KasanWithoutLoader { .. } => {
            Failure::Usage(error.into())
        }
        CutOff { .. } | NoModules { .. } | NoBuildTree { .. } | NoPrivateHeader { .. } => {
            Failure::Usage(error.into())
        }
        _ => Failure::Environment(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_modules_are_those_that_are_built() {
        let guest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../guest");
        let mut built = Vec::new();
        for folder in ["gpu-driver", "nvme-queues"] {
            let rules = fs::read_to_string(guest.join(folder).join("Kbuild")).unwrap();
            let objects = rules.lines().filter(|line| line.starts_with("obj-m "));
            let objects = objects.flat_map(str::split_whitespace);
            built.extend(objects.filter_map(|object| Some(object.strip_suffix(".o")?.to_owned())));
        }
        assert_eq!(built, OWN_MODULES);
    }
}
