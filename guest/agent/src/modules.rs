//! Kernel modules of the initramfs.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fs::{self, File};
use std::path::PathBuf;

use anyhow::{Context, bail};
use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use rustix::system::finit_module;

use crate::kmsg::KernelLog;
use crate::module_options;

/// How many lines of the kernel's log are shown of a module that it refuses.
const SAID: usize = 8;

const DIRECTORY: &str = "/modules";

/// The modules of the initramfs, and which of them have been asked for. Several threads may load some at once.
#[derive(Debug)]
pub(crate) struct Modules {
    index: Index,
    /// The kernel's command line.
    command_line: String,
    asked_for: Mutex<AskedFor>,
}

#[derive(Debug, Default)]
struct AskedFor {
    loaded: BTreeSet<String>,
    built_in: BTreeSet<String>,
}

impl Modules {
    /// Reads `/modules/index`, which a kernel without modules lacks, and the kernel's command line.
    pub(crate) fn open() -> anyhow::Result<Self> {
        let path = PathBuf::from(DIRECTORY).join("index");
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            text => text.with_context(|| format!("cannot read {}", path.display()))?,
        };
        Ok(Modules {
            index: Index::parse(&text),
            command_line: fs::read_to_string("/proc/cmdline")
                .context("cannot read /proc/cmdline")?,
            asked_for: Mutex::default(),
        })
    }

    /// Loads `name` with `parameters`, its dependencies before it. Each module also has those that the kernel's command line has for
    /// it, which come last and so win. One that is loaded already is fine; one that the
    /// initramfs does not have is taken as built into the kernel. One that another thread is loading is waited for, by the
    /// kernel.
    pub(crate) fn load(&self, name: &str, parameters: &str) -> anyhow::Result<()> {
        let order = self.index.order(name);
        if order.is_empty() {
            self.asked_for().built_in.insert(name.to_owned());
            self.check_set(name, parameters)?;
        }
        for module in order {
            let own = if normal(&module) == normal(name) {
                parameters
            } else {
                ""
            };
            if !self.asked_for().loaded.contains(&module) {
                let appended = module_options::of(&self.command_line, &module);
                insert(&module, format!("{own} {appended}").trim())?;
                self.asked_for().loaded.insert(module);
            }
        }
        Ok(())
    }

    /// Checks that the kernel's command line has these parameters of a module that is built into it.
    fn check_set(&self, name: &str, parameters: &str) -> anyhow::Result<()> {
        let set = module_options::of(&self.command_line, name);
        let is_set = |wanted: &&str| set.split_whitespace().any(|word| word == *wanted);
        if let Some(parameter) = parameters.split_whitespace().find(|word| !is_set(word)) {
            bail!(
                "module {name} is built into the kernel, so its parameter {parameter} cannot be set here; name it on the \
                 kernel's command line as {name}.{parameter}"
            );
        }
        Ok(())
    }

    /// Names that were asked for and not found in the initramfs.
    pub(crate) fn taken_as_built_in(&self) -> Vec<String> {
        self.asked_for().built_in.iter().cloned().collect()
    }

    fn asked_for(&self) -> MutexGuard<'_, AskedFor> {
        self.asked_for.lock()
    }
}

fn insert(module: &str, parameters: &str) -> anyhow::Result<()> {
    let path = PathBuf::from(DIRECTORY).join(format!("{module}.ko"));
    let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    let parameters =
        CString::new(parameters).with_context(|| format!("bad parameters for module {module}"))?;
    // Without the log the refusal is still reported.
    let mut log = KernelLog::from_now_on().ok();
    match finit_module(&file, &parameters, 0) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error).with_context(|| {
            let said = log.iter_mut().flat_map(KernelLog::new_messages).take(SAID);
            let said: Vec<String> = said.collect();
            let said = match said.as_slice() {
                [] => String::new(),
                lines => format!("; the kernel says: {}", lines.join("; ")),
            };
            format!("the kernel refuses module {module} ({parameters:?}){said}")
        }),
    }
}

/// `/modules/index`: each module with what it depends on.
#[derive(Debug)]
struct Index {
    /// By normal name: the file's name and the dependencies.
    modules: BTreeMap<String, (String, Vec<String>)>,
}

impl Index {
    fn parse(text: &str) -> Self {
        let modules = text
            .lines()
            .filter_map(|line| {
                let mut names = line.split_whitespace().map(str::to_owned);
                let name = names.next()?;
                Some((normal(&name), (name, names.collect())))
            })
            .collect();
        Index { modules }
    }

    /// The file names of `name` and of all that it needs, each after what it needs itself.
    fn order(&self, name: &str) -> Vec<String> {
        let mut order = Vec::new();
        self.visit(&normal(name), &mut BTreeSet::new(), &mut order);
        order
    }

    fn visit(&self, name: &str, seen: &mut BTreeSet<String>, order: &mut Vec<String>) {
        let Some((file, needs)) = self.modules.get(name) else {
            return;
        };
        if !seen.insert(name.to_owned()) {
            return;
        }
        for need in needs {
            self.visit(&normal(need), seen, order);
        }
        order.push(file.clone());
    }
}

/// The kernel takes `-` and `_` in a module's name as the same.
pub(crate) fn normal(name: &str) -> String {
    name.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_module_needs_comes_before_it() {
        let index = Index::parse("netfs\n9pnet netfs\n9pnet_virtio 9pnet\n9p 9pnet netfs\n\n");
        assert_eq!(index.order("9p"), ["netfs", "9pnet", "9p"]);
        assert_eq!(
            index.order("9pnet_virtio"),
            ["netfs", "9pnet", "9pnet_virtio"]
        );
    }

    #[test]
    fn dashes_and_underscores_are_one() {
        let index = Index::parse("nvme-core\nnvme nvme-core\n");
        assert_eq!(index.order("nvme_core"), ["nvme-core"]);
        assert_eq!(index.order("nvme"), ["nvme-core", "nvme"]);
    }

    #[test]
    fn built_in_module_needs_its_parameters_on_the_command_line() {
        let modules = Modules {
            index: Index::parse(""),
            command_line: "quiet nvme-core.io_timeout=3 nvme.poll_queues=1".to_owned(),
            asked_for: Mutex::default(),
        };
        modules.load("nvme_core", "io_timeout=3").unwrap();
        modules.load("nvme", "").unwrap();
        let error = modules.load("nvme", "poll_queues=2").unwrap_err();
        assert!(error.to_string().ends_with("as nvme.poll_queues=2"));
    }

    #[test]
    fn an_absent_module_and_a_circle_end() {
        let index = Index::parse("a b\nb a missing\n");
        assert_eq!(index.order("a"), ["b", "a"]);
        assert!(index.order("c").is_empty());
    }
}
