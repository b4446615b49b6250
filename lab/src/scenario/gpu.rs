//! Checks a `[[gpu]]` table.

use std::time::Duration;

use peerbar_dma::LinkSpeed;
use peerbar_fault::{Faults, Kind, Rule};
use peerbar_switch::LinkMode;
use toml::Spanned;

use super::attach::{AttachPoint, AttachPoints};
use super::error::Problem;
use super::fault::faults;
use super::file::{GpuMode, GpuTable};
use super::link::{link, speed};
use crate::size::Size;

/// Sizes that `peerbar-gpu` takes for an aperture: powers of two between these.
const LEAST_APERTURE: u64 = 2 << 20;
const MOST_APERTURE: u64 = 16 << 30;
/// Number of MSI-X vectors of a GPU of `peerbar-gpu`.
const VECTORS: u32 = 17;
/// Unit of the size of VRAM in `peerbar-gpu`.
const VRAM_UNIT: u64 = 2 << 20;
const DEFAULT: u64 = 256 << 20;

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
    /// Size of its memory in bytes.
    pub vram: u64,
    /// Size of its aperture in bytes.
    pub aperture: u64,
    /// Set if the aperture is a window.
    pub window: bool,
    /// The faults that are injected into its operations.
    pub faults: Vec<Rule>,
    /// Time limit of one command, or `None` for the default of the server.
    pub job_timeout: Option<Duration>,
}

/// Checks one GPU, whose name is known to fit.
pub(super) fn gpu(table: GpuTable, attach_points: &AttachPoints) -> Result<Gpu, Problem> {
    let name = table.name.into_inner();
    let attach = attach_points.of_device(table.below)?;
    let link = link(table.link, &name, &attach)?;
    let link_speed = speed(table.link_latency, table.link_bandwidth)?;
    let vram = table.vram.map_or(Ok(DEFAULT), vram)?;
    let aperture = match table.aperture {
        Some(size) => aperture(size, vram)?,
        None => largest_aperture(vram),
    };
    Ok(Gpu {
        name,
        attach,
        link,
        link_speed,
        ats: table.ats.is_some_and(Spanned::into_inner),
        vram,
        aperture,
        window: matches!(table.mode, Some(GpuMode::Window)),
        faults: faults(&table.faults, &fault_subjects())?,
        job_timeout: table.job_timeout.map(|timeout| timeout.0),
    })
}

/// Returns the subjects for fault injection at a GPU.
fn fault_subjects() -> Faults {
    let subjects = Faults::default();
    subjects.serve(&Kind::OF_GPUS);
    subjects.set_vectors(VECTORS);
    subjects
}

fn vram(size: Spanned<Size>) -> Result<u64, Problem> {
    let bytes = size.get_ref().0;
    if bytes == 0 || bytes % VRAM_UNIT != 0 {
        let message = format!(
            "`vram = \"{}\"`: GPU memory comes in multiples of {}",
            size.get_ref(),
            Size(VRAM_UNIT)
        );
        return Err(Problem::new(size.span(), message));
    }
    Ok(bytes)
}

fn aperture(size: Spanned<Size>, vram: u64) -> Result<u64, Problem> {
    let bytes = size.get_ref().0;
    let shown = size.get_ref();
    if !bytes.is_power_of_two() || !(LEAST_APERTURE..=MOST_APERTURE).contains(&bytes) {
        let message = format!(
            "`aperture = \"{shown}\"`: a BAR is a power of two, from {} to {}",
            Size(LEAST_APERTURE),
            Size(MOST_APERTURE)
        );
        return Err(Problem::new(size.span(), message));
    }
    if bytes > vram {
        let message = format!(
            "`aperture = \"{shown}\"` is more than the {} of VRAM behind it",
            Size(vram)
        );
        return Err(Problem::new(size.span(), message));
    }
    Ok(bytes)
}

/// Returns the largest aperture up to the default that `vram` has the memory for.
fn largest_aperture(vram: u64) -> u64 {
    1 << vram.clamp(1, DEFAULT).ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(vram: Option<u64>, aperture: Option<u64>) -> Result<(u64, u64), String> {
        let size = |bytes| Spanned::new(0..1, Size(bytes));
        let table = GpuTable {
            name: Spanned::new(0..1, "gpu0".to_owned()),
            below: None,
            link: None,
            link_latency: None,
            link_bandwidth: None,
            ats: None,
            vram: vram.map(size),
            aperture: aperture.map(size),
            mode: None,
            faults: Vec::new(),
            job_timeout: None,
        };
        let attach_points = AttachPoints {
            host_bridges: Vec::new(),
            switches: Vec::new(),
        };
        gpu(table, &attach_points)
            .map(|gpu| (gpu.vram, gpu.aperture))
            .map_err(|problem| problem.locate("x.toml".into(), "").to_string())
    }

    #[test]
    fn sizes_that_are_left_out_fit_the_others() {
        assert_eq!(table(None, None), Ok((256 << 20, 256 << 20)));
        assert_eq!(table(Some(6 << 20), None), Ok((6 << 20, 4 << 20)));
        assert_eq!(table(Some(4 << 30), None), Ok((4 << 30, 256 << 20)));
        let own = table(Some(4 << 30), Some(1 << 30));
        assert_eq!(own, Ok((4 << 30, 1 << 30)));
    }

    #[test]
    fn sizes_that_no_gpu_has_are_refused_by_their_name() {
        for (vram, aperture, key) in [
            (Some(3 << 20), None, "`vram"),
            (Some(0), None, "`vram"),
            (None, Some(3 << 20), "`aperture"),
            (None, Some(1 << 20), "`aperture"),
            (None, Some(512 << 20), "`aperture"),
        ] {
            let error = table(vram, aperture).unwrap_err();
            assert!(error.contains(key), "{error}");
        }
    }
}
