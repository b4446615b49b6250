//! `rdma-chain`: from a disk to a GPU, over the wire, to another GPU and to its disk.

use std::fmt;

use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::rdma::{PACKAGES, PROGRAMS, needs_tools, sizes};
use super::{CheckKind, Keys, PAGE, Pair, TableError, check};
use crate::{Completer, Direction, PayloadFlow, Size};

check! {
    /// Reads a disk into a GPU's memory, moves the data by RDMA to the memory of another GPU and
    /// writes it to another disk: first by RDMA writes, then by RDMA reads. The contents are
    /// compared on the second disk, which has other contents before. The counters of disks,
    /// adapters and GPUs must show each byte once at each of the four steps, between a device and a
    /// GPU's memory, and no byte in guest RAM. Each side is a separate process. Requires
    /// `tools = true` at the top of the scenario.
    "rdma-chain": "{from} to {to}"
    pub struct RdmaChain {
        /// Source of the data: `{ disk = "NAME", gpu = "NAME", nic = "NAME" }` with the names of an
        /// `[[nvme]]`, of a `[[gpu]]` and of a `[[nic]]`.
        pub from: RdmaChainSide,
        /// Destination of the data. The data of both disks is lost.
        pub to: RdmaChainSide,
        /// Transfer sizes, a list such as `["4K", "1M"]`: multiples of 4K. They follow each other
        /// on the disks.
        pub sizes: Vec<u64>,
    }
}

/// One side of the chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RdmaChainSide {
    /// Name of an `[[nvme]]`.
    pub disk: String,
    /// Name of a `[[gpu]]`.
    pub gpu: String,
    /// Name of a `[[nic]]`.
    pub nic: String,
}

impl fmt::Display for RdmaChainSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {} and {}", self.disk, self.gpu, self.nic)
    }
}

impl RdmaChain {
    /// Returns the bytes of each disk that it uses: each size is moved in two ways.
    pub fn disk_bytes(&self) -> u64 {
        let sum = self.sizes.iter().copied().fold(0, u64::saturating_add);
        sum.saturating_mul(2)
    }

    /// Checks that each of `payload` bytes passed each of the four steps once, between a device and
    /// a GPU's memory, and that nothing else moved, by the counts of all devices except those in
    /// `uncounted`.
    ///
    /// # Errors
    /// The counters that differ.
    pub fn judge(
        &self,
        flows: &[PayloadFlow],
        uncounted: &[&str],
        payload: u64,
    ) -> Result<(), String> {
        let Self { from, to, .. } = self;
        let steps = [
            (&from.disk, Direction::Write, "write", &from.gpu),
            (&from.nic, Direction::Read, "read", &from.gpu),
            (&to.nic, Direction::Write, "write", &to.gpu),
            (&to.disk, Direction::Read, "read", &to.gpu),
        ];
        let sum = |bytes: &mut dyn Iterator<Item = u64>| bytes.fold(0, u64::saturating_add);
        let mut counted: u64 = 0;
        for (device, direction, word, gpu) in steps {
            if uncounted.contains(&device.as_str()) {
                continue;
            }
            let of_step = flows.iter().filter(|flow| {
                flow.requester == *device
                    && flow.completer == Completer::PeerBar
                    && flow.direction == direction
            });
            let bytes = sum(&mut of_step.map(|flow| flow.bytes));
            if bytes != payload {
                return Err(format!(
                    "{device} had to {word} {payload} payload bytes of the memory of {gpu}; its counters show {bytes}"
                ));
            }
            counted = counted.saturating_add(bytes);
        }
        let all = sum(&mut flows.iter().map(|flow| flow.bytes));
        match all == counted {
            true => Ok(()),
            false => Err(format!(
                "{} payload bytes moved in addition to the chain's: the devices' counters show {flows:?}",
                all.saturating_sub(counted)
            )),
        }
    }

    /// Reads a side, whose devices must exist and whose GPU must expose its memory to disks. Also
    /// returns the size and the block size of its disk.
    fn side(keys: &mut Keys<'_, '_>, key: &str) -> Result<(RdmaChainSide, u64, u64), TableError> {
        let side: Spanned<RdmaChainSide> = keys.required(key)?;
        let at = side.span();
        let named = |name: &String| Spanned::new(at.clone(), name.clone());
        let RdmaChainSide { disk, gpu, nic } = side.get_ref();
        keys.inventory.gpu(named(gpu))?;
        keys.inventory.provider(named(gpu))?;
        keys.inventory.nic(named(nic))?;
        let disk = keys.inventory.disk(named(disk))?;
        let (bytes, block) = (disk.disk_bytes, disk.block_bytes.into());
        Ok((side.into_inner(), bytes, block))
    }
}

impl CheckKind for RdmaChain {
    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        needs_tools(keys)?;
        let (from, from_bytes, from_block) = Self::side(keys, "from")?;
        let (to, to_bytes, to_block) = Self::side(keys, "to")?;
        if from.disk == to.disk {
            let message = format!("`{}` is on both sides: name two disks", from.disk);
            return Err(keys.refused(&message));
        }
        let unit = PAGE.max(from_block).max(to_block);
        let sizes = sizes(keys, unit, &[&from.gpu, &to.gpu])?;
        let at = sizes.span();
        let chain = Self {
            from,
            to,
            sizes: sizes.into_inner(),
            seconds: keys.seconds,
        };
        let (needed, there) = (chain.disk_bytes(), from_bytes.min(to_bytes));
        if needed > there {
            let message = format!(
                "`sizes`: all of them twice are {}, and the smaller disk has {}: enlarge its namespace",
                Size(needed),
                Size(there)
            );
            return Err(TableError::new(at, message));
        }
        Ok(chain)
    }

    fn pairs(&self) -> Vec<Pair> {
        let sides = [&self.from, &self.to].into_iter();
        let pairs = sides
            .flat_map(|side| [&side.disk, &side.nic].map(|client| Pair::of(&side.gpu, client)));
        pairs.collect()
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
    fn chain_names_its_devices_pairs_and_bytes() {
        let text = r#"{"from":{"disk":"d","gpu":"g","nic":"n"},"to":{"disk":"e","gpu":"h","nic":"m"},"sizes":[4096,8192]}"#;
        let chain: RdmaChain = serde_json::from_str(text).unwrap();
        assert_eq!(chain.to_string(), "d by g and n to e by h and m");
        let pairs = [("g", "d"), ("g", "n"), ("h", "e"), ("h", "m")];
        assert_eq!(
            chain.pairs(),
            pairs.map(|(gpu, client)| Pair::of(gpu, client))
        );
        assert_eq!(chain.disk_bytes(), 2 * 12288);
        assert_eq!(chain.guest_ram_bytes(100), Some(0));
    }

    fn flow(requester: &str, completer: Completer, direction: Direction) -> PayloadFlow {
        PayloadFlow::to_peer(requester, completer, direction, 100)
    }

    fn chain() -> RdmaChain {
        let text = r#"{"from":{"disk":"d","gpu":"g","nic":"n"},"to":{"disk":"e","gpu":"h","nic":"m"},"sizes":[4096]}"#;
        serde_json::from_str(text).unwrap()
    }

    fn four_steps() -> Vec<PayloadFlow> {
        use Completer::PeerBar;
        use Direction::{Read, Write};
        let steps = [("d", Write), ("n", Read), ("m", Write), ("e", Read)];
        let steps = steps.map(|(device, direction)| flow(device, PeerBar, direction));
        steps.into()
    }

    #[test]
    fn each_step_counts_each_byte_once() {
        assert!(chain().judge(&four_steps(), &[], 100).is_ok());
        for missing in 0..4 {
            let mut flows = four_steps();
            let gone = flows.remove(missing);
            let error = chain().judge(&flows, &[], 100).unwrap_err();
            assert!(error.starts_with(&gone.requester), "{error}");
            assert!(error.ends_with("its counters show 0"), "{error}");
            let without = chain().judge(&flows, &[&gone.requester], 100);
            assert!(without.is_ok(), "{}", gone.requester);
        }
    }

    #[test]
    fn byte_beside_the_steps_fails_the_chain() {
        for other in [
            flow("d", Completer::GuestRam, Direction::Write),
            flow("g", Completer::OwnMemory, Direction::Read),
            flow("n", Completer::Unknown, Direction::Read),
            flow("n", Completer::PeerBar, Direction::Write),
        ] {
            let mut flows = four_steps();
            flows.push(other);
            let error = chain().judge(&flows, &[], 100).unwrap_err();
            assert!(
                error.starts_with("100 payload bytes moved in addition"),
                "{error}"
            );
        }
    }
}
