//! The smallest first program of a guest, linked statically as the agent is.

#![forbid(unsafe_code)]

fn main() -> std::io::Result<()> {
    peerbar_agent::empty_init::run()
}
