//! The address of a PCI function as numbers.

use std::path::Path;

use anyhow::bail;

/// The address of a function, as kernel drivers expect it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciFunction {
    /// The domain, or segment.
    pub domain: u32,
    /// The bus in the domain.
    pub bus: u32,
    /// Device and function on the bus, as in a requester ID.
    pub devfn: u32,
}

impl PciFunction {
    /// Returns the function with this directory in sysfs, `.../0000:03:00.0`.
    pub fn of(pci: &Path) -> anyhow::Result<Self> {
        let address = pci.file_name().unwrap_or_default().to_string_lossy();
        let number = |text: &str| u32::from_str_radix(text, 16);
        let parts: Vec<&str> = address.split([':', '.']).collect();
        match parts.as_slice() {
            [domain, bus, device, function] => Ok(PciFunction {
                domain: number(domain)?,
                bus: number(bus)?,
                devfn: number(device)? << 3 | number(function)?,
            }),
            _ => bail!("invalid address of a PCI function: {address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_taken_apart() {
        let of = |path| {
            let function = PciFunction::of(Path::new(path)).unwrap();
            (function.domain, function.bus, function.devfn)
        };
        assert_eq!(of("/sys/bus/pci/devices/0000:03:00.0"), (0, 3, 0));
        assert_eq!(of("0001:ff:1f.7"), (1, 255, 255));
        assert!(PciFunction::of(Path::new("03:00.0")).is_err());
    }
}
