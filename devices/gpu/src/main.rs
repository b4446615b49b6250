//! `peerbar-gpu`: a GPU at a vfio-user socket.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use peerbar_endpoint::Recording;
use peerbar_endpoint::daemon::{self, Fault, LinkOptions, size};
use peerbar_gpu::{Config, ConfigError, Gpu, Mode, StartError};

/// A GPU whose memory is a PCI BAR, served over vfio-user until SIGTERM.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// Where QEMU connects to
    #[arg(long, value_name = "PATH")]
    socket_path: PathBuf,
    #[command(flatten)]
    link: LinkOptions,
    #[command(flatten)]
    recording: Recording,
    /// Size of the GPU's memory, a multiple of 2M; it takes host memory only where it is touched
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size)]
    vram: u64,
    /// Size of the BAR that shows it, a power of two from 2M to 16G [default: what --vram holds, up to 256M]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    aperture: Option<u64>,
    /// How the BAR shows the memory
    #[arg(long, value_enum, default_value_t = ApertureMode::Static)]
    mode: ApertureMode,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ApertureMode {
    /// Its start, which the guest maps
    Static,
    /// Pages of 64 KiB that the driver puts over it and takes away
    Window,
}

fn main() -> ExitCode {
    let args = Args::parse();
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn")).init();
    let (path, link) = (args.socket_path.clone(), args.link.clone());
    let recording = args.recording.clone();
    match serve(&path, &link, &recording, &Config::from(args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let fault = error.downcast_ref().map_or(Fault::Environment, fault);
            daemon::give_up("peerbar-gpu", error.as_ref(), fault)
        }
    }
}

fn serve(
    path: &Path,
    link: &LinkOptions,
    recording: &Recording,
    config: &Config,
) -> anyhow::Result<()> {
    let mut gpu = Gpu::start(config)?;
    recording.start(&gpu.endpoint)?;
    link.apply(&mut gpu.endpoint, path)?;
    daemon::serve(path, &mut gpu.endpoint)?;
    Ok(())
}

/// Whether the command line or the machine is at fault.
fn fault(error: &StartError) -> Fault {
    match error {
        StartError::Config(ConfigError::Memory { .. }) => Fault::Environment,
        StartError::Config(_) => Fault::Usage,
        StartError::Bar(_) | StartError::Doorbells(_) | StartError::Thread(_) => Fault::Environment,
    }
}

impl From<Args> for Config {
    fn from(args: Args) -> Self {
        Self {
            vram_bytes: args.vram,
            aperture_bytes: args.aperture,
            mode: match args.mode {
                ApertureMode::Static => Mode::Static,
                ApertureMode::Window => Mode::Window,
            },
        }
    }
}
