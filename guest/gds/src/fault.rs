//! The reasons why the GPU did not execute a command.

use std::fmt;

use crate::uapi;

/// A fault code of the device or, from 256 on, of its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An access met a part of the aperture without memory.
    NoPage,
    /// DMA of the command was refused or had no completer.
    Dma,
    /// An address is beyond VRAM.
    OutOfVram,
    /// The device does not know the command, or its numbers are invalid.
    BadCommand,
    /// The driver's ring was damaged.
    BadRing,
    /// Lengths exceed the limits of one command.
    TooLong,
    /// The GPU has worked on the command for longer than allowed.
    TimeOut,
    /// A disk has completed a command that was not in progress on its queue.
    BadCompletion,
    /// A fault rule made it fail.
    Injected,
    /// A reset of the GPU ended it before it was done, and it cannot be repeated. It may have been
    /// done in part.
    Reset,
    /// The exporter of an imported dma-buf has taken its memory away, and commands that use it were
    /// not done 10 s later. They fail, and so does a command of the same [`Gpu`](crate::Gpu) that
    /// was in progress and cannot be repeated. They may have been done in part.
    Revoked,
    /// A code that this library does not know.
    Other(u32),
}

impl From<u32> for Fault {
    fn from(code: u32) -> Fault {
        match code {
            1 => Fault::NoPage,
            2 => Fault::Dma,
            3 => Fault::OutOfVram,
            4 => Fault::BadCommand,
            5 => Fault::BadRing,
            6 => Fault::TooLong,
            7 => Fault::TimeOut,
            8 => Fault::BadCompletion,
            9 => Fault::Injected,
            uapi::ERROR_RESET => Fault::Reset,
            uapi::ERROR_REVOKED => Fault::Revoked,
            code => Fault::Other(code),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::NoPage => "fault 1, no memory behind that part of the aperture",
            Fault::Dma => "fault 2, its DMA failed",
            Fault::OutOfVram => "fault 3, an address beyond VRAM",
            Fault::BadCommand => "fault 4, bad command",
            Fault::BadRing => "fault 5, bad ring",
            Fault::TooLong => "fault 6, the command is too long",
            Fault::TimeOut => "fault 7, the command took too long",
            Fault::BadCompletion => "fault 8, a completion of a command that was not in progress",
            Fault::Injected => "fault 9, injected by a rule",
            Fault::Reset => {
                "fault 256, given up by a reset of the GPU, since it may be done in part and cannot be repeated"
            }
            Fault::Revoked => {
                "fault 257, given up since the exporter of a dma-buf has taken the memory away"
            }
            Fault::Other(code) => return write!(f, "fault {code}, which is unknown"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_device_and_its_driver() {
        for code in (1..=9).chain([0x100, 0x101]) {
            let text = Fault::from(code).to_string();
            assert!(text.starts_with(&format!("fault {code}, ")), "{text}");
        }
        assert_eq!(Fault::from(99).to_string(), "fault 99, which is unknown");
    }
}
