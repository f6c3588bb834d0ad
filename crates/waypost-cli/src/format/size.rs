//! Sizes for display.

/// Formats a number of bytes in a suitable unit, with one decimal from a KiB on.
pub(crate) fn shown(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (mut size, mut unit) = (bytes as f64 / 1024.0, 0);
    // A value shown as 1024.0 moves to the next unit.
    while size >= 1023.95 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    format!("{size:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn sizes_are_shown_in_the_unit_that_fits() {
        let sizes = [0, 1023, 1024, 1536, 1_048_525, 1_048_576, 5_000_000_000, u64::MAX].map(shown);

        assert_eq!(
            sizes,
            ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 MiB", "1.0 MiB", "4.7 GiB", "16777216.0 TiB"]
        );
    }
}
