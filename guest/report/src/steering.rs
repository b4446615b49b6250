//! Control characters, which affect how a text is displayed.

/// Returns `true` if a character is a control character, or one that reorders the text around it
/// (Unicode Standard Annex 9, 2), with which one name could look like another.
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
