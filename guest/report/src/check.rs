//! Checks, as a scenario's `[[check]]` tables request them from the agent.
//!
//! Each kind has one file here with everything about it that concerns the outside of the guest: its
//! struct, which the plan carries to the agent; its name in the report; its keys and their
//! meanings; how its table is read and validated against the scenario's devices. The agent's
//! `checks/` contains its behaviour.
//!
//! To add a kind: a file here with its declaration by the macro `check`, its two lines below, as a
//! module and in `kinds!`, and the agent's file.

mod buffer;
mod declare;
mod expectation;
mod inventory;
mod mention;
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

/// The description of a kind of check for the report and the reference. Its `Display` is the
/// check's name in the report: its action, and the devices that take part.
pub trait Described: fmt::Display {
    /// Its value of `kind`.
    const KIND: &'static str;
    /// The purpose of the check, for the reference: lines of Markdown.
    const ABOUT: &'static str;
    /// Its own keys, in the order of the reference.
    const KEYS: &'static [Key];
    /// The keys of its [`Expectation`], if it has one.
    const EXPECTED: &'static [Key] = &[];

    /// Returns its time limit in seconds, if not [`crate::Plan::check_seconds`].
    fn seconds(&self) -> Option<u32>;
}

/// One kind of check.
pub trait CheckKind: Described + Sized {
    /// Takes the check out of its table, and validates it against the devices of
    /// [`Keys::inventory`].
    ///
    /// # Errors
    /// The first mistake, with its span.
    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError>;

    /// Returns the pairs between which it moves data peer to peer, or tries to.
    fn pairs(&self) -> Vec<Pair> {
        Vec::new()
    }

    /// Returns the check that moves the same data through guest RAM, for comparison, or `None` if
    /// that makes no sense.
    fn control(&self) -> Option<Self> {
        None
    }

    /// Returns the kernel modules that are loaded before the first check.
    fn modules(&self) -> &'static [&'static str] {
        &[]
    }

    /// The kernel modules that [`Self::modules_on_demand`] may name, as far as Debian's kernel has
    /// them.
    const ON_DEMAND: &'static [&'static str] = &[];

    /// Returns the kernel modules that the agent loads when the check runs.
    fn modules_on_demand(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns the device whose server it kills.
    fn kills(&self) -> Option<&str> {
        None
    }

    /// Returns the functions of the kernel that may warn during the check, because they cannot do
    /// without the killed device.
    fn warnings(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns how many of `payload` bytes that it has moved were requested to or from guest RAM,
    /// and therefore did not bounce. Returns `None` if that is not known.
    fn guest_ram_bytes(&self, payload: u64) -> Option<u64> {
        let _ = payload;
        Some(0)
    }

    /// Returns the Debian packages that the tools root must have.
    fn packages(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns the programs of this project that the tools root must have, in `/opt/peerbar`.
    fn programs(&self) -> &'static [&'static str] {
        &[]
    }
}

/// Facts about a kind of check that need no check of that kind.
#[derive(Debug)]
pub struct Kind {
    /// [`Described::KIND`].
    pub name: &'static str,
    /// [`Described::ABOUT`].
    about: &'static str,
    /// [`Described::KEYS`], and [`Described::EXPECTED`].
    keys: [&'static [Key]; 2],
    /// [`CheckKind::ON_DEMAND`].
    pub on_demand: &'static [&'static str],
    /// [`CheckKind::read`].
    read: fn(&mut Keys<'_, '_>) -> Result<Check, TableError>,
}

impl Kind {
    /// Returns the keys of this kind alone, in the order of the reference.
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
            /// Returns the check's name in the report.
            pub fn name(&self) -> String {
                match self { $(Check::$kind(check) => check.to_string(),)* }
            }

            /// See [`Described::KIND`].
            pub fn kind(&self) -> &'static str {
                match self { $(Check::$kind(_) => $kind::KIND,)* }
            }

            /// See [`CheckKind::control`].
            pub fn control(&self) -> Option<Self> {
                match self { $(Check::$kind(check) => check.control().map(Check::$kind),)* }
            }

            /// Returns the index of its [control](Self::control) among `checks`, regardless of the
            /// time limits of both.
            pub fn control_among(&self, checks: &[Self]) -> Option<usize> {
                let control = self.control()?.without_limit();
                checks.iter().position(|check| check.without_limit() == control)
            }

            fn without_limit(&self) -> Self {
                match self {
                    $(Check::$kind(check) => Check::$kind($kind { seconds: None, ..check.clone() }),)*
                }
            }

            /// See [`CheckKind::pairs`].
            pub fn pairs(&self) -> Vec<Pair> {
                match self { $(Check::$kind(check) => check.pairs(),)* }
            }

            /// See [`CheckKind::modules`].
            pub fn modules(&self) -> &'static [&'static str] {
                match self { $(Check::$kind(check) => check.modules(),)* }
            }

            /// See [`CheckKind::modules_on_demand`].
            pub fn modules_on_demand(&self) -> &'static [&'static str] {
                match self { $(Check::$kind(check) => check.modules_on_demand(),)* }
            }

            /// See [`CheckKind::kills`].
            pub fn kills(&self) -> Option<&str> {
                match self { $(Check::$kind(check) => check.kills(),)* }
            }

            /// See [`CheckKind::warnings`].
            pub fn warnings(&self) -> &'static [&'static str] {
                match self { $(Check::$kind(check) => check.warnings(),)* }
            }

            /// See [`CheckKind::guest_ram_bytes`].
            pub fn guest_ram_bytes(&self, payload: u64) -> Option<u64> {
                match self { $(Check::$kind(check) => check.guest_ram_bytes(payload),)* }
            }

            /// See [`CheckKind::packages`].
            pub fn packages(&self) -> &'static [&'static str] {
                match self { $(Check::$kind(check) => check.packages(),)* }
            }

            /// See [`CheckKind::programs`].
            pub fn programs(&self) -> &'static [&'static str] {
                match self { $(Check::$kind(check) => check.programs(),)* }
            }

            /// See [`Described::seconds`].
            pub fn seconds(&self) -> Option<u32> {
                match self { $(Check::$kind(check) => check.seconds(),)* }
            }
        }

        /// Evaluates an expression with the struct of a check, whichever kind it is.
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
    /// Returns `true` if the scenario asks to show its output (`show = true`).
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
            assert!(text.contains(&format!("### `{}`\n\n{}\n", kind.name, kind.about())));
            assert!(kind.about().ends_with('.'), "{}", kind.about());
            for key in kind.keys() {
                assert!(kind.markdown(3).contains(&format!("| `{}` | ", key.name)));
                assert!(key.about.ends_with('.'), "{}", key.about);
            }
        }
    }
}
