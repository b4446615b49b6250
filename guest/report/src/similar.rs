//! Names that were probably mistyped.

use strsim::normalized_damerau_levenshtein;

/// The least similarity of two names, from 0 to 1, at which one probably means the other.
const LEAST: f64 = 0.6;

/// Returns the one of `known` that `name` probably means.
///
/// Numbered names such as `disk1` and `disk2` do not suggest each other: which one is meant cannot
/// be told.
pub fn similar<'k>(name: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let mut best = None;
    let mut most = LEAST;
    for candidate in known {
        let likeness = normalized_damerau_levenshtein(name, candidate);
        if likeness >= most && !differ_in_number(name, candidate) {
            // The first of several equals stays.
            most = likeness + f64::EPSILON;
            best = Some(candidate);
        }
    }
    best
}

/// Returns the end of a message about an unknown `name`: the one of `known` that was probably
/// meant, otherwise all of them.
pub fn way_out<'k>(name: &str, known: impl IntoIterator<Item = &'k str> + Clone) -> String {
    way_out_or(name, known.clone(), || all_of(known))
}

/// As [`way_out`], with `otherwise` in place of all names.
pub fn way_out_or<'k>(
    name: &str,
    known: impl IntoIterator<Item = &'k str>,
    otherwise: impl FnOnce() -> String,
) -> String {
    similar(name, known).map_or_else(otherwise, did_you_mean)
}

pub(crate) fn did_you_mean(name: &str) -> String {
    format!("did you mean `{name}`?")
}

/// Returns the end of a message that names all of `known`.
pub(crate) fn all_of<'k>(known: impl IntoIterator<Item = &'k str>) -> String {
    let known: Vec<String> = known.into_iter().map(|name| format!("`{name}`")).collect();
    match known.as_slice() {
        [] => "there are none".to_owned(),
        [only] => format!("there is {only}"),
        known => format!("there are {}", known.join(", ")),
    }
}

fn differ_in_number(one: &str, other: &str) -> bool {
    let stem = |name: &str| {
        name.trim_end_matches(|last: char| last.is_ascii_digit())
            .len()
    };
    let (one_stem, other_stem) = (stem(one), stem(other));
    one_stem < one.len()
        && other_stem < other.len()
        && one.get(..one_stem) == other.get(..other_stem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistyped_name_is_recognized() {
        let keys = ["name", "cmb", "cmb-queues", "namespaces", "size", "sizes"];
        for (name, meant) in [
            ("cmbb", Some("cmb")),
            ("cmb_queues", Some("cmb-queues")),
            ("namespace", Some("namespaces")),
            ("sise", Some("size")),
            ("anme", Some("name")),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(similar(name, keys), meant, "{name}");
        }
    }

    #[test]
    fn numbered_names_do_not_stand_for_each_other() {
        let disks = ["disk0", "disk1"];
        assert_eq!(similar("disk7", disks), None);
        assert_eq!(similar("dsk1", disks), Some("disk1"));
        assert_eq!(similar("disk", disks), Some("disk0"));
        assert_eq!(way_out("disk7", disks), "there are `disk0`, `disk1`");
        assert_eq!(way_out("dsk1", disks), "did you mean `disk1`?");
        assert_eq!(way_out("disk7", []), "there are none");
    }
}
