//! A `peerbar-proxy` between clients and a daemon, for the tests of both. It must not change their
//! outcome.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::DaemonCommand;

/// The daemons that serve vfio-user.
const SERVERS: [&str; 3] = ["peerbar-nvme", "peerbar-gpu", "peerbar-efa"];

/// A running proxy of a daemon's device. It ends together with the daemon.
#[derive(Debug)]
pub(crate) struct Proxied {
    child: Child,
    socket: PathBuf,
}

impl Proxied {
    /// Starts a proxy of the device that `command` serves, if the environment has
    /// `PEERBAR_TEST_PROXY`, the path of the program.
    ///
    /// # Panics
    /// If the proxy does not become ready.
    pub(crate) fn start(command: &DaemonCommand) -> Option<Self> {
        let program = std::env::var_os("PEERBAR_TEST_PROXY")?;
        let name = Path::new(command.program()).file_name()?.to_str()?;
        if !SERVERS.contains(&name) {
            return None;
        }
        let server = command.socket_path();
        let socket = server.with_extension("proxy");
        let mut child = Command::new(program)
            .arg("--socket-path")
            .arg(&socket)
            .arg("--server")
            .arg(server)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .env_remove("RUST_LOG")
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "the proxy does not start");
        Some(Self { child, socket })
    }

    /// Returns the path of its socket.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for Proxied {
    fn drop(&mut self) {
        // Fails if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
