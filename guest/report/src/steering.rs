//! Characters that steer what shows a text, rather than stand in it.

/// Whether a character is a control character, or one that reorders the text around it (Unicode Standard Annex 9, 2): a name could pass for
/// another one.
///
/// ```
/// use peerbar_report::steers;
/// assert!(steers('\n') && steers('\u{202e}'));
/// assert!(!steers('\u{5d0}'));
/// ```
pub fn steers(character: char) -> bool {
    let reorders = matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    reorders || character.is_control()
}
