//! `[[module]]` tables: modules by name, and folders from which the user's modules are built.

use std::path::{Path, PathBuf};

use peerbar_images::is_module_folder;
use peerbar_report::{Inventory, Module};
use toml::Spanned;

use super::error::Problem;
use super::file::ModuleTable;
use super::names::distinct;
use crate::module_sources::ModuleSources;

const LONGEST: usize = 55;

/// Modules that insist on an IOMMU which remaps interrupts, unlike QEMU's here, and the parameter
/// that makes them work without it.
const WITHOUT_REMAPPING: [(&str, &str); 2] = [
    ("vfio_iommu_type1", "allow_unsafe_interrupts=1"),
    ("iommufd", "allow_unsafe_interrupts=1"),
];

/// Checks the tables. Folders are relative to `folder`. The modules in `needed` are always
/// included; a table with such a name only sets its parameters. Placeholders in parameters are
/// replaced by parts of `inventory`.
pub(super) fn modules(
    tables: Vec<Spanned<ModuleTable>>,
    needed: Vec<&str>,
    folder: &Path,
    inventory: &Inventory,
) -> Result<(Vec<Module>, Vec<ModuleSources>), Problem> {
    let names = tables.iter();
    let names = names.filter_map(|table| table.get_ref().name.clone());
    distinct(names, &[], LONGEST)?;
    let (mut modules, mut sources) = (Vec::new(), Vec::new());
    for table in tables {
        let at = table.span();
        let table = table.into_inner();
        let (name, parameters) = (table.name.map(Spanned::into_inner), table.parameters);
        let checked = inventory.check_placeholders(&parameters);
        checked.map_err(|message| Problem::new(at.clone(), format!("`parameters`: {message}")))?;
        match (table.path, name) {
            (Some(path), name) => sources.push(ModuleSources {
                folder: sources_in(path, folder)?,
                name,
                parameters,
            }),
            (None, Some(name)) => modules.push(Module { name, parameters }),
            (None, None) => {
                let message = "a [[module]] has a `name`, or the `path` of a folder to build";
                return Err(Problem::new(at, message));
            }
        }
    }
    for name in needed {
        if !modules.iter().any(|module: &Module| module.name == name) {
            modules.push(Module {
                name: name.to_owned(),
                parameters: String::new(),
            });
        }
    }
    Ok((modules, sources))
}

/// Returns the parameters of modules in the form in which the kernel takes those of built-in ones,
/// `nvme_core.io_timeout=3`. It ignores the others, and does not know the meaning of placeholders.
pub(super) fn on_command_line(modules: &[Module]) -> String {
    let known = modules.iter().filter(|module| !module.has_placeholders());
    let parameters = known.flat_map(|module| {
        let mut quoted = false;
        let words = module.parameters.split(move |letter: char| {
            quoted ^= letter == '"';
            letter.is_whitespace() && !quoted
        });
        let words = words.filter(|word| !word.is_empty());
        words.map(|word| format!("{}.{word}", module.name))
    });
    parameters.collect::<Vec<_>>().join(" ")
}

/// Returns the parameters that modules get on the command line of a machine with an IOMMU, unless
/// one of `modules` sets them. There they apply to any way in which the module is loaded: a check,
/// a soft dependency, or modprobe.
pub(super) fn for_iommu(modules: &[Module]) -> String {
    let is_free = |name: &str| {
        let mut own = modules
            .iter()
            .filter(|module| !module.parameters.is_empty());
        !own.any(|module| module.name.replace('-', "_") == name)
    };
    let parameters = WITHOUT_REMAPPING.iter().filter(|(name, _)| is_free(name));
    let parameters = parameters.map(|(name, parameter)| format!("{name}.{parameter}"));
    parameters.collect::<Vec<_>>().join(" ")
}

fn sources_in(path: Spanned<PathBuf>, folder: &Path) -> Result<PathBuf, Problem> {
    let at = path.span();
    let path = folder.join(path.into_inner());
    if is_module_folder(&path) {
        return Ok(path);
    }
    let message = format!(
        "`path`: {} is not a folder with a Kbuild or a Makefile: name the one that the module is built in, relative to the \
         scenario",
        path.display()
    );
    Err(Problem::new(at, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    #[test]
    fn module_may_have_the_name_of_a_server() {
        let text = "name = \"x\"\n[[gpu]]\nname = \"g\"\n[[module]]\nname = \"vsock\"\nparameters = \"a=1\"\n";
        let scenario = Scenario::parse_interactive(Path::new("x.toml"), text.to_owned()).unwrap();
        let vsock = module("vsock", "a=1");
        assert!(scenario.modules.contains(&vsock), "{:?}", scenario.modules);
    }

    #[test]
    fn placeholders_in_parameters_stand_for_devices() {
        let parse = |parameters: &str| {
            let text = format!(
                "name = \"x\"\n[[gpu]]\nname = \"g\"\n[[module]]\nname = \"mine\"\nparameters = \"{parameters}\"\n"
            );
            Scenario::parse_interactive(Path::new("x.toml"), text)
        };
        let scenario = parse("client={g:pci}").unwrap();
        assert!(scenario.modules.contains(&module("mine", "client={g:pci}")));
        assert!(!scenario.machine.kernel_parameters.contains("client"));
        let error = parse("client={h:pci}").unwrap_err().to_string();
        assert!(
            error.contains("x.toml:4: `parameters`: unknown placeholder `{h:pci}`"),
            "{error}"
        );
    }

    fn module(name: &str, parameters: &str) -> Module {
        Module {
            name: name.to_owned(),
            parameters: parameters.to_owned(),
        }
    }

    #[test]
    fn module_with_parameters_of_its_own_gets_no_others() {
        let [type1, iommufd] =
            WITHOUT_REMAPPING.map(|(name, parameter)| format!("{name}.{parameter}"));
        let modules = [module("vfio_iommu_type1", ""), module("iommufd", "")];
        assert_eq!(for_iommu(&modules), format!("{type1} {iommufd}"));
        let modules = [module("vfio-iommu-type1", "dma_entry_limit=9")];
        assert_eq!(for_iommu(&modules), iommufd);
    }

    #[test]
    fn each_parameter_is_one_of_its_module() {
        let modules = [
            module("nvme_core", " io_timeout=3 dyndbg=\"func a +p\""),
            module("vgem", ""),
            module("nvme", "poll_queues=1"),
        ];
        let expected = "nvme_core.io_timeout=3 nvme_core.dyndbg=\"func a +p\" nvme.poll_queues=1";
        assert_eq!(on_command_line(&modules), expected);
    }
}
