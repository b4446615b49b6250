//! Turns the bytes of a paste into text: encodings, line ends, colours, and what web pages and
//! mail programs put in the place of spaces.

/// Returns the text of `bytes`: UTF-8, or UTF-16 as PowerShell's `>` writes it. A byte that is not
/// part of a character becomes a replacement character.
pub(crate) fn text(bytes: &[u8]) -> String {
    match bytes {
        [0xff, 0xfe, rest @ ..] => utf16(rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => utf16(rest, u16::from_be_bytes),
        _ => String::from_utf8_lossy(bytes).into_owned(),
    }
}

fn utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> String {
    let pairs = bytes
        .chunks_exact(2)
        .filter_map(|pair| pair.try_into().ok());
    let units: Vec<u16> = pairs.map(unit).collect();
    String::from_utf16_lossy(&units)
}

/// Returns `text` without a byte order mark, colours and other characters that steer a terminal,
/// with `\n` as the only line end and plain spaces.
pub(crate) fn clean(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            // A control sequence ends with a character from @ to ~ (ECMA-48, 5.4).
            '\u{1b}' if chars.next_if_eq(&'[').is_some() => {
                while chars.next_if(|c| matches!(c, ' '..='?')).is_some() {}
                chars.next_if(|c| matches!(c, '@'..='~'));
            }
            '\r' if chars.peek() != Some(&'\n') => clean.push('\n'),
            '\u{a0}' => clean.push(' '),
            // Marks that change the direction of writing.
            '\u{feff}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {}
            '\n' | '\t' => clean.push(c),
            c if c.is_control() => {}
            c => clean.push(c),
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_give_the_same_text() {
        let expected = "00:00.0 Host bridge: Ä\n";
        let little: Vec<u8> = expected.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let big: Vec<u8> = expected.encode_utf16().flat_map(u16::to_be_bytes).collect();
        for bytes in [
            [&[0xff, 0xfe], little.as_slice()].concat(),
            [&[0xfe, 0xff], big.as_slice()].concat(),
            [&[0xef, 0xbb, 0xbf], expected.as_bytes()].concat(),
        ] {
            assert_eq!(clean(&text(&bytes)), expected);
        }
        assert_eq!(text(b"G\xe4t"), "G\u{fffd}t");
    }

    #[test]
    fn terminal_s_and_mail_s_additions_go() {
        let text = "\u{1b}[01;31m\u{1b}[K00:00.0\u{1b}[m\u{1b}[K Host\u{a0}bridge\u{7}\r\n\tx\ry";
        assert_eq!(clean(text), "00:00.0 Host bridge\n\tx\ny");
        assert_eq!(clean("\u{1b}["), "");
    }
}
