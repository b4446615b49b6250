//! `rdma-refused`: requests that an RDMA adapter must refuse.

use toml::Spanned;

use super::{CheckKind, Keys, Pair, RdmaMemory, TableError, check, rdma};
use crate::{Completer, Direction, PayloadFlow};

check! {
    /// Sends an adapter requests that it must refuse:
    /// - access without rights, or by guessed keys;
    /// - ranges beyond a region, and deregistered regions;
    /// - queue pairs in a wrong state;
    /// - messages that are too long for their receive, or have none;
    /// - with a GPU, also requests for its memory after it was freed or revoked.
    ///
    /// No byte may change, and the adapters must continue to work. The counters of the responder
    /// must show the permitted data with that memory, and no other byte.
    ///
    /// With `peer` the requests go to another adapter, which may be in another guest. Requires
    /// `tools = true` at the top of the scenario.
    "rdma-refused": "what {asked} must refuse{whom}{with}" with (
        asked = peer.as_ref().unwrap_or(nic), whom = whom(nic, peer.as_deref()), with = with(gpu.as_deref())
    )
    pub struct RdmaRefused {
        /// Name of a `[[nic]]`: the requester.
        pub nic: String,
        /// Name of the `[[nic]]` of the responder.
        #[default = "`nic`"]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub peer: Option<String>,
        /// Name of a `[[gpu]]` whose memory is used, too, as the responder's memory.
        #[default = "none"]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub gpu: Option<String>,
    }
}

fn whom(nic: &str, peer: Option<&str>) -> String {
    peer.map_or_else(String::new, |_| format!(" {nic}"))
}

fn with(gpu: Option<&str>) -> String {
    gpu.map_or_else(String::new, |gpu| format!(", also of {gpu}"))
}

impl RdmaRefused {
    /// Returns the responder's adapter.
    pub fn asked(&self) -> &str {
        self.peer.as_ref().unwrap_or(&self.nic)
    }

    /// Returns the memory of the responder.
    pub fn memory(&self) -> RdmaMemory {
        let of_gpu = self.gpu.clone().map(RdmaMemory::Vram);
        of_gpu.unwrap_or(RdmaMemory::GuestRam)
    }

    /// Checks that the responder's adapter has `written` to its memory and `read` from it the
    /// permitted bytes, and moved no other payload, by its own counts. If it is also the requester,
    /// its payload with guest RAM cannot be distinguished.
    ///
    /// # Errors
    /// The counters that differ.
    pub fn judge(&self, flows: &[PayloadFlow], written: u64, read: u64) -> Result<(), String> {
        let (asked, memory) = (self.asked(), self.memory());
        let asks_too = asked == self.nic;
        if asks_too && memory == RdmaMemory::GuestRam {
            return Ok(());
        }
        let own = flows.iter().filter(|flow| flow.requester == asked);
        let own = own.filter(|flow| !asks_too || flow.completer != Completer::GuestRam);
        if let Some(stray) = own
            .clone()
            .find(|flow| flow.completer != memory.completer())
        {
            return Err(format!(
                "{asked} should have moved payload with {memory} only; its counters show {stray:?}"
            ));
        }
        for (direction, word, permitted) in [
            (Direction::Write, "written", written),
            (Direction::Read, "read", read),
        ] {
            let of_direction = own.clone().filter(|flow| flow.direction == direction);
            let bytes = of_direction
                .map(|flow| flow.bytes)
                .fold(0, u64::saturating_add);
            if bytes != permitted {
                return Err(format!(
                    "{asked} was permitted {permitted} bytes to be {word} of {memory}; its counters show {bytes}"
                ));
            }
        }
        Ok(())
    }
}

impl CheckKind for RdmaRefused {
    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        rdma::needs_tools(keys)?;
        let nic = keys.nic_name("nic")?;
        let peer: Option<Spanned<String>> = keys.optional("peer")?;
        let peer = peer.map(|peer| Ok(keys.inventory.nic(peer)?.name.clone()));
        let peer = peer.transpose()?;
        let gpu: Option<Spanned<String>> = keys.optional("gpu")?;
        let gpu = gpu.map(|gpu| Ok(keys.inventory.gpu(gpu)?.name.clone()));
        Ok(Self {
            nic,
            peer,
            gpu: gpu.transpose()?,
            seconds: keys.seconds,
        })
    }

    fn pairs(&self) -> Vec<Pair> {
        let gpu = self.gpu.iter();
        gpu.map(|gpu| Pair::of(gpu, self.asked())).collect()
    }

    /// Returns the bytes with guest RAM: each of its requests has memory of the guest on one side
    /// or on both.
    fn guest_ram_bytes(&self, _payload: u64) -> Option<u64> {
        None
    }

    fn packages(&self) -> &'static [&'static str] {
        rdma::PACKAGES
    }

    fn programs(&self) -> &'static [&'static str] {
        rdma::PROGRAMS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_that_was_not_permitted_fails_the_check() {
        use Completer::{GuestRam, PeerBar};
        use Direction::{Read, Write};

        let text = r#"{"nic":"a","peer":"b","gpu":"g"}"#;
        let check: RdmaRefused = serde_json::from_str(text).unwrap();
        let flow = PayloadFlow::to_peer;
        let (written, read) = (flow("b", PeerBar, Write, 20), flow("b", PeerBar, Read, 10));
        let judged = |more: PayloadFlow| {
            let flows = [written.clone(), read.clone(), more];
            check.judge(&flows, 20, 10)
        };
        // The requester reads the data that it sends to be refused.
        assert_eq!(judged(flow("a", GuestRam, Read, 1000)), Ok(()));
        for (more, wanted) in [
            (
                flow("b", PeerBar, Write, 1),
                "permitted 20 bytes to be written of VRAM of g; its counters show 21",
            ),
            (
                flow("b", PeerBar, Read, 1),
                "permitted 10 bytes to be read of VRAM of g; its counters show 11",
            ),
            (flow("b", GuestRam, Write, 1), "with VRAM of g only"),
        ] {
            let error = judged(more).unwrap_err();
            assert!(error.contains(wanted), "{error}");
        }
        assert!(check.judge(&[], 20, 10).is_err());
        let own = |more: PayloadFlow| {
            let check: RdmaRefused = serde_json::from_str(r#"{"nic":"b","gpu":"g"}"#).unwrap();
            check.judge(&[written.clone(), read.clone(), more], 20, 10)
        };
        assert_eq!(own(flow("b", GuestRam, Write, 1)), Ok(()));
        assert!(own(flow("b", PeerBar, Write, 1)).is_err());
    }
}
