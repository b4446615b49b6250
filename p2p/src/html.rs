//! Verdicts as a page to read: the machine as a picture, the matrix, and everything about each
//! pair.

mod grid;
mod page;
mod pairs;
mod picture;

pub(crate) use page::page;
#[cfg(test)]
pub(crate) use page::page_of;
