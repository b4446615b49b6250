//! Boxes, words and wires in SVG.

use maud::{Markup, html};

/// Approximate width of a small letter, and the least distance of such words from a box's edges.
const NOTE_LETTER: i32 = 7;
const NOTE_MARGIN: i32 = 3;

/// A box of the picture, in pixels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Area {
    /// Its left edge.
    pub left: i32,
    /// Its upper edge.
    pub top: i32,
    /// Its width.
    pub width: i32,
    /// Its height.
    pub height: i32,
}

impl Area {
    /// Returns the right edge.
    pub fn right(self) -> i32 {
        self.left + self.width
    }

    /// Returns the lower edge.
    pub fn bottom(self) -> i32 {
        self.top + self.height
    }

    /// Returns the middle between the left and the right edge.
    pub fn middle(self) -> i32 {
        self.left + self.width / 2
    }
}

/// Returns a box with round corners, of the classes `node` and `class`.
pub fn node(class: &str, area: Area) -> Markup {
    let Area {
        left,
        top,
        width,
        height,
    } = area;
    html! { rect.node.(class) x=(left) y=(top) width=(width) height=(height) rx="8" {} }
}

/// Returns words whose `anchor` (`start`, `middle` or `end`) is at a point.
pub fn text(class: &str, x: i32, y: i32, anchor: &str, words: &str) -> Markup {
    html! { text.(class) x=(x) y=(y) text-anchor=(anchor) { (words) } }
}

/// Returns a vertical wire.
pub fn upright(x: i32, from: i32, to: i32) -> Markup {
    html! { path.wire d=(format!("M{x} {from}V{to}")) {} }
}

/// Returns a horizontal wire.
pub fn level(from: i32, to: i32, y: i32) -> Markup {
    html! { path.wire d=(format!("M{from} {y}H{to}")) {} }
}

/// Returns a line of small letters in the middle of `area`, with its base line at `y`. Words that
/// are too long for the area are condensed.
pub fn note_in(area: Area, y: i32, words: &str) -> Markup {
    let letters = i32::try_from(words.chars().count()).unwrap_or(i32::MAX / NOTE_LETTER);
    let room = area.width - 2 * NOTE_MARGIN;
    let length = (letters * NOTE_LETTER > room).then_some(room);
    html! {
        text.note x=(area.middle()) y=(y) text-anchor="middle" textLength=[length]
            lengthAdjust=[length.map(|_| "spacingAndGlyphs")] { (words) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_that_are_too_long_are_condensed() {
        let area = Area {
            width: 60,
            ..Area::default()
        };
        let drawn = |words| note_in(area, 20, words).into_string();
        assert!(!drawn("0000:00").contains("textLength"));
        assert!(drawn("right 0000:00").contains(r#"textLength="54""#));
    }
}
