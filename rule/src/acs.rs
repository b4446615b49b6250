//! Access Control Services: a port's control of peer-to-peer requests (PCIe Base 6.0, 7.7.11).

use std::fmt;

use serde::{Deserialize, Serialize};

/// The ACS Control register of a function (PCIe Base 6.0, 7.7.11.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AcsControl(pub u16);

/// The bits that Linux knows: value, name, name in `lspci`.
const NAMES: [(u16, &str, &str); 7] = [
    (0x01, "source validation", "SrcValid"),
    (0x02, "translation blocking", "TransBlk"),
    (0x04, "P2P request redirect", "ReqRedir"),
    (0x08, "P2P completion redirect", "CmpltRedir"),
    (0x10, "upstream forwarding", "UpstreamFwd"),
    (0x20, "P2P egress control", "EgressCtrl"),
    (0x40, "direct translated P2P", "DirectTrans"),
];

impl AcsControl {
    /// P2P request redirect: the port redirects requests to peers to the root complex.
    pub const REQUEST_REDIRECT: Self = Self(0x04);
    /// P2P completion redirect: the port redirects completions to peers to the root complex.
    pub const COMPLETION_REDIRECT: Self = Self(0x08);
    /// P2P egress control: a vector of ports decides.
    pub const EGRESS_CONTROL: Self = Self(0x20);
    /// Direct translated P2P: requests with translated addresses are not redirected.
    pub const DIRECT_TRANSLATED: Self = Self(0x40);
    /// Request redirect, completion redirect, egress control: with any of them Linux assumes that
    /// requests do not go directly to a peer (drivers/pci/p2pdma.c, `pci_bridge_has_acs_redir`).
    const REDIRECTING: u16 = 0x04 | 0x08 | 0x20;
    /// Source validation, request redirect, completion redirect, upstream forwarding
    /// (drivers/pci/pci.c, `pci_std_enable_acs`).
    const ENABLED_BY_LINUX: u16 = 0x01 | 0x04 | 0x08 | 0x10;

    /// Returns the value that Linux writes to a function with ACS capabilities `capability` on a
    /// machine with an IOMMU.
    pub fn with_an_iommu(capability: u16) -> Self {
        Self(capability & Self::ENABLED_BY_LINUX)
    }

    /// Returns the bits that keep requests from going directly to a peer.
    pub fn redirecting(self) -> Self {
        Self(self.0 & Self::REDIRECTING)
    }

    /// Returns `true` if no bit is set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns `true` if `bits` has a bit that is set here, too.
    pub fn has_any(self, bits: Self) -> bool {
        self.0 & bits.0 != 0
    }

    /// Returns the register without the bits that redirect.
    pub fn without_redirection(self) -> Self {
        Self(self.0 & !Self::REDIRECTING)
    }

    /// Reads bits as `lspci -vv` writes them: `SrcValid+ TransBlk- ReqRedir+`. Returns `None` if
    /// `text` has none of their names.
    pub fn from_lspci(text: &str) -> Option<Self> {
        let known = text.split_ascii_whitespace().filter_map(|word| {
            let is_set = word.ends_with('+');
            let name = word.trim_end_matches(['+', '-']);
            let (bit, ..) = NAMES.iter().find(|(.., known)| *known == name)?;
            Some(if is_set { *bit } else { 0 })
        });
        known.reduce(|bits, bit| bits | bit).map(Self)
    }

    /// Returns the bits as `lspci -vv` writes them: `ReqRedir+ CmpltRedir+`.
    pub fn as_lspci(self) -> String {
        let set = NAMES.iter().filter(|(bit, ..)| self.0 & bit != 0);
        let words: Vec<String> = set.map(|(.., word)| format!("{word}+")).collect();
        words.join(" ")
    }
}

impl fmt::Display for AcsControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = NAMES.iter().filter(|(bit, ..)| self.0 & bit != 0);
        let names: Vec<&str> = set.map(|(_, name, _)| *name).collect();
        f.write_str(&names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_enables_four_acs_bits_in_a_root_port_of_qemu() {
        let control = AcsControl::with_an_iommu(0x5f);
        assert_eq!(control, AcsControl(0x1d));
        assert_eq!(control.redirecting(), AcsControl(0x0c));
        assert_eq!(
            control.redirecting().to_string(),
            "P2P request redirect, P2P completion redirect"
        );
        assert_eq!(
            control.as_lspci(),
            "SrcValid+ ReqRedir+ CmpltRedir+ UpstreamFwd+"
        );
    }

    #[test]
    fn bits_are_read_as_lspci_writes_them() {
        let text =
            "SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-";
        let control = AcsControl::from_lspci(text).unwrap();
        assert_eq!(control, AcsControl(0x1d));
        assert_eq!(control.without_redirection(), AcsControl(0x11));
        assert!(control.has_any(AcsControl::COMPLETION_REDIRECT));
        assert!(!control.has_any(AcsControl::EGRESS_CONTROL));
        assert_eq!(AcsControl::from_lspci("SrcValid-"), Some(AcsControl(0)));
        assert_eq!(AcsControl::from_lspci("nothing"), None);
    }

    #[test]
    fn source_validation_and_translation_blocking_do_not_redirect() {
        assert!(
            AcsControl(0x01 | 0x02 | 0x10 | 0x40)
                .redirecting()
                .is_empty()
        );
        assert_eq!(
            AcsControl(0x20).redirecting().to_string(),
            "P2P egress control"
        );
    }
}
