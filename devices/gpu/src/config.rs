//! The settings of a GPU, and their checks.

use std::time::Duration;

use peerbar_dma::MemoryError;
use peerbar_endpoint::size;
use thiserror::Error;

use crate::aperture::PAGE;

/// Linux takes peer-to-peer memory in sections of 2 MiB (Linux mm/sparse.c, SUBSECTION_SIZE).
const GRANULE: u64 = 2 << 20;
/// The largest aperture: 16 GiB.
const APERTURE_LIMIT: u64 = 16 << 30;
/// The largest VRAM: 1 TiB.
const VRAM_LIMIT: u64 = 1 << 40;
/// The largest default aperture: 256 MiB.
const APERTURE_DEFAULT: u64 = 256 << 20;

const _: () = assert!(GRANULE % PAGE == 0);

/// How the aperture shows VRAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// Its start, which the guest maps
    Static,
    /// Pages of 64 KiB that the driver puts over it and takes away
    Window,
}

/// A GPU to be started. The texts are those of the options.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct Config {
    /// Size of the GPU's memory, a multiple of 2M; it takes host memory only where it is touched
    #[arg(long = "vram", value_name = "SIZE", default_value = "256M", value_parser = size)]
    pub vram_bytes: u64,
    /// Size of the BAR that shows it, a power of two from 2M to 16G [default: what --vram holds, up to 256M]
    #[arg(long = "aperture", value_name = "SIZE", value_parser = size)]
    pub aperture_bytes: Option<u64>,
    /// How the BAR shows the memory
    #[arg(long, value_enum, default_value_t = Mode::Static)]
    pub mode: Mode,
    /// How long the engine may work on one command, such as 500ms or 2m
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = humantime::parse_duration)]
    pub job_timeout: Duration,
}

/// The reason why a GPU cannot be set up.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// Linux would take only a part of the memory.
    #[error("VRAM of {} bytes: the size must be a multiple of 2 MiB up to 1 TiB; try {}M", .0, .0.div_ceil(GRANULE).clamp(1, VRAM_LIMIT / GRANULE) * 2)]
    Vram(u64),
    /// No BAR has that size.
    #[error(
        "aperture of {} bytes: the size must be a power of two from 2M to 16G; try {}M", .0,
        aperture_near(*.0) >> 20
    )]
    Aperture(u64),
    /// The aperture would be larger than VRAM.
    #[error(
        "aperture of {aperture} bytes over VRAM of {vram}: make VRAM larger or the aperture smaller"
    )]
    Beyond {
        /// Size of the aperture.
        aperture: u64,
        /// Size of VRAM.
        vram: u64,
    },
    /// The machine has not enough memory.
    #[error("VRAM of {size} bytes")]
    Memory {
        /// The requested size.
        size: u64,
        /// The cause.
        source: MemoryError,
    },
}

impl Config {
    /// Returns the size of the aperture, given or by default.
    pub(crate) fn aperture(&self) -> u64 {
        let fitting = self.vram_bytes.checked_ilog2().map_or(0, |log| 1 << log);
        self.aperture_bytes.unwrap_or(fitting.min(APERTURE_DEFAULT))
    }

    /// Checks that the settings are valid.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let (vram, aperture) = (self.vram_bytes, self.aperture());
        if vram == 0 || vram % GRANULE != 0 || vram > VRAM_LIMIT {
            return Err(ConfigError::Vram(vram));
        }
        if !aperture.is_power_of_two() || !(GRANULE..=APERTURE_LIMIT).contains(&aperture) {
            return Err(ConfigError::Aperture(aperture));
        }
        if aperture > vram {
            return Err(ConfigError::Beyond { aperture, vram });
        }
        Ok(())
    }
}

/// Returns the next valid size of an aperture.
fn aperture_near(size: u64) -> u64 {
    size.clamp(GRANULE, APERTURE_LIMIT).next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn config(vram_bytes: u64, aperture_bytes: Option<u64>) -> Config {
        Config {
            vram_bytes,
            aperture_bytes,
            mode: Mode::Static,
            job_timeout: Duration::from_secs(60),
        }
    }

    #[test]
    fn an_aperture_unasked_is_what_vram_holds_up_to_256_mib() {
        for (vram, aperture) in [(2, 2), (96, 64), (256, 256), (4096, 256)] {
            let config = config(vram * MIB, None);
            config.check().unwrap();
            assert_eq!(config.aperture(), aperture * MIB);
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_value_and_the_way_out() {
        let message = |vram, aperture| config(vram, aperture).check().unwrap_err().to_string();
        assert!(message(0, None).ends_with("try 2M"));
        assert!(
            message(3 * MIB, None).contains("3145728")
                && message(3 * MIB, None).ends_with("try 4M")
        );
        assert!(message(u64::MAX, None).starts_with("VRAM of 18446744073709551615"));
        assert!(message(256 * MIB, Some(3 * MIB)).ends_with("try 4M"));
        assert!(message(256 * MIB, Some(MIB)).ends_with("try 2M"));
        assert!(message(256 * MIB, Some(u64::MAX)).ends_with("try 16384M"));
        assert!(message(2 * MIB, Some(4 * MIB)).contains("make VRAM larger"));
        config(16 << 30, Some(16 << 30)).check().unwrap();
    }
}
