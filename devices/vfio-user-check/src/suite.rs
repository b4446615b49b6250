//! The tests.
//!
//! Each group is a file. Those that share a connection come first, because a server may end when
//! its client leaves.

mod access;
mod disconnection;
mod dma;
mod header;
mod hostile;
mod info;
mod interrupts;
mod irq_info;
mod multi;
mod negotiation;
mod optional;
mod regions;
mod reset;
mod version;

use std::os::fd::OwnedFd;

use rustix::pipe::{PipeFlags, pipe_with};

use crate::outcome::{Failing, Outcome};
use crate::test::{Group, Test};

const GROUPS: &[Group] = &[
    version::GROUP,
    header::GROUP,
    info::GROUP,
    regions::GROUP,
    irq_info::GROUP,
    interrupts::GROUP,
    access::GROUP,
    multi::GROUP,
    dma::GROUP,
    optional::GROUP,
    reset::GROUP,
    disconnection::GROUP,
    negotiation::GROUP,
    hostile::GROUP,
];

/// Returns all tests, in the order in which they run.
pub fn tests() -> Vec<Test> {
    GROUPS.iter().flat_map(Group::tests).collect()
}

/// Makes a pipe, which a server that starts in the meantime does not inherit.
fn pipe() -> Outcome<(OwnedFd, OwnedFd)> {
    let pipe = pipe_with(PipeFlags::CLOEXEC);
    pipe.map_err(|error| Failing::not_applicable(format!("no pipe can be made: {error}")))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::Source;

    #[test]
    fn names_are_unique_words_and_sources_are_short_sentences() {
        let mut names = BTreeSet::new();
        for test in tests() {
            let name = test.to_string();
            let is_word = |byte: u8| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte)
            };
            assert!(name.bytes().all(is_word), "{name}");
            let says = match test.source {
                Source::Specification { says, .. } | Source::Qemu(says) => says,
            };
            assert!(says.len() <= 160 && !says.ends_with('.'), "{name}: {says}");
            assert!(names.insert(name));
        }
    }
}
