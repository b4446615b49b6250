//! Rules by which a device injects faults.
//!
//! A [`Rule`] is a value with a text, the same in a scenario, on a command line and at run time: an action, its subject, what
//! the subject must match, and which of the matches it is. `fail command read lba=1000..1008 status=unrecovered-read-error`
//! and `drop completion write nth=10` are rules. [`Faults`] is what a device asks: which rule, if any, fires now. It costs one
//! relaxed load while there is no rule for the subject.
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
