//! A process of the agent that starts programs for the host, on behalf of `peerbar shell` and
//! `peerbar exec`.
//!
//! It is not PID 1, so that programs of the host and checks do not see each other's children. It
//! lives in the tools root.

mod input_queue;
mod program;
mod streams;

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use peerbar_report::HostFolder;
use peerbar_report::exec::{
    GuestMessage, HOST_FOLDER, HOST_TAG, HostMessage, PORT, ProgramRequest,
};
use vsock::{VMADDR_CID_ANY, VMADDR_CID_HOST, VsockListener, VsockStream};

use crate::modules::Modules;
use crate::placeholders::Placeholders;
use crate::{root, tools};

/// The first argument that selects this role of the agent's program.
pub(crate) const ROLE: &str = "exec-server";

/// Limit of the programs that run at once.
const LIMIT: usize = 32;
/// Time limit for the host's request.
const GREETING: Duration = Duration::from_secs(10);
/// Pause after a connection that could not be accepted: the process may have run out of descriptors
/// for a while.
const PAUSE: Duration = Duration::from_millis(100);
/// The byte that the process sends once it listens.
const LISTENING: u8 = b'!';

/// Starts the process, and waits until it takes requests. The tools root is mounted. The process
/// lives as long as the guest.
pub(crate) fn start(
    modules: &Modules,
    placeholders: &Placeholders,
    host_folder: HostFolder,
) -> anyhow::Result<()> {
    root::mount_host_folder(HOST_TAG, HOST_FOLDER, host_folder)?;
    modules.load("vmw_vsock_virtio_transport", "")?;
    let placeholders = serde_json::to_string(placeholders)?;
    let mut child = Command::new("/proc/self/exe")
        .args([ROLE, &placeholders])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the process that starts programs")?;
    let mut said = [0];
    let mut stdout = child.stdout.take().context("a child without an output")?;
    stdout
        .read_exact(&mut said)
        .context("the process that starts programs has ended; its error is on the console")?;
    Ok(())
}

/// Returns the `main` of the process.
///
/// # Errors
/// The reason why it cannot listen.
pub(crate) fn main(arguments: &[String]) -> anyhow::Result<()> {
    let [placeholders] = arguments else {
        anyhow::bail!("{ROLE} takes the placeholders");
    };
    let placeholders: Placeholders = serde_json::from_str(placeholders)?;
    let listener = VsockListener::bind_with_cid_port(VMADDR_CID_ANY, PORT)
        .with_context(|| format!("cannot listen at vsock port {PORT}"))?;
    tools::enter_root(c"/").context("cannot enter the tools root")?;
    std::io::stdout().write_all(&[LISTENING])?;
    std::io::stdout().flush()?;
    let placeholders = Arc::new(placeholders);
    let running = Arc::new(AtomicUsize::new(0));
    loop {
        let stream = match listener.accept() {
            Ok((stream, peer)) if peer.cid() == VMADDR_CID_HOST => stream,
            // A process of the guest, which could get more rights through vsock_loopback.
            Ok(_) => continue,
            Err(error) => {
                eprintln!("peerbar-agent: cannot accept a connection of the host: {error}");
                thread::sleep(PAUSE);
                continue;
            }
        };
        let (placeholders, running) = (Arc::clone(&placeholders), Arc::clone(&running));
        thread::spawn(move || {
            let slot = ProgramSlot::take(&running);
            if let Err(error) = serve(stream, &placeholders, slot.others) {
                eprintln!("peerbar-agent: a program of the host: {error:#}");
            }
        });
    }
}

/// The slot of a program among those that run. Dropping it, also by a panic, frees the slot.
struct ProgramSlot<'a> {
    running: &'a AtomicUsize,
    /// Number of programs that ran before it.
    others: usize,
}

impl<'a> ProgramSlot<'a> {
    fn take(running: &'a AtomicUsize) -> Self {
        let others = running.fetch_add(1, Ordering::Relaxed);
        Self { running, others }
    }
}

impl Drop for ProgramSlot<'_> {
    fn drop(&mut self) {
        self.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves one connection while `others` are served.
fn serve(
    mut stream: VsockStream,
    placeholders: &Placeholders,
    others: usize,
) -> anyhow::Result<()> {
    stream.set_read_timeout(Some(GREETING))?;
    // A host that leaves before it sends anything has only checked that the guest is there.
    let Some(HostMessage::Start(request)) = HostMessage::read_from(&mut stream)? else {
        return Ok(());
    };
    stream.set_read_timeout(None)?;
    let started = prepared(request, placeholders, others)
        .map_err(|error| (format!("{error:#}"), program::CANNOT_START))
        .and_then(|request| program::start(&request));
    match started {
        Ok(program) => program.run(stream),
        Err((reason, status)) => {
            Ok(GuestMessage::Refused { reason, status }.write_to(&mut stream)?)
        }
    }
}

/// Returns the request with the guest's names in place of the placeholders.
fn prepared(
    mut request: ProgramRequest,
    placeholders: &Placeholders,
    others: usize,
) -> anyhow::Result<ProgramRequest> {
    ensure!(
        others < LIMIT,
        "{LIMIT} programs of the host run in the guest already; end one"
    );
    request.check()?;
    for word in &mut request.words {
        *word = placeholders.fill_in(word)?;
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_of_a_program_is_free_after_a_panic() {
        let running = Arc::new(AtomicUsize::new(3));
        let shared = Arc::clone(&running);
        let program = thread::spawn(move || {
            let slot = ProgramSlot::take(&shared);
            panic!("{} others", slot.others);
        });
        let panic = program.join().unwrap_err();
        assert_eq!(panic.downcast_ref::<String>().unwrap(), "3 others");
        assert_eq!(running.load(Ordering::Relaxed), 3);
    }
}
