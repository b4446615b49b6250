//! `rdma`: sends, writes and reads between queue pairs of RDMA adapters.

use std::fmt;

use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::{CheckKind, Keys, Pair, TableError, check};
use crate::{Completer, Direction, PayloadFlow, Size};

/// The most that an adapter moves by one request.
const LARGEST: u64 = 1 << 30;
/// The packages for verbs.
pub(super) const PACKAGES: &[&str] = &["ibverbs-providers"];
/// The program that uses them.
pub(super) const PROGRAMS: &[&str] = &["peerbar-verbs"];

check! {
    /// Lets two queue pairs send to each other, write each other's memory and read it, by the
    /// guest's libibverbs, and compares each byte. The adapters' counters show where the payload
    /// went. Requires `tools = true` at the top of the scenario.
    "rdma": "RDMA from {from} by {nic} to {to} by {peer}"
    pub struct Rdma {
        /// Name of a `[[nic]]`: the requester.
        pub nic: String,
        /// Name of the `[[nic]]` of the other queue pair.
        #[default = "the same"]
        pub peer: String,
        /// The memory of the requester: `"guest-ram"`, or `{ vram = "NAME" }` with the name of a
        /// `[[gpu]]`.
        pub from: RdmaMemory,
        /// The memory of the other adapter.
        pub to: RdmaMemory,
        /// Transfer sizes, a list such as `["4K", "1M"]`. Sizes above the largest message are not
        /// sent, only written and read.
        pub sizes: Vec<u64>,
    }
}

/// Memory that an adapter reads and writes: `"guest-ram"` or `{ vram = "gpu0" }`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum RdmaMemory {
    /// Memory of the named GPU, by a dma-buf that the adapter's driver pins.
    Vram(String),
    /// The guest's own memory.
    GuestRam,
}

impl RdmaMemory {
    /// Returns the GPU whose memory it is.
    pub fn gpu(&self) -> Option<&str> {
        match self {
            Self::Vram(gpu) => Some(gpu),
            Self::GuestRam => None,
        }
    }

    /// Returns the owner of the memory in an adapter's counters.
    pub(super) fn completer(&self) -> Completer {
        match self {
            Self::Vram(_) => Completer::PeerBar,
            Self::GuestRam => Completer::GuestRam,
        }
    }

    pub(super) fn read(keys: &mut Keys<'_, '_>, key: &str) -> Result<Self, TableError> {
        let form = |error: TableError| {
            let message = format!(
                "`{key}`: write `\"guest-ram\"`, or `{{ vram = \"NAME\" }}` with the name of a [[gpu]]"
            );
            TableError::new(error.at, message)
        };
        let memory: Spanned<Self> = match keys.optional(key).map_err(form)? {
            Some(memory) => memory,
            None => keys.required(key)?,
        };
        if let Self::Vram(gpu) = memory.get_ref() {
            keys.inventory
                .gpu(Spanned::new(memory.span(), gpu.clone()))?;
        }
        Ok(memory.into_inner())
    }
}

impl fmt::Display for RdmaMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vram(gpu) => write!(f, "VRAM of {gpu}"),
            Self::GuestRam => f.write_str("guest RAM"),
        }
    }
}

impl Rdma {
    /// The Debian packages for the guest's verbs.
    pub const PACKAGES: &[&str] = PACKAGES;
    /// The programs of this project that use them.
    pub const PROGRAMS: &[&str] = PROGRAMS;

    /// Checks that each of `payload` bytes was read once from one side's memory and written once to
    /// the other's, by the adapters' own counts, in each direction, and that the memory was that of
    /// the sides.
    ///
    /// # Errors
    /// The counters that differ.
    pub fn judge(&self, flows: &[PayloadFlow], payload: u64) -> Result<(), String> {
        if payload == 0 {
            return Err("the program has moved nothing".to_owned());
        }
        let adapters = [self.nic.as_str(), &self.peer];
        let own = flows.iter();
        let own: Vec<&PayloadFlow> = own
            .filter(|flow| adapters.contains(&flow.requester.as_str()))
            .collect();
        let known = [Completer::GuestRam, Completer::PeerBar];
        if let Some(stray) = own.iter().find(|flow| !known.contains(&flow.completer)) {
            return Err(format!(
                "{} moved {} payload bytes with memory that is neither guest RAM nor a GPU's: {:?}",
                stray.requester, stray.bytes, stray.completer
            ));
        }
        let sum = |wanted: &dyn Fn(&PayloadFlow) -> bool| {
            let flows = own.iter().filter(|flow| wanted(flow));
            flows.map(|flow| flow.bytes).fold(0, u64::saturating_add)
        };
        let read = sum(&|flow| flow.direction == Direction::Read);
        let written = sum(&|flow| flow.direction == Direction::Write);
        if read != payload || written != payload {
            return Err(format!(
                "{payload} payload bytes should have been moved; the counters of {} show {read} read and {written} written",
                self.adapters()
            ));
        }
        let in_ram = self.guest_ram_bytes(payload).unwrap_or_default();
        let with_ram = sum(&|flow| flow.completer == Completer::GuestRam);
        if with_ram != in_ram {
            return Err(format!(
                "{payload} payload bytes should have been moved, with {in_ram} read from or written to guest RAM; the counters of {} \
                 show {with_ram} with guest RAM, and {} with a device's memory",
                self.adapters(),
                sum(&|flow| flow.completer == Completer::PeerBar)
            ));
        }
        Ok(())
    }

    /// Describes its adapters.
    fn adapters(&self) -> String {
        format!("{} and {}", self.nic, self.peer)
    }
}

impl CheckKind for Rdma {
    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        needs_tools(keys)?;
        let nic = keys.nic_name("nic")?;
        let peer: Option<Spanned<String>> = keys.optional("peer")?;
        let peer = match peer {
            Some(peer) => keys.inventory.nic(peer)?.name.clone(),
            None => nic.clone(),
        };
        let (from, to) = (
            RdmaMemory::read(keys, "from")?,
            RdmaMemory::read(keys, "to")?,
        );
        let gpus: Vec<&str> = [&from, &to]
            .into_iter()
            .filter_map(RdmaMemory::gpu)
            .collect();
        let sizes = sizes(keys, 1, &gpus)?;
        Ok(Self {
            nic,
            peer,
            from,
            to,
            sizes: sizes.into_inner(),
            seconds: keys.seconds,
        })
    }

    fn pairs(&self) -> Vec<Pair> {
        let sides = [(&self.from, &self.nic), (&self.to, &self.peer)];
        let sides = sides.into_iter();
        let pairs = sides.filter_map(|(memory, nic)| Some(Pair::of(memory.gpu()?, nic)));
        pairs.collect()
    }

    fn control(&self) -> Option<Self> {
        let has_vram = self.from.gpu().or(self.to.gpu()).is_some();
        has_vram.then(|| Self {
            from: RdmaMemory::GuestRam,
            to: RdmaMemory::GuestRam,
            ..self.clone()
        })
    }

    fn guest_ram_bytes(&self, payload: u64) -> Option<u64> {
        let sides = [&self.from, &self.to].into_iter();
        let in_ram = sides.filter(|side| side.gpu().is_none());
        Some(in_ram.fold(0, |bytes: u64, _| bytes.saturating_add(payload)))
    }

    fn packages(&self) -> &'static [&'static str] {
        PACKAGES
    }

    fn programs(&self) -> &'static [&'static str] {
        PROGRAMS
    }
}

/// Reads the key `sizes` of transfers with a buffer in the memory of each of `gpus`.
pub(super) fn sizes(
    keys: &mut Keys<'_, '_>,
    unit: u64,
    gpus: &[&str],
) -> Result<Spanned<Vec<u64>>, TableError> {
    let sizes = keys.sizes("sizes", unit, 1)?;
    let refused = |cause: String| TableError::new(sizes.span(), format!("`sizes`: {cause}"));
    if let Some(&size) = sizes.get_ref().iter().find(|&&size| size > LARGEST) {
        return Err(refused(format!(
            "{} is more than {}",
            Size(size),
            Size(LARGEST)
        )));
    }
    keys.inventory
        .vram_holds(gpus, sizes.get_ref())
        .map_err(refused)?;
    Ok(sizes)
}

/// Refuses a scenario without the tools root, which contains libibverbs.
pub(super) fn needs_tools(keys: &Keys<'_, '_>) -> Result<(), TableError> {
    if keys.inventory.tools {
        return Ok(());
    }
    let message = "libibverbs is in the tools root: write `tools = true` at the top";
    Err(keys.refused(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_gpus_makes_pairs_and_a_control() {
        let text = r#"{"nic":"a","peer":"b","from":{"vram":"g"},"to":"guest-ram","sizes":[64]}"#;
        let check: Rdma = serde_json::from_str(text).unwrap();
        assert_eq!(
            check.to_string(),
            "RDMA from VRAM of g by a to guest RAM by b"
        );
        assert_eq!(check.pairs(), [Pair::of("g", "a")]);
        let control = check.control().unwrap();
        assert_eq!(control.pairs(), []);
        assert_eq!(control.control(), None);
        assert_eq!(check.guest_ram_bytes(100), Some(100));
        assert_eq!(control.guest_ram_bytes(100), Some(200));
        let direct = Rdma {
            to: check.from.clone(),
            ..check
        };
        assert_eq!(direct.guest_ram_bytes(100), Some(0));
    }

    #[test]
    fn vram_to_vram_leaves_guest_ram_out() {
        use Completer::{GuestRam, OwnMemory, PeerBar, Unknown};
        use Direction::{Read, Write};

        let flow = |requester: &str, completer, direction| {
            PayloadFlow::to_peer(requester, completer, direction, 100)
        };
        let vram = RdmaMemory::Vram("g".to_owned());
        let judged = |read: PayloadFlow, written: PayloadFlow, to: &RdmaMemory| {
            let check = Rdma {
                nic: "a".to_owned(),
                peer: "b".to_owned(),
                from: vram.clone(),
                to: to.clone(),
                sizes: vec![100],
                seconds: None,
            };
            assert!(check.judge(&[], 0).is_err());
            check.judge(&[read, written], 100)
        };
        let read = || flow("a", PeerBar, Read);
        assert_eq!(judged(read(), flow("b", PeerBar, Write), &vram), Ok(()));
        let in_ram = || flow("b", GuestRam, Write);
        assert_eq!(judged(read(), in_ram(), &RdmaMemory::GuestRam), Ok(()));
        for (written, wanted) in [
            (
                in_ram(),
                "a and b show 100 with guest RAM, and 100 with a device's memory",
            ),
            (
                flow("b", PeerBar, Read),
                "a and b show 200 read and 0 written",
            ),
            (
                flow("c", PeerBar, Write),
                "a and b show 100 read and 0 written",
            ),
            (
                flow("b", Unknown, Write),
                "neither guest RAM nor a GPU's: Unknown",
            ),
            (
                flow("b", OwnMemory, Write),
                "neither guest RAM nor a GPU's: OwnMemory",
            ),
        ] {
            let error = judged(read(), written, &vram).unwrap_err();
            assert!(error.ends_with(wanted), "{error}");
        }
    }
}
