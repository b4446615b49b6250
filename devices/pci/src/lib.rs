//! The parts that every PCI function has: configuration space with BAR sizing, capabilities, and
//! the bits that permit the function's actions on the bus.
//!
//! [`ConfigSpace`] is a PCI Express endpoint's type 0 header with power management, MSI-X and PCI
//! Express capabilities. It is registers only: a write returns its [`Effects`]. The traits
//! [`Function`] and [`Interrupts`] are the interface between a device's logic and its bus. The types
//! [`Iova`] and [`BusAddress`] tell the addresses of requests from those on the bus.
//!
//! Not here: type 1 headers (the switch ports are QEMU's), MSI, resizable BARs (QEMU hides them),
//! AER.
#![forbid(unsafe_code)]

mod address;
mod bar;
mod capability;
mod config;
mod function;
#[cfg(feature = "test-function")]
mod no_registers;

pub use address::{Address, BusAddress, InvalidRange, Iova, Range};
pub use bar::{Bar, BarError};
pub use capability::MsiX;
pub use config::{CommandRegister, ConfigSpace, Effects, Identity, find_capability};
pub use function::{Function, InterruptMode, Interrupts, UnsupportedRequest};
#[cfg(feature = "test-function")]
pub use no_registers::NoRegisters;

/// Length of a PCI Express function's configuration space (PCIe Base 6.0, 7.2).
pub const CONFIG_BYTES: usize = 4096;
