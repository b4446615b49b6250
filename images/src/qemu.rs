//! A QEMU, its properties and its start.

use std::collections::BTreeSet;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{self, Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde::{Deserialize, Serialize};

use crate::cache::Kind;
use crate::error::io_error;
use crate::version::Version;
use crate::{Cache, ImageError, cache};

/// The restrictions that QEMU applies to itself with `-sandbox` (seccomp(2)): it starts no program,
/// and changes neither its user nor its priority.
pub const SANDBOX: &str = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";

const PROGRAM: &str = "qemu-system-x86_64";
/// 10.1.0 also has the client, but with another layout of DMA requests (a 32-bit count).
const OLDEST: Version = Version {
    major: 10,
    minor: 1,
    micro: 1,
};

/// File name of the minimal firmware in QEMU's builds. Some distributions leave it out.
pub const QBOOT: &str = "qboot.rom";

/// A QEMU that is fit for peerbar, and how to start it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qemu {
    /// The program: QEMU itself, or the dynamic loader of the root.
    pub program: PathBuf,
    /// Arguments before those of the virtual machine.
    pub args: Vec<OsString>,
    /// Environment variables that it needs.
    pub env: Vec<(OsString, OsString)>,
    /// Its version.
    pub version: Version,
    /// Its origin.
    pub origin: Origin,
    /// It finds a firmware [`QBOOT`].
    pub qboot: bool,
    /// It can confine itself (its option `-sandbox`).
    pub sandbox: bool,
}

/// Origin of a QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The user named it.
    Named,
    /// It was found on `PATH`.
    Path,
    /// It is the one of the root.
    Root,
}

impl Qemu {
    /// Returns a command that starts it, without the options of a virtual machine.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    pub(crate) fn in_tree(tree: &Path, version: Version) -> Self {
        let libraries = tree.join("usr/lib/x86_64-linux-gnu");
        let data = tree.join("usr/share/qemu");
        let args = [
            "--library-path".into(),
            libraries.clone().into_os_string(),
            tree.join("usr/bin").join(PROGRAM).into_os_string(),
            "-L".into(),
            data.clone().into_os_string(),
            "-L".into(),
            tree.join("usr/share/seabios").into_os_string(),
        ];
        Self {
            program: tree.join("usr/lib64/ld-linux-x86-64.so.2"),
            args: args.into(),
            env: vec![(
                "QEMU_MODULE_DIR".into(),
                libraries.join("qemu").into_os_string(),
            )],
            version,
            origin: Origin::Root,
            qboot: has_qboot(&[data]),
            // Debian's QEMU is built with libseccomp.
            sandbox: true,
        }
    }

    /// Returns the QEMU at `path`, which must be fit.
    pub(crate) fn named(path: &Path) -> Result<Self, ImageError> {
        let no_qemu = || ImageError::NoQemu {
            path: path.to_path_buf(),
        };
        let program = if path.components().count() == 1 && !path.is_file() {
            search(path.as_os_str()).ok_or_else(no_qemu)?
        } else {
            // Absolute, since a name alone would be looked for on `PATH`.
            path::absolute(path)
                .ok()
                .filter(|path| path.is_file())
                .ok_or_else(no_qemu)?
        };
        let qemu = Self::plain(program, Origin::Named);
        let probe = qemu.probe()?;
        if probe.version < OLDEST {
            return Err(ImageError::QemuTooOld {
                path: qemu.program,
                found: probe.version,
                needed: OLDEST,
            });
        }
        if !probe.vfio_user {
            return Err(ImageError::QemuWithoutVfioUser { path: qemu.program });
        }
        Ok(qemu.probed(probe))
    }

    /// Returns the QEMU on `PATH`, if it is fit.
    #[must_use]
    pub fn on_path(cache: &Cache) -> Option<Self> {
        let qemu = Self::plain(search(OsStr::new(PROGRAM))?, Origin::Path);
        match qemu.remembered_probe(cache) {
            Ok(probe) if probe.is_fit() => Some(qemu.probed(probe)),
            Ok(probe) => {
                log::info!(
                    "{} is unsuitable and stays unused: {probe:?}",
                    qemu.program.display()
                );
                None
            }
            Err(error) => {
                log::info!("{} is left alone: {error}", qemu.program.display());
                None
            }
        }
    }

    /// Returns its processor models, as for `-cpu`.
    ///
    /// # Errors
    /// It does not start.
    pub fn cpu_models(&self) -> Result<BTreeSet<String>, ImageError> {
        Ok(cpu_models(&self.ask("-cpu help")?))
    }

    fn plain(program: PathBuf, origin: Origin) -> Self {
        Self {
            program,
            args: Vec::new(),
            env: Vec::new(),
            version: Version::default(),
            origin,
            qboot: false,
            sandbox: false,
        }
    }

    /// Adds the results of its probe.
    fn probed(self, probe: Probe) -> Self {
        Self {
            version: probe.version,
            qboot: has_qboot(&probe.firmware),
            sandbox: probe.sandbox,
            ..self
        }
    }

    /// Queries the program's version and devices.
    pub(crate) fn probe(&self) -> Result<Probe, ImageError> {
        let answer = self.ask("-version")?;
        let version = Version::of_answer(&answer).ok_or_else(|| ImageError::NotQemu {
            path: self.program.clone(),
            question: "-version",
            answer: answer.lines().next().unwrap_or_default().to_owned(),
        })?;
        let vfio_user =
            version >= OLDEST && self.ask("-device help")?.contains("\"vfio-user-pci\"");
        let firmware = self.ask("-L help")?.lines().map(PathBuf::from).collect();
        let sandbox = self.answer("-device help", &["-sandbox", SANDBOX])?;
        let sandbox = sandbox.status.success();
        Ok(Probe {
            version,
            vfio_user,
            firmware,
            sandbox,
        })
    }

    /// Like [`Qemu::probe`], but a program that has not changed since is not asked again.
    fn remembered_probe(&self, cache: &Cache) -> Result<Probe, ImageError> {
        // The questions are part of the key, too: an older entry has no answer to a new question.
        let asked = format!("-version, -device help, -L help, -sandbox {SANDBOX}");
        let key = cache::key([cache::stamp(&self.program)?.as_str(), asked.as_str()]);
        let path = cache.entry(Kind::Probe, &key, |path, _| {
            let probe = serde_json::json!(self.probe()?);
            fs::write(path, probe.to_string()).map_err(io_error("write", path))
        })?;
        let text = fs::read(&path).map_err(io_error("read", &path))?;
        serde_json::from_slice(&text).map_err(|source| ImageError::Manifest {
            entry: path.clone(),
            path,
            source,
        })
    }

    /// Returns `true` if it has the network back end `user`, which needs libslirp.
    ///
    /// # Errors
    /// [`ImageError::Io`] if it does not start.
    pub fn has_user_network(&self) -> Result<bool, ImageError> {
        let back_ends = self.ask("-netdev help")?;
        Ok(back_ends.lines().any(|line| line.trim() == "user"))
    }

    fn ask(&self, question: &str) -> Result<String, ImageError> {
        let answer = self.answer(question, &[])?;
        Ok(String::from_utf8_lossy(&answer.stdout).into_owned())
    }

    fn answer(&self, question: &str, options: &[&str]) -> Result<Output, ImageError> {
        self.command()
            .args(options)
            .args(question.split(' '))
            .stdin(Stdio::null())
            .output()
            .map_err(io_error("run", &self.program))
    }
}

/// The properties that a QEMU reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Probe {
    pub(crate) version: Version,
    /// It has the device `vfio-user-pci`.
    pub(crate) vfio_user: bool,
    /// The folders in which it looks for firmware.
    pub(crate) firmware: Vec<PathBuf>,
    /// It starts with [`SANDBOX`]: a QEMU without libseccomp does not, although its help has the
    /// option.
    pub(crate) sandbox: bool,
}

impl Probe {
    pub(crate) fn is_fit(&self) -> bool {
        self.version >= OLDEST && self.vfio_user
    }
}

/// Returns the models in the answer to `-cpu help`: those of its first paragraph, one in a line.
fn cpu_models(answer: &str) -> BTreeSet<String> {
    let lines = answer.lines().skip(1);
    let lines = lines.take_while(|line| !line.trim().is_empty());
    let names = lines.filter_map(|line| line.split_whitespace().next());
    names.map(str::to_owned).collect()
}

fn has_qboot(folders: &[PathBuf]) -> bool {
    folders.iter().any(|folder| folder.join(QBOOT).is_file())
}

/// Returns the file that a shell would run as `name`.
fn search(name: &OsStr) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?)
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    /// Makes a program that answers like a QEMU of `version`, and counts the questions.
    fn fake(dir: &Path, version: &str, device: &str) -> PathBuf {
        let path = dir.join("qemu");
        let script = format!(
            "#!/bin/sh\necho asked >> {0}/asked\ncase $1 in\n-version) echo 'QEMU emulator version {version} (Fake)';;\n\
             -device) echo 'name \"{device}\", bus PCI';;\n-L) echo {0};;\n\
             -sandbox) [ ! -e {0}/no-seccomp ];;\n-netdev) echo socket; [ -e {0}/no-slirp ] || echo user;;\nesac\n",
            dir.display()
        );
        // Written by another process: a descriptor of this one, open for writing in a child that
        // another test has just forked, would make the kernel refuse to run the script.
        let mut shell = Command::new("sh")
            .arg("-c")
            .arg("cat > \"$0\"")
            .arg(&path)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        shell
            .stdin
            .take()
            .unwrap()
            .write_all(script.as_bytes())
            .unwrap();
        assert!(shell.wait().unwrap().success());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn qemu_of_the_root_starts_through_its_own_loader() {
        let qemu = Qemu::in_tree(Path::new("/r"), OLDEST);
        let line: Vec<_> = qemu
            .command()
            .get_args()
            .map(|arg| arg.to_str().unwrap().to_owned())
            .collect();
        assert_eq!(qemu.program, Path::new("/r/usr/lib64/ld-linux-x86-64.so.2"));
        assert_eq!(
            line.join(" "),
            "--library-path /r/usr/lib/x86_64-linux-gnu /r/usr/bin/qemu-system-x86_64 -L /r/usr/share/qemu -L \
             /r/usr/share/seabios"
        );
        let module_dir = (
            OsStr::new("QEMU_MODULE_DIR"),
            Some(OsStr::new("/r/usr/lib/x86_64-linux-gnu/qemu")),
        );
        assert_eq!(qemu.command().get_envs().collect::<Vec<_>>(), [module_dir]);
    }

    #[test]
    fn processor_models_are_those_of_the_first_paragraph() {
        let answer = "Available CPUs:\n  EPYC                  (alias configured by machine type)\n  EPYC-v1               AMD\n  max\n\n\
            Recognized CPUID flags:\n  3dnow avx\n";
        let models = cpu_models(answer);
        assert_eq!(Vec::from_iter(&models), ["EPYC", "EPYC-v1", "max"]);
    }

    #[test]
    fn named_qemu_is_refused_unless_usable() {
        let dir = tempfile::tempdir().unwrap();
        let named = |version, device| Qemu::named(&fake(dir.path(), version, device));
        let qemu = named("11.0.0", "vfio-user-pci").unwrap();
        assert_eq!((qemu.version.major, qemu.origin), (11, Origin::Named));
        assert!(!qemu.qboot && qemu.sandbox);
        fs::write(dir.path().join("no-seccomp"), "").unwrap();
        assert!(!named("11.0.0", "vfio-user-pci").unwrap().sandbox);
        assert!(qemu.has_user_network().unwrap());
        fs::write(dir.path().join("no-slirp"), "").unwrap();
        assert!(!qemu.has_user_network().unwrap());
        fs::write(dir.path().join(QBOOT), "").unwrap();
        assert!(named("11.0.0", "vfio-user-pci").unwrap().qboot);
        assert!(matches!(
            named("10.1.0", "vfio-user-pci"),
            Err(ImageError::QemuTooOld { needed: OLDEST, .. })
        ));
        assert!(matches!(
            named("11.0.0", "vfio-pci"),
            Err(ImageError::QemuWithoutVfioUser { .. })
        ));
        assert!(matches!(
            named("none", "vfio-user-pci"),
            Err(ImageError::NotQemu {
                question: "-version",
                ..
            })
        ));
        assert!(matches!(
            Qemu::named(&dir.path().join("missing")),
            Err(ImageError::NoQemu { .. })
        ));
    }

    #[test]
    fn program_is_queried_again_only_after_a_change() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(&dir.path().join("cache")).unwrap();
        let asked = || {
            fs::read_to_string(dir.path().join("asked"))
                .unwrap()
                .lines()
                .count()
        };
        let qemu = Qemu::plain(fake(dir.path(), "11.1.3", "vfio-user-pci"), Origin::Path);
        let first = qemu.remembered_probe(&cache).unwrap();
        assert!(first.is_fit() && first.firmware == [dir.path()]);
        assert_eq!(
            (qemu.remembered_probe(&cache).unwrap(), asked()),
            (first, 4)
        );
        fake(dir.path(), "10.0.2", "vfio-pci");
        assert!(!qemu.remembered_probe(&cache).unwrap().is_fit());
        assert_eq!(asked(), 7);
    }
}
