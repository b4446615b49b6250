//! Blocks of lines for a terminal, each with a word on its left.

/// Width of the word before a block of lines.
pub(crate) const MARGIN: usize = 9;

/// Returns `lines` with `word` before the first of them, or nothing without lines. A line of more
/// than `width` columns continues in the next one.
pub fn block(word: &str, lines: &[String], width: usize) -> String {
    let room = width.saturating_sub(MARGIN.saturating_add(2));
    let wrapped: Vec<String> = lines
        .iter()
        .flat_map(|line| {
            let parts = wrap(line, room.saturating_sub(2));
            parts
                .into_iter()
                .enumerate()
                .map(|(at, part)| if at == 0 { part } else { format!("  {part}") })
        })
        .collect();
    block_unwrapped(word, &wrapped)
}

/// Returns `lines` as they are, with `word` before the first of them.
pub(crate) fn block_unwrapped(word: &str, lines: &[String]) -> String {
    let words = [word].into_iter().chain(std::iter::repeat(""));
    let line = |(word, line): (&str, &String)| format!("  {word:MARGIN$}{}\n", line.trim_end());
    words.zip(lines).map(line).collect()
}

/// Breaks `text` between words so that no line has more than `width` characters, except for longer
/// words.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count().saturating_add(word.chars().count()) < width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_line_continues_below_its_start() {
        let lines = ["one two three".to_owned(), "four".to_owned()];
        let expected = "  word     one two\n             three\n           four\n";
        assert_eq!(block("word", &lines, 22), expected);
        let expected = "  word     one two three\n           four\n";
        assert_eq!(block("word", &lines, usize::MAX), expected);
        assert_eq!(block("word", &[], 22), "");
    }
}
