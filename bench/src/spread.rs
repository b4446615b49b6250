//! Median and tail of several values.

use hdrhistogram::Histogram;

/// Returns the median of `values`, or NaN if there is none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
    let last = sorted.len().saturating_sub(1);
    (middle(last / 2) + middle(last.div_ceil(2))) / 2.0
}

/// Returns a histogram of latencies in nanoseconds, up to 100 s, to three digits.
pub(crate) fn latencies() -> Histogram<u64> {
    // Bounds and precision are constants that the type allows.
    Histogram::new_with_bounds(1, 100_000_000_000, 3).unwrap_or_else(|_| unreachable!())
}

/// Returns the latency that this share of all stays below, in microseconds.
pub(crate) fn quantile_us(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    std::time::Duration::from_nanos(histogram.value_at_quantile(quantile)).as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 9.0, 2.0]), 3.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn quantiles_are_in_microseconds() {
        let mut histogram = latencies();
        (0..99).for_each(|_| histogram.record(1_000).unwrap());
        histogram.record(50_000).unwrap();
        assert!((quantile_us(&histogram, 0.5) - 1.0).abs() < 0.01);
        assert!((quantile_us(&histogram, 1.0) - 50.0).abs() < 0.1);
    }
}
