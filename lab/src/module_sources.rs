//! Modules that the user has as sources: a folder that is built for the guest's kernel before the
//! boot.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use peerbar_report::Module;

use crate::exit::Failure;

/// A folder with the sources of one or more kernel modules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleSources {
    /// The folder, with a `Kbuild` or a `Makefile`.
    pub folder: PathBuf,
    /// The module that is loaded, or `None` for all of them.
    pub name: Option<String>,
    /// Parameters of the module that is loaded.
    pub parameters: String,
}

/// Modules that were built for the guest's kernel: from the user's sources, from this project's, or
/// from the kernel's.
#[derive(Clone, Debug, Default)]
pub struct BuiltModules {
    /// Those from the user's sources that are loaded, in order.
    pub loaded: Vec<Module>,
    /// The files of all of them.
    pub files: Vec<PathBuf>,
}

impl ModuleSources {
    /// Returns the modules to load among `built`, which were built in the folder.
    fn loaded(&self, built: &[PathBuf]) -> anyhow::Result<Vec<Module>> {
        let folder = self.folder.display();
        let built: Vec<String> = built.iter().map(|file| name_of(file)).collect();
        let there = if built.is_empty() {
            "none".to_owned()
        } else {
            built.join(", ")
        };
        let named = self.name.as_ref().map(|name| name.replace('-', "_"));
        let names: Vec<&String> = match &named {
            Some(name) if built.contains(name) => vec![name],
            Some(name) => {
                bail!("[[module]]: {folder} builds no module `{name}`, but: {there}");
            }
            None if built.is_empty() => {
                bail!(
                    "[[module]]: {folder} builds no module: name one in its Kbuild or Makefile, as in `obj-m := x.o`"
                );
            }
            None if built.len() > 1 && !self.parameters.is_empty() => {
                bail!(
                    "[[module]]: {folder} builds several modules: say by `name` which one gets the `parameters`: {there}"
                );
            }
            None => built.iter().collect(),
        };
        let module = |name: &String| Module {
            name: name.clone(),
            parameters: self.parameters.clone(),
        };
        Ok(names.into_iter().map(module).collect())
    }
}

impl BuiltModules {
    /// Adds the modules `files`, which were built from `sources`.
    ///
    /// # Errors
    /// A conflict with the present modules.
    pub(crate) fn add(
        &mut self,
        sources: &ModuleSources,
        files: &[PathBuf],
    ) -> Result<(), Failure> {
        let loaded = sources.loaded(files).map_err(Failure::Usage)?;
        self.loaded.extend(loaded);
        Ok(())
    }

    /// Puts them into `root`, the guest's view of the host's files, so that modprobe finds them in
    /// addition to the modules of the kernel `release`.
    pub(crate) fn stage(&self, root: &Path, release: &str) -> anyhow::Result<()> {
        let updates = Path::new("usr/lib/modules").join(release).join("updates");
        let mut rules = String::new();
        for file in &self.files {
            let path = updates.join(file.file_name().unwrap_or_default());
            copy(file, &root.join(&path))?;
            let (name, path) = (name_of(file), path.display());
            // The kernel's index has none of them, or the kernel's module with that name, and
            // modprobe prefers a rule to its index. By its path, a module gets its parameters on
            // the kernel's command line, too.
            rules += &format!(
                "install {name} for need in $(modinfo -F depends /{path} | tr , ' '); do modprobe $need; done; \
                 modprobe --ignore-install /{path} $CMDLINE_OPTS\n"
            );
        }
        if rules.is_empty() {
            return Ok(());
        }
        let path = root.join("etc/modprobe.d/peerbar.conf");
        let folder = path.parent().unwrap_or(root);
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&path, rules))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Adds the loaded ones to the modules of a plan. One that is already in the plan keeps its
    /// position.
    pub(crate) fn add_to(&self, modules: &mut Vec<Module>) {
        for module in &self.loaded {
            add(module, modules);
        }
    }
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let folder = to.parent().unwrap_or(to);
    fs::create_dir_all(folder)
        .and_then(|()| fs::copy(from, to))
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

/// Returns a module's name as in `/proc/modules`.
fn name_of(file: &Path) -> String {
    let name = file.file_stem().and_then(OsStr::to_str);
    name.unwrap_or_default().replace('-', "_")
}

fn add(module: &Module, modules: &mut Vec<Module>) {
    match modules.iter_mut().find(|known| known.name == module.name) {
        Some(known) if !module.parameters.is_empty() => {
            known.parameters.clone_from(&module.parameters);
        }
        Some(_) => {}
        None => modules.push(module.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(name: Option<&str>, parameters: &str, built: &[&str]) -> anyhow::Result<String> {
        let sources = ModuleSources {
            folder: PathBuf::from("../mine"),
            name: name.map(str::to_owned),
            parameters: parameters.to_owned(),
        };
        let built: Vec<PathBuf> = built
            .iter()
            .map(|name| PathBuf::from(format!("/cache/{name}.ko")))
            .collect();
        let modules = sources.loaded(&built)?;
        let words = modules
            .iter()
            .map(|m| format!("{}[{}]", m.name, m.parameters));
        Ok(words.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn only_module_is_loaded_with_its_parameters() {
        assert_eq!(loaded(None, "a=1", &["one"]).unwrap(), "one[a=1]");
        assert_eq!(loaded(None, "", &["one", "two"]).unwrap(), "one[] two[]");
        let named = loaded(Some("my-two"), "a=1", &["one", "my-two"]);
        assert_eq!(named.unwrap(), "my_two[a=1]");
    }

    #[test]
    fn modules_that_do_not_fit_are_refused_by_name() {
        for (name, parameters, built, words) in [
            (
                Some("x"),
                "",
                &["one"][..],
                "builds no module `x`, but: one",
            ),
            (None, "", &[], "builds no module: name one in its Kbuild"),
            (
                None,
                "a=1",
                &["one", "two"],
                "by `name` which one gets the `parameters`: one, two",
            ),
        ] {
            let error = loaded(name, parameters, built).unwrap_err().to_string();
            assert!(
                error.starts_with("[[module]]: ../mine ") && error.contains(words),
                "{error}"
            );
        }
    }

    #[test]
    fn own_version_of_a_driver_keeps_its_position() {
        let module = |name: &str, parameters: &str| Module {
            name: name.to_owned(),
            parameters: parameters.to_owned(),
        };
        let mut modules = vec![module("nvme", ""), module("ext4", "")];
        let built = BuiltModules {
            loaded: vec![module("nvme", "a=1"), module("mine", "")],
            files: Vec::new(),
        };
        built.add_to(&mut modules);
        let all = [
            module("nvme", "a=1"),
            module("ext4", ""),
            module("mine", ""),
        ];
        assert_eq!(modules, all);
    }
    #[test]
    fn staged_modules_have_a_rule_for_modprobe() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("my-mod.ko");
        fs::write(&file, "module").unwrap();
        let built = BuiltModules {
            loaded: Vec::new(),
            files: vec![file],
        };
        let root = folder.path().join("root");
        built.stage(&root, "7.3-x").unwrap();
        let path = "usr/lib/modules/7.3-x/updates/my-mod.ko";
        assert_eq!(fs::read(root.join(path)).unwrap(), b"module");
        let rules = fs::read_to_string(root.join("etc/modprobe.d/peerbar.conf")).unwrap();
        assert!(rules.starts_with("install my_mod for "), "{rules}");
        let end = format!("; modprobe --ignore-install /{path} $CMDLINE_OPTS\n");
        assert!(rules.ends_with(&end), "{rules}");
    }
}
