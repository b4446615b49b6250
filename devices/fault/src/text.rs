//! The text of a rule: `ACTION SUBJECT [WORD] [KEY=VALUE...]`.

use std::fmt::{self, Display};
use std::num::NonZeroU64;
use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use peerbar_dma_log::{Direction, Purpose, Route};
use strum::VariantArray;
use thiserror::Error;

use crate::quantity::{fraction, number, positive, range, time, time_text};
use crate::rule::{
    Action, Kind, MatchCommand, MatchDma, MatchGpuCommand, Pick, Rule, Subject, When,
};
use crate::words::{ADMIN_OPCODES, GPU_OPCODES, OPCODES, STATUSES, list, value, word};

/// The longest text of a rule in bytes.
const LONGEST: usize = 300;
/// The longest delays. A reset does not wait for items that are held back, except for a DMA. The
/// client waits for a mapping, and the engine of a GPU waits for an entry.
const LONGEST_HELD: (&str, Duration) = ("60s", Duration::from_secs(60));
const LONGEST_AWAITED: (&str, Duration) = ("1s", Duration::from_secs(1));
const ACTIONS: [(&str, &[Kind]); 10] = [
    (
        "fail",
        &[
            Kind::Command,
            Kind::AdminCommand,
            Kind::GpuCommand,
            Kind::Dma,
            Kind::Mapping,
        ],
    ),
    (
        "delay",
        &[
            Kind::Command,
            Kind::Completion,
            Kind::AdminCommand,
            Kind::GpuCommand,
            Kind::Dma,
            Kind::Interrupt,
            Kind::Mapping,
            Kind::SubmissionEntry,
        ],
    ),
    (
        "drop",
        &[
            Kind::Completion,
            Kind::AdminCommand,
            Kind::GpuCommand,
            Kind::Dma,
            Kind::Interrupt,
            Kind::SubmissionEntry,
        ],
    ),
    ("duplicate", &[Kind::Completion, Kind::Interrupt]),
    ("reorder", &[Kind::Data]),
    ("corrupt", &[Kind::Dma]),
    ("remove", Kind::VARIANTS),
    ("link-down", Kind::VARIANTS),
    ("link-up", &[Kind::Device]),
    ("lose-power", &[Kind::Command, Kind::Completion]),
];
/// The last channel of a GPU.
const LAST_CHANNEL: u8 = 15;
/// The valid values of `address=`.
const ADDRESSES: &str = "an address or a range, such as 0x1000..0x2000";
const DIRECTIONS: [(&str, Direction); 2] = [("read", Direction::Read), ("write", Direction::Write)];

/// The reason why a text is not a rule. The message continues after the text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RuleError {
    /// The text is too long.
    #[error("is longer than {LONGEST} bytes")]
    Length,
    /// The text does not begin with an action.
    #[error("must begin with an action: {}", list(&ACTIONS))]
    Action,
    /// The action is not for this subject.
    #[error("must name a subject of `{action}`: {subjects}")]
    Subject {
        /// The action.
        action: &'static str,
        /// The valid subjects.
        subjects: String,
    },
    /// A word after the subject is not valid for it.
    #[error("has `{word}`: expected {words}, or a KEY=VALUE")]
    Word {
        /// The word.
        word: String,
        /// The valid words.
        words: String,
    },
    /// A key is not valid for this rule, or is given twice.
    #[error("has `{key}=`: expected {keys}")]
    Key {
        /// The key.
        key: String,
        /// The valid keys.
        keys: String,
    },
    /// A value is not valid for its key.
    #[error("has `{key}={value}`: expected {values}")]
    Value {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// The valid values.
        values: String,
    },
    /// A key is missing.
    #[error("requires `{key}=`: {example}")]
    Missing {
        /// The key.
        key: &'static str,
        /// An example.
        example: &'static str,
    },
    /// Two keys exclude each other.
    #[error("has more than one of nth=, every= and probability=: keep one")]
    Picks,
}

/// The keys of a text, and their values.
struct Keys<'a> {
    left: Vec<(&'a str, &'a str)>,
    asked: Vec<&'static str>,
}

impl<'a> Keys<'a> {
    /// Takes the value of a key, if the key is given. `values` describes the valid values.
    fn take<T>(
        &mut self,
        key: &'static str,
        values: &str,
        read: impl FnOnce(&'a str) -> Option<T>,
    ) -> Result<Option<T>, RuleError> {
        self.asked.push(key);
        let Some(at) = self.left.iter().position(|(known, _)| *known == key) else {
            return Ok(None);
        };
        let (_, text) = self.left.remove(at);
        let wrong = || RuleError::Value {
            key,
            value: text.to_owned(),
            values: values.to_owned(),
        };
        read(text).ok_or_else(wrong).map(Some)
    }

    /// Takes a key whose value must be one of these words.
    fn take_word<T: Copy>(
        &mut self,
        key: &'static str,
        words: &[(&str, T)],
    ) -> Result<Option<T>, RuleError> {
        self.take(key, &list(words), |text| value(words, text))
    }

    /// Checks that no key is left.
    fn finish(self) -> Result<(), RuleError> {
        match self.left.first() {
            None => Ok(()),
            Some((key, _)) => Err(RuleError::Key {
                key: (*key).to_owned(),
                keys: match self.asked.as_slice() {
                    [] => "no key".to_owned(),
                    asked => format!("at most one each of {}", asked.join(", ")),
                },
            }),
        }
    }
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        if text.len() > LONGEST {
            return Err(RuleError::Length);
        }
        let mut words = text.split_ascii_whitespace();
        let name = words.next().unwrap_or_default();
        let (action, kinds) = ACTIONS
            .into_iter()
            .find(|(known, _)| *known == name)
            .ok_or(RuleError::Action)?;
        let named = kinds.iter().map(|kind| (<&'static str>::from(kind), *kind));
        let named: Vec<_> = named.collect();
        let kind = words.next().and_then(|word| value(&named, word));
        let kind = kind.ok_or_else(|| RuleError::Subject {
            action,
            subjects: list(&named),
        })?;
        let mut plain = Vec::new();
        let mut left = Vec::new();
        for word in words {
            match word.split_once('=') {
                Some(pair) => left.push(pair),
                None => plain.push(word),
            }
        }
        let asked = Vec::new();
        let mut keys = Keys { left, asked };
        let subject = subject(kind, &plain, &mut keys)?;
        let action = read_action(action, kind, &mut keys)?;
        let when = match kind {
            Kind::Device => When::default(),
            _ => when(&mut keys)?,
        };
        keys.finish()?;
        Ok(Self {
            action,
            subject,
            when,
        })
    }
}

fn subject(kind: Kind, words: &[&str], keys: &mut Keys<'_>) -> Result<Subject, RuleError> {
    Ok(match kind {
        Kind::Command => Subject::Command(command(words, keys)?),
        Kind::Completion => Subject::Completion(command(words, keys)?),
        Kind::Data => {
            one_of::<()>(&[], words)?;
            Subject::Data(command(&[], keys)?)
        }
        Kind::AdminCommand => Subject::AdminCommand(one_of(&ADMIN_OPCODES, words)?),
        Kind::GpuCommand => {
            let channel = |text| {
                u8::try_from(number(text)?)
                    .ok()
                    .filter(|c| *c <= LAST_CHANNEL)
            };
            Subject::GpuCommand(MatchGpuCommand {
                opcode: one_of(&GPU_OPCODES, words)?,
                channel: keys.take("channel", "a number from 0 to 15", channel)?,
            })
        }
        Kind::Dma => Subject::Dma(dma(words, keys)?),
        Kind::Interrupt => {
            one_of::<()>(&[], words)?;
            let vector = |text| number(text)?.try_into().ok();
            Subject::Interrupt(keys.take("vector", "a number up to 65535", vector)?)
        }
        Kind::Mapping => {
            one_of::<()>(&[], words)?;
            Subject::Mapping(keys.take("address", ADDRESSES, range)?)
        }
        Kind::Device => {
            one_of::<()>(&[], words)?;
            Subject::Device
        }
        Kind::SubmissionEntry => {
            one_of::<()>(&[], words)?;
            Subject::SubmissionEntry
        }
    })
}

/// Returns the value of the only word that may follow a subject.
fn one_of<T: Copy>(known: &[(&str, T)], words: &[&str]) -> Result<Option<T>, RuleError> {
    let (first, wrong) = match words {
        [] => return Ok(None),
        [word] => (value(known, word), word),
        [_, word, ..] => (None, word),
    };
    let error = || RuleError::Word {
        word: (*wrong).to_owned(),
        words: match known {
            [] => "nothing".to_owned(),
            _ => format!("one of {}", list(known)),
        },
    };
    first.ok_or_else(error).map(Some)
}

fn command(words: &[&str], keys: &mut Keys<'_>) -> Result<MatchCommand, RuleError> {
    let nsid = |text| number(text)?.try_into().ok();
    Ok(MatchCommand {
        opcode: one_of(&OPCODES, words)?,
        nsid: keys.take("nsid", "a number, such as 1", nsid)?,
        blocks: keys.take("lba", "a block or a range, such as 8 or 0..2048", range)?,
    })
}

fn dma(words: &[&str], keys: &mut Keys<'_>) -> Result<MatchDma, RuleError> {
    let purposes: Vec<_> = Purpose::VARIANTS.iter().map(|p| (p.word(), *p)).collect();
    // A refused DMA does not happen in any case.
    let routes = Route::VARIANTS.iter().filter(|r| **r != Route::Refused);
    let routes: Vec<_> = routes.map(|r| (r.word(), *r)).collect();
    Ok(MatchDma {
        direction: one_of(&DIRECTIONS, words)?,
        purpose: keys
            .take_word("purpose", &purposes)?
            .unwrap_or(Purpose::Payload),
        route: keys.take_word("route", &routes)?,
        addresses: keys.take("address", ADDRESSES, range)?,
    })
}

fn read_action(action: &str, kind: Kind, keys: &mut Keys<'_>) -> Result<Action, RuleError> {
    let [(_, default), ..] = STATUSES;
    Ok(match (action, kind) {
        ("fail", Kind::Dma | Kind::Mapping | Kind::GpuCommand) => Action::Fail,
        ("fail", _) => {
            let status = keys.take_word("status", &STATUSES)?;
            Action::FailCommand(status.unwrap_or(default))
        }
        ("delay", _) => {
            let (text, longest) = match kind {
                Kind::Dma | Kind::Mapping | Kind::SubmissionEntry => LONGEST_AWAITED,
                _ => LONGEST_HELD,
            };
            let values = format!("a time from 1us to {text}, such as 10ms");
            let bounded = |text| time(text).filter(|by| *by <= longest);
            let by = keys.take("by", &values, bounded)?;
            Action::Delay(by.ok_or(RuleError::Missing {
                key: "by",
                example: "a time, such as by=10ms",
            })?)
        }
        ("drop", _) => Action::Drop,
        ("duplicate", _) => Action::Duplicate,
        ("reorder", _) => Action::Reorder,
        ("remove", _) => Action::Remove,
        ("link-down", _) => Action::LinkDown(down(keys)?),
        ("link-up", _) => Action::LinkUp,
        ("lose-power", _) => Action::LosePower {
            pattern: keys.take("pattern", "a number", number)?.unwrap_or(0),
            down: down(keys)?,
        },
        _ => {
            let bytes = keys.take("bytes", "a number from 1 on", positive)?;
            Action::Corrupt(bytes.unwrap_or(NonZeroU64::MIN))
        }
    })
}

/// Takes the time for which a link is down.
fn down(keys: &mut Keys<'_>) -> Result<Option<Duration>, RuleError> {
    let (text, longest) = LONGEST_HELD;
    let values = format!("a time from 1us to {text}, such as 2s");
    keys.take("for", &values, |text| {
        time(text).filter(|time| *time <= longest)
    })
}

fn when(keys: &mut Keys<'_>) -> Result<When, RuleError> {
    let values = "a number from 1 on";
    let nth = keys.take("nth", values, positive)?.map(Pick::Nth);
    let every = keys.take("every", values, positive)?.map(Pick::Every);
    let chance = keys.take("probability", "a fraction, such as 1/100", fraction)?;
    let chance = match chance {
        Some((of, among)) => {
            let seed = keys.take("seed", "a number", number)?.unwrap_or(0);
            Some(Pick::Chance { of, among, seed })
        }
        None => None,
    };
    let limit = keys.take("limit", values, positive)?;
    let mut picks = [nth, every, chance].into_iter().flatten();
    let pick = picks.next().unwrap_or_default();
    match picks.next() {
        Some(_) => Err(RuleError::Picks),
        None => Ok(When { pick, limit }),
    }
}

impl Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let action = match self.action {
            Action::FailCommand(_) | Action::Fail => "fail",
            Action::Delay(_) => "delay",
            Action::Drop => "drop",
            Action::Duplicate => "duplicate",
            Action::Reorder => "reorder",
            Action::Corrupt(_) => "corrupt",
            Action::Remove => "remove",
            Action::LinkDown(_) => "link-down",
            Action::LinkUp => "link-up",
            Action::LosePower { .. } => "lose-power",
        };
        let kind: &str = self.subject.kind().into();
        write!(f, "{action} {kind}{}", self.subject)?;
        match self.action {
            Action::FailCommand(status) => {
                let status = word(&STATUSES, &status).filter(|word| *word != STATUSES[0].0);
                key(f, "status", status)?;
            }
            Action::Delay(by) => key(f, "by", Some(time_text(by)))?,
            Action::Corrupt(bytes) => key(f, "bytes", Some(bytes))?,
            Action::LinkDown(down) => key(f, "for", down.map(time_text))?,
            Action::LosePower { pattern, down } => {
                key(f, "pattern", Some(pattern).filter(|pattern| *pattern != 0))?;
                key(f, "for", down.map(time_text))?;
            }
            Action::Fail
            | Action::Drop
            | Action::Duplicate
            | Action::Reorder
            | Action::Remove
            | Action::LinkUp => {}
        }
        write!(f, "{}", self.when)
    }
}

/// The conditions on a subject, each word and key after a blank.
impl Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command(command) | Self::Completion(command) | Self::Data(command) => {
                let opcode = command.opcode.as_ref();
                if let Some(opcode) = opcode.and_then(|opcode| word(&OPCODES, opcode)) {
                    write!(f, " {opcode}")?;
                }
                key(f, "nsid", command.nsid)?;
                let blocks = command.blocks.as_ref();
                key(f, "lba", blocks.map(|b| format!("{}..{}", b.start, b.end)))
            }
            Self::Dma(dma) => {
                if let Some(direction) = dma.direction {
                    write!(f, " {}", direction.word())?;
                }
                let purpose = Some(dma.purpose).filter(|purpose| *purpose != Purpose::Payload);
                key(f, "purpose", purpose.map(Purpose::word))?;
                key(f, "route", dma.route.map(Route::word))?;
                address_key(f, dma.addresses.as_ref())
            }
            Self::GpuCommand(command) => {
                let opcode = command.opcode.as_ref();
                if let Some(opcode) = opcode.and_then(|opcode| word(&GPU_OPCODES, opcode)) {
                    write!(f, " {opcode}")?;
                }
                key(f, "channel", command.channel)
            }
            Self::AdminCommand(opcode) => {
                let opcode = opcode.as_ref();
                match opcode.and_then(|opcode| word(&ADMIN_OPCODES, opcode)) {
                    Some(opcode) => write!(f, " {opcode}"),
                    None => Ok(()),
                }
            }
            Self::Interrupt(vector) => key(f, "vector", *vector),
            Self::Mapping(addresses) => address_key(f, addresses.as_ref()),
            Self::Device | Self::SubmissionEntry => Ok(()),
        }
    }
}

/// Each key after a blank.
impl Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pick {
            Pick::All => {}
            Pick::Nth(nth) => key(f, "nth", Some(nth))?,
            Pick::Every(every) => key(f, "every", Some(every))?,
            Pick::Chance { of, among, seed } => {
                key(f, "probability", Some(format_args!("{of}/{among}")))?;
                key(f, "seed", Some(seed))?;
            }
        }
        key(f, "limit", self.limit)
    }
}

fn address_key(f: &mut fmt::Formatter<'_>, range: Option<&Range<u64>>) -> fmt::Result {
    key(
        f,
        "address",
        range.map(|range| format!("{:#x}..{:#x}", range.start, range.end)),
    )
}

fn key(f: &mut fmt::Formatter<'_>, key: &str, value: Option<impl Display>) -> fmt::Result {
    value.map_or(Ok(()), |value| write!(f, " {key}={value}"))
}

#[cfg(test)]
mod tests {
    use proptest::option;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    fn ranges() -> impl Strategy<Value = Range<u64>> {
        (any::<u64>(), 1u64..).prop_map(|(start, len)| {
            let start = start.min(u64::MAX - 1);
            start..start.saturating_add(len)
        })
    }

    fn positives() -> impl Strategy<Value = NonZeroU64> {
        (1u64..).prop_map(|number| NonZeroU64::new(number).unwrap())
    }

    fn commands() -> impl Strategy<Value = MatchCommand> {
        let opcodes = select(OPCODES.map(|(_, opcode)| opcode).to_vec());
        let parts = (
            option::of(opcodes),
            option::of(any::<u32>()),
            option::of(ranges()),
        );
        parts.prop_map(|(opcode, nsid, blocks)| MatchCommand {
            opcode,
            nsid,
            blocks,
        })
    }

    fn gpu_commands() -> impl Strategy<Value = MatchGpuCommand> {
        let opcodes = select(GPU_OPCODES.map(|(_, opcode)| opcode).to_vec());
        let parts = (option::of(opcodes), option::of(0..=LAST_CHANNEL));
        parts.prop_map(|(opcode, channel)| MatchGpuCommand { opcode, channel })
    }

    fn dmas() -> impl Strategy<Value = MatchDma> {
        let parts = (
            select(Purpose::VARIANTS),
            option::of(select(Direction::VARIANTS)),
            option::of(select(vec![Route::Peer, Route::GuestRam, Route::OwnBar])),
            option::of(ranges()),
        );
        parts.prop_map(|(purpose, direction, route, addresses)| MatchDma {
            purpose,
            direction,
            route,
            addresses,
        })
    }

    fn whens() -> impl Strategy<Value = When> {
        let chances = (positives(), positives(), any::<u64>());
        let picks = prop_oneof![
            Just(Pick::All),
            positives().prop_map(Pick::Nth),
            positives().prop_map(Pick::Every),
            chances.prop_map(|(one, two, seed)| Pick::Chance {
                of: one.min(two),
                among: one.max(two),
                seed,
            }),
        ];
        (picks, option::of(positives())).prop_map(|(pick, limit)| When { pick, limit })
    }

    fn rules() -> impl Strategy<Value = Rule> {
        let statuses = select(STATUSES.map(|(_, status)| status).to_vec());
        let delays = |most: u64| {
            let delays = (1..=most).prop_map(|us| Action::Delay(Duration::from_micros(us)));
            delays.boxed()
        };
        let downs = || option::of((1..=60_000_000u64).prop_map(Duration::from_micros));
        let of_links = downs().prop_map(Action::LinkDown).boxed();
        let of_power = (any::<u64>(), downs())
            .prop_map(|(pattern, down)| Action::LosePower { pattern, down })
            .boxed();
        let plain = |action| Just(action).boxed();
        let admin_opcodes = select(ADMIN_OPCODES.map(|(_, opcode)| opcode).to_vec());
        let of_admin_commands = prop_oneof![
            statuses.clone().prop_map(Action::FailCommand),
            delays(60_000_000),
            plain(Action::Drop),
        ];
        let of_commands = prop_oneof![
            statuses.prop_map(Action::FailCommand),
            delays(60_000_000),
            of_power,
            of_links.clone(),
        ];
        let of_gpu_commands =
            prop_oneof![plain(Action::Fail), plain(Action::Drop), delays(60_000_000),];
        let of_completions = select(vec![Action::Drop, Action::Duplicate, Action::Remove]).boxed();
        let of_dmas = prop_oneof![
            plain(Action::Fail),
            plain(Action::Drop),
            positives().prop_map(Action::Corrupt),
            delays(1_000_000),
            of_links,
        ];
        let both = prop_oneof![
            (of_commands, commands().prop_map(Subject::Command)),
            (
                of_completions.clone().prop_union(delays(60_000_000)),
                commands().prop_map(Subject::Completion)
            ),
            (of_dmas, dmas().prop_map(Subject::Dma)),
            (
                plain(Action::Reorder),
                commands().prop_map(|command| Subject::Data(MatchCommand {
                    opcode: None,
                    ..command
                }))
            ),
            (
                of_completions.prop_union(delays(60_000_000)),
                option::of(any::<u16>()).prop_map(Subject::Interrupt)
            ),
            (
                of_admin_commands,
                option::of(admin_opcodes).prop_map(Subject::AdminCommand)
            ),
            (
                plain(Action::Fail).prop_union(delays(1_000_000)),
                option::of(ranges()).prop_map(Subject::Mapping)
            ),
            (
                of_gpu_commands,
                gpu_commands().prop_map(Subject::GpuCommand)
            ),
        ];
        (both, whens()).prop_map(|((action, subject), when)| Rule {
            action,
            subject,
            when,
        })
    }

    proptest! {
        #[test]
        fn every_rule_is_read_from_its_own_text(rule in rules()) {
            let text = rule.to_string();
            prop_assert_eq!(text.parse(), Ok(rule), "{}", text);
        }

        #[test]
        fn no_text_is_too_strange(text in "(fail|delay|drop|corrupt)? ?(dma|command)? ?[a-z=./0-9 ]{0,20}") {
            if let Ok(rule) = text.parse::<Rule>() {
                prop_assert_eq!(rule.to_string().parse(), Ok(rule));
            }
        }
    }

    #[test]
    fn rule_is_shown_as_it_is_written() {
        for text in [
            "fail dma write route=peer nth=3",
            "delay command read lba=0..2048 by=2s",
            "drop completion nth=10",
            "duplicate completion write nsid=2 limit=1",
            "reorder data nsid=1 lba=8..16 every=64",
            "corrupt dma read bytes=4",
            "drop interrupt vector=1 probability=1/100 seed=7",
            "fail command read lba=1000..1008 status=unrecovered-read-error",
            "delay dma address=0x1000..0x2000 by=10ms every=2",
            "drop dma write purpose=completion",
            "remove device",
            "delay interrupt vector=2 by=10ms every=3",
            "fail admin-command identify status=write-fault nth=2",
            "drop admin-command limit=1",
            "delay admin-command asynchronous-event-request by=1s",
            "fail gpu-command copy channel=2 nth=3",
            "drop gpu-command limit=1",
            "delay gpu-command launch by=10ms",
            "fail mapping address=0x1000..0x2000 nth=3",
            "delay mapping by=1ms",
            "remove dma write route=peer nth=3",
            "link-down device",
            "link-down dma write route=peer for=2s nth=3",
            "link-up device",
            "lose-power command write nth=100",
            "lose-power completion flush pattern=7 for=500ms limit=1",
        ] {
            assert_eq!(text.parse::<Rule>().unwrap().to_string(), text);
        }
        let short = "corrupt dma  address=8".parse::<Rule>().unwrap();
        assert_eq!(short.to_string(), "corrupt dma address=0x8..0x9 bytes=1");
    }

    #[test]
    fn rules_in_the_book_are_rules() {
        let book = include_str!("../../../docs/src/faults.md");
        let prose = book.split("```").step_by(2);
        let quoted = prose.flat_map(|text| text.split('`').skip(1).step_by(2));
        let named = quoted.filter(|text| {
            let mut words = text.split(' ');
            words
                .next()
                .and_then(|word| value(&ACTIONS, word))
                .is_some()
                && words.next().is_some()
        });
        let count = named
            .map(|text| assert!(text.parse::<Rule>().is_ok(), "{text}"))
            .count();
        assert!(count >= 7, "{count}");
    }

    #[test]
    fn mistake_is_named_with_what_may_stand_there() {
        let long = format!("drop dma {}", "x".repeat(300));
        for (text, message) in [
            (
                "",
                "must begin with an action: fail, delay, drop, duplicate, reorder, corrupt, remove, link-down, link-up, lose-power",
            ),
            (
                "break dma",
                "must begin with an action: fail, delay, drop, duplicate, reorder, corrupt, remove, link-down, link-up, lose-power",
            ),
            (
                "fail",
                "must name a subject of `fail`: command, admin-command, gpu-command, dma, mapping",
            ),
            (
                "fail admin-command read",
                "has `read`: expected one of identify, get-log-page, get-features, set-features, create-completion-queue, \
                 create-submission-queue, delete-completion-queue, delete-submission-queue, asynchronous-event-request, \
                 abort, doorbell-buffer-config, or a KEY=VALUE",
            ),
            (
                "delay mapping by=2s",
                "has `by=2s`: expected a time from 1us to 1s, such as 10ms",
            ),
            (
                "corrupt completion",
                "must name a subject of `corrupt`: dma",
            ),
            (
                "reorder completion",
                "must name a subject of `reorder`: data",
            ),
            (
                "reorder data read",
                "has `read`: expected nothing, or a KEY=VALUE",
            ),
            (
                "drop dma sideways",
                "has `sideways`: expected one of read, write, or a KEY=VALUE",
            ),
            (
                "drop interrupt read",
                "has `read`: expected nothing, or a KEY=VALUE",
            ),
            (
                "drop dma read write",
                "has `write`: expected one of read, write, or a KEY=VALUE",
            ),
            (
                "drop dma lba=8",
                "has `lba=`: expected at most one each of purpose, route, address, nth, every, probability, limit",
            ),
            (
                "drop interrupt nth=1 nth=2",
                "has `nth=`: expected at most one each of vector, nth, every, probability, limit",
            ),
            ("link-up dma", "must name a subject of `link-up`: device"),
            (
                "link-down device for=2m",
                "has `for=2m`: expected a time from 1us to 60s, such as 2s",
            ),
            ("remove device nth=1", "has `nth=`: expected no key"),
            ("drop dma nth=0", "has `nth=0`: expected a number from 1 on"),
            (
                "drop dma nth=+1",
                "has `nth=+1`: expected a number from 1 on",
            ),
            (
                "fail command lba=8..8",
                "has `lba=8..8`: expected a block or a range, such as 8 or 0..2048",
            ),
            (
                "drop interrupt vector=65536",
                "has `vector=65536`: expected a number up to 65535",
            ),
            (
                "drop dma probability=3/2",
                "has `probability=3/2`: expected a fraction, such as 1/100",
            ),
            ("delay dma", "requires `by=`: a time, such as by=10ms"),
            (
                "delay dma by=2s",
                "has `by=2s`: expected a time from 1us to 1s, such as 10ms",
            ),
            (
                "drop dma nth=1 every=2",
                "has more than one of nth=, every= and probability=: keep one",
            ),
            (
                "drop dma seed=1",
                "has `seed=`: expected at most one each of purpose, route, address, nth, every, probability, limit",
            ),
            (&long, "is longer than 300 bytes"),
        ] {
            let error = text.parse::<Rule>().unwrap_err();
            assert_eq!(error.to_string(), message, "{text}");
        }
    }
}
