//! The combinations by which DMA is counted.

use strum::VariantArray;

use crate::words::{Completer, Direction, Purpose, Route};

/// Purpose, route, completer and direction of a DMA: each combination is counted separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DmaKind {
    /// Its purpose.
    pub purpose: Purpose,
    /// Its route.
    pub route: Route,
    /// The owner of the memory that it met.
    pub completer: Completer,
    /// The direction of the data.
    pub direction: Direction,
}

impl DmaKind {
    /// Number of kinds.
    pub const COUNT: usize = Purpose::VARIANTS.len()
        * Route::VARIANTS.len()
        * Completer::VARIANTS.len()
        * Direction::VARIANTS.len();

    /// Returns its position in [`DmaKind::all`].
    pub fn index(self) -> usize {
        let index = self.purpose as usize * Route::VARIANTS.len() + self.route as usize;
        let index = index * Completer::VARIANTS.len() + self.completer as usize;
        index * Direction::VARIANTS.len() + self.direction as usize
    }

    /// Returns every kind, in order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT).filter_map(|index| {
            let (rest, direction) = split::<Direction>(index);
            let (rest, completer) = split::<Completer>(rest);
            let (purpose, route) = split::<Route>(rest);
            Some(Self {
                purpose: *Purpose::VARIANTS.get(purpose)?,
                route: *route?,
                completer: *completer?,
                direction: *direction?,
            })
        })
    }
}

/// Splits the last word off an index.
fn split<W: VariantArray>(index: usize) -> (usize, Option<&'static W>) {
    let words = W::VARIANTS.len();
    (index / words, W::VARIANTS.get(index % words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_of_each_kind_is_its_position() {
        let indices: Vec<usize> = DmaKind::all().map(DmaKind::index).collect();
        assert_eq!(indices, (0..300).collect::<Vec<_>>());
        assert!(DmaKind::all().is_sorted());
    }
}
