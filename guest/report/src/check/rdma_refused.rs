//! `rdma-refused`: what an RDMA adapter must refuse.

use toml::Spanned;

use super::{CheckKind, Keys, Pair, TableError, check, rdma};

check! {
    /// A program asks an adapter for what it must refuse: access without rights, guessed keys, ranges beyond a region, regions that
    /// are gone, queue pairs in a wrong state, messages too long for their receive; with a GPU also of its memory, freed and revoked. No byte
    /// may change, and the adapters work on. With `peer` another adapter asks, which may be in another guest. It takes `tools = true` at the top
    /// of the scenario.
    "rdma-refused": "what {asked} must refuse{whom}{with}" with (
        asked = peer.as_ref().unwrap_or(nic), whom = whom(nic, peer.as_deref()), with = with(gpu.as_deref())
    )
    pub struct RdmaRefused {
        /// Name of a `[[nic]]`: the one that asks.
        pub nic: String,
        /// Name of the `[[nic]]` that is asked.
        #[default = "`nic`"]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub peer: Option<String>,
        /// Name of a `[[gpu]]` whose memory is used, too: the memory of the one that is asked.
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
    /// The adapter that is asked.
    pub fn asked(&self) -> &str {
        self.peer.as_ref().unwrap_or(&self.nic)
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

    /// Each of its requests has memory of the guest on one side or on both.
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
