//! Reads the output of `rdma_topo dump`, a tool of rdma-core: a JSON list with the path in sysfs,
//! the configuration space and the names of each PCI function.
//!
//! The dump leaves out host bridges and other functions in which its tool has no interest. Serial
//! numbers, which it contains, are not read.

use std::collections::BTreeMap;
use std::path::Path;

use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;
use serde::Deserialize;

use crate::address::Address;
use crate::config_space;
use crate::decode::clean;
use crate::machine::{Function, Machine};
use crate::names;
use crate::sysfs;

/// Size of a configuration space with extended capabilities.
const CONFIG_SPACE: usize = 4096;

/// A PCI function.
#[derive(Deserialize)]
struct Device {
    /// Its path, `/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0`.
    realpath: String,
    /// Its configuration space, compressed by zlib, in base64.
    config: String,
    iommu_group: Option<u32>,
    numa_node: Option<i32>,
    /// The names of its devices by subsystem: `drm`, `infiniband`, `net`, `nvme`.
    subsystems: Option<BTreeMap<String, Vec<String>>>,
}

/// Reads the dump `text` into `machine`.
///
/// # Errors
///
/// The text is not such a dump.
pub(crate) fn read(text: &str, machine: &mut Machine) -> serde_json::Result<()> {
    machine.is_selection = true;
    for device in serde_json::from_str::<Vec<Device>>(text)? {
        let path = Path::new(&device.realpath);
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(address) = name.and_then(|name| name.parse().ok()) else {
            continue;
        };
        let function = function(machine, address, path, &device);
        machine.functions.insert(address, function);
    }
    machine.infer_port_types();
    machine.describe_by_id();
    Ok(())
}

fn function(machine: &mut Machine, address: Address, path: &Path, device: &Device) -> Function {
    let all_names = device
        .subsystems
        .iter()
        .flat_map(BTreeMap::values)
        .flatten();
    let plain = all_names.filter(|name| names::is_plain(name));
    let mut function = Function {
        place: sysfs::place(path),
        iommu_group: device.iommu_group,
        numa_node: device.numa_node.and_then(|node| node.try_into().ok()),
        names: plain.map(|name| clean(name)).collect(),
        ..Function::default()
    };
    let config = base64(&device.config)
        .and_then(|bytes| decompress_to_vec_zlib_with_limit(&bytes, CONFIG_SPACE).ok());
    match config {
        Some(bytes) => config_space::read(&bytes, &mut function),
        None => machine.gaps.push(format!(
            "the configuration space of {address}, which is damaged"
        )),
    }
    function
}

/// Decodes base64 (RFC 4648, section 4).
fn base64(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte.wrapping_sub(b'A')),
        b'a'..=b'z' => Some(byte.wrapping_sub(b'a').wrapping_add(26)),
        b'0'..=b'9' => Some(byte.wrapping_sub(b'0').wrapping_add(52)),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let digits: Option<Vec<u8>> = text.trim_end_matches('=').bytes().map(digit).collect();
    let bytes = |group: &[u8]| {
        let bits = (0..4).fold(0_u32, |bits, at| {
            bits << 6 | u32::from(group.get(at).copied().unwrap_or_default())
        });
        let [_, bytes @ ..] = bits.to_be_bytes();
        bytes.into_iter().take(group.len().saturating_sub(1))
    };
    Some(digits?.chunks(4).flat_map(bytes).collect())
}

#[cfg(test)]
mod tests {
    use miniz_oxide::deflate::compress_to_vec_zlib;
    use peerbar_rule::AcsControl;

    use super::*;
    use crate::machine::{Acs, Kind, Place};
    use crate::pair::Pair;
    use peerbar_rule::Way;

    fn in_base64(bytes: &[u8]) -> String {
        const DIGITS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let encode = |group: &[u8]| -> String {
            let bits = (0..3).fold(0, |bits, at| {
                bits << 8 | usize::from(group.get(at).copied().unwrap_or_default())
            });
            let digit = |at: usize| char::from(DIGITS[bits >> (18 - 6 * at) & 63]);
            (0..4)
                .map(|at| if at <= group.len() { digit(at) } else { '=' })
                .collect()
        };
        bytes.chunks(3).map(encode).collect()
    }

    /// A configuration space with PCI Express of type `kind`, and ACS if `acs` is given.
    fn config(id: (u16, u16), class: u16, kind: u8, acs: Option<u16>) -> String {
        let mut bytes = vec![0; CONFIG_SPACE];
        bytes[..2].copy_from_slice(&id.0.to_le_bytes());
        bytes[2..4].copy_from_slice(&id.1.to_le_bytes());
        bytes[6] = 0x10;
        bytes[0x0a..0x0c].copy_from_slice(&class.to_le_bytes());
        bytes[0x34] = 0x40;
        bytes[0x40..0x44].copy_from_slice(&[0x10, 0, kind << 4 | 2, 0]);
        if let Some(acs) = acs {
            bytes[0x100..0x104].copy_from_slice(&[0x0d, 0, 1, 0]);
            bytes[0x106..0x108].copy_from_slice(&acs.to_le_bytes());
        } else {
            bytes[0x100..0x104].copy_from_slice(&[0x01, 0, 1, 0]);
        }
        in_base64(&compress_to_vec_zlib(&bytes, 6))
    }

    const ROOT: &str = "/sys/devices/pci0009:00/0009:00:00.0";
    const ADAPTER: &str = "0009:03:00.0";
    const GPU: &str = "0009:06:00.0";

    /// The tree that `rdma_topo` calls an inline complex, and with the adapter's DMA function in
    /// place of the adapter a DMA complex: an adapter below a switch, and a GPU below a second
    /// switch that is below the first. The ACS registers are those of the root port, of the
    /// adapter's port, of the second switch's port in the first, and of the GPU's port.
    fn dump([root, adapter, second, gpu]: [u16; 4]) -> String {
        let (usp, cx, nv) = ((0x15b3, 0x1979), (0x15b3, 0x1023), (0x10de, 0x2941));
        let first = format!("{ROOT}/0009:01:00.0");
        let below = format!("{first}/0009:02:01.0/0009:04:00.0");
        let devices = [
            (
                ROOT.to_owned(),
                config((0x10de, 0x22b1), 0x0604, 4, Some(root)),
            ),
            (first.clone(), config(usp, 0x0604, 5, None)),
            (
                format!("{first}/0009:02:00.0"),
                config(usp, 0x0604, 6, Some(adapter)),
            ),
            (
                format!("{first}/0009:02:00.0/{ADAPTER}"),
                config(cx, 0x0207, 0, None),
            ),
            (
                format!("{first}/0009:02:01.0"),
                config(usp, 0x0604, 6, Some(second)),
            ),
            (below.clone(), config(usp, 0x0604, 5, None)),
            (
                format!("{below}/0009:05:00.0"),
                config(usp, 0x0604, 6, Some(gpu)),
            ),
            (
                format!("{below}/0009:05:00.0/{GPU}"),
                config(nv, 0x0302, 0, None),
            ),
        ];
        let device = |(path, config): (String, String)| {
            serde_json::json!({
                "realpath": path, "config": config, "modalias": "pci:", "numa_node": -1,
                "iommu_group": 3, "vpd": "c2VyaWFs",
                "subsystems": {"infiniband": ["mlx5_0"], "net": ["enx001122334455"]},
            })
        };
        let devices: Vec<_> = devices.into_iter().map(device).collect();
        serde_json::to_string_pretty(&devices).unwrap()
    }

    fn pair(acs: [u16; 4]) -> Pair {
        let machine = Machine::read(&dump(acs)).unwrap();
        machine.pair(ADAPTER.parse().unwrap(), GPU.parse().unwrap())
    }

    #[test]
    fn dump_is_read_without_serial_numbers() {
        let machine = Machine::read(&dump([0x1d; 4])).unwrap();
        let adapter = machine.function(ADAPTER.parse().unwrap()).unwrap();
        assert_eq!((adapter.kind(), adapter.iommu_group), (Kind::Nic, Some(3)));
        assert_eq!(
            (adapter.names.as_slice(), adapter.numa_node),
            (["mlx5_0".to_owned()].as_slice(), None)
        );
        assert_eq!(adapter.place, Place::Below("0009:02:00.0".parse().unwrap()));
        let port = machine.function("0009:02:00.0".parse().unwrap()).unwrap();
        assert_eq!(port.acs, Acs::Control(AcsControl(0x1d)));
        assert!(
            !serde_json::to_string(&machine)
                .unwrap()
                .contains("c2VyaWFs")
        );
    }

    #[test]
    fn other_lists_and_damaged_dumps_are_reported() {
        let error = Machine::read("[{\"rdma_nic_pf_bdf\": \"0000:01:00.0\"}]").unwrap_err();
        assert!(error.to_string().contains("`rdma_topo dump`"), "{error}");
        let error = Machine::read(" [ ]").unwrap_err().to_string();
        assert!(
            error.starts_with("rdma_topo's dump shows no PCI device"),
            "{error}"
        );
        let bomb = in_base64(&compress_to_vec_zlib(&vec![0; 1 << 20], 9));
        let text = format!("[{{\"realpath\": \"{ROOT}\", \"config\": \"{bomb}\"}}]");
        let machine = Machine::read(&text).unwrap();
        assert!(machine.gaps[0].contains("configuration space of 0009:00:00.0"));
        // The kernel's log begins with a bracket, too.
        assert!(
            Machine::read("[    0.0] Linux version 6.1")
                .unwrap_err()
                .to_string()
                .contains("lspci")
        );
    }

    #[test]
    fn base64_is_decoded() {
        for bytes in [&b""[..], b"f", b"fo", b"foo", b"\xff\xfe\xfd\xfc"] {
            assert_eq!(base64(&in_base64(bytes)).as_deref(), Some(bytes));
        }
        assert_eq!(base64("Zm9v!"), None);
    }

    /// The values that rdma_topo wants for an inline complex without virtual machines: `xx000x0`.
    #[test]
    fn inline_complex_without_isolation_is_direct_for_both() {
        let pair = pair([0; 4]);
        assert_eq!(pair.kernel.unwrap().way, Way::BusAddress);
        assert!(pair.wire.unwrap().is_direct());
    }

    /// The values that rdma_topo wants for an inline complex with virtual machines: `1x111x1` at
    /// the adapter, the kernel's default elsewhere. Translated requests go directly, others do not.
    #[test]
    fn inline_complex_with_isolation_is_direct_for_translated_requests_only() {
        let pair = pair([0x1d, 0x5d, 0x1d, 0x1d]);
        assert_eq!(pair.kernel.unwrap().way, Way::NotSupported);
        let wire = pair.wire.unwrap();
        assert_eq!(wire.redirected_at, ["0009:02:00.0".parse().unwrap()]);
        assert!(wire.is_direct_if_translated);
    }

    /// The values that rdma_topo wants for a DMA complex: requests are not redirected at the
    /// adapter (`xx110x1`), nor completions at the port towards the GPU (`xx101x1`); the second
    /// switch keeps the kernel's default. The wire is direct, but Linux refuses to see it.
    #[test]
    fn dma_complex_is_direct_on_the_wire_and_refused_by_linux() {
        let pair = pair([0x1c, 0x19, 0x15, 0x1d]);
        assert_eq!(pair.kernel.unwrap().way, Way::NotSupported);
        let wire = pair.wire.unwrap();
        assert!(wire.is_direct());
        assert_eq!(wire.completions_redirected_at, []);
    }

    #[test]
    fn processor_is_known_by_its_root_port() {
        let kernel = pair([0x1d; 4]).kernel.unwrap();
        assert!(kernel.conditions.is_empty(), "Grace is no AMD Zen");
    }

    /// The kernel's default, `xx111x1`, with which rdma_topo's check of a DMA complex fails.
    #[test]
    fn default_of_the_kernel_redirects() {
        let pair = pair([0x1d; 4]);
        assert_eq!(pair.kernel.unwrap().way, Way::NotSupported);
        let wire = pair.wire.unwrap();
        assert_eq!(wire.redirected_at, ["0009:02:00.0".parse().unwrap()]);
        assert_eq!(
            wire.completions_redirected_at,
            ["0009:02:01.0".parse().unwrap()]
        );
        assert!(!wire.is_direct_if_translated);
    }
}
