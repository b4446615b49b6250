//! `peerbar-fabric`: a fabric that network adapters attach to.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use peerbar_fabric::{Config, Impairment, Record, serve};
use peerbar_host::server_log::ServerLog;
use peerbar_sandbox::{Connections, FileAccess, SandboxOptions, ServerKind};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

/// Exit status for a machine that lacks something (sysexits(3), EX_UNAVAILABLE).
const ENVIRONMENT: u8 = 69;

/// A fabric that network adapters attach to with `--fabric`, until SIGTERM.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// Socket for adapters
    #[arg(long, value_name = "PATH")]
    socket_path: PathBuf,
    /// Socket for impairment rules while the fabric runs
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Impair packets: FROM->TO or ONE<->OTHER, each a name or *, then partition, loss=P%,
    /// duplicate=P%, reorder=P%, delay=TIME, jitter=TIME, bandwidth=RATE, or none. The last rule
    /// for a pair applies; repeat it for more
    #[arg(long = "impair", value_name = "RULE", value_parser = impairment)]
    impairments: Vec<Impairment>,
    /// Number that determines the impaired packets
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// File to record every impaired packet in, as text
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    #[command(flatten)]
    sandbox: SandboxOptions,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let _log = ServerLog::start("warn");
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peerbar-fabric: {error:#}");
            ExitCode::from(ENVIRONMENT)
        }
    }
}

fn run(args: Args) -> anyhow::Result<()> {
    let (socket_path, sandbox) = (args.socket_path, args.sandbox);
    let record = match &args.record {
        Some(path) => Record::create(path)
            .with_context(|| format!("cannot make the record {}", path.display()))?,
        None => Record::default(),
    };
    let mut files = vec![FileAccess::Socket(&socket_path)];
    files.extend(args.control.as_deref().map(FileAccess::Socket));
    sandbox.restrict_files(ServerKind::Interconnect, &files)?;
    let (stop, signal) = UnixStream::pair().context("cannot make a socket pair")?;
    for number in [SIGTERM, SIGINT] {
        let signal = signal.try_clone().context("cannot copy a descriptor")?;
        pipe::register(number, signal).context("cannot handle signals")?;
    }
    let config = Config {
        seed: args.seed,
        impairments: args.impairments,
        record,
        control: args.control,
    };
    serve(&socket_path, config, &stop, || {
        let confined = sandbox.restrict_calls(Connections::Pairs);
        confined.map_err(io::Error::other)?;
        let mut out = io::stdout();
        writeln!(out, "ready").and_then(|()| out.flush())
    })?;
    Ok(())
}

fn impairment(text: &str) -> Result<Impairment, String> {
    text.parse()
        .map_err(|error| format!("`{}` {error}", text.escape_debug()))
}
