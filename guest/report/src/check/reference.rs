//! The reference of all kinds of checks, for `peerbar list` and the book.

use super::{KINDS, Kind};

impl Kind {
    /// Returns its description as Markdown, with a paragraph or an item of a list in a line.
    pub fn about(&self) -> String {
        let mut text = String::new();
        for line in self.about.lines().map(str::trim) {
            text += match line {
                "" => "\n\n",
                _ if text.is_empty() || text.ends_with('\n') => "",
                _ if line.starts_with("- ") => "\n",
                _ => " ",
            };
            text += line;
        }
        text
    }

    /// Returns the kind's section as Markdown: a heading of this level, its description, a table of
    /// its keys.
    pub fn markdown(&self, level: usize) -> String {
        let mut text = format!(
            "{} `{}`\n\n{}\n\n",
            "#".repeat(level),
            self.name,
            self.about()
        );
        text += "| key | default | meaning |\n| --- | --- | --- |\n";
        for key in self.keys() {
            let default = key.default.unwrap_or("required");
            text += &format!("| `{}` | {default} | {} |\n", key.name, key.about);
        }
        text
    }
}

/// Returns the sections of all kinds as Markdown, each below a heading of this level, in the order
/// of [`KINDS`].
pub fn check_reference(level: usize) -> String {
    let sections: Vec<String> = KINDS.iter().map(|kind| kind.markdown(level)).collect();
    sections.join("\n")
}
