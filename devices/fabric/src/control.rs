//! The control socket: accepts impairment rules while the fabric is served. A command is a rule,
//! `clear`, or `rules`.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use peerbar_host::socket_file::line_server::{LineServer, LineServerError, in_force};

use crate::impairment::Impairment;
use crate::impairments::Impairments;
use crate::record::{Happened, Record};

/// Makes the control socket at `path`.
pub(crate) fn start(
    path: &Path,
    impairments: Arc<Mutex<Impairments>>,
    record: Record,
) -> Result<LineServer, LineServerError> {
    let obey = move |line: &str| obey(line, &mut impairments.lock(), &record);
    LineServer::start(path, obey)
}

/// Executes a command. Returns the result, or the reason of a failure, in one line.
fn obey(line: &str, impairments: &mut Impairments, record: &Record) -> Result<String, String> {
    match line {
        "clear" => {
            let count = impairments.clear();
            record.note(|| Happened::Cleared);
            Ok(format!("rules cleared: {count}"))
        }
        "rules" => Ok(in_force(impairments.rules())),
        line => {
            let wrong =
                |error: &dyn ToString| format!("`{}` {}", line.escape_debug(), error.to_string());
            let rule: Impairment = line.parse().map_err(|error| wrong(&error))?;
            impairments
                .add(rule.clone())
                .map_err(|error| wrong(&error))?;
            let mut done = format!("in force: {rule}");
            let unknown: Vec<&str> = impairments.unknown(&rule).collect();
            if !unknown.is_empty() {
                let unknown = unknown.join(" or ");
                done.push_str(&format!(" (no adapter {unknown} is attached now)"));
            }
            record.note(|| Happened::Rule(rule));
            Ok(done)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gid::Gid;

    #[test]
    fn rules_come_into_force_are_listed_and_go() {
        let mut impairments = Impairments::new(1, Vec::new());
        for (number, name) in (1..).zip(["a", "b", "c"]) {
            impairments.meet(Gid([number; 16]), name.to_owned());
        }
        let record = Record::default();
        let mut obey = |line: &str| obey(line, &mut impairments, &record);
        for (order, answer) in [
            ("a->b  loss=1%", Ok("in force: a->b loss=1%")),
            ("*<->c partition", Ok("in force: *<->c partition")),
            ("rules", Ok("in force: a->b loss=1%; *<->c partition")),
            ("clear", Ok("rules cleared: 2")),
            ("rules", Ok("in force: nothing")),
        ] {
            let answer = answer.map(str::to_owned);
            assert_eq!(obey(order), answer, "{order}");
        }
        for (rule, unknown) in [
            ("nic9->*", "nic9"),
            ("a<->d", "d"),
            ("x->y", "x or y"),
            ("x->x", "x"),
        ] {
            let answer = obey(&format!("{rule} partition")).unwrap();
            let wanted =
                format!("in force: {rule} partition (no adapter {unknown} is attached now)");
            assert_eq!(answer, wanted);
        }
        let wrong = obey("explode").unwrap_err();
        assert!(wrong.starts_with("`explode` must begin with a pair"));
    }
}
