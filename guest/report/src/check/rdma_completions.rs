//! `rdma-completions`: completion queues in a program's buffer.

use toml::Spanned;

use super::{CheckKind, Keys, Pair, RdmaMemory, TableError, check, rdma};

check! {
    /// Puts the adapter's completion queues into a program's buffer, in guest RAM or in VRAM by a
    /// dma-buf, and polls them there by the processor. The adapter's counters show whose memory the
    /// completions went to, and by which route; the figures are those of completions, not of
    /// payload. With `loses` the GPU's server is killed while requests complete: the queue pairs
    /// must then be in error, nothing may hang, no request may succeed that was not executed, and
    /// the adapter must continue to work. Requires Linux 7.3, and `tools = true` at the top of the
    /// scenario.
    "rdma-completions": "completions of {nic} in {memory}{lost}" with (lost = if *loses { ", which is lost" } else { "" })
    pub struct RdmaCompletions {
        /// Name of a `[[nic]]`.
        pub nic: String,
        /// The memory of the queues: `"guest-ram"`, or `{ vram = "NAME" }` with the name of a `[[gpu]]`.
        pub memory: RdmaMemory,
        /// Kill the GPU's server during the check. Later checks cannot use the GPU.
        #[default = "`false`"]
        #[serde(default)]
        pub loses: bool,
    }
}

/// Bytes of completions that an adapter has written, by its own count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionBytes {
    /// To other devices' memory.
    pub to_devices: u64,
    /// To guest RAM, including completions of admin commands, and events.
    pub to_guest_ram: u64,
}

impl RdmaCompletions {
    /// Checks that the adapter has written `completions` of them, each once, to the memory of the
    /// queues.
    ///
    /// # Errors
    /// The adapter's counts that differ.
    pub fn judge(&self, completions: u64, written: CompletionBytes) -> Result<(), String> {
        /// Size of a completion in bytes.
        const LENGTH: u64 = 32;
        if completions == 0 {
            return Err("the program had no completions".to_owned());
        }
        let bytes = completions.saturating_mul(LENGTH);
        let CompletionBytes {
            to_devices,
            to_guest_ram,
        } = written;
        let in_vram = self.memory.gpu().is_some();
        if in_vram && to_devices == bytes || !in_vram && to_devices == 0 && to_guest_ram >= bytes {
            return Ok(());
        }
        Err(format!(
            "{completions} completions of {bytes} bytes in all should have gone to {}; the counters of {} show {to_devices} bytes of completions \
             that went to other devices, and {to_guest_ram} that went to guest RAM",
            self.memory, self.nic
        ))
    }
}

impl CheckKind for RdmaCompletions {
    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        rdma::needs_tools(keys)?;
        let nic = keys.nic_name("nic")?;
        let memory = RdmaMemory::read(keys, "memory")?;
        let loses: Option<Spanned<bool>> = keys.optional("loses")?;
        let loses_memory = loses.as_ref().filter(|it| *it.get_ref());
        if let Some(loses) = loses_memory.filter(|_| memory.gpu().is_none()) {
            let message = "`loses` requires memory of a GPU: write `memory = { vram = \"NAME\" }`";
            return Err(TableError::new(loses.span(), message));
        }
        Ok(Self {
            nic,
            memory,
            loses: loses.is_some_and(Spanned::into_inner),
            seconds: keys.seconds,
        })
    }

    fn pairs(&self) -> Vec<Pair> {
        let gpu = self.memory.gpu().into_iter();
        gpu.map(|gpu| Pair::of(gpu, &self.nic)).collect()
    }

    fn kills(&self) -> Option<&str> {
        self.memory.gpu().filter(|_| self.loses)
    }

    /// Returns the bytes of completions, which its figures are about.
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

    fn check(memory: &str, loses: bool) -> RdmaCompletions {
        let text = format!(r#"{{"nic":"n","memory":{memory},"loses":{loses}}}"#);
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn completions_are_counted_where_the_queue_is() {
        let (ram, vram) = (
            check(r#""guest-ram""#, false),
            check(r#"{"vram":"g"}"#, false),
        );
        let written = |to_devices, to_guest_ram| CompletionBytes {
            to_devices,
            to_guest_ram,
        };
        assert_eq!(vram.judge(10, written(320, 64)), Ok(()));
        assert_eq!(ram.judge(10, written(0, 320)), Ok(()));
        assert_eq!(ram.judge(10, written(0, 400)), Ok(()));
        for bytes in [0, 319, 352] {
            let error = vram.judge(10, written(bytes, 320)).unwrap_err();
            let begins = "10 completions of 320 bytes in all should have gone to VRAM of g";
            assert!(error.starts_with(begins), "{error}");
        }
        assert!(ram.judge(10, written(32, 320)).is_err());
        assert!(ram.judge(10, written(0, 319)).is_err());
        assert!(vram.judge(0, written(0, 0)).is_err());
    }

    #[test]
    fn gpu_is_killed_only_where_the_check_loses_it() {
        let lost = check(r#"{"vram":"g"}"#, true);
        assert_eq!(lost.kills(), Some("g"));
        assert_eq!(
            lost.to_string(),
            "completions of n in VRAM of g, which is lost"
        );
        assert_eq!(check(r#"{"vram":"g"}"#, false).kills(), None);
        assert_eq!(lost.pairs(), [Pair::of("g", "n")]);
    }
}
