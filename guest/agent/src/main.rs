//! PID 1 of the guest. It is the library, linked statically by `scripts/build`, since the initramfs
//! has no other libraries.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    peerbar_agent::main()
}
