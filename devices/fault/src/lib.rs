//! Rules by which a device injects faults.
//!
//! A [`Rule`] is a value with a text, the same in a scenario, on a command line and at run time: an
//! action, its subject, the conditions on the subject, and the choice of matches.
//! `fail command read lba=1000..1008 status=unrecovered-read-error` and
//! `drop completion write nth=10` are rules. A device asks its [`Faults`] for the rule that fires
//! now, if any. Without a rule for the subject this costs one relaxed load.
#![forbid(unsafe_code)]

mod faults;
mod quantity;
mod rule;
mod text;
mod words;

pub use faults::{AddError, Faults, Fired, InForce};
pub use rule::{
    Action, BlockCommand, Kind, MatchCommand, MatchDma, MatchGpuCommand, Pick, Rule, Segment,
    Subject, When,
};
pub use text::RuleError;
