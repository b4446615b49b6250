//! Sizes of memory in words.

/// Returns a size with the largest unit that divides it: `16 MiB`, `128 GiB`.
pub(crate) fn human(bytes: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let power = (u64::BITS
        .saturating_sub(1)
        .saturating_sub(bytes.max(1).leading_zeros()))
        / 10;
    let whole = (0..=power.min(4))
        .rev()
        .find(|power| bytes.trailing_zeros() >= power * 10);
    let power = whole.unwrap_or_default();
    let unit = units
        .get(usize::try_from(power).unwrap_or_default())
        .unwrap_or(&"bytes");
    format!("{} {unit}", bytes >> (power * 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_largest_unit_that_divides_them() {
        assert_eq!(human(0), "0 bytes");
        assert_eq!(human(1536), "1536 bytes");
        assert_eq!(human(16 << 20), "16 MiB");
        assert_eq!(human(96 << 30), "96 GiB");
    }
}
