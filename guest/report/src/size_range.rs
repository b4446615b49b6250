//! Sizes in tables of results.

use crate::Size;

/// Returns sizes for a table of results: the smallest and the largest, as in `4K-8M`.
pub fn size_range(sizes: &[u64]) -> String {
    match sizes.iter().min().zip(sizes.iter().max()) {
        Some((least, most)) if least == most => Size(*most).to_string(),
        Some((least, most)) => format!("{}-{}", Size(*least), Size(*most)),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shown_as_a_range() {
        assert_eq!(size_range(&[8 << 20, 4096, 65536]), "4K-8M");
        assert_eq!(size_range(&[512]), "512");
        assert_eq!(size_range(&[]), "");
    }
}
