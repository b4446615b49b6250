//! The combinations that DMA is counted by.

use crate::words::{Completer, Direction, Purpose, Route};

const PURPOSES: [Purpose; 5] = [
    Purpose::Command,
    Purpose::Completion,
    Purpose::List,
    Purpose::Control,
    Purpose::Payload,
];
const ROUTES: [Route; 5] = [
    Route::OwnBar,
    Route::Peer,
    Route::GuestRam,
    Route::Upstream,
    Route::Refused,
];
const COMPLETERS: [Completer; 5] = [
    Completer::OwnMemory,
    Completer::GuestRam,
    Completer::PeerBar,
    Completer::Nobody,
    Completer::Unknown,
];
const DIRECTIONS: [Direction; 2] = [Direction::Read, Direction::Write];

/// What a DMA was for and which way it took: each combination is counted separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DmaKind {
    /// What it was for.
    pub purpose: Purpose,
    /// The way that it took.
    pub route: Route,
    /// The owner of the memory that it met.
    pub completer: Completer,
    /// Which way the data went.
    pub direction: Direction,
}

impl DmaKind {
    /// How many kinds there are.
    pub const COUNT: usize = PURPOSES.len() * ROUTES.len() * COMPLETERS.len() * DIRECTIONS.len();

    /// Its position in [`DmaKind::all`].
    pub fn index(self) -> usize {
        let index = self.purpose as usize * ROUTES.len() + self.route as usize;
        let index = index * COMPLETERS.len() + self.completer as usize;
        index * DIRECTIONS.len() + self.direction as usize
    }

    /// Every kind, in their order.
    pub fn all() -> impl Iterator<Item = Self> {
        PURPOSES.into_iter().flat_map(|purpose| {
            ROUTES.into_iter().flat_map(move |route| {
                COMPLETERS.into_iter().flat_map(move |completer| {
                    DIRECTIONS.into_iter().map(move |direction| Self {
                        purpose,
                        route,
                        completer,
                        direction,
                    })
                })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_of_each_kind_is_its_position() {
        let indices: Vec<usize> = DmaKind::all().map(DmaKind::index).collect();
        assert_eq!(indices, (0..250).collect::<Vec<_>>());
        assert!(DmaKind::all().is_sorted());
    }
}
