//! The control socket: accepts fault rules while the device is served. A command is a rule,
//! `clear`, or `rules`.

use std::path::Path;
use std::sync::Arc;

use peerbar_dma::Requester;
use peerbar_fault::Rule;
use peerbar_host::socket_file::line_server::{LineServer, LineServerError, in_force};

use crate::running::FaultObserver;

/// Makes the control socket at `path`, which accepts rules for the faults of `requester`'s
/// function, and calls `changed` after each command.
pub(crate) fn start(
    path: &Path,
    requester: Arc<Requester>,
    changed: FaultObserver,
) -> Result<LineServer, LineServerError> {
    LineServer::start(path, move |line| {
        let outcome = obey(line, &requester);
        changed();
        outcome
    })
}

/// Executes a command. Returns the result, or the reason of a failure, in one line.
fn obey(line: &str, requester: &Requester) -> Result<String, String> {
    let faults = requester.faults();
    match line {
        "clear" => Ok(format!("rules cleared: {}", faults.clear())),
        "rules" => Ok(in_force(faults.rules())),
        rule => add(rule, requester),
    }
}

fn add(line: &str, requester: &Requester) -> Result<String, String> {
    let wrong = |error: &dyn ToString| format!("`{}` {}", line.escape_debug(), error.to_string());
    let rule: Rule = line.parse().map_err(|error| wrong(&error))?;
    let text = rule.to_string();
    requester.add_fault(rule).map_err(|error| wrong(&error))?;
    Ok(format!("in force: {text}"))
}

#[cfg(test)]
mod tests {
    use peerbar_fault::Kind;

    use super::*;

    #[test]
    fn rules_come_into_force_and_go() {
        let requester = Requester::new();
        let obey = |line: &str| obey(line, &requester);
        assert_eq!(
            obey("drop  interrupt nth=2"),
            Ok("in force: drop interrupt nth=2".to_owned())
        );
        assert!(requester.faults().is_armed(Kind::Interrupt));
        assert!(requester.faults().interrupt(0).is_none());
        obey("fail dma write").unwrap();
        assert_eq!(
            obey("rules"),
            Ok("in force: drop interrupt nth=2 (injected 0, matched 1); fail dma write (injected 0, matched 0)".to_owned())
        );
        assert_eq!(obey("clear"), Ok("rules cleared: 2".to_owned()));
        assert_eq!(obey("rules"), Ok("in force: nothing".to_owned()));
        assert!(!requester.faults().is_armed(Kind::Interrupt));
        assert_eq!(
            obey("fail command"),
            Err("`fail command` is for another device: this one has no command".to_owned())
        );
        let wrong = obey("explode").unwrap_err();
        assert!(wrong.starts_with("`explode` must begin with an action"));
    }
}
