//! The kernel's decisions on peer-to-peer DMA, watched by a probe at the function that makes them
//! (drivers/pci/p2pdma.c, `calc_map_type_and_dist`). The kernel decides once for each pair, so the
//! probe costs almost nothing.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Context;
use peerbar_report::{Evidence, KernelDecision};
use rustix::fs::OFlags;

use crate::mounts;

const TRACING: &str = "/sys/kernel/tracing";
/// A separate tracing instance, so that other users of tracing are not disturbed.
const INSTANCE: &str = "/sys/kernel/tracing/instances/peerbar";
/// The launcher's findings in the kernel's debugging information (`peerbar_images::initramfs`).
const LAYOUT: &str = "/layout";

/// The decisions that the probe records.
#[derive(Debug)]
pub(crate) struct Decisions {
    /// The events, which are gone once read, or the reason why there are none.
    events: Result<File, Evidence>,
    /// The start of an incomplete line.
    rest: String,
}

impl Decisions {
    /// Sets the probe. A kernel that cannot be watched is not a failure.
    pub(crate) fn watch() -> Self {
        Self {
            events: set_probe().map_err(|error| Evidence::Unwatched(format!("{error:#}"))),
            rest: String::new(),
        }
    }

    /// Returns the reason why nothing is seen, if so.
    pub(crate) fn is_blind(&self) -> Option<&Evidence> {
        self.events.as_ref().err()
    }

    /// Returns the decisions since the last call.
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
    let layout = fs::read_to_string(LAYOUT).with_context(|| format!("cannot read {LAYOUT}"))?;
    let probe = probe(&layout).context(
        "the kernel's image has no debugging information (CONFIG_DEBUG_INFO_BTF), or is compressed in \
         an unsupported way",
    )?;
    append(&Path::new(TRACING).join("dynamic_events"), &probe)
        .context("the kernel accepts no probe at calc_map_type_and_dist")?;
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

/// Returns the probe: a return of the function, with the names of both devices and the result
/// (Linux, Documentation/trace/kprobetrace.rst).
///
/// The probe uses argument numbers, not fprobe, which knows names: under emulation the kernel is
/// slow to look up the names and to arm the probe, and the first module waits for both.
fn probe(layout: &str) -> Option<String> {
    let fact = |name: &str| -> Option<u32> {
        let mut lines = layout.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    };
    let name = fact("pci_dev.dev.kobj.name")?;
    let (provider, client) = (fact("provider")?, fact("client")?);
    Some(format!(
        "r:peerbar/decision calc_map_type_and_dist provider=+0(+{name}($arg{provider})):string \
         client=+0(+{name}($arg{client})):string type=%ax:s32\n"
    ))
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

/// Parses a line of the events such as `… provider="0000:01:00.0" client="0000:02:00.0" type=2`.
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
    fn the_probe_needs_all_that_is_known_of_the_kernel() {
        let layout = "pci_dev.dev.kobj.name 208\nprovider 1\nclient 2\n";
        let expected = "r:peerbar/decision calc_map_type_and_dist provider=+0(+208($arg1)):string \
                        client=+0(+208($arg2)):string type=%ax:s32\n";
        assert_eq!(probe(layout).as_deref(), Some(expected));
        for line in layout.lines() {
            assert_eq!(probe(&layout.replace(line, "")), None, "{line}");
        }
    }

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
