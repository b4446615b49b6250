//! Tables of words and numbers.

use peerbar_lab::table::Table;

/// Returns a table whose columns are as wide as their words. Columns of numbers are flush right.
pub(crate) fn table<const COLUMNS: usize>(
    header: [&str; COLUMNS],
    numbers: impl IntoIterator<Item = usize>,
    rows: impl Iterator<Item = [String; COLUMNS]>,
) -> String {
    let mut table = Table::new(header).flush_right(numbers);
    rows.for_each(|row| table.add(row));
    table.framed()
}
