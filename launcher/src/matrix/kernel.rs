//! The choice of the guest's kernel for one pair, as the kernel reports it.

use peerbar_rule::{MapType, Release};
use serde::Serialize;

use super::placement::Pair;
use crate::explain::observed_guest::ObservedGuest;
use peerbar_lab::iommu::Iommu;

/// The choice of the guest's kernel for one pair.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct KernelChoice {
    /// The treatment of the client's DMA by an IOMMU (`iommu_group/type`: `DMA`, `DMA-FQ`,
    /// `identity`), or `None` without an IOMMU.
    domain: Option<String>,
    /// The map type that it chose, or `None` if that was not observed.
    map_type: Option<u32>,
    /// The reason why its decisions were not observed, if so.
    unwatched: Option<String>,
}

impl KernelChoice {
    /// Returns the report of `guest` about `pair`.
    pub(super) fn of(guest: &ObservedGuest, pair: Pair) -> Self {
        let client = guest.function(pair.client);
        let group = client.and_then(|client| client.iommu_group.as_ref());
        Self {
            domain: group.map(|group| group.kind.clone()),
            map_type: guest.map_type(pair.provider, pair.client),
            unwatched: guest.unwatched().map(str::to_owned),
        }
    }

    /// Explains why this is not the requested kernel: with `iommu`, and bound to choose the mapping
    /// of `ruled` in its release, if it is asked at all. Returns `None` if it is.
    pub(super) fn objection(
        &self,
        iommu: Iommu,
        ruled: Option<(MapType, Release)>,
    ) -> Option<String> {
        if !self.has(iommu) {
            return Some(format!(
                "the boot differs from the request: with the IOMMU `{}` the client's iommu_group/type is {}",
                iommu.word(),
                self.domain.as_deref().unwrap_or("none")
            ));
        }
        let (mapping, kernel) = ruled?;
        let ruled = mapping.number(kernel);
        match self.map_type {
            Some(chosen) if chosen == ruled => None,
            None if self.unwatched.is_some() => None,
            Some(chosen) => Some(format!(
                "the kernel itself has chosen map type {chosen}, where the rule says {ruled}, {mapping}"
            )),
            None => Some("the kernel was not seen to decide on the pair".to_owned()),
        }
    }

    /// Returns `true` if the client's DMA is treated as with `iommu`.
    fn has(&self, iommu: Iommu) -> bool {
        match self.domain.as_deref() {
            None => !iommu.is_present(),
            Some(domain) if iommu.translates() => domain.starts_with("DMA"),
            Some(domain) => iommu.is_present() && domain == "identity",
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const RULED: (MapType, Release) = (MapType::BusAddress, Release::NEWEST);

    /// Returns the newest kernel, which has chosen `mapping`, without an IOMMU.
    pub(in super::super) fn chosen(mapping: MapType) -> KernelChoice {
        KernelChoice {
            map_type: Some(mapping.number(Release::NEWEST)),
            ..KernelChoice::default()
        }
    }

    #[test]
    fn boot_without_its_iommu_is_a_flaw() {
        let kernel = |domain: Option<&str>| KernelChoice {
            domain: domain.map(str::to_owned),
            ..chosen(MapType::BusAddress)
        };
        let objection = |iommu, domain| kernel(domain).objection(iommu, Some(RULED));
        let message = objection(Iommu::Intel, None).unwrap();
        assert!(
            message.ends_with("with the IOMMU `intel` the client's iommu_group/type is none"),
            "{message}"
        );
        assert_eq!(objection(Iommu::Amd, Some("DMA-FQ")), None);
        assert!(objection(Iommu::Amd, Some("identity")).is_some());
        assert_eq!(objection(Iommu::IntelPassthrough, Some("identity")), None);
        assert!(objection(Iommu::None, Some("DMA")).is_some());
    }

    #[test]
    fn kernel_choice_unlike_the_rule_disagrees_if_seen() {
        let objection = |kernel: &KernelChoice| kernel.objection(Iommu::None, Some(RULED));
        assert_eq!(objection(&chosen(MapType::BusAddress)), None);
        let message = objection(&chosen(MapType::NotSupported)).unwrap();
        assert_eq!(
            message,
            "the kernel itself has chosen map type 2, where the rule says 3, bus address"
        );
        let mut unseen = KernelChoice::default();
        assert!(objection(&unseen).is_some());
        unseen.unwatched = Some("no kprobes".to_owned());
        assert_eq!(objection(&unseen), None);
        let older = Release::new(6, 12);
        let ruled = Some((MapType::NotSupported, older));
        let message = chosen(MapType::NotSupported).objection(Iommu::None, ruled);
        assert_eq!(
            message.unwrap(),
            "the kernel itself has chosen map type 2, where the rule says 1, not supported"
        );
    }
}
