//! Checks whose two ends are in different guests.

use peerbar_rdma_end::Permitted;
use peerbar_report::{
    Check, PayloadFlow, Rdma, RdmaChain, RdmaChainSide, RdmaLost, RdmaMemory, RdmaRefused,
};

/// A check across guests.
#[derive(Clone, Debug)]
pub enum AcrossCheck {
    /// Transfers between memory of the one and memory of the other.
    Transfers(Rdma),
    /// From a disk of the one, by GPUs and adapters, to a disk of the other.
    Chain(RdmaChain),
    /// Requests of the one to the other, until a part dies.
    Lost(RdmaLost),
    /// Requests that the other must reject.
    Refused(RdmaRefused),
}

/// The end of a check in one guest.
#[derive(Clone, Debug)]
pub struct AcrossEnd<'a> {
    /// Its adapter.
    pub nic: &'a str,
    /// Its memory.
    pub memory: RdmaMemory,
    /// Its disk, if it has one.
    pub disk: Option<&'a str>,
}

impl AcrossCheck {
    /// The kinds that there are.
    pub const KINDS: [&str; 4] = ["rdma", "rdma-chain", "rdma-lost", "rdma-refused"];

    /// Returns the check, if it may be across guests.
    pub fn of(check: Check) -> Option<Self> {
        match check {
            Check::Rdma(check) => Some(Self::Transfers(check)),
            Check::RdmaChain(check) => Some(Self::Chain(check)),
            Check::RdmaLost(check) => Some(Self::Lost(check)),
            Check::RdmaRefused(check) => Some(Self::Refused(check)),
            _ => None,
        }
    }

    /// Returns the same check as a [`Check`].
    pub fn check(&self) -> Check {
        match self {
            Self::Transfers(check) => Check::Rdma(check.clone()),
            Self::Chain(check) => Check::RdmaChain(check.clone()),
            Self::Lost(check) => Check::RdmaLost(check.clone()),
            Self::Refused(check) => Check::RdmaRefused(check.clone()),
        }
    }

    /// Returns the end that asks, then the other.
    pub fn ends(&self) -> [AcrossEnd<'_>; 2] {
        match self {
            Self::Transfers(Rdma {
                nic,
                peer,
                from,
                to,
                ..
            })
            | Self::Lost(RdmaLost {
                nic,
                peer,
                from,
                to,
                ..
            }) => [(nic, from), (peer, to)].map(|(nic, memory)| AcrossEnd {
                nic,
                memory: memory.clone(),
                disk: None,
            }),
            Self::Refused(check) => {
                let asked = check.memory();
                [(&*check.nic, RdmaMemory::GuestRam), (check.asked(), asked)].map(
                    |(nic, memory)| AcrossEnd {
                        nic,
                        memory,
                        disk: None,
                    },
                )
            }
            Self::Chain(RdmaChain { from, to, .. }) => {
                [from, to].map(|RdmaChainSide { disk, gpu, nic }| AcrossEnd {
                    nic,
                    memory: RdmaMemory::Vram(gpu.clone()),
                    disk: Some(disk),
                })
            }
        }
    }

    /// Sizes of its transfers in bytes.
    pub fn sizes(&self) -> &[u64] {
        match self {
            Self::Transfers(check) => &check.sizes,
            Self::Chain(check) => &check.sizes,
            Self::Lost(_) | Self::Refused(_) => &[],
        }
    }

    /// Returns its explicit time limit in seconds, if it has one.
    pub fn seconds(&self) -> Option<u32> {
        match self {
            Self::Transfers(check) => check.seconds,
            Self::Chain(check) => check.seconds,
            Self::Lost(check) => check.seconds,
            Self::Refused(check) => check.seconds,
        }
    }

    /// Judges it by the devices' counters, without those of `uncounted` devices.
    ///
    /// # Errors
    /// The difference between the counters and `payload` moved bytes, or `permitted` ones.
    pub fn judge(
        &self,
        flows: &[PayloadFlow],
        uncounted: &[&str],
        payload: u64,
        permitted: Permitted,
    ) -> Result<(), String> {
        match self {
            Self::Transfers(check) => check.judge(flows, payload),
            Self::Chain(check) => check.judge(flows, uncounted, payload),
            Self::Lost(check) => check.judge(flows, payload, false),
            Self::Refused(check) => check.judge(flows, permitted.written, permitted.read),
        }
    }

    /// Returns `true` if DMA may fail in it.
    pub fn fails_dma(&self) -> bool {
        matches!(self, Self::Lost(_))
    }
}

impl From<Rdma> for AcrossCheck {
    fn from(check: Rdma) -> Self {
        Self::Transfers(check)
    }
}
