//! The agent's report, as the guest sends it. The lines and the verdict do not depend on how its
//! bytes are cut, and a printed line parses to itself.

use peerbar_report::KtapReader;

/// Reads `data`. Its first byte determines the cut.
pub fn run(data: &[u8]) {
    let Some((&cut, report)) = data.split_first() else {
        return;
    };
    let reader = || match cut & 1 {
        0 => KtapReader::new(),
        _ => KtapReader::with_plan_last(),
    };
    let mut whole = reader();
    let lines = whole.feed(report);
    let mut in_pieces = reader();
    let piece = usize::from(cut >> 1).max(1);
    let pieces = report.chunks(piece).flat_map(|piece| in_pieces.feed(piece));
    let pieces: Vec<_> = pieces.collect();
    // If they differ, the text decides, because NaN is not equal to itself.
    if pieces != lines {
        assert_eq!(format!("{pieces:?}"), format!("{lines:?}"));
    }
    assert_eq!(in_pieces.complete(), whole.complete());
    assert_eq!(in_pieces.finish(), whole.finish());
    for line in lines {
        let printed = line.to_string();
        let again = KtapReader::new().feed(format!("{printed}\n").as_bytes());
        assert_eq!(again.len(), 1, "{line:?}");
        if again[0] != line {
            assert_eq!(again[0].to_string(), printed, "{line:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use peerbar_report::Line;

    use super::*;
    use crate::seed::corpus;

    #[test]
    fn every_seed_has_only_lines_that_are_known() {
        for (name, seed) in corpus("ktap_report") {
            let lines = KtapReader::new().feed(&seed[1..]);
            assert!(!lines.is_empty(), "{name}");
            let unknown = lines.iter().find(|line| matches!(line, Line::Unknown(_)));
            assert_eq!(unknown, None, "{name}");
        }
    }
}
