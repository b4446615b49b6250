//! Which accelerator QEMU gets.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::sync::OnceLock;

use crate::tsc;

/// How the guest's instructions are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accel {
    /// By the CPU, through the kernel's virtual machines.
    Kvm,
    /// By QEMU's translator, one thread for each virtual CPU.
    Tcg {
        /// How fast the guest's time stamp counter counts, if that is known.
        tsc_khz: Option<u64>,
    },
}

impl Accel {
    /// KVM where it really runs a kernel, else TCG. Looked for once, as watching a counter takes its time.
    ///
    /// A `/dev/kvm` that opens is not enough: on a host whose CPU shows neither `svm` nor `vmx` it creates a
    /// machine that stops in early boot.
    pub fn detect() -> Self {
        static FOUND: OnceLock<Accel> = OnceLock::new();
        *FOUND.get_or_init(|| {
            let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
            Self::choose(&cpuinfo, Path::new("/dev/kvm"))
        })
    }

    fn choose(cpuinfo: &str, device: &Path) -> Self {
        let mut flags = cpuinfo
            .lines()
            .filter(|line| line.starts_with("flags"))
            .flat_map(str::split_whitespace);
        let virtualises = flags.any(|flag| flag == "svm" || flag == "vmx");
        if virtualises
            && OpenOptions::new()
                .read(true)
                .write(true)
                .open(device)
                .is_ok()
        {
            Self::Kvm
        } else {
            Self::Tcg {
                tsc_khz: tsc::khz(cpuinfo),
            }
        }
    }

    /// Value of QEMU's `-accel`.
    pub fn argument(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg { .. } => "tcg,thread=multi",
        }
    }

    /// What the guest's kernel should be told, if anything.
    pub fn kernel_parameters(self) -> String {
        match self {
            Self::Tcg { tsc_khz: Some(khz) } => format!("tsc_early_khz={khz}"),
            Self::Kvm | Self::Tcg { tsc_khz: None } => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITH: &str = "processor\t: 0\nflags\t\t: fpu svm sse\n";
    const WITHOUT: &str = "processor\t: 0\nmodel name\t: svm vmx\nflags\t\t: fpu sse svm_lock\n";

    #[test]
    fn kvm_needs_both_the_flag_and_the_device() {
        let device = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(Accel::choose(WITH, device.path()), Accel::Kvm);
        let translated = Accel::Tcg { tsc_khz: None };
        assert_eq!(Accel::choose(WITHOUT, device.path()), translated);
        assert_eq!(
            Accel::choose(WITH, Path::new("/nonexistent/kvm")),
            translated
        );
    }

    #[test]
    fn only_tcg_guest_gets_the_tsc_frequency() {
        let tcg = |tsc_khz| Accel::Tcg { tsc_khz }.kernel_parameters();
        assert_eq!(tcg(Some(2_596_098)), "tsc_early_khz=2596098");
        assert_eq!(tcg(None), "");
        assert_eq!(Accel::Kvm.kernel_parameters(), "");
    }
}
