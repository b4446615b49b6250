//! The root's compiler and the build system of its kernel, run in place.
//!
//! The root's programs cannot be started directly: they may need a newer dynamic loader and C
//! library than the host's. A chroot would need rights that a container or a normal user may not
//! have. So each program gets a script of the same name that starts it through the root's own
//! loader, and the kernel's headers get a folder in which their build tools are such scripts.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::ImageError;
use crate::error::io_error;

/// Debian's prefix for a compiler or linker for x86-64.
pub(crate) const PREFIX: &str = "x86_64-linux-gnu-";
/// Suffixes of the programs that Debian's chooser programs in the kernel's build tools start.
const CHOICES: [&str; 2] = [".real-x86", ".real-lsb-64"];

/// A folder from which modules for the root's kernel can be built.
pub(crate) struct Toolchain {
    /// For `PATH`: make, compiler, assembler, linker and their companions.
    pub(crate) programs: PathBuf,
    /// For `make -C`: the build tree of the kernel.
    pub(crate) kernel: PathBuf,
}

/// Returns `true` if the root in `tree` has the tools for building modules for its kernel.
pub(crate) fn is_in(tree: &Path, release: &str) -> bool {
    headers(tree, release).join("Module.symvers").is_file()
        && tree.join("usr/bin/make").is_file()
        && compiler_proper(tree).is_some()
}

impl Toolchain {
    /// Makes the scripts for the root in `tree` below `dir`, which must not exist.
    pub(crate) fn make(tree: &Path, release: &str, dir: &Path) -> Result<Self, ImageError> {
        let toolchain = Self {
            programs: dir.join("programs"),
            kernel: dir.join("kernel"),
        };
        let loader = Loader { tree };
        fs::create_dir_all(&toolchain.programs).map_err(io_error("create", &toolchain.programs))?;
        toolchain.make_programs(&loader)?;
        toolchain.make_kernel(&loader, release)?;
        Ok(toolchain)
    }

    fn make_programs(&self, loader: &Loader<'_>) -> Result<(), ImageError> {
        let bin = loader.tree.join("usr/bin");
        let script = |name: &str, program: &Path, argument: Option<String>| {
            loader.script(&self.programs.join(name), program, argument)
        };
        script("make", &bin.join("make"), None)?;
        // A compiler starts these two itself; it looks for them where -B says.
        script("as", &bin.join(format!("{PREFIX}as")), None)?;
        if let Some(cc1) = compiler_proper(loader.tree) {
            script("cc1", &cc1, None)?;
        }
        for name in names_in(&bin)? {
            if let Some(short) = name.strip_prefix(PREFIX) {
                let is_compiler = short.starts_with("gcc-") && !short.contains("gcc-ar");
                let argument =
                    is_compiler.then(|| format!("-B{}", quoted(&self.programs.join(""))));
                script(&name, &bin.join(&name), argument)?;
            }
        }
        Ok(())
    }

    /// Makes the folder of the kernel's configuration, with its Makefile and its build tools
    /// changed.
    fn make_kernel(&self, loader: &Loader<'_>, release: &str) -> Result<(), ImageError> {
        let headers = headers(loader.tree, release);
        fs::create_dir(&self.kernel).map_err(io_error("create", &self.kernel))?;
        for name in names_in(&headers)? {
            let (from, to) = (headers.join(&name), self.kernel.join(&name));
            match name.as_str() {
                "Makefile" => self.make_makefile(&from, &to, loader.tree)?,
                "scripts" | "tools" => loader.mirror(&from, &to)?,
                // The kernel itself, for type information that is not used here.
                "vmlinux" => {}
                _ => symlink(&from, &to).map_err(io_error("create", &to))?,
            }
        }
        Ok(())
    }

    /// Debian's Makefile names the two folders by their paths in an installed system.
    fn make_makefile(&self, from: &Path, to: &Path, tree: &Path) -> Result<(), ImageError> {
        let text = fs::read_to_string(from).map_err(io_error("read", from))?;
        let lines = text.lines().map(|line| {
            if line.starts_with("KBUILD_OUTPUT=") {
                format!("KBUILD_OUTPUT={}\n", self.kernel.display())
            } else {
                line.replace("include /usr", &format!("include {}/usr", tree.display())) + "\n"
            }
        });
        fs::write(to, lines.collect::<String>()).map_err(io_error("write", to))
    }
}

fn headers(tree: &Path, release: &str) -> PathBuf {
    tree.join("usr/src")
        .join(format!("linux-headers-{release}"))
}

/// Returns the program that `gcc` starts to compile C.
pub(crate) fn compiler_proper(tree: &Path) -> Option<PathBuf> {
    fs::read_dir(tree.join("usr/libexec/gcc/x86_64-linux-gnu"))
        .ok()?
        .filter_map(Result::ok)
        .map(|version| version.path().join("cc1"))
        .find(|path| path.is_file())
}

/// The root's dynamic loader, and scripts that start programs through it.
pub(crate) struct Loader<'a> {
    pub(crate) tree: &'a Path,
}

impl Loader<'_> {
    /// Makes a script that starts `program` with `argument` before its own. It keeps its own name:
    /// make(1) starts itself again.
    pub(crate) fn script(
        &self,
        path: &Path,
        program: &Path,
        argument: Option<String>,
    ) -> Result<(), ImageError> {
        let text = format!(
            "#!/bin/sh\nexec {} --library-path {} --argv0 \"$0\" {} {} \"$@\"\n",
            quoted(&self.tree.join("usr/lib64/ld-linux-x86-64.so.2")),
            quoted(&self.tree.join("usr/lib/x86_64-linux-gnu")),
            quoted(program),
            argument.unwrap_or_default(),
        );
        fs::write(path, text).map_err(io_error("write", path))?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))
            .map_err(io_error("change the mode of", path))
    }

    /// Makes the folder `to` like `from`: programs become scripts, other files links.
    fn mirror(&self, from: &Path, to: &Path) -> Result<(), ImageError> {
        fs::create_dir(to).map_err(io_error("create", to))?;
        for name in names_in(from)? {
            let (from, to) = (from.join(&name), to.join(&name));
            if from.is_dir() {
                self.mirror(&from, &to)?;
            } else if is_program(&from).map_err(io_error("read", &from))? {
                self.script(&to, &chosen(&from), None)?;
            } else {
                symlink(&from, &to).map_err(io_error("create", &to))?;
            }
        }
        Ok(())
    }
}

/// Returns the program that a chooser program would start for x86-64, or the program itself if it
/// is not a chooser.
fn chosen(program: &Path) -> PathBuf {
    CHOICES
        .iter()
        .map(|end| {
            let mut name = program.as_os_str().to_owned();
            name.push(end);
            PathBuf::from(name)
        })
        .find(|choice| choice.is_file())
        .unwrap_or_else(|| program.to_path_buf())
}

fn is_program(path: &Path) -> io::Result<bool> {
    let mut magic = Vec::new();
    fs::File::open(path)?.take(4).read_to_end(&mut magic)?;
    Ok(magic == b"\x7fELF")
}

pub(crate) fn names_in(dir: &Path) -> Result<Vec<String>, ImageError> {
    let mut names = Vec::new();
    for found in fs::read_dir(dir).map_err(io_error("list", dir))? {
        let name = found.map_err(io_error("list", dir))?.file_name();
        names.extend(name.into_string());
    }
    names.sort();
    Ok(names)
}

/// Returns one word of a shell's command line.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, content: &[u8]) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Returns a root with a compiler, make, and the headers of kernel `7.2-x`.
    fn root() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("it's a root");
        for program in [
            "usr/bin/make",
            "usr/bin/x86_64-linux-gnu-gcc-14",
            "usr/bin/x86_64-linux-gnu-gcc-ar-14",
            "usr/bin/unrelated",
            "usr/libexec/gcc/x86_64-linux-gnu/14/cc1",
            "usr/src/linux-headers-7.2-x/scripts/mod/modpost",
            "usr/src/linux-headers-7.2-x/scripts/mod/modpost.real-lsb-64",
            "usr/src/linux-headers-7.2-x/tools/fixdep",
        ] {
            write(&tree.join(program), b"\x7fELF...");
        }
        for (file, text) in [
            ("scripts/Makefile.build", "rules"),
            (
                "Makefile",
                "KBUILD_OUTPUT=/usr/src/a\ninclude /usr/src/b/Makefile\n",
            ),
            ("Module.symvers", ""),
            ("vmlinux", ""),
        ] {
            write(
                &tree.join("usr/src/linux-headers-7.2-x").join(file),
                text.as_bytes(),
            );
        }
        (dir, tree)
    }

    #[test]
    fn programs_start_through_the_root_s_loader() {
        let (dir, tree) = root();
        let made = Toolchain::make(&tree, "7.2-x", &dir.path().join("made")).unwrap();
        let script = |name: &str| fs::read_to_string(made.programs.join(name)).unwrap();
        assert!(script("make").contains("it'\\''s a root/usr/bin/make'  \"$@\""));
        assert!(script("x86_64-linux-gnu-gcc-14").contains("-B'"));
        assert!(!script("x86_64-linux-gnu-gcc-ar-14").contains("-B'"));
        assert!(script("cc1").contains("/14/cc1'"));
        assert!(!made.programs.join("unrelated").exists());
        let mode = fs::metadata(made.programs.join("make")).unwrap();
        assert_eq!(mode.permissions().mode() & 0o777, 0o755);
    }

    #[test]
    fn toolchain_wraps_programs_and_links_other_files() {
        let (dir, tree) = root();
        let made = Toolchain::make(&tree, "7.2-x", &dir.path().join("made")).unwrap();
        let text = |name: &str| fs::read_to_string(made.kernel.join(name)).unwrap();
        assert_eq!(
            text("Makefile"),
            format!(
                "KBUILD_OUTPUT={}\ninclude {}/usr/src/b/Makefile\n",
                made.kernel.display(),
                tree.display()
            )
        );
        assert!(text("scripts/mod/modpost").contains("modpost.real-lsb-64'"));
        assert!(text("tools/fixdep").contains("tools/fixdep'"));
        assert_eq!(text("scripts/Makefile.build"), "rules");
        assert!(made.kernel.join("Module.symvers").is_symlink());
        assert!(!made.kernel.join("vmlinux").exists());
    }

    #[test]
    fn root_without_headers_differs_from_one_without_compiler() {
        let (_dir, tree) = root();
        assert!(is_in(&tree, "7.2-x"));
        assert!(!is_in(&tree, "7.3-x"));
        fs::remove_file(tree.join("usr/libexec/gcc/x86_64-linux-gnu/14/cc1")).unwrap();
        assert!(!is_in(&tree, "7.2-x"));
    }
}
