//! Results as a page to read.

mod bars;
mod checks;
mod grid;
mod layout;
mod page;
mod picture;
mod routed;

pub use page::page;
