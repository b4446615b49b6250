//! `peerbar cache`: the contents of the cache, and ways to free its disk space.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use peerbar_images::{Cache, CacheEntry, PruneRule};
use peerbar_lab::count::counted;
use peerbar_lab::exit::Failure;
use peerbar_lab::programs::program;
use peerbar_lab::size::human;
use peerbar_lab::terminal::print;
use serde_json::json;

use crate::cli::{CacheCommand, Prune};

/// Lists or prunes.
pub(crate) fn cache(command: &CacheCommand) -> Result<ExitCode, Failure> {
    let cache = Cache::open()?;
    let (entries, is_json, verb) = match command {
        CacheCommand::List { json } => (cache.entries()?, *json, Verb::Holds),
        CacheCommand::Prune(options) => {
            let pruned = cache.prune(rule(options)?, options.dry_run)?;
            let verb = if options.dry_run {
                Verb::WouldRemove
            } else {
                Verb::Removed
            };
            (pruned, options.json, verb)
        }
    };
    let text = if is_json {
        let all = json!({ "folder": cache.path(), "entries": entries, "below": cache.below() });
        serde_json::to_string_pretty(&all).context("cannot write JSON")? + "\n"
    } else {
        text(&entries, SystemTime::now()) + &summary(&entries, verb, &cache)
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The verb of a summary: the state of the entries.
#[derive(Clone, Copy)]
enum Verb {
    Holds,
    WouldRemove,
    Removed,
}

fn rule(options: &Prune) -> Result<PruneRule, Failure> {
    if options.all {
        return Ok(PruneRule::Everything);
    }
    if let Some(time) = options.older_than {
        return Ok(PruneRule::UnusedFor(time.into()));
    }
    let agent = program("peerbar-agent")?;
    let built = agent.metadata().and_then(|metadata| metadata.modified());
    let built = built.with_context(|| format!("cannot read {}", agent.display()))?;
    Ok(PruneRule::Superseded(built))
}

/// Returns a line for each entry.
fn text(entries: &[CacheEntry], now: SystemTime) -> String {
    let line = |entry: &CacheEntry| {
        let age = now.duration_since(entry.last_use).unwrap_or_default();
        let in_use = if entry.in_use { "  in use" } else { "" };
        let (kind, size) = (entry.kind, human(entry.bytes));
        format!(
            "{kind:<10} {size:>9}  {:>9}  {}{in_use}\n",
            ago(age),
            entry.name
        )
    };
    let lines: String = entries.iter().map(line).collect();
    if lines.is_empty() {
        return lines;
    }
    format!("{:<10} {:>9}  {:>9}  entry\n", "kind", "size", "last use") + &lines
}

/// Returns the sums of each kind, and of all.
fn summary(entries: &[CacheEntry], verb: Verb, cache: &Cache) -> String {
    let mut kinds: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    for entry in entries {
        let (count, bytes) = kinds.entry(entry.kind).or_default();
        *count = count.saturating_add(1);
        *bytes = bytes.saturating_add(entry.bytes);
    }
    let all = kinds
        .values()
        .fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
    let parts = kinds
        .iter()
        .map(|(kind, (count, bytes))| format!("{count} {kind} {}", human(*bytes)));
    let parts: Vec<String> = parts.collect();
    let parts = match parts.as_slice() {
        [] => String::new(),
        parts => format!(" ({})", parts.join(", ")),
    };
    let (folder, sum) = (cache.path().display(), human(all));
    let own = match verb {
        Verb::Holds => format!(
            "{folder} holds {sum}{parts}; `peerbar cache prune` frees the space of unneeded entries\n"
        ),
        Verb::WouldRemove => format!("would give back {sum} of {folder}{parts}\n"),
        Verb::Removed => format!("gave back {sum} of {folder}{parts}\n"),
    };
    let Some(below) = cache.below() else {
        return own;
    };
    let (folder, sum) = (below.display(), human(cache.bytes_below()));
    own + &match verb {
        Verb::Holds => format!("{folder}, the cache of the whole machine, holds {sum}\n"),
        _ => format!("{folder}, the cache of the whole machine, stays as it is\n"),
    }
}

/// Returns a time in its largest unit.
fn ago(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => "now".to_owned(),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => counted(seconds / 86_400, "day"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_lines_with_age_and_use() {
        let now = SystemTime::now();
        let entry = |name: &str, kind, bytes, seconds, in_use| CacheEntry {
            name: name.to_owned(),
            kind,
            bytes,
            last_use: now - Duration::from_secs(seconds),
            in_use,
        };
        let entries = [
            entry("root-1", "root", 795 << 20, 59, true),
            entry("initramfs-1", "initramfs", 5 << 20, 7200, false),
            entry("initramfs-2", "initramfs", 5 << 20, 3 * 86_400, false),
        ];
        let expected = "\
kind            size   last use  entry
root         795 MiB        now  root-1  in use
initramfs      5 MiB        2 h  initramfs-1
initramfs      5 MiB     3 days  initramfs-2
";
        assert_eq!(text(&entries, now), expected);
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path()).unwrap();
        let message = summary(&entries, Verb::WouldRemove, &cache);
        let sums = format!(
            "would give back 805 MiB of {} (2 initramfs 10 MiB, 1 root 795 MiB)\n",
            cache.path().display()
        );
        assert_eq!(message, sums);
        assert_eq!(text(&[], now), "");
        let below = tempfile::tempdir().unwrap();
        let over = cache.over(below.path());
        let machine = over.below().unwrap().display();
        let line = |verb| summary(&[], verb, &over).lines().nth(1).unwrap().to_owned();
        let held = format!("{machine}, the cache of the whole machine, holds 0 B");
        assert_eq!(line(Verb::Holds), held);
        assert!(line(Verb::Removed).ends_with("machine, stays as it is"));
    }
}
