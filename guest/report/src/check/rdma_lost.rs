//! `rdma-lost`: the loss of an adapter, a GPU or the fabric.

use std::fmt;

use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::rdma::{PACKAGES, PROGRAMS, needs_tools};
use super::{CheckKind, Keys, Pair, RdmaMemory, TableError, check};
use crate::{Direction, PayloadFlow};

/// The name of the fabric's server.
const FABRIC: &str = "fabric";
/// A function in which Linux warns that the objects of a program that ends are not destroyed: its
/// EFA driver asks the adapter, which is gone, to destroy them
/// (drivers/infiniband/core/uverbs_main.c; drivers/infiniband/hw/efa/efa_verbs.c:
/// `efa_destroy_qp`).
const LEAKS_OBJECTS: &[&str] = &["uverbs_destroy_ufile_hw"];

check! {
    /// Kills the server of an adapter, of a GPU or of the fabric while one adapter writes or reads
    /// memory through the other, or sends to it. Requests in progress and later ones must end with
    /// the right kind of error, and nothing may hang. Acknowledged data must be in the memory, and
    /// nothing else may have changed, as far as that memory is left. No message may arrive twice,
    /// nor in part unless its destination's memory is lost. The adapters' counters must show that
    /// the acknowledged data was moved, with that memory. The remaining parts must continue to
    /// work: each remaining adapter by itself, and both with each other if the fabric is left.
    /// Later checks can only use the remaining parts. The adapters may be in two guests. Requires
    /// `tools = true` at the top of the scenario.
    "rdma-lost": "{loses} is lost amid RDMA {by} between {nic} and {peer}"
    pub struct RdmaLost {
        /// Name of a `[[nic]]`: the requester.
        pub nic: String,
        /// Name of the `[[nic]]` of the other queue pair.
        pub peer: String,
        /// The memory of the requester: `"guest-ram"`, or `{ vram = "NAME" }` with the name of a
        /// `[[gpu]]`.
        pub from: RdmaMemory,
        /// The memory of the other adapter.
        pub to: RdmaMemory,
        /// The part to kill: `peer`'s adapter or one of the GPUs by its name, or `"fabric"`.
        pub loses: String,
        /// The requests: `"writes"` from the memory of the requester to that of the other adapter,
        /// `"reads"` in the other direction, or `"sends"` of messages of 8928 bytes to receives of
        /// the other adapter.
        #[default = "`\"writes\"`"]
        #[serde(default)]
        pub by: RdmaLoad,
    }
}

/// The requests during which a part is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RdmaLoad {
    /// RDMA writes.
    #[default]
    Writes,
    /// RDMA reads.
    Reads,
    /// Messages.
    Sends,
}

impl fmt::Display for RdmaLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Writes => "writes",
            Self::Reads => "reads",
            Self::Sends => "sends",
        })
    }
}

/// The part of a transfer that is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RdmaPart {
    /// The responder's adapter.
    Peer,
    /// The memory of the requester.
    Source,
    /// The memory of the responder.
    Target,
    /// The fabric that joins the adapters.
    Fabric,
}

impl RdmaLost {
    /// Returns the part that [`RdmaLost::loses`] names, or `None` if it is not a part of the
    /// transfer.
    pub fn part(&self) -> Option<RdmaPart> {
        let lost = Some(self.loses.as_str());
        match () {
            () if self.loses == FABRIC => Some(RdmaPart::Fabric),
            () if self.loses == self.peer => Some(RdmaPart::Peer),
            () if lost == self.from.gpu() => Some(RdmaPart::Source),
            () if lost == self.to.gpu() => Some(RdmaPart::Target),
            () => None,
        }
    }

    /// Checks that the adapters moved the `acknowledged` bytes from the source to the target, by
    /// their own counts up to the loss and after it, and none with other memory. They may have
    /// moved more: packets are sent again, and requests fail in the middle.
    ///
    /// # Errors
    /// The counters that differ.
    pub fn judge(&self, flows: &[PayloadFlow], acknowledged: u64) -> Result<(), String> {
        if acknowledged == 0 {
            return Err("no request was acknowledged".to_owned());
        }
        let (asks, asked) = match self.by {
            RdmaLoad::Writes | RdmaLoad::Sends => (Direction::Read, Direction::Write),
            RdmaLoad::Reads => (Direction::Write, Direction::Read),
        };
        let sides = [(&self.nic, asks, &self.from), (&self.peer, asked, &self.to)];
        for (nic, direction, memory) in sides {
            let completer = memory.completer();
            let own = flows.iter().filter(|flow| flow.requester == *nic);
            let is_right =
                |flow: &&PayloadFlow| flow.completer == completer && flow.direction == direction;
            if let Some(stray) = own.clone().find(|flow| !is_right(flow)) {
                return Err(format!(
                    "{nic} should have moved payload with {memory} only ({direction:?}): its counters show {stray:?}"
                ));
            }
            let right = own.filter(is_right).map(|flow| flow.bytes);
            let moved = right.fold(0, u64::saturating_add);
            if moved < acknowledged {
                return Err(format!(
                    "{acknowledged} bytes were acknowledged; the counters of {nic} show {moved} moved with {memory}"
                ));
            }
        }
        Ok(())
    }
}

impl CheckKind for RdmaLost {
    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        needs_tools(keys)?;
        let (nic, peer) = (keys.nic_name("nic")?, keys.nic_name("peer")?);
        let from = RdmaMemory::read(keys, "from")?;
        let to = RdmaMemory::read(keys, "to")?;
        let loses: Spanned<String> = keys.required("loses")?;
        let at = loses.span();
        let by: Option<Spanned<RdmaLoad>> = keys.optional("by")?;
        let lost = Self {
            nic,
            peer,
            from,
            to,
            loses: loses.into_inner(),
            by: by.map_or_else(RdmaLoad::default, Spanned::into_inner),
            seconds: keys.seconds,
        };
        if lost.nic == lost.peer {
            let message = format!("`peer` is `{}`, too: name another adapter", lost.nic);
            return Err(TableError::new(at, message));
        }
        if lost.part().is_none() {
            let message = format!(
                "`loses = {:?}`: write \"fabric\", `{}`, or the name of a GPU of `from` or `to`",
                lost.loses, lost.peer
            );
            return Err(TableError::new(at, message));
        }
        let gpu = lost.from.gpu().filter(|gpu| *gpu == lost.loses);
        if let Some(gpu) = gpu.filter(|_| lost.to == lost.from) {
            let message = format!(
                "`from` and `to` are both of `{gpu}`, which `loses` names: name another memory on one side"
            );
            return Err(TableError::new(at, message));
        }
        Ok(lost)
    }

    fn pairs(&self) -> Vec<Pair> {
        let sides = [(&self.from, &self.nic), (&self.to, &self.peer)];
        let sides = sides.into_iter();
        let pairs = sides.filter_map(|(memory, nic)| Some(Pair::of(memory.gpu()?, nic)));
        pairs.collect()
    }

    fn kills(&self) -> Option<&str> {
        Some(&self.loses)
    }

    fn warnings(&self) -> &'static [&'static str] {
        match self.part() {
            Some(RdmaPart::Peer) => LEAKS_OBJECTS,
            _ => &[],
        }
    }

    /// Returns `None`, since packets are sent again and requests fail in the middle.
    fn guest_ram_bytes(&self, _payload: u64) -> Option<u64> {
        None
    }

    fn packages(&self) -> &'static [&'static str] {
        PACKAGES
    }

    fn programs(&self) -> &'static [&'static str] {
        PROGRAMS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_part_is_one_of_the_transfer() {
        let lost = |name: &str| {
            let text = format!(
                r#"{{"nic":"n","peer":"m","from":{{"vram":"g"}},"to":{{"vram":"h"}},"loses":"{name}"}}"#
            );
            let check: RdmaLost = serde_json::from_str(&text).unwrap();
            assert_eq!(check.kills(), Some(name));
            check.part()
        };
        assert_eq!(lost("m"), Some(RdmaPart::Peer));
        assert_eq!(lost("g"), Some(RdmaPart::Source));
        assert_eq!(lost("h"), Some(RdmaPart::Target));
        assert_eq!(lost("fabric"), Some(RdmaPart::Fabric));
        assert_eq!(lost("n"), None);
    }

    #[test]
    fn what_is_acknowledged_was_moved_with_the_memory_of_both_sides() {
        use crate::Completer::{GuestRam, PeerBar};
        use Direction::{Read, Write};

        let check = |by: &str| -> RdmaLost {
            let text = format!(
                r#"{{"nic":"n","peer":"m","from":"guest-ram","to":{{"vram":"h"}},"loses":"h","by":"{by}"}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        let flow = PayloadFlow::to_peer;
        for (by, asks, asked) in [
            ("writes", Read, Write),
            ("sends", Read, Write),
            ("reads", Write, Read),
        ] {
            let it = check(by);
            let near = flow("n", GuestRam, asks, 100);
            let far = flow("m", PeerBar, asked, 120);
            let judged = |flows: &[&PayloadFlow]| {
                let flows: Vec<PayloadFlow> = flows.iter().copied().cloned().collect();
                it.judge(&flows, 100)
            };
            assert_eq!(judged(&[&near, &far]), Ok(()), "{by}");
            assert!(it.judge(&[near.clone(), far.clone()], 0).is_err());
            for (flows, wanted) in [
                (vec![&near], "the counters of m show 0 moved"),
                (vec![&far], "the counters of n show 0 moved"),
                (
                    vec![&near, &flow("m", PeerBar, asked, 99)],
                    "the counters of m show 99 moved",
                ),
                (
                    vec![&near, &far, &flow("m", GuestRam, asked, 1)],
                    "m should have moved payload with VRAM of h only",
                ),
                (
                    vec![&near, &far, &flow("m", PeerBar, asks, 1)],
                    "m should have moved payload with VRAM of h only",
                ),
                (
                    vec![&near, &far, &flow("n", PeerBar, asks, 1)],
                    "n should have moved payload with guest RAM only",
                ),
            ] {
                let error = judged(&flows).unwrap_err();
                assert!(error.contains(wanted), "{by}: {error}");
            }
        }
    }
}
