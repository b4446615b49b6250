//! Boxes, words and wires in SVG.

use maud::{Markup, html};

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
