//! The guest's kernel with its IOMMU: the scenario's IOMMU under the parameters on the kernel's
//! command line.

use std::collections::BTreeSet;

use crate::iommu::Iommu;
use crate::scenario::Machine;

/// The kernel's use of an IOMMU, as far as peer-to-peer DMA depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelIommu {
    /// Set if it enables ACS at all ports with that capability. With AMD's IOMMU and `iommu=off`
    /// this needs `CONFIG_IRQ_REMAP`, which Debian's kernel has.
    pub enables_acs: bool,
    /// Set if devices get IOVAs, which the IOMMU translates.
    pub translates: bool,
}

/// The parameters that determine it, as the kernel holds them once it has read its command line
/// (Linux 7.3).
#[derive(Clone, Copy, Debug, Default)]
struct Parameters {
    /// `iommu=off`, which nothing later takes back (arch/x86/kernel/pci-dma.c, `iommu_setup`).
    all_off: bool,
    /// `intel_iommu=off`, without an `on` after it (drivers/iommu/intel/iommu.c,
    /// `intel_iommu_setup`).
    intel_off: bool,
    /// `amd_iommu=off`, which nothing later takes back (drivers/iommu/amd/init.c,
    /// `parse_amd_iommu_options`).
    amd_off: bool,
    /// The last one of `iommu=pt`, `iommu=nopt` and `iommu.passthrough=`.
    passthrough: bool,
}

impl KernelIommu {
    /// Returns the kernel's use of the IOMMU of `machine`.
    pub fn of(machine: &Machine) -> Self {
        let ours = machine.iommu.kernel_parameters().split_whitespace();
        let parameters = Parameters::read(ours.chain(words(machine)));
        let is_off = parameters.is_off(machine.iommu);
        Self {
            enables_acs: match machine.iommu {
                Iommu::None => false,
                Iommu::Intel | Iommu::IntelPassthrough => !is_off,
                // AMD's driver asks for ACS as soon as it has found the table IVRS (`detect_ivrs`),
                // before it looks at `amd_iommu`. With `iommu=off` it looks for the table to remap
                // interrupts. The table VIOT, by which the kernel finds virtio's, does not depend
                // on them.
                Iommu::Amd | Iommu::Virtio => true,
            },
            translates: machine.iommu.is_present() && !is_off && !parameters.passthrough,
        }
    }
}

impl Parameters {
    fn read<'a>(words: impl Iterator<Item = &'a str>) -> Self {
        let mut parameters = Self::default();
        for word in words {
            if let Some((name, value)) = word.split_once('=') {
                // The kernel takes `-` and `_` in a name for the same.
                parameters.set(&name.replace('-', "_"), value);
            }
        }
        parameters
    }

    fn set(&mut self, name: &str, value: &str) {
        match name {
            "iommu" => value.split(',').for_each(|option| self.set_iommu(option)),
            "iommu.passthrough" => self.passthrough = boolean(value).unwrap_or(self.passthrough),
            "intel_iommu" => {
                for option in value.split(',') {
                    // The kernel compares only the start of an option, too.
                    self.intel_off &= !option.starts_with("on");
                    self.intel_off |= option.starts_with("off");
                }
            }
            "amd_iommu" => {
                self.amd_off |= value.split(',').any(|option| option.starts_with("off"));
            }
            _ => {}
        }
    }

    fn set_iommu(&mut self, option: &str) {
        self.all_off |= option.starts_with("off");
        self.passthrough |= option.starts_with("pt");
        self.passthrough &= !option.starts_with("nopt");
    }

    /// Returns `true` if they switch the driver of `iommu` off. That of virtio's has no such
    /// parameter.
    fn is_off(self, iommu: Iommu) -> bool {
        match iommu {
            Iommu::None | Iommu::Virtio => false,
            Iommu::Intel | Iommu::IntelPassthrough => self.all_off || self.intel_off,
            Iommu::Amd => self.all_off || self.amd_off,
        }
    }
}

/// Parses the words of a boolean parameter (Linux, lib/kstrtox.c, `kstrtobool`). Returns `None` for
/// others, which have no effect.
fn boolean(value: &str) -> Option<bool> {
    let value = value.to_ascii_lowercase();
    match value.as_bytes() {
        [b'e' | b'y' | b't' | b'1', ..] | [b'o', b'n', ..] => Some(true),
        [b'd' | b'n' | b'f' | b'0', ..] | [b'o', b'f', ..] => Some(false),
        _ => None,
    }
}

/// Returns the parameters of the scenario's kernel. After `--` come those of the first process.
fn words(machine: &Machine) -> impl Iterator<Item = &str> {
    let words = machine.kernel_parameters.split_whitespace();
    words.take_while(|word| *word != "--")
}

/// Returns the options of `pci=` in `machine`'s parameters that set ACS at ports, which they name
/// by addresses that the guest gives them (Linux, drivers/pci/pci.c, `pci_setup`).
pub fn acs_options(machine: &Machine) -> Vec<String> {
    let options = words(machine)
        .filter_map(|word| word.strip_prefix("pci="))
        .flat_map(|value| value.split(','));
    let names = options.filter_map(|option| option.split_once('=').map(|(name, _)| name));
    let names: BTreeSet<&str> = names.collect();
    let setting = ["disable_acs_redir", "config_acs"].into_iter();
    let set = setting.filter(|name| names.contains(name));
    set.map(|name| format!("pci={name}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    fn machine(iommu: Iommu, parameters: &str) -> Machine {
        let mut machine = Scenario::demo().unwrap().machine;
        machine.iommu = iommu;
        machine.kernel_parameters = parameters.to_owned();
        machine
    }

    /// Returns two flags: the kernel enables ACS, and the IOMMU translates.
    fn uses(iommu: Iommu, parameters: &str) -> (bool, bool) {
        let kernel = KernelIommu::of(&machine(iommu, parameters));
        (kernel.enables_acs, kernel.translates)
    }

    #[test]
    fn without_parameters_the_scenario_decides() {
        assert_eq!(uses(Iommu::None, ""), (false, false));
        assert_eq!(uses(Iommu::IntelPassthrough, ""), (true, false));
        for iommu in [Iommu::Intel, Iommu::Amd, Iommu::Virtio] {
            assert_eq!(uses(iommu, "quiet iomem=relaxed"), (true, true));
        }
    }

    #[test]
    fn passthrough_parameters_end_translation_and_keep_acs() {
        for iommu in [Iommu::Intel, Iommu::Amd, Iommu::Virtio] {
            for parameter in ["iommu=pt", "iommu=soft,pt", "iommu.passthrough=1"] {
                assert_eq!(uses(iommu, parameter), (true, false), "{parameter}");
            }
        }
        assert_eq!(uses(Iommu::Intel, "iommu.passthrough=on"), (true, false));
        assert_eq!(uses(Iommu::None, "iommu=nopt"), (false, false));
    }

    #[test]
    fn last_passthrough_parameter_wins() {
        let passthrough = Iommu::IntelPassthrough;
        assert_eq!(uses(passthrough, "iommu=nopt"), (true, true));
        assert_eq!(uses(passthrough, "iommu.passthrough=0"), (true, true));
        assert_eq!(
            uses(passthrough, "iommu.passthrough=disabled"),
            (true, true)
        );
        assert_eq!(uses(Iommu::Amd, "iommu.passthrough=Enabled"), (true, false));
        assert_eq!(uses(passthrough, "iommu.passthrough=maybe"), (true, false));
        let both = "iommu=pt iommu.passthrough=n";
        assert_eq!(uses(Iommu::Intel, both), (true, true));
        assert_eq!(uses(Iommu::Intel, "iommu=nopt,pt"), (true, false));
        assert_eq!(uses(Iommu::Intel, "quiet -- iommu=pt"), (true, true));
    }

    #[test]
    fn intel_is_off_by_its_own_parameter_and_the_common_one() {
        assert_eq!(uses(Iommu::Intel, "intel_iommu=off"), (false, false));
        assert_eq!(uses(Iommu::Intel, "intel-iommu=sm_on,off"), (false, false));
        assert_eq!(uses(Iommu::Intel, "iommu=off"), (false, false));
        assert_eq!(uses(Iommu::Intel, "amd_iommu=off"), (true, true));
        let back_on = "intel_iommu=off intel_iommu=on";
        assert_eq!(uses(Iommu::Intel, back_on), (true, true));
        assert_eq!(
            uses(Iommu::Intel, "iommu=off intel_iommu=on"),
            (false, false)
        );
    }

    #[test]
    fn amd_without_its_driver_keeps_acs() {
        assert_eq!(uses(Iommu::Amd, "amd_iommu=off"), (true, false));
        assert_eq!(uses(Iommu::Amd, "iommu=off"), (true, false));
        assert_eq!(uses(Iommu::Amd, "intel_iommu=off"), (true, true));
    }

    #[test]
    fn virtio_has_no_parameter_that_switches_it_off() {
        let all = "iommu=off intel_iommu=off amd_iommu=off";
        assert_eq!(uses(Iommu::Virtio, all), (true, true));
    }

    #[test]
    fn acs_options_of_pci_are_found() {
        let options = |parameters| acs_options(&machine(Iommu::Intel, parameters));
        assert!(options("pci=nomsi,noats iommu=pt").is_empty());
        let both = "pci=nomsi,disable_acs_redir=0000:00:02.0 quiet pci=config_acs=1x@0000:00:03.0";
        assert_eq!(options(both), ["pci=disable_acs_redir", "pci=config_acs"]);
        let twice = "pci=config_acs=1x@0000:00:03.0 pci=config_acs=1x@0000:00:02.0 -- pci=disable_acs_redir=0000:00:02.0";
        assert_eq!(options(twice), ["pci=config_acs"]);
    }
}
