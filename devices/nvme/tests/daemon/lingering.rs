//! TCP sockets whose close(2) waits for the other side, which never reads.

use std::io::{ErrorKind, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use peerbar_rig::wire;
use rustix::net::sockopt::set_socket_linger;

use crate::driver;
use crate::process::start;

const LINGER: Duration = Duration::from_secs(3600);

/// A socket whose data the other one, which must stay open, does not take.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut full = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    full.set_nonblocking(true).unwrap();
    let error = loop {
        if let Err(error) = full.write(&[0; 1 << 16]) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    set_socket_linger(&full, Some(LINGER)).unwrap();
    (full, other)
}

/// Sends a message, which then holds the only copy of the socket, unless the server has hung up.
fn send(stream: &UnixStream, message: &[u8], socket: TcpStream) {
    if wire::send(stream, message, &[socket.as_fd()]).is_err() {
        set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
    }
}

#[test]
fn lingering_sockets_delay_no_client() {
    let daemon = start(&["--namespace", "ram=1M"]);
    // Command 8, SET_IRQS, of 16 bytes: it is refused.
    let message = [1, 0, 8, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let (socket, _other) = lingering();
    let first = daemon.connect(|path| UnixStream::connect(path));
    send(&first, &message, socket);

    // A message of another client while the first one is served, and one that is cut off within a
    // message.
    let (socket, _other) = lingering();
    let second = daemon.connect(|path| UnixStream::connect(path));
    send(&second, &message, socket);
    drop((first, second));

    let (socket, _other) = lingering();
    let third = daemon.connect(|path| UnixStream::connect(path));
    send(&third, &[0xff; 40], socket);
    drop(third);
    assert_eq!(driver(&daemon).serial(), "test");
}
