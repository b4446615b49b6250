//! The PCI ID list of the system, for names in words.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use peerbar_rule::DeviceId;

/// The places at which distributions install the list.
const FILES: [&str; 2] = ["usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids"];

/// Returns the names of `ids` that the list of the system whose `/` is `root` has.
pub(crate) fn names(root: &Path, ids: &BTreeSet<(u16, u16)>) -> BTreeMap<(u16, u16), String> {
    let list = FILES.iter().find_map(|file| fs::read(root.join(file)).ok());
    parse(&String::from_utf8_lossy(&list.unwrap_or_default()), ids)
}

/// Reads lines `VENDOR  NAME`, each followed by its devices' lines `<tab>DEVICE  NAME`.
fn parse(list: &str, ids: &BTreeSet<(u16, u16)>) -> BTreeMap<(u16, u16), String> {
    let mut names = BTreeMap::new();
    let mut vendor = None;
    for line in list.lines() {
        let is_device = line.starts_with('\t');
        let entry = line.strip_prefix('\t').unwrap_or(line).split_once("  ");
        let Some((number, name)) = entry else {
            continue;
        };
        // Subsystems have a second tab, classes a `C`.
        let Ok(number) = u16::from_str_radix(number, 16) else {
            continue;
        };
        match vendor {
            Some((vendor, vendor_name)) if is_device => {
                if ids.contains(&(vendor, number)) {
                    names.insert((vendor, number), format!("{vendor_name} {name}"));
                }
            }
            _ => vendor = Some((number, name)),
        }
    }
    names
}

/// Returns the key of an ID.
pub(crate) fn key(id: DeviceId) -> (u16, u16) {
    (id.vendor, id.device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_is_named_with_its_vendor() {
        let list = "# comment\n10de  NVIDIA Corporation\n\t2330  GH100 [H100 SXM5 80GB]\n\t\t10de 16c1  Board\n144d  Samsung\n\ta80a  PM9A1\nC 01  Class\n\t08  NVM\n";
        let ids = BTreeSet::from([(0x10de, 0x2330), (0x144d, 0x2330), (0x144d, 0xa80a)]);
        let names = parse(list, &ids);
        let names: Vec<&str> = names.values().map(String::as_str).collect();
        assert_eq!(
            names,
            ["NVIDIA Corporation GH100 [H100 SXM5 80GB]", "Samsung PM9A1"]
        );
    }
}
