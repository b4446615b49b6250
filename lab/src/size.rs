//! Byte counts and throughputs as tables show them.

pub use peerbar_report::Size;

/// Returns a byte count for a table: at most four digits and a binary unit, `1.5 GiB`.
pub fn human(bytes: u64) -> String {
    scaled(bytes as f64, &["B", "KiB", "MiB", "GiB", "TiB"])
}

/// Returns a throughput for a table, `310 MiB/s`, or a dash without a time.
pub fn throughput(bytes: u64, seconds: f64) -> String {
    if bytes == 0 || seconds.is_nan() || seconds <= 0.0 {
        return "-".to_owned();
    }
    scaled(
        bytes as f64 / seconds,
        &["B/s", "KiB/s", "MiB/s", "GiB/s", "TiB/s"],
    )
}

fn scaled(value: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut unit = "";
    for next in units {
        unit = next;
        if value < 1024.0 || Some(next) == units.last() {
            break;
        }
        value /= 1024.0;
    }
    let digits = usize::from(value < 10.0 && value.fract() > 0.05);
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_show_rounded_figures() {
        assert_eq!(human(0), "0 B");
        assert_eq!(human(1023), "1023 B");
        assert_eq!(human(4096), "4 KiB");
        assert_eq!(human(24 << 20), "24 MiB");
        assert_eq!(human(3 << 29), "1.5 GiB");
        assert_eq!(throughput(310 << 20, 1.0), "310 MiB/s");
        assert_eq!(throughput(0, 1.0), "-");
        assert_eq!(throughput(1, 0.0), "-");
    }
}
