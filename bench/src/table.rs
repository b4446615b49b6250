//! Tables of words and numbers.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, ContentArrangement, Table};

/// A table as wide as its words, whose columns of numbers are flush right.
pub(crate) fn table<const COLUMNS: usize>(
    header: [&str; COLUMNS],
    numbers: impl IntoIterator<Item = usize>,
    rows: impl Iterator<Item = [String; COLUMNS]>,
) -> Table {
    let mut table = Table::new();
    table
        .load_preset(UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header)
        .add_rows(rows);
    for column in numbers {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_flush_right() {
        let row = ["a", "7"].map(str::to_owned);
        let text = table(["name", "value"], [1], [row].into_iter()).to_string();
        assert!(text.contains("│ a    ┆     7 │"), "{text}");
    }
}
