//! Names of numbers and of bits.

use nix::errno::Errno;
use serde_json::{Value, json};

use super::field::Fields;
use crate::wire::{command, device_info, dma_map, dma_unmap, irq_info, region_info, set_irqs};

/// The commands with their numbers (vfio-user, Commands).
pub const COMMANDS: [(u16, &str); 18] = [
    (command::VERSION, "VERSION"),
    (command::DMA_MAP, "DMA_MAP"),
    (command::DMA_UNMAP, "DMA_UNMAP"),
    (command::DEVICE_GET_INFO, "DEVICE_GET_INFO"),
    (command::DEVICE_GET_REGION_INFO, "DEVICE_GET_REGION_INFO"),
    (
        command::DEVICE_GET_REGION_IO_FDS,
        "DEVICE_GET_REGION_IO_FDS",
    ),
    (command::DEVICE_GET_IRQ_INFO, "DEVICE_GET_IRQ_INFO"),
    (command::DEVICE_SET_IRQS, "DEVICE_SET_IRQS"),
    (command::REGION_READ, "REGION_READ"),
    (command::REGION_WRITE, "REGION_WRITE"),
    (command::DMA_READ, "DMA_READ"),
    (command::DMA_WRITE, "DMA_WRITE"),
    (command::DEVICE_RESET, "DEVICE_RESET"),
    (command::DIRTY_PAGES, "DIRTY_PAGES"),
    (command::REGION_WRITE_MULTI, "REGION_WRITE_MULTI"),
    (command::DEVICE_FEATURE, "DEVICE_FEATURE"),
    (command::MIG_DATA_READ, "MIG_DATA_READ"),
    (command::MIG_DATA_WRITE, "MIG_DATA_WRITE"),
];

/// Returns the name of a command, or `None` for an unknown one.
pub fn command_name(number: u16) -> Option<&'static str> {
    let found = COMMANDS.iter().find(|(known, _)| *known == number);
    found.map(|(_, name)| *name)
}

/// Returns the name of an errno with its meaning, as `EINVAL (Invalid argument)`.
pub fn error_name(errno: u32) -> String {
    let known = i32::try_from(errno).map_or(Errno::UnknownErrno, Errno::from_raw);
    match (errno, known) {
        (0, _) => "an error without an errno".to_owned(),
        (_, Errno::UnknownErrno) => format!("errno {errno}"),
        (_, known) => format!("{known:?} ({})", known.desc()),
    }
}

/// The regions of a PCI device (linux/vfio.h, `VFIO_PCI_*_REGION_INDEX`).
const REGIONS: [&str; 9] = [
    "BAR0", "BAR1", "BAR2", "BAR3", "BAR4", "BAR5", "ROM", "config", "VGA",
];
/// The interrupts of a PCI device (linux/vfio.h, `VFIO_PCI_*_IRQ_INDEX`).
const IRQS: [&str; 5] = ["INTx", "MSI", "MSI-X", "ERR", "REQ"];

pub(super) fn region_name(index: u32) -> String {
    name(&REGIONS, index).unwrap_or_else(|| format!("region{index}"))
}

pub(super) fn irq_name(index: u32) -> String {
    name(&IRQS, index).unwrap_or_else(|| format!("irq{index}"))
}

pub(super) fn name(names: &[&str], index: u32) -> Option<String> {
    let name = names.get(usize::try_from(index).ok()?)?;
    Some((*name).to_owned())
}

/// Bits with names.
pub(super) struct Flags {
    names: Vec<&'static str>,
    /// The bits without a name.
    rest: u32,
}

impl Flags {
    pub(super) fn of(bits: u32, known: &[(u32, &'static str)]) -> Self {
        let set = known.iter().filter(|(bit, _)| bits & bit != 0);
        let all = known.iter().fold(0, |all, (bit, _)| all | bit);
        Self {
            names: set.map(|(_, name)| *name).collect(),
            rest: bits & !all,
        }
    }

    fn words(&self) -> Vec<String> {
        let rest = (self.rest != 0).then(|| format!("{:#x}", self.rest));
        let names = self.names.iter().map(|name| (*name).to_owned());
        names.chain(rest).collect()
    }

    fn json(&self) -> Value {
        json!(self.words())
    }

    /// Adds them, or `none`.
    pub(super) fn add(&self, name: &'static str, fields: &mut Fields) {
        match self.words() {
            none if none.is_empty() => fields.show(name, self.json(), "none"),
            words => fields.show(name, self.json(), words.join("|")),
        }
    }

    /// Adds them, without a text if there are none.
    pub(super) fn add_if_set(&self, name: &'static str, fields: &mut Fields) {
        fields.show(name, self.json(), self.words().join("|"));
    }
}

pub(super) fn dma_flags(bits: u32) -> Flags {
    Flags::of(bits, &[(dma_map::READ, "READ"), (dma_map::WRITE, "WRITE")])
}

pub(super) fn unmap_flags(bits: u32) -> Flags {
    let known = [
        (dma_unmap::GET_DIRTY_BITMAP, "GET_DIRTY_BITMAP"),
        (dma_unmap::ALL, "ALL"),
    ];
    Flags::of(bits, &known)
}

pub(super) fn device_flags(bits: u32) -> Flags {
    let known = [(device_info::RESET, "RESET"), (device_info::PCI, "PCI")];
    Flags::of(bits, &known)
}

pub(super) fn region_flags(bits: u32) -> Flags {
    let known = [
        (region_info::READ, "READ"),
        (region_info::WRITE, "WRITE"),
        (region_info::MMAP, "MMAP"),
        (region_info::CAPS, "CAPS"),
    ];
    Flags::of(bits, &known)
}

pub(super) fn irq_flags(bits: u32) -> Flags {
    let known = [
        (irq_info::EVENTFD, "EVENTFD"),
        (irq_info::MASKABLE, "MASKABLE"),
        (irq_info::AUTOMASKED, "AUTOMASKED"),
        (irq_info::NORESIZE, "NORESIZE"),
    ];
    Flags::of(bits, &known)
}

pub(super) fn set_irqs_flags(bits: u32) -> Flags {
    let known = [
        (set_irqs::DATA_NONE, "DATA_NONE"),
        (set_irqs::DATA_BOOL, "DATA_BOOL"),
        (set_irqs::DATA_EVENTFD, "DATA_EVENTFD"),
        (set_irqs::MASK, "MASK"),
        (set_irqs::UNMASK, "UNMASK"),
        (set_irqs::TRIGGER, "TRIGGER"),
    ];
    Flags::of(bits, &known)
}
