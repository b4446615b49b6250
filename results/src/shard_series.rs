//! The results of the shards of one list, compared with their plans.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::bail;

use crate::shard::{Shard, ShardPlan, ShardedList};

/// The shards of one list whose plans were found, each with the series of its runs.
pub(crate) struct ShardSeries<'a> {
    of: ShardedList,
    plans: BTreeMap<Shard, &'a ShardPlan>,
}

impl<'a> ShardSeries<'a> {
    /// Takes the plans of the list `of` among `plans`.
    ///
    /// # Errors
    /// Plans of different lists, or two of one shard.
    pub(crate) fn of(of: ShardedList, plans: &'a [ShardPlan]) -> anyhow::Result<Self> {
        let mut found: BTreeMap<Shard, &ShardPlan> = BTreeMap::new();
        for plan in plans.iter().filter(|plan| plan.of == of) {
            let (word, shard) = (of.word(), plan.shard);
            if let Some(first) = found.values().find(|first| !plan.is_of_same_list(first)) {
                bail!(
                    "the plans of shard {} and shard {shard} of the {word} name different lists: merge the shards of one list",
                    first.shard,
                );
            }
            let former = found.insert(shard, plan);
            if let Some(former) = former.filter(|former| former.series != plan.series) {
                bail!(
                    "shard {shard} of the {word} has run twice, as series {} and {}: merge one of them",
                    former.series,
                    plan.series
                );
            }
        }
        Ok(Self { of, plans: found })
    }

    /// Returns `true` if the results in `folder`, of this `series`, belong to them, or if there are
    /// no plans. Logs the names of the others.
    pub(crate) fn has(&self, series: Option<&str>, folder: &Path) -> bool {
        let mut plans = self.plans.values();
        let has = self.plans.is_empty() || plans.any(|plan| Some(&*plan.series) == series);
        if !has {
            let (folder, word) = (folder.display(), self.of.word());
            log::warn!(
                "{folder} is left out: it is of another series than the shards of the {word}"
            );
        }
        has
    }

    /// Returns the planned items that are not among `results`, each with its series and the name of
    /// its item; a line each.
    pub(crate) fn missing<'r>(
        &self,
        results: impl Iterator<Item = (Option<&'r str>, String)>,
    ) -> Vec<String> {
        let mut counts: BTreeMap<(&str, String), usize> = BTreeMap::new();
        for (series, name) in results {
            *counts
                .entry((series.unwrap_or_default(), name))
                .or_default() += 1;
        }
        let Some(first) = self.plans.values().next() else {
            return Vec::new();
        };
        let mut lines = BTreeMap::new();
        for shard in first.shard.all() {
            for (number, item) in shard.part(first.items.iter().enumerate()) {
                let why = match self.plans.get(&shard) {
                    None => format!("shard {shard} is missing"),
                    Some(plan) => {
                        let key = (plan.series.as_str(), item.name.clone());
                        match counts.get(&key).copied().unwrap_or(0) {
                            there if there >= item.results => continue,
                            0 => format!("shard {shard} has no result of it"),
                            there => format!(
                                "shard {shard} has {there} of {} results of it",
                                item.results
                            ),
                        }
                    }
                };
                lines.insert(number, format!("{}: {} ({why})", self.of.word(), item.name));
            }
        }
        lines.into_values().collect()
    }
}
