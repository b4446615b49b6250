//! The QEMU of a domain of libvirt's.

use std::env;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use peerbar_images::{Cache, Origin, Qemu, Version};
use peerbar_lab::artifacts::{Own, until_a_signal};
use peerbar_lab::exit::Failure;
use peerbar_lab::own_qemu::Emulator;
use peerbar_lab::shell_word::quoted;
use peerbar_lab::signals::Signals;
use peerbar_lab::{kvm, present};

/// The script in the folder of a domain that starts peerbar's own QEMU, as libvirt starts a program by its path alone.
const SCRIPT: &str = "qemu-system-x86_64";

/// A suitable QEMU, and its properties.
pub(super) struct FoundEmulator {
    pub(super) emulator: Emulator,
    /// Its version and origin; `None` if it is peerbar's own and must be fetched.
    version: Option<(Version, Origin)>,
    /// The reason why KVM does not run its guests.
    without_kvm: Option<String>,
}

impl FoundEmulator {
    /// Returns the QEMU on `PATH` if it is fit, else peerbar's own, by a script in `folder`. That
    /// one is fetched now if it `is_wanted` and the cache lacks it.
    pub(super) fn of(folder: &Path, is_wanted: bool, signals: &Signals) -> Result<Self, Failure> {
        let (qemu, cache) = until_a_signal(signals, |cache| {
            let qemu = match is_wanted {
                true => Some(Qemu::find(None, cache)?),
                false => present::qemu(&Own::default(), cache)?,
            };
            Ok((qemu, cache.clone()))
        })?;
        let tried = qemu.as_ref().map(kvm::works);
        let path = match &qemu {
            Some(qemu) if qemu.origin == Origin::Path => qemu.program.clone(),
            _ => write_script(folder, &cache)?,
        };
        Ok(Self {
            emulator: Emulator {
                path,
                kvm: tried == Some(Ok(())),
            },
            version: qemu.map(|qemu| (qemu.version, qemu.origin)),
            without_kvm: tried.and_then(Result::err),
        })
    }

    /// Returns a description of it, for a comment above the domain.
    pub(super) fn described(&self) -> String {
        let which = match &self.version {
            Some((version, Origin::Path)) => format!("QEMU {version} of PATH"),
            Some((version, _)) => format!("QEMU {version} of the cache"),
            None => "peerbar's own QEMU, which its first start fetches".to_owned(),
        };
        match &self.without_kvm {
            Some(reason) => format!(
                "{which}, which emulates one processor, as KVM does not work here: {reason}"
            ),
            None => which,
        }
    }
}

/// Writes the script, and returns its path.
fn write_script(folder: &Path, cache: &Cache) -> anyhow::Result<PathBuf> {
    let path = std::path::absolute(folder.join(SCRIPT)).context("cannot find a folder")?;
    let own = env::current_exe().context("cannot find this program's own file")?;
    let word = |path: &Path| quoted(&path.display().to_string());
    let text = format!(
        "#!/bin/sh\nPEERBAR_CACHE={}\nexport PEERBAR_CACHE\nexec {} qemu -- \"$@\"\n",
        word(cache.path()),
        word(&own)
    );
    let write = || {
        fs::write(&path, text)?;
        fs::set_permissions(&path, Permissions::from_mode(0o755))
    };
    write().with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn script_names_cache_and_program() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(&folder.path().join("a 'cache'")).unwrap();
        let script = write_script(folder.path(), &cache).unwrap();
        let text = fs::read_to_string(&script).unwrap();
        let own = env::current_exe().unwrap();
        let line = format!("exec {} qemu -- \"$@\"\n", own.display());
        assert!(text.ends_with(&line), "{text}");
        let shown = text.replace(&line, "printf %s \"$PEERBAR_CACHE\"\n");
        let output = Command::new("sh").args(["-c", &shown]).output().unwrap();
        let named = String::from_utf8(output.stdout).unwrap();
        assert_eq!(Path::new(&named), cache.path());
        let mode = fs::metadata(&script).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
    }

    #[test]
    fn description_names_the_reason_for_one_processor() {
        let described = |without_kvm: Option<&str>| {
            let found = FoundEmulator {
                emulator: Emulator {
                    path: "/q".into(),
                    kvm: without_kvm.is_none(),
                },
                version: Some((Version::default(), Origin::Root)),
                without_kvm: without_kvm.map(str::to_owned),
            };
            found.described()
        };
        assert_eq!(described(None), "QEMU 0.0.0 of the cache");
        let expected =
            "QEMU 0.0.0 of the cache, which emulates one processor, as KVM does not work here: why";
        assert_eq!(described(Some("why")), expected);
    }
}
