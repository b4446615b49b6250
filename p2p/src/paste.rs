//! Reads a paste: outputs of `lspci`, the kernel's log and other tools in one text.

use crate::boot_log;
use crate::decode;
use crate::log;
use crate::lspci;
use crate::lspci_tree;
use crate::machine::Machine;
use crate::names;
use crate::topo;

/// Reads `text` into `machine`.
pub(crate) fn read(text: &str, machine: &mut Machine) {
    let text = decode::clean(text);
    let mut outputs = lspci::outputs(&text);
    outputs.extend(lspci_tree::outputs(&text));
    machine.add_outputs(outputs);
    machine.add_earlier(boot_log::output(&text));
    guess_classes(machine);
    machine.attach_by_bus_numbers();
    if machine.functions.is_empty() {
        topo::read(&text, machine);
    }
    machine.infer_port_types();
    machine.describe_by_id();
    machine.spread_numa_nodes();
    log::read(&text, machine);
}

/// Gives the functions that only a tree shows the class that their names suggest.
fn guess_classes(machine: &mut Machine) {
    for function in machine.functions.values_mut() {
        let guess = || names::class_of_device(&function.description);
        function.class = function.class.or_else(guess);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::address::Address;
    use crate::machine::Machine;
    use crate::samples::two_sockets;
    use crate::text;
    use peerbar_rule::Way;

    /// Outputs that people paste in one text.
    fn paste() -> String {
        let lspci = two_sockets("ReqRedir+ CmpltRedir+");
        format!(
            "$ uname -a\nLinux box 6.8.0 #1 SMP x86_64 GNU/Linux\n$ sudo lspci -vvv -nn\n{lspci}$ lspci -tv\n\
             -+-[0000:17]-+-00.0-[18-1b]----00.0-[19-1b]--+-08.0-[1a]----00.0  NVIDIA Corporation GV100GL\n \
             |           |                               \\-09.0-[1b]----00.0  Samsung Electronics Co Ltd NVMe SSD\n \
             \\-[0000:00]---00.0  Intel Corporation Sky Lake-E DMI3 Registers\n\
             $ lspci -xxxx -s 1a:00.0\n1a:00.0 3D controller: NVIDIA Corporation GV100GL\n\
             00: de 10 b6 1d 06 04 10 00 a1 00 02 03 00 00 00 00\n\n\
             [    0.53] pci 0000:1a:00.0: [10de:1db6] type 00 class 0x030200 PCIe Endpoint\n\
             [    0.53] pci 0000:1a:00.0: BAR 1 [mem 0x380000000000-0x3807ffffffff 64bit pref]\n\
             [   11.20] nvme 0000:1b:00.0: cannot be used for peer-to-peer DMA as the client and provider (0000:1a:00.0) do\n\
             not share an upstream bridge or whitelisted host bridge\n"
        )
    }

    /// Reads a text, and judges and prints what it shows.
    fn use_all(text: &str) {
        if let Ok(machine) = Machine::read(text) {
            let (matrix, left_out) = machine.overview(true);
            text::matrix(&machine, &matrix, &left_out, text::WIDTH);
            machine.matrix(true);
            for cell in matrix.pairs.iter().take(3) {
                text::pair(
                    &machine,
                    &machine.pair(cell.client, cell.provider),
                    text::WIDTH,
                );
            }
        }
    }

    #[test]
    fn outputs_of_one_machine_agree() {
        let machine = Machine::read(&paste()).unwrap();
        assert_eq!(machine.gaps, Vec::<String>::new());
        assert_eq!(machine.refusals().count(), 1);
    }

    #[test]
    fn machine_has_nothing_that_names_its_owner() {
        let refused = "nvme 0000:1b:00.0: cannot be used for peer-to-peer DMA as the client and provider (0000:1a:00.0) do not";
        let text = format!(
            "{}Nov 29 12:00:01 secret1.example kernel[0]: {refused} share an upstream bridge or whitelisted host bridge\n\
             <6>1 2026-11-29T12:00:00Z secret2 kernel - - - nvme 0000:1b:00.0: ACS redirect is set between the client and provider (0000:1a:00.0)\n\
             root@secret3:~# echo \"{refused}\n\
             mlx5_core 0000:86:00.0 eth0: MAC aa:bb:cc:dd:ee:ff hostname secret4\n\
             secret5 kernel: [ 1.2] DMAR: [DMA Read NO_PASID] Request device [1b:00.0] fault addr 0xfee00000 [fault reason 0x06]\n\
             BOOT_IMAGE=/vmlinuz-iommu-secret6 intel_iommu=on iommu_key=secret7 iommu.passthrough=1\n\
             Model name: Intel Xeon (owner secret8)\n\
             86:00.1 Infiniband controller [0207]: Mellanox Technologies MT27800 serial=secret9 MAC\n\
             \tKernel driver in use: mlx5_core (secret10)\n",
            two_sockets("ReqRedir+ CmpltRedir+")
        );
        let machine = Machine::read(&text).unwrap();
        let saved = serde_json::to_string(&machine).unwrap();
        assert!(!saved.contains("secret"), "{saved}");
        assert!(!saved.contains("aa:bb"), "{saved}");
        assert_eq!(machine.statements.len(), 3);
        let command_line = "intel_iommu=on iommu.passthrough=1";
        assert_eq!(machine.host.command_line.as_deref(), Some(command_line));
    }

    #[test]
    fn text_that_ends_early_gives_no_other_verdict() {
        let text = two_sockets("ReqRedir+ CmpltRedir+");
        let pair: [Address; 2] = ["1b:00.0", "1a:00.0"].map(|address| address.parse().unwrap());
        let way = |text: &str| -> Option<Way> {
            let machine = Machine::read(text).ok()?;
            let kernel = machine.pair(pair[0], pair[1]).kernel?;
            kernel.conditions.is_empty().then_some(kernel.way)
        };
        let whole = way(&text);
        assert_eq!(whole, Some(Way::ThroughHostBridge));
        let mut known = 0;
        for (start, _) in text.match_indices('\n') {
            for end in [start, start + 1, text.len().min(start + 15)] {
                let found = way(&text[..end]);
                known += u32::from(found.is_some());
                assert!([None, whole].contains(&found), "{}", &text[..end]);
            }
        }
        assert!(known > 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn any_text_is_read(text in "\\PC*") {
            use_all(&text);
        }

        #[test]
        fn any_change_of_a_paste_is_read(
            cuts in proptest::collection::vec((0..4000_usize, 0..200_usize, ".{0,12}"), 1..6),
        ) {
            let mut chars: Vec<char> = paste().chars().collect();
            for (at, length, insert) in cuts {
                let start = at % chars.len().max(1);
                let end = start.saturating_add(length % 40).min(chars.len());
                chars.splice(start..end, insert.chars());
            }
            use_all(&chars.into_iter().collect::<String>());
        }
    }
}
