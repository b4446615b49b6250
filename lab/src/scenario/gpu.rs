//! Checks a `[[gpu]]` table.

use peerbar_dma::LinkSpeed;
use peerbar_fault::{Faults, Kind, Rule};
use peerbar_gpu::{Config, VECTORS};
use peerbar_switch::LinkMode;
use toml::Spanned;

use super::attach::{AttachPoint, AttachPoints};
use super::error::Problem;
use super::fault::faults;
use super::file::GpuTable;
use super::link::{link, speed};
use super::settings::Settings;

/// A GPU.
#[derive(Clone, Debug)]
pub struct Gpu {
    /// Name in the scenario, identifier in QEMU.
    pub name: String,
    /// Its place.
    pub attach: AttachPoint,
    /// The switch's treatment of its requests to peers.
    pub link: LinkMode,
    /// Speed of its link.
    pub link_speed: LinkSpeed,
    /// Set if it offers address translation services.
    pub ats: bool,
    /// Its settings.
    pub config: Config,
    /// The faults that are injected into its operations.
    pub faults: Vec<Rule>,
}

/// Checks one GPU, whose name is known to fit.
pub(super) fn gpu(
    table: GpuTable,
    settings: Settings<Config>,
    attach_points: &AttachPoints,
) -> Result<Gpu, Problem> {
    let name = table.name.into_inner();
    let attach = attach_points.of_device(table.below)?;
    let link = link(table.link, &name, &attach)?;
    let link_speed = speed(table.link_latency, table.link_bandwidth)?;
    let checked = settings.config.check_keys();
    checked.map_err(|(key, error)| settings.problem(key, error))?;
    Ok(Gpu {
        name,
        attach,
        link,
        link_speed,
        ats: table.ats.is_some_and(Spanned::into_inner),
        config: settings.config,
        faults: faults(&table.faults, &fault_subjects())?,
    })
}

/// Returns the subjects for fault injection at a GPU.
fn fault_subjects() -> Faults {
    let subjects = Faults::default();
    subjects.serve(&Kind::OF_GPUS);
    subjects.set_vectors(VECTORS.into());
    subjects
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::scenario::Scenario;

    /// Reads a scenario with these lines about its only GPU, from line 4 on.
    fn parse(lines: &str) -> Result<Config, String> {
        let text = format!("name = \"x\"\n[[gpu]]\nname = \"g0\"\n{lines}\n");
        let parsed = Scenario::parse_interactive(Path::new("x.toml"), text);
        let config = parsed.map(|scenario| scenario.gpus[0].config.clone());
        config.map_err(|error| error.to_string())
    }

    #[test]
    fn time_limit_may_be_a_number_of_seconds() {
        assert_eq!(parse(""), Ok(Config::default()));
        for (value, time) in [
            ("90", Duration::from_secs(90)),
            ("\"90\"", Duration::from_secs(90)),
            ("\"2m\"", Duration::from_secs(120)),
            ("\"500ms\"", Duration::from_millis(500)),
        ] {
            let read = parse(&format!("job-timeout = {value}")).unwrap();
            assert_eq!(read.job_timeout, time, "{value}");
        }
    }

    #[test]
    fn mistake_in_a_setting_names_its_line_and_key() {
        for (lines, expected) in [
            (
                "mode = \"window\"\nvram = \"3M\"",
                "x.toml:5: `vram`: VRAM of 3M: the size must be a multiple of 2M up to 1T; try 4M",
            ),
            (
                "aperture = \"512M\"",
                "x.toml:4: `aperture`: aperture of 512M over VRAM of 256M: make VRAM larger or the aperture smaller",
            ),
            (
                "job-timeout = \"soon\"",
                "x.toml:4: `job-timeout`: invalid time `soon`: expected seconds, or a text such as `500ms` or `2m`",
            ),
            (
                "mode = \"windo\"",
                "x.toml:4: `mode`: `windo` is unknown: did you mean `window`?",
            ),
            (
                "apertur = \"2M\"",
                "x.toml:4: unknown key `apertur`: did you mean `aperture`?",
            ),
        ] {
            assert_eq!(parse(lines).unwrap_err(), expected);
        }
    }
}
