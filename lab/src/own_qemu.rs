//! The configuration of a user's virtual machine for the devices of a scenario: QEMU's arguments,
//! or a domain of libvirt. Pure, as [`crate::qemu`].

use std::path::PathBuf;

use anyhow::Context;
use quick_xml::Writer;
use quick_xml::events::BytesText;
use serde_json::json;

use crate::iommu::Iommu;
use crate::qemu::{Numbering, QemuArguments, Sockets, functions};
use crate::scenario::Machine;
use crate::topology::{ROOT_BUS, Topology};

/// The chassis and slot of each port must be unique, and the ports of the user's machine, or of
/// libvirt, count from 1.
const CHASSIS: u32 = 100;
/// Namespace of the elements that libvirt passes to QEMU as they are (libvirt, "Domain XML: QEMU
/// namespace").
const NAMESPACE: &str = "http://libvirt.org/schemas/domain/qemu/1.0";

/// The program that starts a domain of libvirt.
pub struct Emulator {
    /// The program.
    pub path: PathBuf,
    /// Set if KVM runs its guests.
    pub kvm: bool,
}

impl Emulator {
    /// libvirt's name for the kind of a domain.
    fn domain_type(&self) -> &'static str {
        if self.kvm { "kvm" } else { "qemu" }
    }

    /// Returns the number of processors for a guest that wants `cpus`. Without KVM, QEMU under
    /// libvirt gives each one a thread, and then a guest may be lost during its boot
    /// ([`crate::accel::Accel::Tcg`]).
    fn processors(&self, cpus: u32) -> u32 {
        if self.kvm { cpus } else { 1 }
    }
}

/// Returns the device numbers of the root bus, starting with those that libvirt assigns last or
/// never. It counts from 1, and reserves 0x1a, 0x1b, 0x1d, 0x1e and 0x1f for its devices (libvirt,
/// src/qemu/qemu_domain_address.c, `qemuDomainValidateDevicePCISlotsQ35`).
fn device_numbers() -> impl Iterator<Item = u8> {
    let rarely_used = (0x10..=0x19).chain([0x1c]);
    let counted = (0x01..=0x0f).rev();
    rarely_used.chain(counted).chain([0x1e, 0x1a, 0x1b, 0x1d])
}

/// The scenario's machine as far as the devices need it.
pub struct OwnQemu<'a> {
    /// Processor, memory and IOMMU.
    pub machine: &'a Machine,
    /// The topology of the devices.
    pub topology: &'a Topology<'a>,
    /// The sockets of the servers.
    pub sockets: &'a Sockets,
}

impl OwnQemu<'_> {
    /// Returns the arguments of a machine with the devices. It lacks a boot medium, disks, and a
    /// display.
    pub fn arguments(&self) -> Vec<String> {
        let machine = self.machine;
        let mut words = QemuArguments::default();
        words.option(
            "-M",
            format!("q35,memory-backend=ram{}", machine.iommu.machine()),
        );
        words.option("-cpu", &machine.cpu);
        words.option("-smp", machine.cpus.to_string());
        words.option("-m", format!("{}B", machine.memory));
        // The devices map guest RAM, so it must be a file that can be shared.
        let memory = format!(
            "memory-backend-memfd,id=ram,size={},share=on",
            machine.memory
        );
        words.option("-object", memory);
        words.0.extend(self.devices());
        words.0
    }

    /// Returns the arguments for the devices alone: the IOMMU, ports, and the devices below them.
    fn devices(&self) -> Vec<String> {
        let mut words = QemuArguments::default();
        if let Some(iommu) = self.iommu() {
            words.option("-device", iommu);
        }
        let numbering = Numbering {
            chassis: CHASSIS,
            devices: device_numbers().collect(),
        };
        words
            .0
            .extend(functions(self.topology, self.sockets, numbering));
        words.0
    }

    /// The IOMMU. One that is a PCI device takes a number that is left: QEMU makes devices in JSON
    /// after all others, as those of libvirt.
    fn iommu(&self) -> Option<String> {
        match self.machine.iommu {
            Iommu::Amd => Some(json!({"driver": "amd-iommu", "dma-remap": true}).to_string()),
            Iommu::Virtio => {
                Some(json!({"driver": "virtio-iommu-pci", "bus": ROOT_BUS}).to_string())
            }
            other => other.device(self.machine.ats).map(str::to_owned),
        }
    }

    /// Parameters that the guest's kernel needs for the scenario.
    pub fn kernel_parameters(&self) -> String {
        let of_iommu = self.machine.iommu.kernel_parameters();
        let words = [of_iommu, &self.machine.kernel_parameters];
        let words = words.into_iter().filter(|words| !words.is_empty());
        words.collect::<Vec<_>>().join(" ")
    }

    /// Returns a domain `name` for libvirt with the devices and a serial console, which `emulator`
    /// starts. It lacks a boot medium, disks, and a display.
    ///
    /// # Errors
    /// None that depends on the scenario.
    pub fn domain(&self, name: &str, emulator: &Emulator) -> anyhow::Result<String> {
        let mut xml = Writer::new_with_indent(Vec::new(), b' ', 2);
        let domain = xml.create_element("domain");
        let kind = emulator.domain_type();
        let domain = domain.with_attributes([("type", kind), ("xmlns:qemu", NAMESPACE)]);
        domain
            .write_inner_content(|xml| self.write_domain(xml, name, emulator))
            .context("cannot write XML")?;
        let text = String::from_utf8(xml.into_inner()).context("cannot write XML")?;
        Ok(text + "\n")
    }

    fn write_domain(
        &self,
        xml: &mut Writer<Vec<u8>>,
        name: &str,
        emulator: &Emulator,
    ) -> std::io::Result<()> {
        let machine = self.machine;
        let text = |xml: &mut Writer<Vec<u8>>, element: &str, text: &str| {
            let written = xml
                .create_element(element)
                .write_text_content(BytesText::new(text));
            written.map(drop)
        };
        text(xml, "name", name)?;
        xml.create_element("memory")
            .with_attribute(("unit", "b"))
            .write_text_content(BytesText::new(&machine.memory.to_string()))?;
        xml.create_element("memoryBacking")
            .write_inner_content(|xml| {
                xml.create_element("source")
                    .with_attribute(("type", "memfd"))
                    .write_empty()?;
                xml.create_element("access")
                    .with_attribute(("mode", "shared"))
                    .write_empty()?;
                Ok(())
            })?;
        let processors = emulator.processors(machine.cpus);
        text(xml, "vcpu", &processors.to_string())?;
        xml.create_element("os").write_inner_content(|xml| {
            let kind = xml.create_element("type");
            let kind = kind.with_attributes([("arch", "x86_64"), ("machine", "q35")]);
            kind.write_text_content(BytesText::new("hvm")).map(drop)
        })?;
        xml.create_element("features").write_inner_content(|xml| {
            xml.create_element("acpi").write_empty()?;
            // QEMU's `kernel-irqchip=split`.
            if !machine.iommu.machine().is_empty() {
                xml.create_element("ioapic")
                    .with_attribute(("driver", "qemu"))
                    .write_empty()?;
            }
            Ok(())
        })?;
        xml.create_element("devices").write_inner_content(|xml| {
            text(xml, "emulator", &emulator.path.display().to_string())?;
            let serial = xml.create_element("serial").with_attribute(("type", "pty"));
            serial.write_empty().map(drop)
        })?;
        self.write_command_line(xml)
    }

    /// Writes the parts for which libvirt has no elements. Of two `-cpu`, QEMU takes the second.
    fn write_command_line(&self, xml: &mut Writer<Vec<u8>>) -> std::io::Result<()> {
        let cpu = ["-cpu".to_owned(), self.machine.cpu.clone()];
        let words = cpu.into_iter().chain(self.devices());
        xml.create_element("qemu:commandline")
            .write_inner_content(|xml| {
                for word in words {
                    let argument = xml.create_element("qemu:arg");
                    argument
                        .with_attribute(("value", word.as_str()))
                        .write_empty()?;
                }
                Ok(())
            })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::scenario::{AttachPoint, Scenario};

    /// Returns the demo with one disk and an IOMMU.
    fn scenario() -> Scenario {
        let mut scenario = Scenario::demo().unwrap();
        scenario.nvmes.truncate(1);
        scenario.gpus.clear();
        scenario.machine.kernel_parameters = "iomem=relaxed".to_owned();
        scenario.machine.iommu = Iommu::Intel;
        scenario
    }

    fn emulator(kvm: bool) -> Emulator {
        Emulator {
            path: "/q & co".into(),
            kvm,
        }
    }

    fn rendered<T>(scenario: &Scenario, render: impl Fn(&OwnQemu<'_>) -> T) -> T {
        render(&OwnQemu {
            machine: &scenario.machine,
            topology: &Topology::of(scenario),
            sockets: &Sockets::in_folder(Path::new("/s")),
        })
    }

    #[test]
    fn arguments_have_memory_iommu_ports_and_devices() {
        let expected = r#"-M
q35,memory-backend=ram,kernel-irqchip=split
-cpu
EPYC
-smp
2
-m
536870912B
-object
memory-backend-memfd,id=ram,size=536870912,share=on
-device
intel-iommu,caching-mode=on,intremap=off
-device
pcie-root-port,id=root.switch0,bus=pcie.0,addr=0x10,chassis=101,slot=101
-device
x3130-upstream,id=switch0,bus=root.switch0
-device
xio3130-downstream,id=switch0.disk0,bus=switch0,chassis=102,slot=102
-device
{"bus":"switch0.disk0","driver":"vfio-user-pci","id":"disk0","socket":{"path":"/s/nvme-disk0.sock","type":"unix"},"x-msg-timeout":600000}"#;
        let arguments = rendered(&scenario(), |qemu| qemu.arguments().join("\n"));
        assert_eq!(arguments, expected);
        let parameters = rendered(&scenario(), |qemu| qemu.kernel_parameters());
        assert_eq!(parameters, "intel_iommu=on iommu=nopt iomem=relaxed");
    }

    #[test]
    fn domain_has_shared_memory_and_escaped_arguments() {
        let expected = r#"<domain type="kvm" xmlns:qemu="http://libvirt.org/schemas/domain/qemu/1.0">
  <name>demo</name>
  <memory unit="b">536870912</memory>
  <memoryBacking>
    <source type="memfd"/>
    <access mode="shared"/>
  </memoryBacking>
  <vcpu>2</vcpu>
  <os>
    <type arch="x86_64" machine="q35">hvm</type>
  </os>
  <features>
    <acpi/>
    <ioapic driver="qemu"/>
  </features>
  <devices>
    <emulator>/q &amp; co</emulator>
    <serial type="pty"/>
  </devices>
  <qemu:commandline>
    <qemu:arg value="-cpu"/>
    <qemu:arg value="EPYC"/>
    <qemu:arg value="-device"/>
    <qemu:arg value="intel-iommu,caching-mode=on,intremap=off"/>
    <qemu:arg value="-device"/>
    <qemu:arg value="pcie-root-port,id=root.switch0,bus=pcie.0,addr=0x10,chassis=101,slot=101"/>
    <qemu:arg value="-device"/>
    <qemu:arg value="x3130-upstream,id=switch0,bus=root.switch0"/>
    <qemu:arg value="-device"/>
    <qemu:arg value="xio3130-downstream,id=switch0.disk0,bus=switch0,chassis=102,slot=102"/>
    <qemu:arg value="-device"/>
    <qemu:arg value="{&quot;bus&quot;:&quot;switch0.disk0&quot;,&quot;driver&quot;:&quot;vfio-user-pci&quot;,&quot;id&quot;:&quot;disk0&quot;,&quot;socket&quot;:{&quot;path&quot;:&quot;/s/nvme-disk0.sock&quot;,&quot;type&quot;:&quot;unix&quot;},&quot;x-msg-timeout&quot;:600000}"/>
  </qemu:commandline>
</domain>
"#;
        let domain = |scenario: &Scenario, kvm| {
            rendered(scenario, |qemu| {
                qemu.domain("demo", &emulator(kvm)).unwrap()
            })
        };
        assert_eq!(domain(&scenario(), true), expected);
        let mut plain = scenario();
        plain.machine.iommu = Iommu::None;
        let emulated = domain(&plain, false);
        let is_emulated = emulated.starts_with("<domain type=\"qemu\"");
        assert!(
            is_emulated && emulated.contains("<vcpu>1</vcpu>"),
            "{emulated}"
        );
        assert!(
            !emulated.contains("ioapic") && !emulated.contains("iommu"),
            "{emulated}"
        );
    }

    #[test]
    fn iommu_that_is_a_pci_device_comes_after_libvirts_devices() {
        for (iommu, expected) in [
            (Iommu::Amd, r#"{"dma-remap":true,"driver":"amd-iommu"}"#),
            (
                Iommu::Virtio,
                r#"{"bus":"pcie.0","driver":"virtio-iommu-pci"}"#,
            ),
        ] {
            let mut scenario = scenario();
            scenario.machine.iommu = iommu;
            let arguments = rendered(&scenario, |qemu| qemu.arguments());
            assert!(arguments.contains(&expected.to_owned()), "{arguments:?}");
        }
    }

    #[test]
    fn devices_of_the_root_bus_have_numbers_of_their_own() {
        let numbers: Vec<u8> = device_numbers().collect();
        let distinct: std::collections::BTreeSet<u8> = numbers.iter().copied().collect();
        assert_eq!((numbers.len(), distinct.len()), (30, 30));
        let mut scenario = scenario();
        scenario.host_bridges = vec!["b0".to_owned()];
        scenario.nvmes[0].attach = AttachPoint::HostBridge("b0".to_owned());
        let arguments = rendered(&scenario, |qemu| qemu.arguments());
        for expected in [
            "pxb-pcie,id=b0,bus=pcie.0,addr=0x10,bus_nr=128",
            "pcie-root-port,id=root.switch0,bus=pcie.0,addr=0x11,chassis=101,slot=101",
            "pcie-root-port,id=root.disk0,bus=b0,chassis=102,slot=102",
        ] {
            assert!(arguments.contains(&expected.to_owned()), "{arguments:?}");
        }
    }
}
