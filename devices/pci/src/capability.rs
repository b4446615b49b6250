//! Capability structures: their bytes in configuration space, and the bits that the guest can
//! write.

use bitfield_struct::bitfield;

/// Capability IDs (PCI Code and ID Assignment, 2), and the extended one of ATS (3).
pub(crate) const POWER_MANAGEMENT: u8 = 0x01;
pub(crate) const PCI_EXPRESS: u8 = 0x10;
pub(crate) const ATS: u16 = 0x0f;

/// A capability: its bytes without the next pointer, and the mask of writable bits.
pub(crate) struct Capability {
    pub(crate) bytes: Vec<u8>,
    pub(crate) writable: Vec<u8>,
}

impl Capability {
    fn new(id: u8, len: usize) -> Self {
        let mut bytes = vec![0; len];
        if let Some(first) = bytes.first_mut() {
            *first = id;
        }
        Self {
            bytes,
            writable: vec![0; len],
        }
    }

    fn set(mut self, offset: usize, value: &[u8], writable: &[u8]) -> Self {
        if let Some(bytes) = self.bytes.get_mut(offset..offset + value.len()) {
            bytes.copy_from_slice(value);
        }
        if let Some(mask) = self.writable.get_mut(offset..offset + writable.len()) {
            mask.copy_from_slice(writable);
        }
        self
    }
}

/// PCI Power Management capability, version 3, D0 and D3hot (PCI Power Management 1.2, 3.2).
pub(crate) fn power_management() -> Capability {
    const VERSION_3: u16 = 3;
    const NO_SOFT_RESET: u16 = 1 << 3;
    const POWER_STATE: u16 = 0b11;
    Capability::new(POWER_MANAGEMENT, 8)
        .set(2, &VERSION_3.to_le_bytes(), &[])
        .set(4, &NO_SOFT_RESET.to_le_bytes(), &POWER_STATE.to_le_bytes())
}

/// Offset of the power state (PMCSR) in the power management capability.
pub(crate) const PM_CONTROL_STATUS: usize = 4;

/// MSI-X Message Control (PCI Local Bus 3.0, 6.8.2.3).
#[bitfield(u16)]
struct MsiXControl {
    /// Number of vectors minus one.
    #[bits(11)]
    table_size: u16,
    #[bits(3)]
    __: u8,
    /// Every vector is masked.
    function_mask: bool,
    /// MSI-X is on and INTx off.
    enable: bool,
}

/// The location of a function's MSI-X table and pending bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsiX {
    /// Number of vectors, 1 to 2048.
    pub vectors: u16,
    /// The BAR that holds both.
    pub bar: u8,
    /// Offset of the table, 16 bytes for each vector, a multiple of 8.
    pub table: u32,
    /// Offset of the pending bit array, one bit for each vector in words of 8 bytes, a multiple of 8.
    pub pending: u32,
}

/// MSI-X capability (PCI Local Bus 3.0, 6.8.2).
pub(crate) fn msi_x(msi_x: &MsiX) -> Capability {
    let control = MsiXControl::new().with_table_size(msi_x.vectors.saturating_sub(1) & 0x7ff);
    let writable = MsiXControl::new()
        .with_enable(true)
        .with_function_mask(true);
    let at = |offset: u32| (offset & !0b111 | u32::from(msi_x.bar)).to_le_bytes();
    Capability::new(0x11, 12)
        .set(
            2,
            &control.into_bits().to_le_bytes(),
            &writable.into_bits().to_le_bytes(),
        )
        .set(4, &at(msi_x.table), &[])
        .set(8, &at(msi_x.pending), &[])
}

/// Offset of Device Capabilities in the PCI Express capability, and its bit for a function-level
/// reset (PCIe Base 6.0, 7.5.3.3).
pub(crate) const DEVICE_CAPABILITIES: usize = 4;
pub(crate) const FUNCTION_LEVEL_RESET: u32 = 1 << 28;

/// Offset of Device Control in the PCI Express capability.
pub(crate) const DEVICE_CONTROL: usize = 8;

/// Device Control (PCIe Base 6.0, 7.5.3.4): the relevant bits.
#[bitfield(u16)]
pub(crate) struct DeviceControl {
    #[bits(4)]
    error_reporting: u8,
    relaxed_ordering: bool,
    #[bits(3)]
    max_payload_size: u8,
    extended_tag: bool,
    #[bits(2)]
    __: u8,
    no_snoop: bool,
    #[bits(3)]
    max_read_request_size: u8,
    /// Writing 1 resets the function; reads as 0.
    pub(crate) initiate_flr: bool,
}

/// Offset of ATS Control in the ATS extended capability.
pub(crate) const ATS_CONTROL: usize = 6;

/// ATS Control (PCIe Base 6.0, 10.5.1.3).
#[bitfield(u16)]
pub(crate) struct AtsControl {
    /// Smallest Translation Unit: a translation covers at least 2^(12 + this) bytes.
    #[bits(5)]
    stu: u8,
    #[bits(10)]
    __: u16,
    /// The function may request translations and cache them.
    pub(crate) enable: bool,
}

/// ATS extended capability, the last of its list (PCIe Base 6.0, 10.5.1). Its invalidate queue has
/// 32 entries, which the field encodes as 0, and its requests are page aligned.
pub(crate) fn ats() -> Capability {
    const VERSION_1: u8 = 1;
    const PAGE_ALIGNED_REQUEST: u16 = 1 << 5;
    let writable = AtsControl::new().with_stu(0x1f).with_enable(true);
    Capability::new(0x0f, 8)
        .set(2, &[VERSION_1], &[])
        .set(4, &PAGE_ALIGNED_REQUEST.to_le_bytes(), &[])
        .set(ATS_CONTROL, &[0, 0], &writable.into_bits().to_le_bytes())
}

/// PCI Express capability, version 2, of an endpoint with function-level reset (PCIe Base 6.0, 7.5.3).
pub(crate) fn pci_express() -> Capability {
    const VERSION_2_ENDPOINT: u16 = 2;
    const ROLE_BASED_ERRORS: u32 = 1 << 15;
    const EXTENDED_TAG: u32 = 1 << 5;
    const MAX_PAYLOAD_256: u32 = 1;
    const GEN3: u32 = 3;
    const GEN1_TO_3: u32 = 0b111 << 1;
    const WIDTH_X4: u32 = 4 << 4;
    const COMPLETION_TIMEOUT_DISABLE: u32 = 1 << 4;
    let control = DeviceControl::new()
        .with_relaxed_ordering(true)
        .with_no_snoop(true)
        .with_max_read_request_size(2);
    let writable = DeviceControl::from_bits(u16::MAX).with_initiate_flr(false);
    let device = ROLE_BASED_ERRORS | FUNCTION_LEVEL_RESET | EXTENDED_TAG | MAX_PAYLOAD_256;
    let link_status = (GEN3 | WIDTH_X4) << 16;
    Capability::new(PCI_EXPRESS, 60)
        .set(2, &VERSION_2_ENDPOINT.to_le_bytes(), &[])
        .set(4, &device.to_le_bytes(), &[])
        .set(
            DEVICE_CONTROL,
            &control.into_bits().to_le_bytes(),
            &writable.into_bits().to_le_bytes(),
        )
        .set(12, &(GEN3 | WIDTH_X4).to_le_bytes(), &[])
        .set(16, &link_status.to_le_bytes(), &[0xc3, 0x01])
        .set(36, &COMPLETION_TIMEOUT_DISABLE.to_le_bytes(), &[])
        .set(40, &[0, 0], &[0x1f, 0x00])
        .set(44, &GEN1_TO_3.to_le_bytes(), &[])
        .set(48, &GEN3.to_le_bytes(), &[0x0f, 0x00])
}
