//! Reads what a paste tells outside of `lspci`'s output: processor, kernel, command line, and the
//! kernel's log lines about peer-to-peer DMA.

use std::collections::HashSet;
use std::mem;

use peerbar_rule::{AcsControl, Cpu, Vendor};

use crate::address::Address;
use crate::machine::{Acs, Host, Iommu, Machine, Statement};

/// Reads every line of `text` into `machine`.
pub(crate) fn read(text: &str, machine: &mut Machine) {
    let mut cpu = CpuLines::default();
    let mut seen = HashSet::new();
    let mut lines = text.lines().map(undecorated).peekable();
    let mut command = "";
    while let Some(line) = lines.next() {
        cpu.take(line);
        host(&mut machine.host, line);
        output(&mut machine.host, mem::replace(&mut command, line), line);
        let mut message = line.to_owned();
        // Mail programs break the message about a pair into two or three lines.
        while let Some(next) = lines.next_if(|next| is_continued(&message, next)) {
            message = format!("{message} {next}");
        }
        if let Some(statement) = statement(&message) {
            show_pair(machine, &statement);
            // The kernel repeats itself.
            if seen.insert(statement.clone()) {
                machine.statements.push(statement);
            }
        }
        redirecting_ports(machine, &message);
    }
    machine.host.cpu = cpu.cpu().or(machine.host.cpu);
    machine.host.cpu_name = cpu.name.or(machine.host.cpu_name.take());
}

/// Reads the first line that a command printed, whose text alone does not show its meaning.
fn output(host: &mut Host, command: &str, line: &str) {
    if command.ends_with("cat /proc/cmdline") {
        host.set_command_line(line);
    } else if command.ends_with("uname -r") && is_release(line) {
        host.release = Some(line.to_owned());
    }
}

/// Returns `line` without marks of a quotation, and without what the system log puts before a line
/// of the kernel.
fn undecorated(line: &str) -> &str {
    let line = line.trim_start_matches([' ', '\t', '>', '|']).trim_end();
    line.rsplit(" kernel: ").next().unwrap_or(line)
}

/// Begins the kernel's message about a pair that it refuses.
const REFUSAL: &str = "cannot be used for peer-to-peer DMA";
/// The rest of it, without the provider.
const REST: &str =
    "as the client and provider do not share an upstream bridge or whitelisted host bridge";

/// Returns `true` if `next` goes on with `message`, which is the beginning of one about a pair:
/// each of its words is one of that message, or the provider.
fn is_continued(message: &str, next: &str) -> bool {
    let is_of_message = |word: &str| {
        word.strip_prefix('(')
            .and_then(|word| word.strip_suffix(')'))
            .map_or_else(
                || REST.split(' ').any(|known| known == word),
                |provider| provider.parse::<Address>().is_ok(),
            )
    };
    const LENGTH: usize = 240;
    let is_open = message.contains(REFUSAL) && message.len() < LENGTH;
    is_open && !next.is_empty() && next.split_ascii_whitespace().all(is_of_message)
}

/// Adds the two functions of a message, which may be all that the text shows of them.
fn show_pair(machine: &mut Machine, statement: &Statement) {
    if let Statement::Refused {
        client, provider, ..
    }
    | Statement::Redirected {
        client, provider, ..
    } = statement
    {
        for address in [client, provider] {
            machine.functions.entry(*address).or_default();
        }
    }
}

/// The processor, from lines of `lscpu`, /proc/cpuinfo or the kernel's log.
#[derive(Default)]
struct CpuLines {
    vendor: Option<Vendor>,
    family: Option<u32>,
    name: Option<String>,
}

impl CpuLines {
    fn take(&mut self, line: &str) {
        if let Some((key, value)) = line.split_once(':') {
            let value = value.trim();
            match key.trim().to_ascii_lowercase().as_str() {
                // RDMA tools print a number as `vendor_id`.
                "vendor_id" | "vendor id" if !value.starts_with("0x") => {
                    self.vendor = Some(Vendor::from_id(value))
                }
                "cpu family" => self.family = value.parse().ok(),
                "model name" => self.name = Some(processor_name(value)),
                _ => {}
            }
        }
        // smpboot: CPU0: AMD EPYC 7763 64-Core Processor (family: 0x19, model: 0x1, stepping: 0x1)
        if let Some((_, rest)) = line.split_once("CPU0: ") {
            let Some((name, family)) = rest.split_once(" (family: 0x") else {
                return;
            };
            self.family = family
                .split(',')
                .next()
                .and_then(|text| u32::from_str_radix(text, 16).ok());
            self.name = Some(processor_name(name));
        }
    }

    fn cpu(&self) -> Option<Cpu> {
        let by_name = |name: &String| match name.as_str() {
            name if name.starts_with("AMD") => Some(Vendor::Amd),
            name if name.contains("Intel") => Some(Vendor::Intel),
            _ => None,
        };
        let vendor = self
            .vendor
            .or_else(|| self.name.as_ref().and_then(by_name))?;
        let family = match (vendor, self.family) {
            (_, Some(family)) => family,
            // Of the names, only AMD's family decides.
            (Vendor::Amd, None) => zen_by_name(self.name.as_deref()?)?,
            (_, None) => 6,
        };
        Some(Cpu { vendor, family })
    }
}

/// Returns a processor's name without what people and hypervisors add in parentheses, and no longer
/// than CPUID's.
fn processor_name(text: &str) -> String {
    const LENGTH: usize = 48;
    let name = text.split(" (").next().unwrap_or_default();
    name.chars().take(LENGTH).collect()
}

/// Returns a family of the Zen processors if `name` is one of theirs.
fn zen_by_name(name: &str) -> Option<u32> {
    const SERIES: [&str; 3] = ["EPYC", "Ryzen", "Threadripper"];
    SERIES
        .iter()
        .any(|series| name.contains(series))
        .then_some(0x17)
}

/// Reads the release, the command line, the configuration and the IOMMU's mode.
fn host(host: &mut Host, line: &str) {
    if let Some(release) = release(line) {
        host.release = Some(release.to_owned());
    }
    let command_line = line
        .split_once("Command line: ")
        .map(|(_, rest)| rest)
        .or_else(|| line.starts_with("BOOT_IMAGE=").then_some(line));
    if let Some(command_line) = command_line {
        host.set_command_line(command_line);
    }
    match line {
        "CONFIG_PCI_P2PDMA=y" => host.has_p2pdma = Some(true),
        "# CONFIG_PCI_P2PDMA is not set" => host.has_p2pdma = Some(false),
        _ => {}
    }
    if line.contains("iommu: Default domain type: Translated") {
        host.iommu = Some(Iommu::Translates);
    } else if line.contains("iommu: Default domain type: Passthrough") {
        host.iommu = Some(Iommu::PassThrough);
    }
    if let Some((_, name)) = line.split_once("Hypervisor vendor:") {
        host.hypervisor = name.split_ascii_whitespace().next().map(str::to_owned);
    }
}

impl Host {
    /// Takes a command line: the parameters that concern PCI and the IOMMU. Others may name disks
    /// and hosts.
    pub(crate) fn set_command_line(&mut self, command_line: &str) {
        const NAMES: [&str; 5] = [
            "iommu",
            "intel_iommu",
            "amd_iommu",
            "pci",
            "pcie_acs_override",
        ];
        let concerns = |word: &&str| {
            let name = word.split('=').next().unwrap_or_default();
            NAMES.contains(&name) || name.starts_with("iommu.")
        };
        let words: Vec<&str> = command_line
            .split_ascii_whitespace()
            .filter(concerns)
            .collect();
        self.iommu = iommu_of(command_line).or(self.iommu);
        self.command_line = Some(words.join(" "));
    }
}

/// Returns the mode that a kernel command line asks for, if it does.
fn iommu_of(command_line: &str) -> Option<Iommu> {
    command_line
        .split_ascii_whitespace()
        .rev()
        .find_map(|word| match word {
            "iommu=pt" | "iommu.passthrough=1" => Some(Iommu::PassThrough),
            "iommu=off" | "intel_iommu=off" | "amd_iommu=off" => Some(Iommu::Off),
            "iommu.passthrough=0" | "iommu=nopt" => Some(Iommu::Translates),
            _ => None,
        })
}

/// Returns the release in the output of `uname -a`, or in the kernel's banner,
/// `Linux version RELEASE (USER@HOST) …` (Linux init/version-timestamp.c).
fn release(line: &str) -> Option<&str> {
    let banner = || {
        let (release, builder) = line.split_once("Linux version ")?.1.split_once(" (")?;
        let builder = builder.split(')').next()?;
        builder.contains('@').then_some(release)
    };
    let uname = || {
        let (_, rest) = line.strip_prefix("Linux ")?.split_once(' ')?;
        let (release, rest) = rest.split_once(' ')?;
        // BusyBox, which Alpine has, prints no `GNU/`.
        let is_linux = rest.contains(" GNU/Linux") || rest.ends_with(" Linux");
        let is_uname = rest.starts_with('#') && is_linux;
        is_uname.then_some(release)
    };
    banner()
        .or_else(uname)
        .filter(|release| is_release(release))
}

fn is_release(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit()) && !text.contains(' ')
}

/// Reads one of the kernel's messages (Linux drivers/pci/p2pdma.c, `calc_map_type_and_dist_warn`;
/// drivers/iommu/intel/dmar.c; drivers/iommu/amd/iommu.c).
fn statement(line: &str) -> Option<Statement> {
    if line.contains(REFUSAL) {
        let (client, provider) = pair(line)?;
        return Some(Statement::Refused { client, provider });
    }
    if line.contains("ACS redirect is set between the client and provider") {
        let (client, provider) = pair(line)?;
        return Some(Statement::Redirected { client, provider });
    }
    if let Some((_, id)) = line.split_once("Host bridge not in P2PDMA whitelist: ") {
        let id = id.split(' ').next()?.parse().ok()?;
        return Some(Statement::NotListed { id });
    }
    iommu_fault(line)
}

/// Returns client and provider of a message: `nvme 0000:02:00.0: … (0000:01:00.0) …`.
fn pair(line: &str) -> Option<(Address, Address)> {
    let client = line
        .split(' ')
        .find_map(|word| word.strip_suffix(':')?.parse().ok())?;
    let in_parentheses = |word: &str| word.split('(').nth(1)?.split(')').next()?.parse().ok();
    Some((client, line.split(' ').find_map(in_parentheses)?))
}

/// Reads `DMAR: [DMA Read NO_PASID] Request device [3b:00.0] fault addr …` and
/// `AMD-Vi: Event logged [IO_PAGE_FAULT device=3b:00.0 …`.
fn iommu_fault(line: &str) -> Option<Statement> {
    let client = if line.contains("DMAR:") && line.contains("fault addr") {
        line.split_once("evice [")?.1.split(']').next()?
    } else if line.contains("IO_PAGE_FAULT") {
        let device = line.split_once("device=").map(|(_, rest)| rest);
        let word = |word: &&str| {
            word.strip_suffix(':')
                .is_some_and(|word| word.parse::<Address>().is_ok())
        };
        let named = || {
            line.split(' ')
                .find(word)
                .and_then(|word| word.strip_suffix(':'))
        };
        device
            .and_then(|rest| rest.split([' ', ']']).next())
            .or_else(named)?
    } else {
        return None;
    };
    Some(Statement::IommuFault {
        client: client.parse().ok()?,
        address: fault_address(line),
    })
}

/// Reads `fault addr 0x38000000` or `address=0x38000000`.
fn fault_address(line: &str) -> Option<u64> {
    let rest = ["fault addr 0x", "address=0x"]
        .iter()
        .find_map(|key| line.split_once(key));
    let digits = rest?.1.split([' ', ']']).next()?;
    u64::from_str_radix(digits, 16).ok()
}

/// Takes the ports that redirect from the kernel's advice: "to disable ACS redirect for this path,
/// add the kernel parameter: pci=disable_acs_redir=0000:40:01.0;0000:40:02.0".
fn redirecting_ports(machine: &mut Machine, line: &str) {
    let Some((_, ports)) = line.split_once("add the kernel parameter: pci=disable_acs_redir=")
    else {
        return;
    };
    for port in ports.split([';', ' ']).filter_map(|port| port.parse().ok()) {
        let function = machine.functions.entry(port).or_default();
        if function.acs == Acs::Unknown {
            function.acs = Acs::Control(AcsControl::REQUEST_REDIRECT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Machine {
        let mut machine = Machine::default();
        super::read(text, &mut machine);
        machine
    }

    #[test]
    fn processor_is_read_from_each_source() {
        let zen3 = Some(Cpu {
            vendor: Vendor::Amd,
            family: 0x19,
        });
        let texts = [
            "Vendor ID:   AuthenticAMD\n  Model name: AMD EPYC 7763 64-Core Processor\n    CPU family: 25\n",
            "vendor_id\t: AuthenticAMD\ncpu family\t: 25\n",
            "[    0.5] smpboot: CPU0: AMD EPYC 7763 64-Core Processor (family: 0x19, model: 0x1, stepping: 0x1)\n",
        ];
        for text in texts {
            assert_eq!(read(text).host.cpu, zen3, "{text}");
        }
        let zen = Cpu {
            vendor: Vendor::Amd,
            family: 0x17,
        };
        assert_eq!(read("Model name: AMD Ryzen 9 5950X\n").host.cpu, Some(zen));
        assert_eq!(read("Model name: AMD Opteron 6274\n").host.cpu, None);
    }

    #[test]
    fn kernel_is_read_from_uname_and_log() {
        for text in [
            "Linux box 6.8.0-45-generic #45-Ubuntu SMP x86_64 GNU/Linux",
            "Linux alpine 6.8.0-45-generic #1-Alpine SMP PREEMPT_DYNAMIC x86_64 Linux",
            "$ uname -r\n6.8.0-45-generic",
            "[    0.000000] Linux version 6.8.0-45-generic (buildd@lcy02) (gcc)",
        ] {
            assert_eq!(read(text).host.release.as_deref(), Some("6.8.0-45-generic"));
        }
        for text in [
            "This tool needs Linux version 5.4 or newer",
            "It needs Linux version 5.4 (or newer)",
            "Linux kernel 5.4 is not GNU/Linux",
            "$ uname -r\nbash: uname: command not found",
        ] {
            assert_eq!(read(text).host.release, None, "{text}");
        }
        let line = "[    0.000000] Command line: BOOT_IMAGE=/vmlinuz root=/dev/sda2 intel_iommu=on iommu=pt";
        assert_eq!(read(line).host.iommu, Some(Iommu::PassThrough));
    }

    #[test]
    fn line_after_a_broken_message_is_read_by_itself() {
        let broken = "nvme 0000:02:00.0: cannot be used for peer-to-peer DMA as the client and provider (0000:01:00.0) do not\n";
        let machine = read(&format!("{broken}Vendor ID: GenuineIntel\n"));
        assert_eq!(machine.refusals().count(), 1);
        assert_eq!(machine.host.cpu, Some(crate::names::INTEL_CPU));
    }

    #[test]
    fn broken_message_is_put_together() {
        let text = "\
> >     [72.8] amdgpu 0000:67:00.0: cannot be used for peer-to-peer DMA
> >     as the client and provider (0000:19:00.0) do not share an upstream
> >     bridge or whitelisted host bridge
";
        let machine = read(text);
        let line = "0000:67:00.0: cannot be used for peer-to-peer DMA as the client and provider (0000:19:00.0) do not share an upstream bridge or whitelisted host bridge";
        let refusals: Vec<String> = machine.refusals().map(ToString::to_string).collect();
        assert_eq!(refusals, [line]);
        assert_eq!(machine.functions.len(), 2);
        assert_eq!(
            read("nvme 0000:02:00.0: cannot be used for peer-to-peer DMA\n\n")
                .functions
                .len(),
            0
        );
    }

    #[test]
    fn kernel_messages_are_statements_about_a_pair() {
        let text = "\
[ 11.2] nvme 0000:02:00.0: cannot be used for peer-to-peer DMA as the client and provider (0000:01:00.0) do not share an upstream bridge or whitelisted host bridge
[ 11.2] nvme 0000:02:00.0: ACS redirect is set between the client and provider (0000:01:00.0)
[ 11.2] nvme 0000:02:00.0: to disable ACS redirect for this path, add the kernel parameter: pci=disable_acs_redir=0000:00:01.0;0000:00:02.0
[ 11.3] pci 0000:00:00.0: Host bridge not in P2PDMA whitelist: 8086:29c0
[ 12.0] DMAR: [DMA Read NO_PASID] Request device [02:00.0] fault addr 0x38000000 [fault reason 0x06]
[ 12.1] AMD-Vi: Event logged [IO_PAGE_FAULT device=02:00.0 domain=0x0010 address=0x0 flags=0x0020]
[ 12.2] nvme 0000:02:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0010 address=0x1000 flags=0x0020]
";
        let machine = read(text);
        let client: Address = "02:00.0".parse().unwrap();
        let of_client = |statement: &&Statement| match statement {
            Statement::Refused { client: at, .. }
            | Statement::Redirected { client: at, .. }
            | Statement::IommuFault { client: at, .. } => *at == client,
            Statement::NotListed { id } => id.device == 0x29c0,
        };
        assert_eq!(machine.statements.iter().filter(of_client).count(), 6);
        let address = Some(0x3800_0000);
        assert!(
            machine
                .statements
                .contains(&Statement::IommuFault { client, address })
        );
        let ports: Vec<String> = machine.functions.keys().map(Address::to_string).collect();
        let shown = [
            "0000:00:01.0",
            "0000:00:02.0",
            "0000:01:00.0",
            "0000:02:00.0",
        ];
        assert_eq!(ports, shown);
        assert_eq!(read(&text.repeat(2)).statements, machine.statements);
    }
}
