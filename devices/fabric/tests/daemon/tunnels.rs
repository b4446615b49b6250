//! Tunnels between fabrics, as on two machines.

use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use peerbar_fabric::{Incarnation, MAX_DATA, RequestError, make_certificates};
use peerbar_test_daemon::Daemon;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
use rustix::process::{Pid, Signal, kill_process};

use crate::nic::{Event, Nic, carried_out, outcome};
use crate::process::{command, start};
use crate::raw::{Adapter, LONG, gid};

/// Folders of certificates for two machines.
struct Machines {
    _folder: tempfile::TempDir,
    here: PathBuf,
    there: PathBuf,
}

impl Machines {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let [here, there] = ["here", "there"].map(str::to_owned);
        make_certificates(folder.path(), &[here.clone(), there.clone()]).unwrap();
        Self {
            here: folder.path().join(here),
            there: folder.path().join(there),
            _folder: folder,
        }
    }
}

/// The address at which any port is free.
const ANY_PORT: &str = "127.0.0.1:0";

/// A fabric that others connect to, and its address.
fn listening(certificates: &Path) -> (Daemon, String) {
    let mut daemon = start(&words("--listen", ANY_PORT, certificates));
    let line = daemon.next_line();
    let address = line.strip_prefix("tunnels at ").unwrap();
    (daemon, address.to_owned())
}

fn connected(certificates: &Path, address: &str) -> Daemon {
    start(&words("--connect", address, certificates))
}

fn words<'a>(option: &'a str, address: &'a str, certificates: &'a Path) -> [&'a str; 4] {
    let folder = certificates.to_str().unwrap();
    [option, address, "--certificates", folder]
}

/// The standard output is a socket that keeps writes apart, and has no reader after the first one.
#[test]
fn fabric_says_all_in_one_write_and_serves_without_a_reader() {
    let machines = Machines::new();
    let words = words("--listen", ANY_PORT, &machines.here);
    let command = command().args(words);
    let kind = SocketType::SEQPACKET;
    let (reader, writer) =
        socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    let mut process = command.command().stdout(writer).spawn().unwrap();
    let mut said = [0; 128];
    let (length, _) = recv(&reader, &mut said[..], RecvFlags::empty()).unwrap();
    drop(reader);
    kill_process(Pid::from_child(&process), Signal::TERM).unwrap();
    let deadline = Instant::now() + LONG;
    let status = loop {
        if let Some(status) = process.try_wait().unwrap() {
            break status;
        }
        if Instant::now() >= deadline {
            process.kill().unwrap();
        }
        thread::yield_now();
    };
    let said = String::from_utf8_lossy(&said[..length]);
    assert!(said.starts_with("ready\ntunnels at 127.0.0.1:"), "{said:?}");
    assert_eq!(status.code(), Some(0));
}

/// Waits until an adapter learns that another one is there, or is not.
fn wait_for(asking: &Adapter, number: u8, is_there: bool) -> Incarnation {
    let deadline = Instant::now() + LONG;
    loop {
        let incarnation = asking.resolve(gid(number));
        if (incarnation != Incarnation::NONE) == is_there {
            return incarnation;
        }
        assert!(Instant::now() < deadline, "{number} {is_there}");
        thread::yield_now();
    }
}

/// Two fabrics with a tunnel, and an adapter at each, which know each other.
fn two_fabrics(machines: &Machines) -> (Daemon, Daemon, Nic, Nic) {
    let (here, address) = listening(&machines.here);
    let (there, near, far) = joined(machines, &here, &address);
    (here, there, near, far)
}

/// A fabric with a tunnel to the one at `address`, and an adapter at each, which know each other.
fn joined(machines: &Machines, here: &Daemon, address: &str) -> (Daemon, Nic, Nic) {
    let there = connected(&machines.there, address);
    let near = Nic::attach(here.socket(), 1);
    let far = Nic::attach(there.socket(), 2);
    wait_for(&Adapter::attach(here.socket(), 8), 2, true);
    wait_for(&Adapter::attach(there.socket(), 9), 1, true);
    (there, near, far)
}

#[test]
fn request_reaches_an_adapter_of_another_machine() {
    let machines = Machines::new();
    let (_here, _there, near, far) = two_fabrics(&machines);
    let longest = vec![3; MAX_DATA];
    for (from, one, to, other) in [(1, &near, 2, &far), (2, &far, 1, &near)] {
        let answer = one.ask(to, &longest, Vec::new());
        let (source, data, _, reply) = other.request();
        assert_eq!((source, &data), (gid(from), &longest));
        reply.send(data);
        assert_eq!(outcome(&answer).as_ref(), Ok(&longest));
    }
}

#[test]
fn descriptor_to_another_machine_is_refused() {
    let machines = Machines::new();
    let (_here, _there, near, _far) = two_fabrics(&machines);
    let file = Arc::new(OwnedFd::from(tempfile::tempfile().unwrap()));
    let answer = near.ask(2, b"", vec![file]);
    assert_eq!(outcome(&answer), Err(RequestError::NoDescriptors));
}

#[test]
fn adapter_of_another_machine_that_leaves_is_gone() {
    let machines = Machines::new();
    let (_here, _there, near, far) = two_fabrics(&machines);
    let answer = near.ask(2, b"", Vec::new());
    let (.., reply) = far.request();
    drop(far);
    assert_eq!(outcome(&answer), Err(RequestError::Gone));
    drop(reply);
}

#[test]
fn tunnel_is_made_again_to_a_fabric_that_was_killed() {
    let machines = Machines::new();
    let (mut here, address) = listening(&machines.here);
    let (_there, near, far) = joined(&machines, &here, &address);
    let answer = far.ask(1, b"", Vec::new());
    let (.., reply) = near.request();
    here.replace_argument(ANY_PORT, &address);
    here.restart();
    // The fabric notices by silence, as its adapter does.
    let error = outcome(&answer).unwrap_err();
    assert!(matches!(error, RequestError::Gone | RequestError::TimedOut));
    drop(reply);
    let deadline = Instant::now() + LONG;
    while carried_out(&far, (1, &near)) != Ok(b"again".to_vec()) {
        assert!(Instant::now() < deadline, "the tunnel does not come back");
    }
}

#[test]
fn fabric_that_is_stopped_loses_its_tunnel() {
    let machines = Machines::new();
    let (here, there, _near, _far) = two_fabrics(&machines);
    let asking = Adapter::attach(here.socket(), 10);
    wait_for(&asking, 2, true);
    there.signal(Signal::STOP);
    wait_for(&asking, 2, false);
    there.signal(Signal::CONT);
    wait_for(&asking, 2, true);
}

#[test]
fn fabric_of_another_authority_gets_no_tunnel() {
    let (machines, strangers) = (Machines::new(), Machines::new());
    let (here, address) = listening(&machines.here);
    let stranger = connected(&strangers.here, &address);
    let _nic = Nic::attach(stranger.socket(), 3);
    let there = connected(&machines.there, &address);
    let _far = Nic::attach(there.socket(), 2);
    let asking = Adapter::attach(here.socket(), 1);
    wait_for(&asking, 2, true);
    assert_eq!(asking.resolve(gid(3)), Incarnation::NONE);
    let deadline = Instant::now() + LONG;
    while !stranger
        .stderr()
        .contains("one `peerbar-fabric certificates` made")
    {
        assert!(Instant::now() < deadline, "{}", stranger.stderr());
        thread::yield_now();
    }
}

#[test]
fn tunnels_of_one_certificate_leave_room_for_others() {
    let machines = Machines::new();
    let (here, address) = listening(&machines.here);
    let asking = Adapter::attach(here.socket(), 1);
    let [same, again, other] = [2, 3, 4];
    let joined = [
        (&machines.there, same),
        (&machines.there, again),
        (&machines.here, other),
    ];
    let joined = joined.map(|(certificates, number)| {
        let fabric = connected(certificates, &address);
        let nic = Nic::attach(fabric.socket(), number);
        wait_for(&asking, number, true);
        (fabric, nic)
    });
    let third = connected(&machines.there, &address);
    let _nic = Nic::attach(third.socket(), 5);
    let deadline = Instant::now() + LONG;
    while !third.stderr().contains("too many tunnels") {
        assert!(Instant::now() < deadline, "{}", third.stderr());
        thread::yield_now();
    }
    assert_eq!(asking.resolve(gid(5)), Incarnation::NONE);
    drop(joined);
    wait_for(&asking, 5, true);
}

#[test]
fn datagrams_that_are_no_quic_do_no_harm() {
    let machines = Machines::new();
    let (here, address) = listening(&machines.here);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for number in 0..=255 {
        let datagram = vec![number; 1 + 5 * usize::from(number)];
        socket.send_to(&datagram, &address).unwrap();
    }
    let there = connected(&machines.there, &address);
    let _far = Nic::attach(there.socket(), 2);
    wait_for(&Adapter::attach(here.socket(), 1), 2, true);
}

#[test]
fn far_adapter_has_a_number_of_the_near_fabric() {
    let machines = Machines::new();
    let (here, there, _near, _far) = two_fabrics(&machines);
    let far = Adapter::attach(there.socket(), 11);
    let asking = Adapter::attach(here.socket(), 12);
    assert_ne!(wait_for(&asking, 11, true), far.incarnation);
    drop(far);
    wait_for(&asking, 11, false);
}

#[test]
fn datagram_reaches_an_adapter_of_another_machine() {
    let machines = Machines::new();
    let (_here, _there, near, far) = two_fabrics(&machines);
    // QUIC delivers what the tunnel takes.
    near.link.sender().datagram(gid(2), b"data").unwrap();
    loop {
        if let Event::Datagram(from, data) = far.event() {
            assert_eq!((from, data.as_slice()), (gid(1), &b"data"[..]));
            return;
        }
    }
}

#[test]
fn connecting_fabric_that_was_killed_is_found_again() {
    let machines = Machines::new();
    let (here, mut there, _near, _far) = two_fabrics(&machines);
    let asking = Adapter::attach(here.socket(), 10);
    let before = wait_for(&asking, 2, true);
    there.restart();
    // The old tunnel ends after its silence. The new one has announced the adapter before.
    let deadline = Instant::now() + LONG;
    while [before, Incarnation::NONE].contains(&asking.resolve(gid(2))) {
        assert!(Instant::now() < deadline, "it is not found");
        thread::yield_now();
    }
}

#[test]
fn adapter_that_floods_a_tunnel_starves_no_other() {
    let machines = Machines::new();
    let (here, _there, near, far) = two_fabrics(&machines);
    let flooder = Adapter::attach(here.socket(), 30);
    let stop = AtomicBool::new(false);
    let outcomes = thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                flooder.send_datagram(gid(2), 1024);
            }
        });
        let outcomes: Vec<_> = (0..10).map(|_| carried_out(&near, (2, &far))).collect();
        stop.store(true, Ordering::Relaxed);
        outcomes
    });
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
}
