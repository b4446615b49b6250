//! A machine's PCI functions as a picture: root complex, host bridges, switches and devices, in a
//! page that is one file.
//!
//! [`Layout`] gives each part its place, [`machine()`] and [`words()`] draw the parts, [`STYLE`]
//! colours them. A caller draws what only its own page has, such as the routes of transfers.

#![forbid(unsafe_code)]

mod area;
#[cfg(feature = "browser")]
pub mod browser;
mod drawing;
mod function;
mod layout;
mod page;
mod rows;

pub use area::{Area, level, node, note_in, text, upright};
pub use drawing::{machine, words};
pub use function::{Function, Mark, Port, short};
pub use layout::{
    DevicePosition, HostPosition, Lanes, Layout, Row, Shape, Socket, TRUNK, lane_key, words_key,
};
pub use page::{STYLE, Script, page};
