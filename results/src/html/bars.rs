//! Throughput of transfers compared with the same transfers through guest RAM.

use maud::{Markup, html};
use peerbar_lab::results::{CheckResult, RunResults};
use peerbar_lab::size::throughput;

/// A check, and the one that makes the same transfer through guest RAM.
struct Compared<'a> {
    straight: &'a CheckResult,
    bounced: &'a CheckResult,
}

/// Returns bars for each passed check whose control also passed, or `None` if there is no such
/// check.
pub(super) fn bars(run: &RunResults) -> Option<Markup> {
    let compared: Vec<Compared<'_>> = run
        .checks
        .iter()
        .filter_map(|check| pair(check, run))
        .collect();
    let rates = compared
        .iter()
        .flat_map(|Compared { straight, bounced }| [rate(straight), rate(bounced)]);
    let most = rates.fold(0.0, f64::max);
    if compared.is_empty() || most <= 0.0 {
        return None;
    }
    Some(html! {
        @for Compared { straight, bounced } in &compared {
            figure.compared {
                figcaption { (straight.name) " " small { (factor(straight, bounced)) } }
                (bar("peer to peer", "peer", straight, most))
                (bar("bounced in guest RAM", "guest-ram", bounced, most))
            }
        }
    })
}

fn pair<'a>(straight: &'a CheckResult, run: &'a RunResults) -> Option<Compared<'a>> {
    let bounced = run.checks.get(straight.control?.checked_sub(1)?)?;
    let timed = [straight, bounced]
        .iter()
        .all(|check| check.passed() && rate(check) > 0.0);
    timed.then_some(Compared { straight, bounced })
}

/// Returns the bytes a second, or 0 if nothing was timed.
fn rate(check: &CheckResult) -> f64 {
    let measure = &check.measure;
    match measure.seconds > 0.0 {
        true => measure.bytes as f64 / measure.seconds,
        false => 0.0,
    }
}

fn factor(straight: &CheckResult, bounced: &CheckResult) -> String {
    format!("{:.2} × the bounce", rate(straight) / rate(bounced))
}

fn bar(name: &str, class: &str, check: &CheckResult, most: f64) -> Markup {
    let share = 100.0 * rate(check) / most;
    html! {
        div.bar {
            span.what { (name) }
            span.track aria-hidden="true" { span.fill.(class) style=(format!("width:{share:.1}%")) {} }
            span.value { (throughput(check.measure.bytes, check.measure.seconds)) }
        }
    }
}
