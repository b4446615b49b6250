//! A text that somebody pasted: a machine is read from it, or none is found, and every pair that it
//! shows has a verdict.

use peerbar_p2p::{Address, Machine};

/// The most functions whose pairs are judged.
const MOST: usize = 4;

/// Reads `data`.
pub fn run(data: &[u8]) {
    let Ok(machine) = Machine::read(&String::from_utf8_lossy(data)) else {
        return;
    };
    assert!(!machine.functions.is_empty() || data.trim_ascii_start().starts_with(b"{"));
    let some: Vec<Address> = machine.functions.keys().take(MOST).copied().collect();
    for client in &some {
        for provider in &some {
            let pair = machine.pair(*client, *provider);
            assert!(
                pair.kernel.is_none() || pair.wire.is_some(),
                "{client} {provider}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::{Seed, corpus};

    const LSPCI: &str = "\
00:00.0 Host bridge [0600]: Intel Corporation Device [8086:09a2]
00:01.0 PCI bridge [0604]: Intel Corporation Device [8086:347a]
\tBus: primary=00, secondary=01, subordinate=01, sec-latency=0
\tCapabilities: [40] Express (v2) Root Port (Slot-), MSI 00
\tCapabilities: [110 v1] Access Control Services
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
\tKernel driver in use: pcieport

> 01:00.0 3D controller: NVIDIA Corporation Device 2330 (rev a1)
> \tRegion 1: Memory at 380000000000 (64-bit, prefetchable) [size=64G]
";

    const TREE: &str = "\
-+-[0000:40]---00.0-[41-43]----00.0-[42-43]--+-00.0-[42]----00.0  NVIDIA Corporation H100
 |                                           \\-01.0-[43]----00.0  Samsung NVMe SSD
 \\-[0000:00]-+-00.0  Intel Corporation Device 09a2
             \\-01.0-[01]----00.0  Mellanox Technologies MT2910 Family [ConnectX-7]
";

    const DUMP: &str = "\
01:00.0 Class 0604: 10b5:8747
00: b5 10 47 87 06 04 10 00 ca 00 04 06 00 00 01 00
10: 00 00 00 00 00 00 00 00 01 02 03 00 00 00 00 00
";

    const LOG: &str = "\
[ 0.51] pci_bus 0000:00: root bus resource [bus 00-3f]
[ 0.52] pci 0000:00:01.0: [8086:2030] type 01 class 0x060400 PCIe Root Port
[ 0.53] pci 0000:01:00.0: [10de:2330] type 00 class 0x030200
[ 0.53] pci 0000:01:00.0: reg 0x14: [mem 0x380000000000-0x381fffffffff 64bit pref]
[ 0.54] pci 0000:00:01.0: PCI bridge to [bus 01]
[ 0.60] pci 0000:01:00.0: Adding to iommu group 15
[11.20] nvme 0000:02:00.0: cannot be used for peer-to-peer DMA as the client and provider (0000:01:00.0) do not share
";

    const TOPO: &str = "\
GPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV18\tPIX\t0-55\t0
GPU1\tNV18\t X \tSYS\t56-111\t1
NIC0\tPIX\tSYS\t X \n  NIC0: mlx5_0
";

    #[test]
    fn every_seed_shows_a_machine() {
        for (name, text) in [
            ("lspci", LSPCI),
            ("tree", TREE),
            ("dump", DUMP),
            ("log", LOG),
            ("topo", TOPO),
        ] {
            Seed::default()
                .bytes(text.as_bytes())
                .in_corpus("machine_text", name);
        }
        for (name, seed) in corpus("machine_text") {
            let text = String::from_utf8_lossy(&seed);
            assert!(Machine::read(&text).is_ok(), "{name}");
        }
    }
}
