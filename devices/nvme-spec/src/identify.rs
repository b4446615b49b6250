//! The data of Identify (NVMe Base 2.0, 5.17): the numbers of the structures, the lists, and
//! strings in ASCII fields.

pub mod controller;
pub mod namespace;

use bitfield_struct::bitfield;
use thiserror::Error;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Size of every structure that Identify returns, in bytes.
pub const DATA_SIZE: usize = 4096;

/// CNS: the requested structure (NVMe Base 2.0, 5.17.1).
pub mod cns {
    /// Identify Namespace: [`crate::identify::namespace::Namespace`].
    pub const NAMESPACE: u8 = 0x00;
    /// Identify Controller: [`crate::identify::controller::Controller`].
    pub const CONTROLLER: u8 = 0x01;
    /// Active NSIDs above the given one: [`crate::identify::NamespaceList`].
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// Namespace Identification Descriptors: [`crate::identify::namespace::DescriptorHeader`].
    pub const NAMESPACE_DESCRIPTORS: u8 = 0x03;
    /// I/O command set specific Identify Namespace; with the NVM command set
    /// [`crate::identify::namespace::NvmNamespace`].
    pub const COMMAND_SET_NAMESPACE: u8 = 0x05;
    /// I/O command set specific Identify Controller; with the NVM command set
    /// [`crate::identify::controller::NvmController`].
    pub const COMMAND_SET_CONTROLLER: u8 = 0x06;
    /// Active NSIDs of one I/O command set above the given one: [`crate::identify::NamespaceList`].
    pub const COMMAND_SET_ACTIVE_NAMESPACES: u8 = 0x07;
    /// I/O command set independent Identify Namespace:
    /// [`crate::identify::namespace::IndependentNamespace`].
    pub const INDEPENDENT_NAMESPACE: u8 = 0x08;
    /// Allocated NSIDs above the given one: [`crate::identify::NamespaceList`].
    pub const ALLOCATED_NAMESPACES: u8 = 0x10;
    /// Identify Namespace of an allocated namespace: [`crate::identify::namespace::Namespace`].
    pub const ALLOCATED_NAMESPACE: u8 = 0x11;
    /// Controllers that the namespace is attached to: [`crate::identify::ControllerList`].
    pub const NAMESPACE_CONTROLLERS: u8 = 0x12;
    /// Controllers of the NVM subsystem: [`crate::identify::ControllerList`].
    pub const CONTROLLERS: u8 = 0x13;
    /// Allocated NSIDs of one I/O command set above the given one:
    /// [`crate::identify::NamespaceList`].
    pub const COMMAND_SET_ALLOCATED_NAMESPACES: u8 = 0x1a;
    /// I/O command set specific Identify Namespace of an allocated namespace.
    pub const COMMAND_SET_ALLOCATED_NAMESPACE: u8 = 0x1b;
    /// Combinations of I/O command sets: [`crate::identify::CommandSetVectors`].
    pub const COMMAND_SETS: u8 = 0x1c;
}

/// CSI: Command Set Identifiers (NVMe Base 2.0, 3.1.2.1).
pub mod csi {
    /// NVM command set.
    pub const NVM: u8 = 0;
    /// Zoned Namespace command set.
    pub const ZONED: u8 = 2;
}

/// Namespace List: NSIDs in increasing order, then zeroes (NVMe Base 2.0, 4.4.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct NamespaceList {
    /// The NSIDs.
    pub nsids: [U32; 1024],
}

/// Controller List (NVMe Base 2.0, 4.4.1).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ControllerList {
    /// Number of identifiers that follow.
    pub count: U16,
    /// Controller identifiers in increasing order, then zeroes.
    pub cntlids: [U16; 2047],
}

/// Identify I/O Command Set: the sets that may be in use together (NVMe Base 2.0, 5.17.2.21).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CommandSetVectors {
    /// The combinations; the first one without a bit ends the list.
    pub combinations: [CommandSets; 512],
}

/// One combination of I/O command sets (NVMe Base 2.0, 5.17.2.21).
#[bitfield(u64, repr = U64, from = U64::new, into = U64::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct CommandSets {
    /// NVM command set.
    pub nvm: bool,
    /// Key Value command set.
    pub key_value: bool,
    /// Zoned Namespace command set.
    pub zoned: bool,
    #[bits(61)]
    __: u64,
}

/// Reasons why a text does not fit an ASCII field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AsciiError {
    /// The text is longer than the field.
    #[error("{length} characters do not fit a field of {field}")]
    TooLong {
        /// Length of the text in bytes.
        length: usize,
        /// Length of the field in bytes.
        field: usize,
    },
    /// A character is outside 20h to 7Eh.
    #[error("{0:?} is not a printable ASCII character")]
    NotPrintable(char),
}

/// Returns `text` as an ASCII string field: left justified, padded with spaces (NVMe Base 2.0,
/// 1.4.2).
pub fn ascii<const N: usize>(text: &str) -> Result<[u8; N], AsciiError> {
    if let Some(character) = text
        .chars()
        .find(|character| !matches!(character, ' '..='~'))
    {
        return Err(AsciiError::NotPrintable(character));
    }
    let mut field = [b' '; N];
    let start = field.get_mut(..text.len()).ok_or(AsciiError::TooLong {
        length: text.len(),
        field: N,
    })?;
    start.copy_from_slice(text.as_bytes());
    Ok(field)
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use super::*;

    #[test]
    fn cns_is_linux_nvme_id_cns() {
        assert_eq!(cns::NAMESPACE, 0x00); // NVME_ID_CNS_NS
        assert_eq!(cns::CONTROLLER, 0x01); // NVME_ID_CNS_CTRL
        assert_eq!(cns::ACTIVE_NAMESPACES, 0x02); // NVME_ID_CNS_NS_ACTIVE_LIST
        assert_eq!(cns::NAMESPACE_DESCRIPTORS, 0x03); // NVME_ID_CNS_NS_DESC_LIST
        assert_eq!(cns::COMMAND_SET_NAMESPACE, 0x05); // NVME_ID_CNS_CS_NS
        assert_eq!(cns::COMMAND_SET_CONTROLLER, 0x06); // NVME_ID_CNS_CS_CTRL
        assert_eq!(cns::COMMAND_SET_ACTIVE_NAMESPACES, 0x07); // libnvme NVME_IDENTIFY_CNS_CSI_NS_ACTIVE_LIST
        assert_eq!(cns::INDEPENDENT_NAMESPACE, 0x08); // NVME_ID_CNS_NS_CS_INDEP
        assert_eq!(cns::ALLOCATED_NAMESPACES, 0x10); // NVME_ID_CNS_NS_PRESENT_LIST
        assert_eq!(cns::ALLOCATED_NAMESPACE, 0x11); // NVME_ID_CNS_NS_PRESENT
        assert_eq!(cns::NAMESPACE_CONTROLLERS, 0x12); // NVME_ID_CNS_CTRL_NS_LIST
        assert_eq!(cns::CONTROLLERS, 0x13); // NVME_ID_CNS_CTRL_LIST
        assert_eq!(cns::COMMAND_SET_ALLOCATED_NAMESPACES, 0x1a); // libnvme NVME_IDENTIFY_CNS_CSI_ALLOCATED_NS_LIST
        assert_eq!(cns::COMMAND_SET_ALLOCATED_NAMESPACE, 0x1b); // libnvme NVME_IDENTIFY_CNS_CSI_ID_NS_DATA_STRUCTURE
        assert_eq!(cns::COMMAND_SETS, 0x1c); // libnvme NVME_IDENTIFY_CNS_COMMAND_SET_STRUCTURE
        assert_eq!(csi::NVM, 0); // NVME_CSI_NVM
        assert_eq!(csi::ZONED, 2); // NVME_CSI_ZNS
    }

    #[test]
    fn lists_fill_identify_data() {
        assert_eq!(DATA_SIZE, 4096); // NVME_IDENTIFY_DATA_SIZE
        assert_eq!(size_of::<NamespaceList>(), 4096); // libnvme nvme_ns_list
        assert_eq!(size_of::<ControllerList>(), 4096); // libnvme nvme_ctrl_list
        assert_eq!(offset_of!(ControllerList, cntlids), 2);
        assert_eq!(size_of::<CommandSetVectors>(), 4096); // libnvme nvme_id_iocs
        assert_eq!(
            CommandSets::new().with_nvm(true).as_bytes(),
            [1, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(
            CommandSets::new().with_zoned(true).as_bytes(),
            [4, 0, 0, 0, 0, 0, 0, 0]
        );
    }

    #[test]
    fn ascii_is_padded_with_spaces() {
        assert_eq!(ascii("disk0"), Ok(*b"disk0   "));
        assert_eq!(ascii("12345678"), Ok(*b"12345678"));
        assert_eq!(ascii(""), Ok(*b"    "));
    }

    #[test]
    fn ascii_refuses_text_that_does_not_fit() {
        assert_eq!(
            ascii::<4>("12345"),
            Err(AsciiError::TooLong {
                length: 5,
                field: 4
            })
        );
        for character in ['ü', '\0', '\n', '\u{7f}'] {
            assert_eq!(
                ascii::<20>(&format!("a{character}")),
                Err(AsciiError::NotPrintable(character))
            );
        }
        assert_eq!(
            AsciiError::TooLong {
                length: 5,
                field: 4
            }
            .to_string(),
            "5 characters do not fit a field of 4"
        );
        assert_eq!(
            AsciiError::NotPrintable('\n').to_string(),
            r"'\n' is not a printable ASCII character"
        );
    }
}
