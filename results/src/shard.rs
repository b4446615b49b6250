//! A shard: the part of a list that one of several machines runs.

use std::fmt;
use std::num::NonZero;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// One of several parts of a list: `2/5` is the second of five.
///
/// The items are assigned in turn: item 0 to shard 1, item 1 to shard 2. So the same list in the
/// same order gives the same parts everywhere, and neighbours, which often take similar time, are
/// in different parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "RawShard")]
pub struct Shard {
    /// Its number, counted from 1.
    index: NonZero<usize>,
    /// Number of parts, not less than `index`.
    count: NonZero<usize>,
}

/// The reason why a text is not a shard.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("invalid shard `{0}`: expected M/N, such as `2/5` for the second of five")]
pub struct ShardError(String);

/// A shard as stored in a file, before it is checked.
#[derive(Deserialize)]
struct RawShard {
    index: NonZero<usize>,
    count: NonZero<usize>,
}

/// The items that all shards together run, and the number of this shard: written before a shard's
/// first run, so that a merge knows the missing results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardPlan {
    /// The kind of the items.
    pub of: ShardedList,
    /// The part of this shard.
    #[serde(flatten)]
    pub shard: Shard,
    /// The series of this shard's runs: results of another series do not belong to it.
    pub series: String,
    /// All items of all shards, in their order.
    pub items: Vec<ShardItem>,
}

/// An item that one shard runs, once or more often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardItem {
    /// Its name, which no other item has.
    pub name: String,
    /// The number of its results: the runs of a scenario, at least one if that is left open, or the
    /// cells of a boot.
    pub results: usize,
}

/// The lists that can be run in shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShardedList {
    /// Scenarios, by their names.
    Scenarios,
    /// Boots of the matrix: `CPU, IOMMU`.
    Matrix,
}

impl ShardedList {
    /// Returns its name in files and messages.
    pub fn word(self) -> &'static str {
        match self {
            Self::Scenarios => "scenarios",
            Self::Matrix => "matrix",
        }
    }
}

impl Shard {
    /// Returns all parts of the same list.
    pub(crate) fn all(self) -> impl Iterator<Item = Self> {
        let Self { count, .. } = self;
        let indices = (1..=count.get()).filter_map(NonZero::new);
        indices.map(move |index| Self { index, count })
    }

    /// Returns the items of `all` that belong to it, in order.
    pub fn part<T>(self, all: impl IntoIterator<Item = T>) -> Vec<T> {
        let first = self.index.get().saturating_sub(1);
        all.into_iter()
            .skip(first)
            .step_by(self.count.get())
            .collect()
    }
}

impl FromStr for Shard {
    type Err = ShardError;

    fn from_str(text: &str) -> Result<Self, ShardError> {
        let error = || ShardError(text.to_owned());
        let (index, count) = text.split_once('/').ok_or_else(error)?;
        let (Ok(index), Ok(count)) = (index.parse(), count.parse()) else {
            return Err(error());
        };
        RawShard { index, count }.try_into().map_err(|_| error())
    }
}

impl TryFrom<RawShard> for Shard {
    type Error = ShardError;

    fn try_from(RawShard { index, count }: RawShard) -> Result<Self, ShardError> {
        let shard = Self { index, count };
        (index <= count)
            .then_some(shard)
            .ok_or_else(|| ShardError(shard.to_string()))
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl ShardPlan {
    /// Returns `true` if both are of one list, divided in the same way.
    pub(crate) fn is_of_same_list(&self, other: &Self) -> bool {
        (self.shard.count, &self.items) == (other.shard.count, &other.items)
    }

    /// Returns the name of its file in the folder of all runs.
    pub fn file_name(&self) -> String {
        let Shard { index, count } = self.shard;
        format!("{}-shard-{index}-of-{count}.json", self.of.word())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn five_items_are_assigned_in_turn() {
        let part = |text: &str| text.parse::<Shard>().unwrap().part(0..5);
        assert_eq!(part("1/2"), [0, 2, 4]);
        assert_eq!(part("2/2"), [1, 3]);
        assert_eq!(part("1/1"), [0, 1, 2, 3, 4]);
        assert!(part("7/7").is_empty());
    }

    #[test]
    fn text_that_is_no_shard_is_refused() {
        for text in ["", "2", "0/2", "3/2", "1/0", "a/b", "1/2/3", "-1/2", "1 /2"] {
            let error = text.parse::<Shard>().unwrap_err();
            let message = "expected M/N, such as `2/5` for the second of five";
            assert_eq!(
                error.to_string(),
                format!("invalid shard `{text}`: {message}")
            );
        }
    }

    #[test]
    fn plan_is_read_back_and_checked() {
        let plan = ShardPlan {
            of: ShardedList::Scenarios,
            shard: "2/3".parse().unwrap(),
            series: "5e".to_owned(),
            items: vec![ShardItem {
                name: "demo".to_owned(),
                results: 3,
            }],
        };
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(
            text,
            r#"{"of":"scenarios","index":2,"count":3,"series":"5e","items":[{"name":"demo","results":3}]}"#
        );
        assert_eq!(serde_json::from_str::<ShardPlan>(&text).unwrap(), plan);
        assert_eq!(plan.file_name(), "scenarios-shard-2-of-3.json");
        let wrong = text.replace(":2,", ":4,");
        assert!(serde_json::from_str::<ShardPlan>(&wrong).is_err());
    }

    proptest! {
        #[test]
        fn every_item_is_in_one_shard(items in 0..50usize, count in 1..12usize) {
            let count = NonZero::new(count).unwrap();
            let first = Shard { index: NonZero::<usize>::MIN, count };
            let parts = first.all().flat_map(|shard| shard.part(0..items));
            let mut all: Vec<usize> = parts.collect();
            all.sort_unstable();
            prop_assert_eq!(all, (0..items).collect::<Vec<_>>());
        }
    }
}
