//! `peerbar-switch`: a PCIe switch that endpoints attach to.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Parser;
use peerbar_host::server_log::ServerLog;
use peerbar_pci::{BusAddress, Range};
use peerbar_sandbox::{Connections, FileAccess, SandboxOptions, ServerKind};
use peerbar_switch::{BridgeSocket, Config, LinkMode, serve};
use rustix::net::SocketType;
use rustix::net::sockopt::socket_type;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

/// Exit status for wrong usage, as in clap.
const USAGE: u8 = 2;
/// Exit status for a machine that lacks something (sysexits(3), EX_UNAVAILABLE).
const ENVIRONMENT: u8 = 69;

/// A PCIe switch that device servers attach to with `--switch`, until SIGTERM.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// Socket for endpoints
    #[arg(long, value_name = "PATH")]
    socket_path: PathBuf,
    /// Handling of an endpoint's requests to its peers: route, redirect, unsupported-request or
    /// drop [default: route]
    #[arg(long = "link", value_name = "NAME=MODE", value_parser = link)]
    links: Vec<(String, LinkMode)>,
    /// Range of bus addresses without RAM, in which endpoints may have BARs, hexadecimal with 0x;
    /// repeat it for more [default: 0x80000000-0xfebfffff and everything from 4 GiB, for a q35
    /// machine with up to 2 GiB]
    #[arg(long = "pci-hole", value_name = "FIRST-LAST")]
    holes: Vec<Range<BusAddress>>,
    /// Ask on standard input, a socket, for the bus addresses that the bridge above each endpoint
    /// forwards, and forward only windows in them
    #[arg(long)]
    bridge_windows: bool,
    #[command(flatten)]
    sandbox: SandboxOptions,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let _log = ServerLog::start("warn");
    let modes = match modes(args.links) {
        Ok(modes) => modes,
        Err(name) => {
            eprintln!("peerbar-switch: `--link` names {name} twice: a link has one mode");
            return ExitCode::from(USAGE);
        }
    };
    let holes = match args.holes.is_empty() {
        true => Config::default_holes(),
        false => args.holes,
    };
    let config = Config { modes, holes };
    match run(&args.socket_path, config, args.bridge_windows, args.sandbox) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peerbar-switch: {error:#}");
            ExitCode::from(ENVIRONMENT)
        }
    }
}

fn run(
    socket_path: &Path,
    config: Config,
    asks_for_bridge_windows: bool,
    sandbox: SandboxOptions,
) -> anyhow::Result<()> {
    sandbox.restrict_files(ServerKind::Interconnect, &[FileAccess::Socket(socket_path)])?;
    let (stop, signal) = UnixStream::pair().context("cannot make a socket pair")?;
    for number in [SIGTERM, SIGINT] {
        let signal = signal.try_clone().context("cannot copy a descriptor")?;
        pipe::register(number, signal).context("cannot handle signals")?;
    }
    let bridges = asks_for_bridge_windows.then(bridge_socket).transpose()?;
    serve(socket_path, config, bridges, &stop, || {
        let confined = sandbox.restrict_calls(Connections::None);
        confined.map_err(io::Error::other)?;
        let mut out = io::stdout();
        writeln!(out, "ready").and_then(|()| out.flush())
    })?;
    Ok(())
}

/// Returns standard input, if it is a socket.
fn bridge_socket() -> anyhow::Result<BridgeSocket> {
    let input = io::stdin().as_fd().try_clone_to_owned();
    let input = input.context("cannot copy standard input")?;
    let needed = "`--bridge-windows` needs a stream socket as standard input";
    let kind = socket_type(&input).context(needed)?;
    ensure!(kind == SocketType::STREAM, needed);
    let socket = BridgeSocket::new(UnixStream::from(input));
    socket.context("cannot use standard input")
}

/// Returns the mode of each link by its name. `Err` has a name that is given twice.
fn modes(links: Vec<(String, LinkMode)>) -> Result<BTreeMap<String, LinkMode>, String> {
    let mut modes = BTreeMap::new();
    for (name, mode) in links {
        if modes.insert(name.clone(), mode).is_some() {
            return Err(name);
        }
    }
    Ok(modes)
}

fn link(text: &str) -> Result<(String, LinkMode), String> {
    let (name, mode) = text
        .rsplit_once('=')
        .filter(|(name, _)| !name.is_empty())
        .ok_or("must be NAME=MODE")?;
    let mode = mode
        .parse::<LinkMode>()
        .map_err(|error| error.to_string())?;
    Ok((name.to_owned(), mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_a_name_and_a_mode() {
        assert_eq!(link("disk0=drop"), Ok(("disk0".to_owned(), LinkMode::Drop)));
        for wrong in ["", "disk0", "=drop", "disk0=", "disk0=dropped"] {
            assert!(link(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_link_that_is_named_twice_is_refused() {
        let named = |name: &str, mode| (name.to_owned(), mode);
        let (a, b) = (named("a", LinkMode::Drop), named("b", LinkMode::Route));
        assert_eq!(modes(vec![a.clone(), b]).unwrap().len(), 2);
        let again = named("a", LinkMode::Route);
        assert_eq!(modes(vec![a, again]), Err("a".to_owned()));
    }
}
