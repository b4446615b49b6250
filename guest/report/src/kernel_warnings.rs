//! Known warnings of the kernel when a check takes a device away.

/// A search of the kernel's log that skips warnings of known functions, and nothing else.
#[derive(Clone, Debug, Default)]
pub struct KnownWarnings {
    functions: Vec<&'static str>,
    inside: bool,
    seen: bool,
}

impl KnownWarnings {
    /// Treats warnings of these functions as known.
    pub fn of(functions: &[&'static str]) -> Self {
        Self {
            functions: functions.to_vec(),
            ..Self::default()
        }
    }

    /// Treats warnings of these functions as known, too.
    pub fn add(&mut self, functions: &[&'static str]) {
        self.functions.extend(functions);
    }

    /// Returns `true` if this next line of the log belongs to a known warning: the rule before it,
    /// its first line, the head of its trace, its end (Linux, kernel/panic.c: `__warn`). Other
    /// messages of the kernel between these lines do not belong to it.
    pub fn has(&mut self, line: &str) -> bool {
        if self.functions.is_empty() {
            return false;
        }
        if line.contains("WARNING: ") {
            let is_of_line = |function: &&str| line.contains(&format!(" {function}+0x"));
            self.inside = self.functions.iter().any(is_of_line);
            self.seen |= self.inside;
            return self.inside;
        }
        if line.contains("---[ end trace ") {
            return std::mem::take(&mut self.inside);
        }
        // The rule precedes any warning. The warning itself is judged by its own line.
        let is_rule = line.contains("------------[ cut here ]------------");
        is_rule || self.inside && line.contains("Call Trace:")
    }

    /// Returns `true` if there was a known warning.
    pub fn were_seen(&self) -> bool {
        self.seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: [&str; 7] = [
        "------------[ cut here ]------------",
        "WARNING: drivers/a.c:1 at known+0xce/0xf0 [b], CPU#0: c/145",
        "RIP: 0010:known+0xce/0xf0 [b]",
        "Call Trace:",
        "BUG: c",
        "---[ end trace 0000000000000000 ]---",
        "Call Trace:",
    ];

    #[test]
    fn lines_of_a_known_warning_and_no_others_are_passed_by() {
        let mut known = KnownWarnings::of(&["other"]);
        known.add(&["known"]);
        assert!(!known.were_seen());
        let passed = LOG.map(|line| known.has(line));
        assert_eq!(passed, [true, true, false, true, false, true, false]);
        assert!(known.were_seen());
    }

    #[test]
    fn warning_of_another_function_is_not_passed_by() {
        for functions in [&["now", "known_too"][..], &[]] {
            let mut known = KnownWarnings::of(functions);
            let passed = LOG[1..].iter().any(|line| known.has(line));
            assert!(!passed && !known.were_seen(), "{functions:?}");
        }
    }
}
