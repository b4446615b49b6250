//! `rdma-refused`: what an RDMA adapter must refuse.

use toml::Spanned;

use super::{CheckKind, Keys, Pair, TableError, check, rdma};

check! {
    /// A program asks the adapter for what it must refuse: access without rights, guessed keys, ranges beyond a region, regions that
    /// are gone, queue pairs in a wrong state; with a GPU also of its memory, freed and revoked. No byte may change, and the adapter
    /// works on. It takes `tools = true` at the top of the scenario.
    "rdma-refused": "what {nic} must refuse{with}" with (with = with(gpu.as_deref()))
    pub struct RdmaRefused {
        /// Name of a `[[nic]]`.
        pub nic: String,
        /// Name of a `[[gpu]]` whose memory is used, too.
        #[default = "none"]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub gpu: Option<String>,
    }
}

fn with(gpu: Option<&str>) -> String {
    gpu.map_or_else(String::new, |gpu| format!(", also of {gpu}"))
}

impl CheckKind for RdmaRefused {
    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        rdma::needs_tools(keys)?;
        let nic = keys.nic_name("nic")?;
        let gpu: Option<Spanned<String>> = keys.optional("gpu")?;
        let gpu = gpu.map(|gpu| Ok(keys.inventory.gpu(gpu)?.name.clone()));
        Ok(Self {
            nic,
            gpu: gpu.transpose()?,
            seconds: keys.seconds,
        })
    }

    fn pairs(&self) -> Vec<Pair> {
        let gpu = self.gpu.iter();
        gpu.map(|gpu| Pair::of(gpu, &self.nic)).collect()
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
