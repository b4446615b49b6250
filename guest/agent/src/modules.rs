//! Kernel modules of the initramfs.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::path::PathBuf;

use anyhow::{Context, bail};
use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use rustix::system::finit_module;

use crate::kmsg::KernelLog;
use crate::module_options::{self, normal};

/// Number of lines of the kernel's log shown for a module that it refuses.
const SAID: usize = 8;

/// The folder of the modules. A process in the tools root can use this path, too.
pub const DIRECTORY: &str = "/proc/1/root/modules";

/// The modules of the initramfs, and those that have been requested. Several threads may load
/// modules at once.
#[derive(Debug)]
pub(crate) struct Modules {
    index: Index,
    /// The kernel's command line.
    command_line: String,
    /// Parameters of the plan, by normal names.
    planned: BTreeMap<String, String>,
    asked_for: Mutex<AskedFor>,
}

#[derive(Debug, Default)]
struct AskedFor {
    /// The parameters of each loaded module.
    loaded: BTreeMap<String, String>,
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
            planned: BTreeMap::new(),
            asked_for: Mutex::default(),
        })
    }

    /// Sets parameters for a module, which it gets whenever it is loaded, even as a dependency of
    /// another one.
    pub(crate) fn set_parameters(&mut self, name: &str, parameters: &str) {
        self.planned.insert(normal(name), parameters.to_owned());
    }

    /// Loads `name` with `parameters`, or with those of the plan, its dependencies before it, and
    /// its soft dependencies. Each module also gets its parameters from the kernel's command line,
    /// which come last and so win. A module that is loaded already is accepted; one that the
    /// initramfs lacks is assumed to be built into the kernel. If another thread is loading it, the
    /// kernel waits for that. A parameter that the module does not have is an error. If the kernel
    /// refuses a soft dependency, that is only reported on the console.
    pub(crate) fn load(&self, name: &str, parameters: &str) -> anyhow::Result<()> {
        let name = normal(name);
        let own = match parameters {
            "" => self.planned(&name),
            parameters => parameters,
        };
        let order = self.index.order(&name);
        if order.is_empty() {
            self.check_set(&name, own)?;
            self.asked_for().built_in.insert(name);
            return Ok(());
        }
        for step in order {
            let is_named = step.module == name;
            let parameters = if is_named {
                own
            } else {
                self.planned(&step.module)
            };
            match self.insert_once(&step.file, parameters) {
                Err(error) if !step.is_required => eprintln!("peerbar-agent: {error:#}"),
                result => result?,
            }
        }
        self.check_given(&name, own)
    }

    fn planned(&self, module: &str) -> &str {
        self.planned.get(module).map_or("", String::as_str)
    }

    fn insert_once(&self, file: &str, parameters: &str) -> anyhow::Result<()> {
        if self.asked_for().loaded.contains_key(file) {
            return Ok(());
        }
        let appended = module_options::of(&self.command_line, file);
        let all = format!("{parameters} {appended}").trim().to_owned();
        insert(file, &all)?;
        self.asked_for().loaded.insert(file.to_owned(), all);
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

    /// Checks that a loaded module has these parameters: another one may have loaded it before.
    fn check_given(&self, module: &str, parameters: &str) -> anyhow::Result<()> {
        let asked_for = self.asked_for();
        let mut loaded = asked_for.loaded.iter();
        let given = loaded.find(|(file, _)| normal(file) == module);
        let given = given.map_or("", |(_, given)| given);
        let is_given = |wanted: &&str| given.split_whitespace().any(|word| word == *wanted);
        if let Some(parameter) = parameters.split_whitespace().find(|word| !is_given(word)) {
            bail!(
                "module {module} was loaded already, for another module, so its parameter {parameter} cannot be set: write it \
                 without a placeholder"
            );
        }
        Ok(())
    }

    /// Returns names that were requested and not found in the initramfs.
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
    let loaded = finit_module(&file, &parameters, 0);
    let said = log.iter_mut().flat_map(KernelLog::new_messages);
    judge(loaded, said, module, &parameters)
}

/// Judges the result of loading `module` and the lines that the kernel has `said` about it: the
/// kernel does not treat an unknown parameter as an error.
fn judge(
    loaded: Result<(), Errno>,
    mut said: impl Iterator<Item = String>,
    module: &str,
    parameters: &CStr,
) -> anyhow::Result<()> {
    match loaded {
        Ok(()) => match said.find(|line| is_on_unknown_parameter(line, module)) {
            Some(line) => bail!("module {module} lacks a parameter; the kernel says: {line}"),
            None => Ok(()),
        },
        Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error).with_context(|| {
            let said: Vec<String> = said.take(SAID).collect();
            let said = match said.as_slice() {
                [] => String::new(),
                lines => format!("; the kernel says: {}", lines.join("; ")),
            };
            format!("the kernel refuses module {module} ({parameters:?}){said}")
        }),
    }
}

/// Returns `true` if `line` of the kernel says that it ignores a parameter of `module`
/// (kernel/module/main.c, `unknown_module_param_cb`).
fn is_on_unknown_parameter(line: &str, module: &str) -> bool {
    let said = line.split_once(": unknown parameter ");
    said.is_some_and(|(name, rest)| normal(name) == normal(module) && rest.ends_with(" ignored"))
}

/// `/modules/index`: each module with its dependencies.
#[derive(Debug)]
struct Index {
    /// By normal name.
    modules: BTreeMap<String, Entry>,
}

/// A line of the index. All names except that of the file are normal names.
#[derive(Debug, Default)]
struct Entry {
    /// The file's name, without `.ko`.
    file: String,
    /// Modules that must be loaded before.
    needs: Vec<String>,
    /// Soft dependencies before it.
    before: Vec<String>,
    /// Soft dependencies after it.
    after: Vec<String>,
}

/// A module to load.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    /// Its normal name.
    module: String,
    /// The file's name, without `.ko`.
    file: String,
    /// `true` if it is the requested module or a dependency of it.
    is_required: bool,
}

impl Entry {
    /// Reads `NAME NEED… pre: NAME… post: NAME…`.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let mut entry = Self {
            file: words.next()?.to_owned(),
            ..Self::default()
        };
        let mut list = &mut entry.needs;
        for word in words {
            match word {
                "pre:" => list = &mut entry.before,
                "post:" => list = &mut entry.after,
                name => list.push(normal(name)),
            }
        }
        Some(entry)
    }
}

impl Index {
    fn parse(text: &str) -> Self {
        let entries = text.lines().filter_map(Entry::parse);
        let modules = entries.map(|entry| (normal(&entry.file), entry));
        Index {
            modules: modules.collect(),
        }
    }

    /// Returns the modules to load for `name`, in order: each after its dependencies and its soft
    /// dependencies of kind `pre`, and before those of kind `post`.
    fn order(&self, name: &str) -> Vec<Step> {
        let mut order = Order {
            index: self,
            seen: BTreeSet::new(),
            steps: Vec::new(),
        };
        order.visit(&normal(name));
        let mut required = BTreeSet::new();
        self.require(&normal(name), &mut required);
        let steps = order.steps.into_iter();
        let step = |(module, entry): (String, &Entry)| Step {
            is_required: required.contains(&module),
            file: entry.file.clone(),
            module,
        };
        steps.map(step).collect()
    }

    /// Adds `name` and all its dependencies.
    fn require(&self, name: &str, required: &mut BTreeSet<String>) {
        if let Some(entry) = self.modules.get(name) {
            if required.insert(name.to_owned()) {
                for need in &entry.needs {
                    self.require(need, required);
                }
            }
        }
    }
}

/// A walk through an index.
struct Order<'a> {
    index: &'a Index,
    seen: BTreeSet<String>,
    steps: Vec<(String, &'a Entry)>,
}

impl Order<'_> {
    fn visit(&mut self, name: &str) {
        let Some(entry) = self.index.modules.get(name) else {
            return;
        };
        if !self.seen.insert(name.to_owned()) {
            return;
        }
        for other in entry.before.iter().chain(&entry.needs) {
            self.visit(other);
        }
        self.steps.push((name.to_owned(), entry));
        for other in &entry.after {
            self.visit(other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(index: &Index, name: &str) -> Vec<String> {
        let order = index.order(name).into_iter();
        order.map(|step| step.file).collect()
    }

    fn modules(index: &str, command_line: &str) -> Modules {
        Modules {
            index: Index::parse(index),
            command_line: command_line.to_owned(),
            planned: BTreeMap::new(),
            asked_for: Mutex::default(),
        }
    }

    #[test]
    fn what_a_module_needs_comes_before_it() {
        let index = Index::parse("netfs\n9pnet netfs\n9pnet_virtio 9pnet\n9p 9pnet netfs\n\n");
        assert_eq!(files(&index, "9p"), ["netfs", "9pnet", "9p"]);
        assert_eq!(
            files(&index, "9pnet_virtio"),
            ["netfs", "9pnet", "9pnet_virtio"]
        );
    }

    #[test]
    fn soft_dependencies_come_before_and_after() {
        let index = Index::parse(
            "crc\nvfio post: vfio_iommu_type1\nvfio_iommu_type1 vfio\nvfio-pci-core vfio pre: crc\n\
             vfio-pci vfio-pci-core vfio\n",
        );
        let order = index.order("vfio-pci");
        let steps: Vec<(&str, bool)> = order
            .iter()
            .map(|step| (step.file.as_str(), step.is_required))
            .collect();
        let expected = [
            ("crc", false),
            ("vfio", true),
            ("vfio_iommu_type1", false),
            ("vfio-pci-core", true),
            ("vfio-pci", true),
        ];
        assert_eq!(steps, expected);
        let itself = index.order("vfio_iommu_type1");
        assert!(itself.iter().all(|step| step.is_required), "{itself:?}");
    }

    #[test]
    fn dashes_and_underscores_are_one() {
        let index = Index::parse("nvme-core\nnvme nvme-core\n");
        assert_eq!(files(&index, "nvme_core"), ["nvme-core"]);
        assert_eq!(files(&index, "nvme"), ["nvme-core", "nvme"]);
    }

    #[test]
    fn built_in_module_needs_its_parameters_on_the_command_line() {
        let modules = modules("", "quiet nvme-core.io_timeout=3 nvme.poll_queues=1");
        modules.load("nvme_core", "io_timeout=3").unwrap();
        modules.load("nvme", "").unwrap();
        let error = modules.load("nvme", "poll_queues=2").unwrap_err();
        assert!(error.to_string().ends_with("as nvme.poll_queues=2"));
    }

    #[test]
    fn parameter_that_comes_too_late_is_an_error() {
        let modules = modules("vfio-type1\n", "");
        let given = "a=1 b=2".to_owned();
        modules
            .asked_for()
            .loaded
            .insert("vfio-type1".to_owned(), given);
        modules.load("vfio_type1", "").unwrap();
        modules.load("vfio_type1", "b=2").unwrap();
        let error = modules.load("vfio-type1", "b=3").unwrap_err().to_string();
        let expected =
            "module vfio_type1 was loaded already, for another module, so its parameter b=3 cannot";
        assert!(error.starts_with(expected), "{error}");
    }

    #[test]
    fn unknown_parameter_is_an_error_of_its_module() {
        let ignored = "vfio_pci: unknown parameter 'idss' ignored";
        let loaded = |result, module| {
            let said = ["vfio_pci: ready", ignored].map(str::to_owned);
            judge(result, said.into_iter(), module, c"idss=1")
        };
        let error = loaded(Ok(()), "vfio-pci").unwrap_err().to_string();
        assert_eq!(
            error,
            format!("module vfio-pci lacks a parameter; the kernel says: {ignored}")
        );
        loaded(Ok(()), "vfio").unwrap();
        loaded(Err(Errno::EXIST), "vfio_pci").unwrap();
        let error = loaded(Err(Errno::INVAL), "vfio").unwrap_err().to_string();
        assert!(error.ends_with(ignored), "{error}");
    }

    #[test]
    fn parameters_of_the_plan_are_known_by_normal_names() {
        let mut modules = modules("vfio-type1\n", "");
        modules.set_parameters("vfio-type1", "a=1");
        assert_eq!(modules.planned("vfio_type1"), "a=1");
        assert_eq!(modules.planned("vfio"), "");
    }

    #[test]
    fn an_absent_module_and_a_circle_end() {
        let index = Index::parse("a b\nb a missing\n");
        assert_eq!(files(&index, "a"), ["b", "a"]);
        assert!(index.order("c").is_empty());
    }
}
