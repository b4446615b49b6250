//! The least that can be a guest's first program, linked statically as the agent is.

#![forbid(unsafe_code)]

fn main() -> std::io::Result<()> {
    peerbar_agent::empty_init::run()
}
