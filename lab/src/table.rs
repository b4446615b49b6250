//! Tables for people: columns as wide as their words, with a frame or without.

use std::iter;

use strum::{EnumIter, IntoEnumIterator};

/// The parameter that ends all styles.
const PLAIN: &str = "0";

/// A table. Its cells are texts of one line.
#[derive(Clone, Debug)]
pub struct Table {
    header: Vec<Cell>,
    rows: Vec<Vec<Cell>>,
    /// Columns whose texts are flush right.
    right: Vec<usize>,
    /// Most characters of a line.
    limit: Option<usize>,
}

/// A cell of a table.
#[derive(Clone, Debug)]
pub struct Cell {
    text: String,
    style: Style,
}

/// The style of a cell's text on a terminal.
#[derive(Clone, Copy, Debug, Default, EnumIter, PartialEq, Eq)]
pub enum Style {
    /// Without a style.
    #[default]
    Plain,
    /// In bold.
    Bold,
    /// In green.
    Green,
    /// In yellow.
    Yellow,
    /// In red.
    Red,
    /// In bold red.
    BoldRed,
}

impl Cell {
    /// Makes a cell with a style.
    pub fn styled(text: impl Into<String>, style: Style) -> Self {
        let text = text.into();
        Self { text, style }
    }

    fn width(&self) -> usize {
        self.text.chars().count()
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::styled(text, Style::Plain)
    }
}

impl Style {
    /// Returns the parameters of the control sequence that starts it (SGR, ECMA-48, 8.3.117).
    fn code(self) -> &'static str {
        match self {
            Self::Plain => PLAIN,
            Self::Bold => "1",
            Self::Green => "92",
            Self::Yellow => "93",
            Self::Red => "91",
            Self::BoldRed => "1;91",
        }
    }

    /// Returns `text` with the style.
    fn paint(self, text: &str) -> String {
        match self {
            Self::Plain => text.to_owned(),
            _ => format!("\u{1b}[{}m{text}\u{1b}[{PLAIN}m", self.code()),
        }
    }
}

/// Returns `true` if these are the parameters of a control sequence that starts or ends a style of
/// a table.
pub(crate) fn is_style(parameters: &str) -> bool {
    Style::iter().any(|style| style.code() == parameters)
}

impl Table {
    /// Returns a table without rows.
    pub fn new(header: impl IntoIterator<Item = impl Into<Cell>>) -> Self {
        Self {
            header: header.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
            right: Vec::new(),
            limit: None,
        }
    }

    /// Adds a row.
    pub fn add(&mut self, row: impl IntoIterator<Item = impl Into<Cell>>) {
        self.rows.push(row.into_iter().map(Into::into).collect());
    }

    /// With the texts of these columns flush right.
    #[must_use]
    pub fn flush_right(mut self, columns: impl IntoIterator<Item = usize>) -> Self {
        self.right.extend(columns);
        self
    }

    /// With cells that are broken where the framed table would be wider than `columns`.
    #[must_use]
    pub fn at_most(mut self, columns: Option<u16>) -> Self {
        self.limit = columns.map(usize::from);
        self
    }

    /// Returns the table in a frame.
    pub fn framed(&self) -> String {
        let widths = self.widths();
        let rule = |fill: &str, [left, between, right]: [&str; 3]| {
            let fills: Vec<String> = widths.iter().map(|width| fill.repeat(width + 2)).collect();
            format!("{left}{}{right}\n", fills.join(between))
        };
        let row = |row: &Vec<Cell>| {
            let lines = self.lines(row, &widths).into_iter();
            let lines = lines.map(|cells| format!("│{}│\n", cells.join("┆")));
            lines.collect::<String>()
        };
        let rows: String = self.rows.iter().map(row).collect();
        rule("─", ["┌", "┬", "┐"])
            + &row(&self.header)
            + &rule("═", ["╞", "╪", "╡"])
            + &rows
            + &rule("─", ["└", "┴", "┘"])
    }

    /// Returns the table without a frame.
    pub fn bare(&self) -> String {
        let widths = self.widths();
        let rows = iter::once(&self.header).chain(&self.rows);
        let lines = rows.flat_map(|row| self.lines(row, &widths));
        lines
            .map(|cells| cells.concat().trim_end().to_owned() + "\n")
            .collect()
    }

    /// Returns the width of each column.
    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = self.header.iter().map(Cell::width).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.width().max(*width);
            }
        }
        let Some(limit) = self.limit else {
            return widths;
        };
        // Each column has a space on both sides and an edge on its left; the last one has an edge
        // on its right, too.
        let room = limit.saturating_sub(3 * widths.len() + 1);
        let left = widths.iter().sum::<usize>().saturating_sub(room);
        // Words are broken only if it does not fit otherwise.
        let left = narrow(&mut widths, &self.longest_words(), left);
        let least = vec![1; widths.len()];
        narrow(&mut widths, &least, left);
        widths
    }

    /// Returns the width of each column's longest word.
    fn longest_words(&self) -> Vec<usize> {
        let longest = |cell: &Cell| {
            let words = cell.text.split(' ');
            words.map(|word| word.chars().count()).max().unwrap_or(0)
        };
        let mut widths: Vec<usize> = self.header.iter().map(longest).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = longest(cell).max(*width);
            }
        }
        widths
    }

    /// Returns the lines of a row, in cells that are as wide as their columns.
    fn lines(&self, row: &[Cell], widths: &[usize]) -> Vec<Vec<String>> {
        let cells = row.iter().zip(widths).enumerate();
        let columns: Vec<Vec<String>> = cells
            .map(|(column, (cell, width))| {
                let is_right = self.right.contains(&column);
                let parts = broken(&cell.text, *width).into_iter();
                let parts = parts.map(|part| {
                    let space = " ".repeat(width.saturating_sub(part.chars().count()));
                    let text = cell.style.paint(&part);
                    match is_right {
                        true => format!(" {space}{text} "),
                        false => format!(" {text}{space} "),
                    }
                });
                parts.collect()
            })
            .collect();
        let blanks: Vec<String> = widths.iter().map(|width| " ".repeat(width + 2)).collect();
        let height = columns.iter().map(Vec::len).max().unwrap_or(0);
        let line = |number| {
            let cells = columns.iter().zip(&blanks);
            let cells =
                cells.map(|(parts, blank): (&Vec<String>, _)| parts.get(number).unwrap_or(blank));
            cells.cloned().collect()
        };
        (0..height).map(line).collect()
    }
}

/// Narrowest text that [`hanging`] breaks.
const NARROWEST: usize = 30;

/// `head` and `text` in lines of at most `columns`, broken between words. Lines after the first
/// begin below the start of `text`. A word that is longer than a line, as a path, stays whole, so
/// that it can be copied.
pub fn hanging(head: &str, text: &str, columns: Option<u16>) -> String {
    let indent = head.chars().count();
    let width = columns.map_or(usize::MAX, |columns| {
        usize::from(columns).saturating_sub(indent).max(NARROWEST)
    });
    let mut lines = head.to_owned();
    let mut used = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > width {
            lines.extend(iter::once('\n').chain(iter::repeat_n(' ', indent)));
            used = 0;
        } else if used > 0 {
            lines.push(' ');
            used += 1;
        }
        lines.push_str(word);
        used += length;
    }
    lines + "\n"
}

/// `text` in lines of at most `width` characters, broken between words as far as they fit.
fn broken(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    if text.chars().count() <= width {
        return vec![text.to_owned()];
    }
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let mut word: Vec<char> = word.chars().collect();
        loop {
            let Some(line) = lines.last_mut() else {
                return lines;
            };
            let used = line.chars().count();
            let gap = usize::from(used > 0);
            if used + gap + word.len() <= width {
                line.extend((gap > 0).then_some(' ').into_iter().chain(word));
                break;
            }
            if used == 0 {
                line.extend(word.drain(..width.min(word.len())));
            }
            lines.push(String::new());
        }
    }
    lines
}

/// Takes up to `excess` characters from the widest columns. None becomes narrower than `least`.
/// Returns the remaining excess.
fn narrow(widths: &mut [usize], least: &[usize], mut excess: usize) -> usize {
    while excess > 0 {
        let columns = widths.iter_mut().zip(least);
        let wide = columns.filter(|(width, least)| **width > **least);
        let Some((width, _)) = wide.max_by_key(|(width, _)| **width) else {
            break;
        };
        *width -= 1;
        excess -= 1;
    }
    excess
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_hangs_below_its_start_and_keeps_its_words() {
        let text = "takes some time: a path/of/more/than/thirty/characters stays whole";
        let lines = "name  takes some time: a\n      path/of/more/than/thirty/characters\n      stays whole\n";
        assert_eq!(hanging("name  ", text, Some(36)), lines);
        assert_eq!(hanging("name  ", text, Some(1)), lines);
        assert_eq!(hanging("name  ", text, None), format!("name  {text}\n"));
    }

    #[test]
    fn words_are_broken_last() {
        let table = |limit| {
            let mut table = Table::new(["check", "throughput"]).at_most(Some(limit));
            table.add(["disk0 to disk1 through a CMB", "1 MiB/s"]);
            table.framed()
        };
        let whole = table(31);
        assert!(
            whole.contains(" throughput ") && whole.contains(" through a "),
            "{whole}"
        );
        assert!(
            whole.lines().all(|line| line.chars().count() <= 31),
            "{whole}"
        );
        let narrow = table(20);
        assert!(
            narrow.lines().all(|line| line.chars().count() <= 20),
            "{narrow}"
        );
    }

    fn table() -> Table {
        let mut table = Table::new(["name", "value"]).flush_right([1]);
        table.add(["a name of words", "7"]);
        table.add(["ä", "12"]);
        table
    }

    #[test]
    fn frame_fits_the_widest_cells() {
        let expected = "\
┌─────────────────┬───────┐
│ name            ┆ value │
╞═════════════════╪═══════╡
│ a name of words ┆     7 │
│ ä               ┆    12 │
└─────────────────┴───────┘
";
        assert_eq!(table().framed(), expected);
        assert_eq!(table().at_most(Some(200)).framed(), expected);
        assert_eq!(
            table().bare(),
            " name             value\n a name of words      7\n ä                   12\n"
        );
    }

    #[test]
    fn widest_column_is_broken_first() {
        let expected = "\
┌────────┬───────┐
│ name   ┆ value │
╞════════╪═══════╡
│ a name ┆     7 │
│ of     ┆       │
│ words  ┆       │
│ ä      ┆    12 │
└────────┴───────┘
";
        assert_eq!(table().at_most(Some(18)).framed(), expected);
        // No column vanishes.
        assert!(table().at_most(Some(1)).framed().contains("│ w ┆   │"));
    }

    #[test]
    fn text_is_broken_between_words_or_in_a_long_one() {
        assert_eq!(broken("of two words", 8), ["of two", "words"]);
        assert_eq!(broken("abcdefgh ij", 3), ["abc", "def", "gh", "ij"]);
        assert_eq!(broken("", 3), [""]);
        assert_eq!(broken("ab", 0), ["a", "b"]);
    }

    #[test]
    fn style_takes_no_room() {
        let mut table = Table::new(["a", "b"]);
        table.add([Cell::styled("red", Style::Red), Cell::from("x")]);
        assert_eq!(table.bare(), " a    b\n \u{1b}[91mred\u{1b}[0m  x\n");
    }
}
