//! The tools for building kernels: compiler, make and their companions, run in place.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ImageError;
use crate::error::io_error;
use crate::toolchain::{Loader, PREFIX, compiler_proper, names_in};

/// The Debian packages with the tools; their dependencies come with them. `base-files` has the
/// links `lib` and `lib64`, through which the linker finds the C library.
pub(crate) const PACKAGES: [&str; 9] = [
    "base-files",
    "bc",
    "bison",
    "flex",
    "gcc",
    "libc6-dev",
    "libelf-dev",
    "libssl-dev",
    "make",
];

/// Compiler for programs that run on this machine.
const HOST_COMPILER: &str = "peerbar-hostcc";
/// Programs that the compiler starts itself; it looks for them where -B says.
const OF_COMPILER: [&str; 2] = ["cc1", "collect2"];

/// Scripts that start the tools of a Debian tree through its own dynamic loader.
///
/// Programs that a kernel build makes for itself, such as modpost, are also linked to that loader,
/// so the tree must not be moved.
pub(crate) struct BuildTools<'a> {
    tree: &'a Path,
    programs: PathBuf,
}

impl<'a> BuildTools<'a> {
    /// Makes the scripts for the tools in `tree` in the folder `programs`.
    pub(crate) fn make(tree: &'a Path, programs: &Path) -> Result<Self, ImageError> {
        fs::create_dir_all(programs).map_err(io_error("create", programs))?;
        let tools = Self {
            tree,
            programs: programs.to_path_buf(),
        };
        let loader = Loader { tree };
        let bin = tree.join("usr/bin");
        let script = |name: &str, program: &Path, arguments: Option<String>| {
            loader.script(&programs.join(name), program, arguments)
        };
        for name in ["bc", "bison", "flex", "m4", "make"] {
            script(name, &bin.join(name), None)?;
        }
        for name in names_in(&bin)? {
            if let Some(short) = name.strip_prefix(PREFIX) {
                script(&name, &bin.join(&name), None)?;
                if matches!(short, "as" | "ld") {
                    script(short, &bin.join(&name), None)?;
                }
            }
        }
        let folder = compiler_proper(tree).and_then(|path| Some(path.parent()?.to_path_buf()));
        let folder = folder.ok_or_else(|| ImageError::NoCompiler {
            tree: tree.to_path_buf(),
        })?;
        for name in OF_COMPILER {
            script(name, &folder.join(name), None)?;
        }
        let version = folder.file_name().unwrap_or_default();
        let compiler = bin.join(format!("{PREFIX}gcc-{}", version.to_string_lossy()));
        let of_compiler = tools.compiler_arguments(version.as_ref());
        let of_host = format!("{of_compiler} {}", tools.host_arguments());
        script(&format!("{PREFIX}gcc"), &compiler, Some(of_compiler))?;
        script(HOST_COMPILER, &compiler, Some(of_host))?;
        Ok(tools)
    }

    /// Returns the arguments that name the compiler's companions, its own headers, and those of the
    /// tree's C library.
    fn compiler_arguments(&self, version: &Path) -> String {
        let own = self.tree.join("usr/lib/gcc/x86_64-linux-gnu").join(version);
        format!(
            "'-B{}/' '-B{}/' '--sysroot={}'",
            self.programs.display(),
            own.display(),
            self.tree.display()
        )
    }

    /// Returns the arguments for programs for this machine, which find the tree's C library
    /// themselves.
    fn host_arguments(&self) -> String {
        let tree = self.tree.display();
        format!(
            "'-Wl,--dynamic-linker={tree}/usr/lib64/ld-linux-x86-64.so.2' '-Wl,-rpath,{tree}/usr/lib/x86_64-linux-gnu'"
        )
    }

    /// Returns a make that uses these tools.
    pub(crate) fn command(&self) -> Command {
        let mut path = OsString::from(&self.programs);
        if let Some(rest) = env::var_os("PATH") {
            path.push(":");
            path.push(rest);
        }
        let mut make = Command::new(self.programs.join("make"));
        make.arg(format!("CROSS_COMPILE={PREFIX}"))
            .arg(format!("HOSTCC={HOST_COMPILER}"))
            .arg("ARCH=x86")
            .env("PATH", path)
            .env("BISON_PKGDATADIR", self.tree.join("usr/share/bison"))
            .env("M4", self.programs.join("m4"))
            .env("LC_ALL", "C.UTF-8")
            .env_remove("MAKEFLAGS")
            .env_remove("MAKELEVEL")
            .env_remove("KBUILD_OUTPUT");
        make
    }
}

/// Returns the compiler's errors with the lines that it quotes. If there are none, returns make's
/// errors.
pub(crate) fn complaints(output: &str) -> Vec<&str> {
    let mut is_quoted = false;
    let of_compiler = |line: &&str| {
        let is_error = line.contains("error:") || line.starts_with("ERROR:");
        is_quoted = is_error || (is_quoted && line.starts_with(' '));
        is_quoted
    };
    let mut complaints: Vec<&str> = output.lines().filter(of_compiler).collect();
    if complaints.is_empty() {
        complaints.extend(output.lines().filter(|line| line.contains("*** ")));
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_those_of_the_compiler_with_their_quotes() {
        let output =
            "  CC a.o\na.c:2:7: error: e\n    2 | f(e);\n      |   ^\nmake: *** [a.o] Error 1\n";
        let all = ["a.c:2:7: error: e", "    2 | f(e);", "      |   ^"];
        assert_eq!(complaints(output), all);
        assert_eq!(complaints("make: *** no rule\n"), ["make: *** no rule"]);
    }

    fn tree(without: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        for program in [
            "usr/bin/make",
            "usr/bin/x86_64-linux-gnu-gcc-14",
            "usr/bin/x86_64-linux-gnu-ld",
            "usr/bin/unrelated",
            "usr/libexec/gcc/x86_64-linux-gnu/14/cc1",
        ] {
            if program.ends_with(without) {
                continue;
            }
            let path = tree.join(program);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        fs::create_dir_all(tree.join("usr/bin")).unwrap();
        (dir, tree)
    }

    #[test]
    fn host_programs_are_linked_to_the_trees_loader() {
        let (dir, tree) = tree("nothing");
        let programs = dir.path().join("programs");
        let tools = BuildTools::make(&tree, &programs).unwrap();
        let script = |name: &str| fs::read_to_string(programs.join(name)).unwrap();
        let compiler = script("x86_64-linux-gnu-gcc");
        assert!(
            compiler.contains("/usr/bin/x86_64-linux-gnu-gcc-14'"),
            "{compiler}"
        );
        assert!(compiler.contains("--sysroot=") && !compiler.contains("--dynamic-linker"));
        assert!(script(HOST_COMPILER).contains("--dynamic-linker="));
        assert!(script("collect2").contains("/14/collect2'"));
        assert!(script("ld").contains("/usr/bin/x86_64-linux-gnu-ld'"));
        assert!(!programs.join("unrelated").exists());
        assert_eq!(tools.command().get_program(), programs.join("make"));
    }

    #[test]
    fn tree_without_compiler_is_refused() {
        let (dir, tree) = tree("cc1");
        let error = BuildTools::make(&tree, &dir.path().join("programs"))
            .err()
            .unwrap();
        assert!(matches!(error, ImageError::NoCompiler { .. }), "{error}");
    }
}
