//! `peerbar-vsock`: a virtio socket device for one QEMU after another. Programs of the host connect to the guest; a connection
//! that the guest asks for is refused.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use anyhow::Context;
use clap::Parser;
use peerbar_host::server_log::ServerLog;
use peerbar_host::socket_file::SocketFile;
use peerbar_sandbox::{Connections, FileAccess, SandboxOptions, ServerKind};
use peerbar_vsock::{Listening, serve};
use rustix::net::SocketType;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

/// Exit status for a machine that lacks something (sysexits(3), EX_UNAVAILABLE).
const ENVIRONMENT: u8 = 69;
/// The filter of the log unless RUST_LOG is set. The crate of the queues logs every mistake of the
/// guest as an error, which would fill the host's disk.
const LOGGED: &str = "warn,virtio_queue=off";
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 64;

/// A virtio socket device for QEMU's vhost-user-vsock-pci, until SIGTERM. Programs of the host connect to the guest; a connection
/// that the guest asks for is refused.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// Socket for QEMU, by vhost-user
    #[arg(long, value_name = "PATH")]
    socket_path: PathBuf,
    /// Socket for programs, which first write `CONNECT PORT` and a newline
    #[arg(long, value_name = "PATH")]
    uds_path: PathBuf,
    /// CID of the guest
    #[arg(long, value_name = "NUMBER", default_value_t = 3, value_parser = clap::value_parser!(u64).range(3..0xffff_ffff))]
    guest_cid: u64,
    #[command(flatten)]
    sandbox: SandboxOptions,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let _log = ServerLog::start(LOGGED);
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peerbar-vsock: {error:#}");
            ExitCode::from(ENVIRONMENT)
        }
    }
}

fn run(args: &Args) -> anyhow::Result<()> {
    let files = [&args.socket_path, &args.uds_path].map(|path| FileAccess::Socket(path));
    args.sandbox.restrict_files(ServerKind::Device, &files)?;
    let (mut stop, signal) = UnixStream::pair().context("cannot make a socket pair")?;
    for number in [SIGTERM, SIGINT] {
        let signal = signal.try_clone().context("cannot copy a descriptor")?;
        pipe::register(number, signal).context("cannot handle signals")?;
    }
    let (qemu, programs) = (listen(&args.socket_path)?, listen(&args.uds_path)?);
    // Kept here, too, because a file is removed with its last owner.
    let _files = [qemu.file.clone(), programs.file.clone()];
    // The thread that serves blocks there while there is no QEMU.
    qemu.socket
        .set_nonblocking(false)
        .context("cannot make a socket block")?;
    args.sandbox.restrict_calls(Connections::None)?;
    let cid = args.guest_cid;
    thread::spawn(move || {
        let Err(error) = serve(&qemu, &programs, cid);
        log::error!("{:#}", anyhow::Error::from(error));
        // Ends the process in the same way as a signal.
        let _ = (&signal).write_all(b"!");
    });
    let mut out = io::stdout();
    writeln!(out, "ready")
        .and_then(|()| out.flush())
        .context("cannot say that it is ready")?;
    let mut word = [0];
    stop.read_exact(&mut word)
        .context("cannot wait for a signal")?;
    anyhow::ensure!(word != *b"!", "no QEMU can be served any more");
    Ok(())
}

fn listen(path: &Path) -> anyhow::Result<Listening> {
    let (file, socket) = SocketFile::make(path, SocketType::STREAM, BACKLOG)?;
    Ok(Listening {
        socket: socket.into(),
        file: Arc::new(file),
    })
}
