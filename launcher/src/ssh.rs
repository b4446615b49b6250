//! `peerbar ssh-config`: OpenSSH's programs in a running guest.
//!
//! Each connection has a separate server in the guest, `sshd -i`, which is started like any program
//! of `peerbar exec`: there is no port and no daemon. The keys of both ends are made for the run
//! and are in the folder of its sockets, which is invisible to the guest and is removed with the
//! run.

use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use peerbar_lab::exit::Failure;
use peerbar_lab::guest_program::{GuestProgram, socket_of};
use peerbar_lab::qemu::VSOCK;
use peerbar_lab::shell_word::quoted;
use peerbar_lab::socket_folder::SSH;
use peerbar_lab::terminal::print;
use peerbar_report::exec::ProgramRequest;
use rustix::fs::{FlockOperation, flock};

use crate::guest_folder::GuestName;
use crate::relay::relay;

/// The program that makes keys.
const KEYGEN: &str = "ssh-keygen";

/// Starts the guest's server with the host key `$1`, for the owner of the public key `$2`. The first of several that come at once sets the
/// keys.
const SERVER: &str = r#"to=/run/peerbar-ssh
if [ ! -d $to ]; then
    umask 077
    mkdir -p /run/sshd
    at=$(mktemp -d /run/peerbar-ssh.XXXXXX) || exit
    printf %s "$1" > $at/host_key
    printf %s "$2" > $at/authorized_keys
    mv -T $at $to 2> /dev/null || rm -rf $at
fi
exec /usr/sbin/sshd -i -e"#;

/// Print an ssh configuration with which ssh, scp, rsync and editors reach a running guest. The
/// host is `peerbar`, or `peerbar-NAME` with --guest.
#[derive(Args)]
pub(crate) struct SshConfig {
    /// Folder of the guest's run.
    #[arg(long, value_name = "RUN", default_value = "runs/latest")]
    pub attach: PathBuf,
    /// The guest of the run.
    #[command(flatten)]
    pub guest: GuestName,
}

/// Makes the keys of a run if there are none, and prints the stanza.
pub(crate) fn config(options: &SshConfig) -> Result<ExitCode, Failure> {
    let run = options.guest.folder(&options.attach)?;
    let socket = socket_of(&run).map_err(|error| Failure::Usage(error.into()))?;
    let folder = socket
        .parent()
        .context("the guest's socket is in no folder")?;
    let host = match &options.guest.guest {
        Some(guest) => format!("peerbar-{guest}"),
        None => "peerbar".to_owned(),
    };
    let keys = Keys::of(folder);
    keys.make()?;
    let program = std::env::current_exe().context("cannot tell the path of peerbar")?;
    print(&stanza(&host, &keys, &program)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Connects our standard streams with a server in the guest whose sockets and keys are in `folder`.
pub(crate) fn proxy(folder: &Path) -> Result<ExitCode, Failure> {
    let keys = Keys::of(folder);
    let read = |path: &Path| fs::read_to_string(path).map_err(|_| gone(folder));
    let (host, user) = (read(&keys.host)?, read(&keys.user.with_extension("pub"))?);
    let request = ProgramRequest::new(["sh", "-c", SERVER, "sshd", &host, &user]);
    let program = GuestProgram::start(&folder.join(VSOCK), &request);
    let program = program.map_err(anyhow::Error::from)?;
    // ssh ends this process by a signal, and the guest the server then.
    let (_open, no_signals) = UnixStream::pair().context("cannot make a socket pair")?;
    let status = relay(program, false, no_signals)?;
    Ok(ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX)))
}

fn gone(folder: &Path) -> anyhow::Error {
    let folder = folder.display();
    anyhow!(
        "the guest with the sockets in {folder} has ended: have `peerbar ssh-config` print how to reach another"
    )
}

/// The files of one run's keys.
struct Keys {
    folder: PathBuf,
    /// The client's private key.
    user: PathBuf,
    /// The guest's private key.
    host: PathBuf,
    /// The guest's public key, by which the client recognises it. It is written last.
    known: PathBuf,
}

impl Keys {
    /// Returns those in the folder of a run's sockets.
    fn of(folder: &Path) -> Self {
        let file = |name| folder.join(format!("{SSH}{name}"));
        Self {
            folder: folder.to_owned(),
            user: file("key"),
            host: file("host-key"),
            known: file("known-hosts"),
        }
    }

    /// Makes them, unless they are there.
    fn make(&self) -> anyhow::Result<()> {
        let folder = File::open(&self.folder).map_err(|_| gone(&self.folder))?;
        flock(&folder, FlockOperation::LockExclusive).context("cannot lock the folder of a run")?;
        if self.known.exists() {
            return Ok(());
        }
        for key in [&self.user, &self.host] {
            // Removes an incomplete key of an earlier process.
            let _ = fs::remove_file(key);
            make_key(key)?;
        }
        let public = self.host.with_extension("pub");
        let public = fs::read_to_string(&public).context("cannot read a public key")?;
        fs::write(&self.known, format!("peerbar {public}")).context("cannot write a public key")
    }
}

/// Makes a private key at `path` that has no passphrase, and the public one in the same folder.
fn make_key(path: &Path) -> anyhow::Result<()> {
    let mut keygen = Command::new(KEYGEN);
    keygen.args(["-q", "-t", "ed25519", "-N", "", "-C", "peerbar", "-f"]);
    let made = keygen.arg(path).stdin(Stdio::null()).output();
    let made = made.with_context(|| {
        format!("{KEYGEN} does not start: install OpenSSH's client (Debian: openssh-client)")
    })?;
    if !made.status.success() {
        let errors = String::from_utf8_lossy(&made.stderr);
        bail!("{KEYGEN} makes no key: {}", errors.trim());
    }
    Ok(())
}

/// Returns the configuration with which OpenSSH's client reaches the guest as `host`
/// (`ssh_config(5)`).
fn stanza(host: &str, keys: &Keys, program: &Path) -> Result<String, Failure> {
    Ok(format!(
        "Host {host}\n    \
         User root\n    \
         IdentityFile {}\n    \
         IdentitiesOnly yes\n    \
         UserKnownHostsFile {}\n    \
         GlobalKnownHostsFile /dev/null\n    \
         HostKeyAlias peerbar\n    \
         StrictHostKeyChecking yes\n    \
         ProxyCommand {} ssh-proxy {}\n",
        path_word(&keys.user)?,
        path_word(&keys.known)?,
        shell_word(program)?,
        shell_word(&keys.folder)?
    ))
}

/// Returns a path as a word of a configuration.
fn path_word(path: &Path) -> Result<String, Failure> {
    let text = plain(path)?.replace('\\', r"\\").replace('"', r#"\""#);
    Ok(format!("\"{text}\""))
}

/// Returns a path as a word of the shell that starts a `ProxyCommand`.
fn shell_word(path: &Path) -> Result<String, Failure> {
    Ok(quoted(&plain(path)?))
}

/// Returns the text of a path, in which ssh replaces nothing.
fn plain(path: &Path) -> Result<String, Failure> {
    let text = path.to_str().filter(|text| !text.contains(['\n', '$']));
    let text = text.ok_or_else(|| {
        let path = path.display();
        Failure::Usage(anyhow!(
            "{path} cannot be in a configuration of ssh: set TMPDIR, or move peerbar, to a path of UTF-8 without `$` and line ends"
        ))
    })?;
    Ok(text.replace('%', "%%"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_made_once_and_are_private() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let keys = Keys::of(folder.path());
        // An earlier process has died.
        fs::write(&keys.user, "half").unwrap();
        keys.make().unwrap();
        let made = fs::read(&keys.user).unwrap();
        for key in [&keys.user, &keys.host] {
            let mode = fs::metadata(key).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        let known = fs::read_to_string(&keys.known).unwrap();
        assert!(known.starts_with("peerbar ssh-ed25519 "), "{known}");
        keys.make().unwrap();
        assert_eq!(fs::read(&keys.user).unwrap(), made);
    }

    #[test]
    fn stanza_quotes_paths() {
        let keys = Keys::of(Path::new("/t/a b%\""));
        let stanza = stanza("peerbar-left", &keys, Path::new("/it's/peerbar")).unwrap();
        for line in [
            "Host peerbar-left\n",
            "    IdentityFile \"/t/a b%%\\\"/ssh-key\"\n",
            "    ProxyCommand '/it'\\''s/peerbar' ssh-proxy '/t/a b%%\"'\n",
        ] {
            assert!(stanza.contains(line), "{stanza}");
        }
        assert!(path_word(Path::new("/a\nb")).is_err());
    }
}
