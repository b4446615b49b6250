//! `peerbar-fabric`: a fabric that network adapters attach to.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use peerbar_fabric::{Config, Impairment, Record, TunnelConfig, make_certificates, serve};
use peerbar_sandbox::{Connections, FileAccess, SandboxOptions, ServerKind};
use peerbar_server_log::ServerLog;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

/// Exit status for a machine that lacks something (sysexits(3), EX_UNAVAILABLE).
const ENVIRONMENT: u8 = 69;

/// A fabric that network adapters attach to with `--fabric`, until SIGTERM.
#[derive(Debug, Parser)]
#[command(
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Where adapters attach
    #[arg(long, value_name = "PATH", required = true)]
    socket_path: Option<PathBuf>,
    /// Where rules for impairments are taken meanwhile
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// What is done to packets: FROM->TO or ONE<->OTHER, each a name or *, then partition, loss=P%, duplicate=P%, reorder=P%,
    /// delay=TIME, jitter=TIME, bandwidth=RATE, or none. The last rule about a pair holds; repeat it for more
    #[arg(long = "impair", value_name = "RULE", value_parser = impairment)]
    impairments: Vec<Impairment>,
    /// From this number follows which packets are impaired
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Where every impaired packet is recorded, as text
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Where fabrics of other machines make tunnels to this one, by QUIC
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        requires = "certificates",
        group = "tunnel"
    )]
    listen: Option<SocketAddr>,
    /// The fabric of another machine, to which this one keeps a tunnel; repeat it for more
    #[arg(
        long = "connect",
        value_name = "ADDRESS:PORT",
        requires = "certificates",
        group = "tunnel"
    )]
    connect: Vec<SocketAddr>,
    /// This machine's folder of those that `peerbar-fabric certificates` made
    #[arg(long, value_name = "FOLDER", requires = "tunnel")]
    certificates: Option<PathBuf>,
    #[command(flatten)]
    sandbox: SandboxOptions,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a folder of certificates for each machine, by which their fabrics know each other. The key that signs them is thrown
    /// away, so name all machines at once. Copy each folder to its machine by a way that no other person reads
    Certificates {
        /// Where the folders are made
        folder: PathBuf,
        /// Names of the machines, and of their folders
        #[arg(required = true, value_name = "MACHINE")]
        machines: Vec<String>,
    },
}

fn main() -> ExitCode {
    let args = Args::parse();
    let _log = ServerLog::start("warn");
    let done = match (&args.command, args.socket_path.clone()) {
        (Some(Command::Certificates { folder, machines }), _) => {
            make_certificates(folder, machines).map_err(anyhow::Error::from)
        }
        (None, Some(path)) => run(&path, args),
        (None, None) => Ok(()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peerbar-fabric: {error:#}");
            ExitCode::from(ENVIRONMENT)
        }
    }
}

fn run(socket_path: &Path, args: Args) -> anyhow::Result<()> {
    let sandbox = args.sandbox;
    let record = match &args.record {
        Some(path) => Record::create(path)
            .with_context(|| format!("cannot make the record {}", path.display()))?,
        None => Record::default(),
    };
    let mut files = vec![FileAccess::Socket(socket_path)];
    files.extend(args.control.as_deref().map(FileAccess::Socket));
    files.extend(args.certificates.as_deref().map(FileAccess::Folder));
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
        tunnels: args.certificates.map(|certificates| TunnelConfig {
            certificates,
            listen: args.listen,
            connect: args.connect,
        }),
    };
    let connections = match config.tunnels {
        Some(_) => Connections::Datagrams,
        None => Connections::Pairs,
    };
    serve(socket_path, config, &stop, |tunnels| {
        let confined = sandbox.restrict_calls(connections);
        confined.map_err(io::Error::other)?;
        // One write, since a launcher may close its end once it has read the first line.
        let tunnels = tunnels.map(|address| format!("tunnels at {address}\n"));
        let lines = format!("ready\n{}", tunnels.unwrap_or_default());
        let mut out = io::stdout();
        out.write_all(lines.as_bytes()).and_then(|()| out.flush())
    })?;
    Ok(())
}

fn impairment(text: &str) -> Result<Impairment, String> {
    text.parse()
        .map_err(|error| format!("`{}` {error}", text.escape_debug()))
}
