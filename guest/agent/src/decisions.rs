//! The kernel's decisions on peer-to-peer DMA, watched by a probe of its own at the function that makes them
//! (drivers/pci/p2pdma.c, `calc_map_type_and_dist`). It decides once for each pair, so this costs nothing else.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Context;
use peerbar_report::{Evidence, KernelDecision};
use rustix::fs::OFlags;

use crate::mounts;

const TRACING: &str = "/sys/kernel/tracing";
/// An instance of the tracing of its own: other users of it are not disturbed.
const INSTANCE: &str = "/sys/kernel/tracing/instances/peerbar";
/// Arguments and fields by their names, which the kernel knows from its own debugging information (Linux,
/// Documentation/trace/fprobetrace.rst).
const PROBE: &str = "f:peerbar/decision calc_map_type_and_dist%return provider=provider->dev.kobj.name:string \
                     client=client->dev.kobj.name:string type=$retval\n";

/// What the probe sees.
#[derive(Debug)]
pub(crate) struct Decisions {
    /// The events, which are gone once read; or why there are none.
    events: Result<File, Evidence>,
    /// The start of a line that is still to come.
    rest: String,
}

impl Decisions {
    /// Sets the probe. A kernel that cannot be watched is no failure.
    pub(crate) fn watch() -> Self {
        Self {
            events: set_probe().map_err(|error| Evidence::Unwatched(format!("{error:#}"))),
            rest: String::new(),
        }
    }

    /// Why nothing is seen, if so.
    pub(crate) fn is_blind(&self) -> Option<&Evidence> {
        self.events.as_ref().err()
    }

    /// The decisions since the last call.
    pub(crate) fn news(&mut self) -> impl Iterator<Item = Evidence> + use<> {
        let mut text = std::mem::take(&mut self.rest);
        if let Ok(events) = &mut self.events {
            text += &read_what_is_there(events);
        }
        let whole = text.rfind('\n').map_or(0, |end| end.saturating_add(1));
        self.rest = text.split_off(whole);
        let decisions: Vec<KernelDecision> = text.lines().filter_map(decision).collect();
        decisions.into_iter().map(Evidence::Decision)
    }
}

fn set_probe() -> anyhow::Result<File> {
    mounts::tracing()?;
    append(&Path::new(TRACING).join("dynamic_events"), PROBE)
        .context("the kernel takes no probe at calc_map_type_and_dist")?;
    fs::create_dir(INSTANCE).with_context(|| format!("cannot create {INSTANCE}"))?;
    let instance = Path::new(INSTANCE);
    append(&instance.join("events/peerbar/decision/enable"), "1")?;
    let path = instance.join("trace_pipe");
    let events = OpenOptions::new()
        .read(true)
        .custom_flags(i32::try_from(OFlags::NONBLOCK.bits())?)
        .open(&path);
    events.with_context(|| format!("cannot open {}", path.display()))
}

fn append(path: &Path, text: &str) -> anyhow::Result<()> {
    let file = OpenOptions::new().append(true).open(path);
    let written = file.and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes()));
    written.with_context(|| format!("cannot write {text:?} to {}", path.display()))
}

/// Reads until there is nothing more for now.
fn read_what_is_there(events: &mut File) -> String {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        match events.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => bytes.extend_from_slice(chunk.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A line of the events such as `… provider="0000:01:00.0" client="0000:02:00.0" type=2`.
fn decision(line: &str) -> Option<KernelDecision> {
    let after = |key: &str| line.split_once(key).map(|(_, rest)| rest);
    let quoted = |key: &str| Some(after(key)?.split_once('"')?.0.to_owned());
    Some(KernelDecision {
        provider: quoted(" provider=\"")?,
        client: quoted(" client=\"")?,
        map_type: after(" type=")?.trim().parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_is_read_from_its_event() {
        let line = "   init-119     [000] ...1.     6.487846: decision: ([unknown/kretprobe'd] <- calc_map_type_and_dist) \
                    provider=\"0000:01:00.0\" client=\"0000:02:00.0\" type=2";
        let expected = KernelDecision {
            provider: "0000:01:00.0".to_owned(),
            client: "0000:02:00.0".to_owned(),
            map_type: 2,
        };
        assert_eq!(decision(line), Some(expected));
        assert_eq!(decision("CPU:0 [LOST 12 EVENTS]"), None);
        assert_eq!(decision(&line.replace("type=2", "type=(fault)")), None);
    }

    #[test]
    fn a_line_that_is_cut_is_read_with_its_end() {
        let mut decisions = Decisions {
            events: Err(Evidence::Unwatched("a test".to_owned())),
            rest: "x provider=\"a\" client=\"b\" type=3\nx provider=\"c\" cli".to_owned(),
        };
        assert_eq!(decisions.news().count(), 1);
        decisions.rest += "ent=\"d\" type=4\n";
        let Some(Evidence::Decision(second)) = decisions.news().next() else {
            panic!("{decisions:?}")
        };
        assert_eq!((second.client.as_str(), second.map_type), ("d", 4));
        assert_eq!(decisions.news().count(), 0);
    }
}
