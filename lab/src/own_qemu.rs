//! What a virtual machine of the user's own needs for the devices of a scenario: QEMU's arguments, or a domain of libvirt. Pure,
//! as [`crate::qemu`].

use anyhow::Context;
use quick_xml::Writer;
use quick_xml::events::BytesText;

use crate::qemu::{QemuArguments, Sockets, functions};
use crate::scenario::Machine;
use crate::topology::Topology;

/// Chassis and slot of each port must be its own, and the user's machine, or libvirt, has ports that count from 1.
const CHASSIS: u32 = 100;
/// Namespace of the elements that libvirt passes to QEMU as they are (libvirt, "Domain XML: QEMU namespace").
const NAMESPACE: &str = "http://libvirt.org/schemas/domain/qemu/1.0";

/// The scenario's machine as far as the devices need it.
pub struct OwnQemu<'a> {
    /// Processor, memory and IOMMU.
    pub machine: &'a Machine,
    /// What is plugged into what.
    pub topology: &'a Topology<'a>,
    /// Where the servers listen.
    pub sockets: &'a Sockets,
}

impl OwnQemu<'_> {
    /// The arguments of a machine with the devices. It lacks what it boots, disks, and a display.
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

    /// The arguments for the devices alone: the IOMMU, ports, and the devices below them.
    fn devices(&self) -> Vec<String> {
        let mut words = QemuArguments::default();
        if let Some(iommu) = self.machine.iommu.device(self.machine.ats) {
            words.option("-device", iommu);
        }
        words
            .0
            .extend(functions(self.topology, self.sockets, CHASSIS));
        words.0
    }

    /// Parameters that the guest's kernel needs for the scenario.
    pub fn kernel_parameters(&self) -> String {
        let of_iommu = self.machine.iommu.kernel_parameters();
        let words = [of_iommu, &self.machine.kernel_parameters];
        let words = words.into_iter().filter(|words| !words.is_empty());
        words.collect::<Vec<_>>().join(" ")
    }

    /// A domain `name` of `kind` (`kvm` or `qemu`) for libvirt with the devices. It lacks what it boots, disks, and a display.
    ///
    /// # Errors
    /// None that depends on the scenario.
    pub fn domain(&self, name: &str, kind: &str) -> anyhow::Result<String> {
        let mut xml = Writer::new_with_indent(Vec::new(), b' ', 2);
        let domain = xml.create_element("domain");
        let domain = domain.with_attributes([("type", kind), ("xmlns:qemu", NAMESPACE)]);
        domain
            .write_inner_content(|xml| self.write_domain(xml, name))
            .context("cannot write XML")?;
        let text = String::from_utf8(xml.into_inner()).context("cannot write XML")?;
        Ok(text + "\n")
    }

    fn write_domain(&self, xml: &mut Writer<Vec<u8>>, name: &str) -> std::io::Result<()> {
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
        text(xml, "vcpu", &machine.cpus.to_string())?;
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
        self.write_command_line(xml)
    }

    /// What libvirt has no elements for. Of two `-cpu`, QEMU takes the second.
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
    use crate::iommu::Iommu;
    use crate::scenario::Scenario;

    /// The demo with one disk and an IOMMU.
    fn scenario() -> Scenario {
        let mut scenario = Scenario::demo().unwrap();
        scenario.nvmes.truncate(1);
        scenario.gpus.clear();
        scenario.machine.kernel_parameters = "iomem=relaxed".to_owned();
        scenario.machine.iommu = Iommu::Intel;
        scenario
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
pcie-root-port,id=root.switch0,bus=pcie.0,chassis=101,slot=101
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
  <qemu:commandline>
    <qemu:arg value="-cpu"/>
    <qemu:arg value="EPYC"/>
    <qemu:arg value="-device"/>
    <qemu:arg value="intel-iommu,caching-mode=on,intremap=off"/>
    <qemu:arg value="-device"/>
    <qemu:arg value="pcie-root-port,id=root.switch0,bus=pcie.0,chassis=101,slot=101"/>
    <qemu:arg value="-device"/>
    <qemu:arg value="x3130-upstream,id=switch0,bus=root.switch0"/>
    <qemu:arg value="-device"/>
    <qemu:arg value="xio3130-downstream,id=switch0.disk0,bus=switch0,chassis=102,slot=102"/>
    <qemu:arg value="-device"/>
    <qemu:arg value="{&quot;bus&quot;:&quot;switch0.disk0&quot;,&quot;driver&quot;:&quot;vfio-user-pci&quot;,&quot;id&quot;:&quot;disk0&quot;,&quot;socket&quot;:{&quot;path&quot;:&quot;/s/nvme-disk0.sock&quot;,&quot;type&quot;:&quot;unix&quot;},&quot;x-msg-timeout&quot;:600000}"/>
  </qemu:commandline>
</domain>
"#;
        let domain = rendered(&scenario(), |qemu| qemu.domain("demo", "kvm").unwrap());
        assert_eq!(domain, expected);
        let mut plain = scenario();
        plain.machine.iommu = Iommu::None;
        let domain = rendered(&plain, |qemu| qemu.domain("demo", "qemu").unwrap());
        assert!(
            !domain.contains("ioapic") && !domain.contains("iommu"),
            "{domain}"
        );
    }
}
