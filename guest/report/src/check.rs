//! Checks: what a scenario's `[[check]]` tables ask of the agent.
//!
//! Each kind has one file here with all that is known of it outside the guest: its struct, which the plan carries to the
//! agent; its name in the report; its keys and what they mean; how its table is read and held against the scenario's
//! devices. The agent's `checks/` has its other half, what it does.
//!
//! To add a kind: a file here with its declaration by the macro `check`, its two lines below, as a module and in `kinds!`, and the
//! agent's file.

mod buffer;
mod declare;
mod expectation;
mod inventory;
mod pair;
mod reference;
mod table;

mod buffered_read;
mod command;
mod controller_reset;
mod copy;
mod dma_log;
mod gpu_file;
mod gpu_initiated;
mod gpu_refused;
mod pmr;
mod pool_exhausted;
mod probe;
mod program;
mod provider;
mod queues_in_cmb;
mod rdma;
mod rdma_chain;
mod rdma_completions;
mod rdma_lost;
mod rdma_refused;
mod vfio;
mod vfio_alias;
mod vfio_nvme;
mod vfio_order;
mod vfio_revocation;
mod vfio_window;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use buffer::Buffer;
pub use expectation::{Expectation, line_pattern};
pub use gpu_file::{Calls, Medium};
pub use gpu_initiated::{GpuDriver, QueueAddresses};
pub use inventory::Inventory;
pub use pair::Pair;
pub use probe::ProbeDriver;
pub use program::OWN_PROGRAMS;
pub use rdma::RdmaMemory;
pub use rdma_chain::RdmaChainSide;
pub use rdma_completions::CompletionBytes;
pub use rdma_lost::{RdmaLoad, RdmaPart};
pub use reference::check_reference;
pub use table::{COMMON_KEYS, CheckTable, Key, Keys, TableError};
pub use vfio::VfioBackend;
pub use vfio_nvme::QueueLocation;

use declare::check;

/// Transfers are whole pages, as p2pmem is.
const PAGE: u64 = 4096;

/// What the report and the reference say of a kind of check. Its `Display` is the check's name in the report: what it does,
/// and to which devices.
pub trait Described: fmt::Display {
    /// The value of `kind` that stands for it.
    const KIND: &'static str;
    /// What it checks, for the reference.
    const ABOUT: &'static str;
    /// Its own keys, in the order of the reference.
    const KEYS: &'static [Key];
    /// The keys of its [`Expectation`], if it has one.
    const EXPECTED: &'static [Key] = &[];

    /// Seconds that it may take, if not [`crate::Plan::check_seconds`].
    fn seconds(&self) -> Option<u32>;
}

/// One kind of check.
pub trait CheckKind: Described + Sized {
    /// Takes the check out of its table, and holds it against the devices of [`Keys::inventory`].
    ///
    /// # Errors
    /// The first mistake, with its span.
    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError>;

    /// The pairs between which it moves data from peer to peer, or tries to.
    fn pairs(&self) -> Vec<Pair> {
        Vec::new()
    }

    /// The check that moves the same data by way of guest RAM, to compare with; none if that makes no sense.
    fn control(&self) -> Option<Self> {
        None
    }

    /// Kernel modules that are loaded before the first check.
    fn modules(&self) -> &'static [&'static str] {
        &[]
    }

    /// The kernel modules that [`Self::modules_on_demand`] may name, as far as Debian's kernel has them.
    const ON_DEMAND: &'static [&'static str] = &[];

    /// Kernel modules that the agent loads when the check runs.
    fn modules_on_demand(&self) -> &'static [&'static str] {
        &[]
    }

    /// The device whose server it has killed.
    fn kills(&self) -> Option<&str> {
        None
    }

    /// Functions of the kernel that may warn meanwhile, since they cannot do without what it has killed.
    fn warnings(&self) -> &'static [&'static str] {
        &[]
    }

    /// Of `payload` bytes that it has moved, how many it asks to be read from or written to guest RAM: these are not bounced.
    /// `None` if that is not known.
    fn guest_ram_bytes(&self, payload: u64) -> Option<u64> {
        let _ = payload;
        Some(0)
    }

    /// Debian packages that the tools root must have.
    fn packages(&self) -> &'static [&'static str] {
        &[]
    }

    /// Programs of this project that the tools root must have, in `/opt/peerbar`.
    fn programs(&self) -> &'static [&'static str] {
        &[]
    }
}

/// What is known of a kind of check without one at hand.
#[derive(Debug)]
pub struct Kind {
    /// [`Described::KIND`].
    pub name: &'static str,
    /// [`Described::ABOUT`].
    pub about: &'static str,
    /// [`Described::KEYS`], and [`Described::EXPECTED`].
    keys: [&'static [Key]; 2],
    /// [`CheckKind::ON_DEMAND`].
    pub on_demand: &'static [&'static str],
    /// [`CheckKind::read`].
    read: fn(&mut Keys<'_, '_>) -> Result<Check, TableError>,
}

impl Kind {
    /// The keys of this kind alone, in the order of the reference.
    pub fn keys(&self) -> impl Iterator<Item = &'static Key> + Clone {
        self.keys.into_iter().flatten()
    }
}

macro_rules! kinds {
    ($dollar:tt $($module:ident::$kind:ident,)*) => {
        $(pub use $module::$kind;)*

        /// One check of a plan, distinguished by `kind`.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(tag = "kind", rename_all = "kebab-case")]
        pub enum Check {
            $(#[doc = concat!("A [`", stringify!($kind), "`](struct@", stringify!($kind), ").")] $kind($kind),)*
        }

        /// All kinds of checks, in the order of the reference.
        pub const KINDS: &[Kind] = &[$(Kind {
            name: $kind::KIND,
            about: $kind::ABOUT,
            keys: [$kind::KEYS, $kind::EXPECTED],
            on_demand: $kind::ON_DEMAND,
            read: |keys| $kind::read(keys).map(Check::$kind),
        },)*];

        impl Check {
            /// The check's name in the report.
            pub fn name(&self) -> String {
                match self { $(Check::$kind(check) => check.to_string(),)* }
            }

            /// As [`Described::KIND`].
            pub fn kind(&self) -> &'static str {
                match self { $(Check::$kind(_) => $kind::KIND,)* }
            }

            /// As [`CheckKind::control`].
            pub fn control(&self) -> Option<Self> {
                match self { $(Check::$kind(check) => check.control().map(Check::$kind),)* }
            }

            /// The index of its [control](Self::control) among `checks`, whatever the time limits of both.
            pub fn control_among(&self, checks: &[Self]) -> Option<usize> {
                let control = self.control()?.without_limit();
                checks.iter().position(|check| check.without_limit() == control)
            }

            fn without_limit(&self) -> Self {
                match self {
                    $(Check::$kind(check) => Check::$kind($kind { seconds: None, ..check.clone() }),)*
                }
            }

            /// As [`CheckKind::pairs`].
            pub fn pairs(&self) -> Vec<Pair> {
                match self { $(Check::$kind(check) => check.pairs(),)* }
            }

            /// As [`CheckKind::modules`].
            pub fn modules(&self) -> &'static [&'static str] {
                match self { $(Check::$kind(check) => check.modules(),)* }
            }

            /// As [`CheckKind::modules_on_demand`].
            pub fn modules_on_demand(&self) -> &'static [&'static str] {
                match self { $(Check::$kind(check) => check.modules_on_demand(),)* }
            }

            /// As [`CheckKind::kills`].
            pub fn kills(&self) -> Option<&str> {
                match self { $(Check::$kind(check) => check.kills(),)* }
            }

            /// As [`CheckKind::warnings`].
            pub fn warnings(&self) -> &'static [&'static str] {
                match self { $(Check::$kind(check) => check.warnings(),)* }
            }

            /// As [`CheckKind::guest_ram_bytes`].
            pub fn guest_ram_bytes(&self, payload: u64) -> Option<u64> {
                match self { $(Check::$kind(check) => check.guest_ram_bytes(payload),)* }
            }

            /// As [`CheckKind::packages`].
            pub fn packages(&self) -> &'static [&'static str] {
                match self { $(Check::$kind(check) => check.packages(),)* }
            }

            /// As [`CheckKind::programs`].
            pub fn programs(&self) -> &'static [&'static str] {
                match self { $(Check::$kind(check) => check.programs(),)* }
            }

            /// As [`Described::seconds`].
            pub fn seconds(&self) -> Option<u32> {
                match self { $(Check::$kind(check) => check.seconds(),)* }
            }
        }

        /// An expression with what a check consists of, whichever kind it is.
        #[macro_export]
        macro_rules! with_check {
            ($dollar check:expr, $dollar inner:ident => $dollar body:expr) => {
                match $dollar check { $($crate::Check::$kind($dollar inner) => $dollar body,)* }
            };
        }
    };
}

kinds! {
    $
    provider::Provider,
    queues_in_cmb::QueuesInCmb,
    copy::Copy,
    buffered_read::BufferedRead,
    pool_exhausted::PoolExhausted,
    probe::Probe,
    controller_reset::ControllerReset,
    dma_log::DmaLog,
    command::Command,
    program::Program,
    gpu_file::GpuFile,
    gpu_refused::GpuRefused,
    pmr::Pmr,
    vfio_nvme::VfioNvme,
    gpu_initiated::GpuInitiated,
    vfio_order::VfioOrder,
    vfio_alias::VfioAlias,
    vfio_revocation::VfioRevocation,
    vfio_window::VfioWindow,
    rdma::Rdma,
    rdma_chain::RdmaChain,
    rdma_completions::RdmaCompletions,
    rdma_lost::RdmaLost,
    rdma_refused::RdmaRefused,
}

impl Check {
    /// Whether the scenario asks to show what it prints (`show = true`).
    pub fn is_shown(&self) -> bool {
        match self {
            Self::Command(command) => command.expected.show,
            Self::Program(program) => program.expected.show,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpu_checks_are_named_after_what_they_do() {
        let text = r#"[
            {"kind":"gpu-file","gpu":"g","disks":["a","b"],"sizes":[4096],"offsets":[0]},
            {"kind":"gpu-file","gpu":"g","disks":["a"],"on":"ext4","by":"io-uring","bounce":true,"sizes":[4096],"offsets":[0]},
            {"kind":"gpu-refused","gpu":"g","disk":"a"}]"#;
        let checks: Vec<Check> = serde_json::from_str(text).unwrap();
        let names: Vec<String> = checks.iter().map(Check::name).collect();
        assert_eq!(
            names,
            [
                "a and b to VRAM of g and back",
                "a to VRAM of g and back, ext4, io_uring, bounced",
                "no peer to peer from a to VRAM of g"
            ]
        );
    }

    #[test]
    fn control_of_a_transfer_goes_through_guest_ram() {
        let text = r#"[
            {"kind":"gpu-file","gpu":"g","disks":["a"],"sizes":[4096],"offsets":[0]},
            {"kind":"copy","from":"a","to":"b","through":{"p2pmem":"a"},"sizes":[4096],"offsets":[0]},
            {"kind":"provider","device":"a"}]"#;
        let checks: Vec<Check> = serde_json::from_str(text).unwrap();
        let controls: Vec<Option<String>> = checks
            .iter()
            .map(|check| check.control().map(|control| control.name()))
            .collect();
        let bounced = "a to VRAM of g and back, bounced".to_owned();
        let copied = "copy a to b through guest RAM".to_owned();
        assert_eq!(controls, [Some(bounced), Some(copied), None]);
        let control = checks[0].control().unwrap();
        assert_eq!((control.kind(), control.control()), ("gpu-file", None));
    }

    #[test]
    fn unknown_field_is_refused_by_its_name() {
        let text = r#"{"kind":"provider","device":"a","colour":"red"}"#;
        let error = serde_json::from_str::<Check>(text).unwrap_err();
        assert!(error.to_string().contains("colour"), "{error}");
    }

    #[test]
    fn kinds_have_the_names_that_plans_know() {
        for kind in KINDS {
            let text = format!(r#"{{"kind":"{}"}}"#, kind.name);
            let error = serde_json::from_str::<Check>(&text).unwrap_err();
            assert!(error.to_string().starts_with("missing field"), "{error}");
        }
    }

    #[test]
    fn reference_has_every_kind_with_every_key() {
        let text = check_reference(3);
        for kind in KINDS {
            assert!(text.contains(&format!("### `{}`\n\n{}\n", kind.name, kind.about)));
            assert!(kind.about.ends_with('.'), "{}", kind.about);
            for key in kind.keys() {
                assert!(kind.markdown(3).contains(&format!("| `{}` | ", key.name)));
                assert!(key.about.ends_with('.'), "{}", key.about);
            }
        }
    }
}
