//! The settings of a GPU, and their checks.

use std::time::Duration;

use humantime::{format_duration, parse_duration};
use peerbar_dma::MemoryError;
use peerbar_endpoint::Size;
use serde::{Deserialize, Serialize};
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
/// The longest time limit of a command.
const JOB_TIMEOUT_LIMIT: Duration = Duration::from_secs(24 * 60 * 60);

const _: () = assert!(GRANULE % PAGE == 0);

/// How the aperture shows VRAM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Its start, which the guest maps
    #[default]
    Static,
    /// Pages of 64 KiB that the driver puts over it and takes away
    Window,
}

/// A GPU's settings: the options of `peerbar-gpu`, whose help has these texts, and keys of a `[[gpu]]` table.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// Size of the GPU's memory, a multiple of 2M; it takes host memory only where it is touched
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    pub vram: Size,
    /// Size of the BAR that shows it, a power of two from 2M to 16G [default: what --vram holds, up to 256M]
    #[arg(long, value_name = "SIZE")]
    pub aperture: Option<Size>,
    /// How the BAR shows the memory
    #[arg(long, value_enum, default_value_t)]
    pub mode: Mode,
    /// How long the engine may work on one command, such as 500ms or 2m
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time)]
    #[serde(with = "time_as_text")]
    pub job_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            vram: Size(256 << 20),
            aperture: None,
            mode: Mode::default(),
            job_timeout: Duration::from_secs(60),
        }
    }
}

/// Parses a time with its unit, or in seconds.
fn time(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map(Duration::from_secs);
    seconds.or_else(|_| parse_duration(text)).map_err(|_| {
        format!("invalid time `{text}`: expected seconds, or a text such as `500ms` or `2m`")
    })
}

/// A time as a file of settings has it: a text, or a number of seconds.
mod time_as_text {
    use std::fmt;
    use std::time::Duration;

    use serde::de::{Deserializer, Error, Visitor};
    use serde::ser::Serializer;

    pub(super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&humantime::format_duration(*time))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        from.deserialize_any(TimeVisitor)
    }

    struct TimeVisitor;

    impl Visitor<'_> for TimeVisitor {
        type Value = Duration;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a time such as \"500ms\" or \"2m\"")
        }

        fn visit_i64<E: Error>(self, seconds: i64) -> Result<Duration, E> {
            self.visit_str(&seconds.to_string())
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
            super::time(text).map_err(E::custom)
        }
    }
}

/// The reason why a GPU cannot be set up.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// Linux would take only a part of the memory.
    #[error("VRAM of {0}: the size must be a multiple of 2M up to 1T; try {near}", near = vram_near(*.0))]
    Vram(Size),
    /// No BAR has that size.
    #[error("aperture of {0}: the size must be a power of two from 2M to 16G; try {near}", near = aperture_near(*.0))]
    Aperture(Size),
    /// The aperture would be larger than VRAM.
    #[error("aperture of {aperture} over VRAM of {vram}: make VRAM larger or the aperture smaller")]
    Beyond {
        /// Size of the aperture.
        aperture: Size,
        /// Size of VRAM.
        vram: Size,
    },
    /// No command could end in time, or a hung one would run for days.
    #[error("time limit of {}: must be longer than zero, and at most 24h; try 60s", format_duration(*.0))]
    JobTimeout(Duration),
    /// The machine has not enough memory.
    #[error("VRAM of {vram}")]
    Memory {
        /// Size of VRAM.
        vram: Size,
        /// The cause.
        source: MemoryError,
    },
}

impl Config {
    /// Returns the size of the aperture, given or by default.
    pub fn aperture(&self) -> Size {
        let fitting = self.vram.0.checked_ilog2().map_or(0, |log| 1 << log);
        self.aperture.unwrap_or(Size(fitting.min(APERTURE_DEFAULT)))
    }

    /// Returns `true` if the aperture is a window.
    pub fn is_window(&self) -> bool {
        self.mode == Mode::Window
    }

    /// Checks the settings. An error comes with the name of its key.
    ///
    /// # Errors
    /// A value that no GPU can have.
    pub fn check_keys(&self) -> Result<(), (&'static str, ConfigError)> {
        let (vram, aperture) = (self.vram, self.aperture());
        if vram.0 == 0 || vram.0 % GRANULE != 0 || vram.0 > VRAM_LIMIT {
            return Err(("vram", ConfigError::Vram(vram)));
        }
        if !aperture.0.is_power_of_two() || !(GRANULE..=APERTURE_LIMIT).contains(&aperture.0) {
            return Err(("aperture", ConfigError::Aperture(aperture)));
        }
        if aperture > vram {
            return Err(("aperture", ConfigError::Beyond { aperture, vram }));
        }
        if self.job_timeout.is_zero() || self.job_timeout > JOB_TIMEOUT_LIMIT {
            return Err(("job-timeout", ConfigError::JobTimeout(self.job_timeout)));
        }
        Ok(())
    }
}

/// Returns the next valid size of VRAM.
fn vram_near(Size(size): Size) -> Size {
    let granules = size.div_ceil(GRANULE).clamp(1, VRAM_LIMIT / GRANULE);
    Size(granules * GRANULE)
}

/// Returns the next valid size of an aperture.
fn aperture_near(Size(size): Size) -> Size {
    Size(size.clamp(GRANULE, APERTURE_LIMIT).next_power_of_two())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn config(vram: u64, aperture: Option<u64>) -> Config {
        Config {
            vram: Size(vram),
            aperture: aperture.map(Size),
            ..Config::default()
        }
    }

    #[test]
    fn an_aperture_unasked_is_what_vram_holds_up_to_256_mib() {
        for (vram, aperture) in [(2, 2), (96, 64), (256, 256), (4096, 256)] {
            let config = config(vram * MIB, None);
            config.check_keys().unwrap();
            assert_eq!(config.aperture(), Size(aperture * MIB));
        }
    }

    #[test]
    fn value_of_no_gpu_is_refused_with_its_key_and_the_way_out() {
        let message = |key: &str, config: Config| {
            let (named, error) = config.check_keys().unwrap_err();
            assert_eq!(named, key, "{error}");
            error.to_string()
        };
        let vram = |bytes| message("vram", config(bytes, None));
        assert!(vram(0).ends_with("try 2M"));
        assert!(vram(3 * MIB).starts_with("VRAM of 3M: ") && vram(3 * MIB).ends_with("try 4M"));
        assert!(vram(u64::MAX).ends_with("try 1T"));
        let aperture = |vram, bytes| message("aperture", config(vram, Some(bytes)));
        assert!(aperture(256 * MIB, 3 * MIB).ends_with("try 4M"));
        assert!(aperture(256 * MIB, MIB).ends_with("try 2M"));
        assert!(aperture(256 * MIB, u64::MAX).ends_with("try 16G"));
        assert!(aperture(2 * MIB, 4 * MIB).contains("make VRAM larger"));
        config(16 << 30, Some(16 << 30)).check_keys().unwrap();
    }

    #[test]
    fn time_limit_is_longer_than_zero_and_at_most_a_day() {
        let check = |text: &str| {
            let job_timeout = time(text).unwrap();
            let config = Config {
                job_timeout,
                ..Config::default()
            };
            config.check_keys().map_err(|(key, _)| key)
        };
        for text in ["1ms", "90", "2m", "1440m"] {
            assert_eq!(check(text), Ok(()), "{text}");
        }
        for text in ["0", "0s", "1441m"] {
            assert_eq!(check(text), Err("job-timeout"), "{text}");
        }
        time("soon").unwrap_err();
    }

    #[test]
    fn options_and_settings_have_the_same_defaults() {
        #[derive(clap::Parser)]
        struct Args {
            #[command(flatten)]
            config: Config,
        }
        let Args { config } = clap::Parser::parse_from(["peerbar-gpu"]);
        assert_eq!(config, Config::default());
    }
}
