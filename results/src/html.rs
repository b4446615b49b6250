//! Results as a page to read.

mod bars;
mod checks;
mod grid;
mod page;
mod picture;
mod routed;

pub use page::page;
