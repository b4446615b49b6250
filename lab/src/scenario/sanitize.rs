//! The sanitizer of a run's DMA, and its expected findings.

use peerbar_flight::FindingKind;
use serde::{Deserialize, Deserializer, de};
use toml::Spanned;

use super::error::Problem;
use crate::iommu::Iommu;

/// The expected findings of the sanitizer: none, unless a test has seeded faults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sanitize {
    /// Kinds of findings that must occur at least once each, and no others.
    pub expected: Vec<FindingKind>,
}

/// `true`, or the words of the kinds that are expected.
#[derive(Deserialize)]
#[serde(untagged)]
enum Value {
    Switch(bool),
    Kinds(Vec<String>),
}

/// Reads the value of the key; `false` means no sanitizer.
pub(super) fn read<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Spanned<Sanitize>>, D::Error> {
    let value = Spanned::<Value>::deserialize(from)?;
    let at = value.span();
    let kinds = match value.into_inner() {
        Value::Switch(false) => return Ok(None),
        Value::Switch(true) => Vec::new(),
        Value::Kinds(kinds) => kinds,
    };
    let kinds = kinds.iter().map(|word| kind(word));
    let expected = kinds.collect::<Result<_, _>>().map_err(de::Error::custom)?;
    Ok(Some(Spanned::new(at, Sanitize { expected })))
}

/// Rejects a sanitizer that could find nothing: if no device is `recorded`, or without an IOMMU
/// that translates, because then all RAM is mapped all the time.
pub(super) fn beside(
    wanted: Option<Spanned<Sanitize>>,
    iommu: Iommu,
    recorded: bool,
) -> Result<Option<Sanitize>, Problem> {
    match wanted {
        Some(wanted) if !recorded => Err(Problem::new(
            wanted.span(),
            "`sanitize` needs a device of peerbar's: QEMU's own keep no record of their DMA",
        )),
        Some(wanted) if !iommu.translates() => Err(Problem::new(
            wanted.span(),
            format!(
                "`sanitize` needs an IOMMU that translates, which `iommu = \"{}\"` does not: write {}",
                iommu.word(),
                translating()
            ),
        )),
        wanted => Ok(wanted.map(Spanned::into_inner)),
    }
}

fn kind(word: &str) -> Result<FindingKind, String> {
    let known = FindingKind::WORDS.iter().find(|(_, known)| *known == word);
    known.map(|(kind, _)| *kind).ok_or_else(|| {
        let words = FindingKind::WORDS.map(|(_, word)| word).join(", ");
        format!("`sanitize`: unknown kind of finding `{word}`; there are {words}")
    })
}

/// Returns the words of the IOMMUs that translate.
fn translating() -> String {
    let words = Iommu::present().filter(|iommu| iommu.translates());
    let words: Vec<String> = words.map(|iommu| format!("`{}`", iommu.word())).collect();
    words.join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Table {
        #[serde(default, deserialize_with = "read")]
        sanitize: Option<Spanned<Sanitize>>,
    }

    #[test]
    fn it_is_on_off_or_says_what_to_find() {
        let read = |text| {
            let table = toml::from_str::<Table>(text);
            table.map(|table| table.sanitize.map(Spanned::into_inner))
        };
        assert_eq!(read("").unwrap(), None);
        assert_eq!(read("sanitize = false").unwrap(), None);
        assert_eq!(read("sanitize = true").unwrap(), Some(Sanitize::default()));
        let expected = vec![FindingKind::PastEnd];
        assert_eq!(
            read("sanitize = [\"past-end\"]").unwrap(),
            Some(Sanitize { expected })
        );
        let error = read("sanitize = [\"past\"]").unwrap_err();
        assert!(
            error.message().contains("unknown kind of finding `past`"),
            "{error}"
        );
    }

    #[test]
    fn sanitize_needs_our_device_and_a_translating_iommu() {
        let wanted = || Some(Spanned::new(0..4, Sanitize::default()));
        assert_eq!(beside(None, Iommu::None, false).unwrap(), None);
        let unrecorded = beside(wanted(), Iommu::Amd, false).unwrap_err();
        assert!(unrecorded.message.contains("QEMU's own keep no record"));
        let kept = beside(wanted(), Iommu::Amd, true).unwrap();
        assert_eq!(kept, Some(Sanitize::default()));
        for iommu in [Iommu::None, Iommu::IntelPassthrough] {
            let problem = beside(wanted(), iommu, true).unwrap_err();
            assert!(problem.message.contains("needs an IOMMU that translates"));
        }
    }
}
