//! The choice of QEMU's accelerator.

use std::fs;
use std::sync::OnceLock;

use anyhow::anyhow;
use clap::ValueEnum;
use peerbar_images::Qemu;

use crate::exit::Failure;
use crate::{kvm, tsc};

/// Which accelerator the user wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum AccelChoice {
    /// KVM if it can run a guest, or TCG.
    #[default]
    Auto,
    /// KVM, or an error with the reason.
    Kvm,
    /// QEMU's translator, on one thread.
    Tcg,
    /// QEMU's translator, with a thread for each virtual CPU. It suits guests with many CPUs, but a
    /// guest may fail to boot (`Oops: int3`).
    TcgMulti,
}

/// The way in which the guest's instructions are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accel {
    /// By the CPU, through the kernel's virtual machines.
    Kvm,
    /// By QEMU's translator.
    Tcg {
        /// Set if each virtual CPU has a separate thread. QEMU 11.1 then does not patch code
        /// safely: one virtual CPU may go on with a breakpoint that another has replaced (QEMU
        /// accel/tcg/cputlb.c, `notdirty_write`).
        threads: bool,
        /// Rate of the guest's time stamp counter in kHz, if that is known.
        tsc_khz: Option<u64>,
    },
}

impl Accel {
    /// Returns the accelerator for `choice` with `qemu`. KVM is tried first, once for a process.
    ///
    /// # Errors
    /// [`Failure::Environment`] if KVM is demanded and does not run a guest.
    pub fn choose(choice: AccelChoice, qemu: &Qemu) -> Result<Self, Failure> {
        static KVM: OnceLock<Result<(), String>> = OnceLock::new();
        let kvm = || KVM.get_or_init(|| kvm::works(qemu));
        match choice {
            AccelChoice::Tcg => Ok(Self::tcg(false)),
            AccelChoice::TcgMulti => Ok(Self::tcg(true)),
            AccelChoice::Kvm => match kvm() {
                Ok(()) => Ok(Self::Kvm),
                Err(reason) => Err(anyhow!(
                    "KVM does not work here: {reason}; leave out `--accel kvm` to emulate the guest's CPU"
                )
                .into()),
            },
            AccelChoice::Auto => match kvm() {
                Ok(()) => Ok(Self::Kvm),
                // `peerbar doctor` says why.
                Err(_) => Ok(Self::tcg(false)),
            },
        }
    }

    /// The rate is measured once, because that takes time.
    fn tcg(threads: bool) -> Self {
        static TSC_KHZ: OnceLock<Option<u64>> = OnceLock::new();
        let tsc_khz = *TSC_KHZ.get_or_init(|| {
            let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
            tsc::khz(&cpuinfo)
        });
        Self::Tcg { threads, tsc_khz }
    }

    /// Value of QEMU's `-accel`.
    pub fn argument(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg { threads: false, .. } => "tcg,thread=single",
            Self::Tcg { threads: true, .. } => "tcg,thread=multi",
        }
    }

    /// Returns the kernel parameters that the guest needs for it, if any.
    pub fn kernel_parameters(self) -> String {
        match self {
            Self::Tcg {
                tsc_khz: Some(khz), ..
            } => format!("tsc_early_khz={khz}"),
            Self::Kvm | Self::Tcg { tsc_khz: None, .. } => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tcg_guest_gets_the_tsc_frequency() {
        let tcg = |tsc_khz| {
            let accel = Accel::Tcg {
                threads: false,
                tsc_khz,
            };
            accel.kernel_parameters()
        };
        assert_eq!(tcg(Some(2_596_098)), "tsc_early_khz=2596098");
        assert_eq!(tcg(None), "");
        assert_eq!(Accel::Kvm.kernel_parameters(), "");
    }
}
