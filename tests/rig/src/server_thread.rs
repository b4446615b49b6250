//! A server in a thread of the test's process.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use tempfile::TempDir;

/// The callback of a server that is ready.
pub type Ready = Box<dyn FnOnce() -> io::Result<()> + Send>;

/// A server in its own thread and folder. It ends when it is dropped.
#[derive(Debug)]
pub struct ServerThread {
    folder: TempDir,
    running: Option<(UnixStream, JoinHandle<()>)>,
}

impl ServerThread {
    /// Starts a server, and waits until it is ready. `serve` gets the path of its socket and a
    /// stream whose end ends it.
    pub fn start(serve: impl FnOnce(&Path, UnixStream, Ready) + Send + 'static) -> Self {
        let mut server = Self {
            folder: TempDir::new().unwrap(),
            running: None,
        };
        server.restart(serve);
        server
    }

    /// Ends the server, and starts another one at its socket.
    pub fn restart(&mut self, serve: impl FnOnce(&Path, UnixStream, Ready) + Send + 'static) {
        self.end();
        let (stop, watched) = UnixStream::pair().unwrap();
        let (ready, is_ready) = channel();
        let path = self.socket();
        let thread = std::thread::spawn(move || {
            let ready = Box::new(move || ready.send(()).map_err(io::Error::other));
            serve(&path, watched, ready);
        });
        is_ready.recv().unwrap();
        self.running = Some((stop, thread));
    }

    /// Ends the server, and waits.
    pub fn end(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            drop(stop);
            thread.join().unwrap();
        }
    }

    /// Returns the path of its socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }
}

impl Drop for ServerThread {
    fn drop(&mut self) {
        self.end();
    }
}
