//! `peerbar vfio-user trace` between a client and a server of this test.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test panics if it fails"
)]

use std::fs;
use std::io::{BufRead, BufReader, IoSlice, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::Duration;

use peerbar_host::socket_file::descriptors;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Longest wait of any test.
const TIME_OUT: Duration = Duration::from_secs(20);
const REPLY: u32 = 1;
const NO_REPLY: u32 = 0x10;
const ERROR: u32 = 0x21;

/// A trace in progress, and the far ends of its two connections.
struct Traced {
    folder: TempDir,
    trace: Child,
    stderr: BufReader<ChildStderr>,
    client: UnixStream,
    server: UnixStream,
}

fn command(folder: &TempDir, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_peerbar"));
    command.args(["vfio-user", "trace", "dev.sock"]).args(words);
    command.current_dir(folder);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Starts a trace of a server in a folder. Returns it once it waits for the client.
fn start(folder: &TempDir, words: &[&str]) -> (Child, BufReader<ChildStderr>, UnixStream) {
    let listener = UnixListener::bind(folder.path().join("dev.sock")).unwrap();
    let mut trace = command(folder, words).spawn().unwrap();
    let mut stderr = BufReader::new(trace.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    assert_eq!(line, "peerbar: the client connects to dev.sock.trace\n");
    let server = listener.accept().unwrap().0;
    server.set_read_timeout(Some(TIME_OUT)).unwrap();
    (trace, stderr, server)
}

fn connect(folder: &TempDir) -> UnixStream {
    let client = UnixStream::connect(folder.path().join("dev.sock.trace")).unwrap();
    client.set_read_timeout(Some(TIME_OUT)).unwrap();
    client
}

impl Traced {
    fn start(words: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (trace, stderr, server) = start(&folder, words);
        let client = connect(&folder);
        Self {
            folder,
            trace,
            stderr,
            client,
            server,
        }
    }

    /// Sends a request of the client with a descriptor, and its reply.
    fn exchange(&self, request: &[u8], fds: &[&OwnedFd], reply: &[u8]) {
        pass(&self.client, request, fds, &self.server);
        pass(&self.server, reply, &[], &self.client);
    }

    /// Hangs up on both sides, and returns what the trace has printed.
    fn end(mut self) -> (Output, TempDir) {
        drop(self.client);
        assert_eq!(self.server.read(&mut [0]).unwrap(), 0);
        drop(self.server);
        let mut stderr = Vec::new();
        self.stderr.read_to_end(&mut stderr).unwrap();
        let mut output = self.trace.wait_with_output().unwrap();
        output.stderr = stderr;
        (output, self.folder)
    }
}

/// Sends a message, and receives it at the other end, with the number of its descriptors.
fn pass(from: &UnixStream, message: &[u8], fds: &[&OwnedFd], to: &UnixStream) {
    let sent: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    let parts = [IoSlice::new(message)];
    assert_eq!(descriptors::send(from, &parts, &sent), Ok(message.len()));
    let (mut received, mut count) = (Vec::new(), 0);
    while received.len() < message.len() {
        let until = Some(std::time::Instant::now() + TIME_OUT);
        descriptors::wait_until(to, rustix::event::PollFlags::IN, until).unwrap();
        let mut space = [0; 4096];
        let some = descriptors::receive_all(to, &mut space).unwrap();
        assert!(some.bytes > 0, "the trace has hung up");
        received.extend(&space[..some.bytes]);
        count += some.descriptors.len();
    }
    assert_eq!((received.as_slice(), count), (message, fds.len()));
}

fn message(id: u16, command: u16, flags: u32, error: u32, payload: &[u8]) -> Vec<u8> {
    let size = 16 + u32::try_from(payload.len()).unwrap();
    let start = [id.to_le_bytes(), command.to_le_bytes()].concat();
    [start, words(&[size, flags, error]), payload.to_vec()].concat()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn quads(quads: &[u64]) -> Vec<u8> {
    quads.iter().flat_map(|quad| quad.to_le_bytes()).collect()
}

fn access(region: u32, offset: u64, count: u32, data: &[u8]) -> Vec<u8> {
    [quads(&[offset]), words(&[region, count]), data.to_vec()].concat()
}

fn memory(name: &str) -> (OwnedFd, u64) {
    let memory = memfd_create(name, MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memory, 1 << 20).unwrap();
    let inode = rustix::fs::fstat(&memory).unwrap().st_ino;
    (memory, inode)
}

/// Returns lines without their times: `0.000123` at the start, and `<12.0 us>`.
fn timeless(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let line = match line.trim_start().split_once(' ') {
            Some((time, rest)) if time.parse::<f64>().is_ok() => format!("T {rest}"),
            _ => line.to_owned(),
        };
        match line.rsplit_once(" <") {
            Some((start, _)) if line.ends_with('>') => format!("{start} <T>"),
            _ => line,
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// A session with an error, a request that is overtaken, and requests of both sides in flight.
fn session(traced: &Traced) -> u64 {
    let json = b"{\"capabilities\":{\"max_msg_fds\":8}}\0";
    let version = [&[0, 0, 0, 0], &json[..]].concat();
    let reply = message(1, 1, REPLY, 0, &version);
    traced.exchange(&message(1, 1, 0, 0, &version), &[], &reply);
    let (ram, inode) = memory("ram");
    let map = [words(&[32, 3]), quads(&[0, 0xc_0000, 1 << 20])].concat();
    let refused = message(2, 2, ERROR, 17, &[]);
    traced.exchange(&message(2, 2, 0, 0, &map), &[&ram], &refused);
    let read = message(3, 9, 0, 0, &access(7, 4, 2, &[]));
    let value = message(3, 9, REPLY, 0, &access(7, 4, 2, &[6, 0]));
    traced.exchange(&read, &[], &value);
    let post = message(4, 10, NO_REPLY, 0, &access(0, 0x1000, 4, &[1, 0, 0, 0]));
    pass(&traced.client, &post, &[], &traced.server);
    // The same id in both directions.
    let write = message(5, 10, 0, 0, &access(0, 0x1008, 4, &[2, 0, 0, 0]));
    pass(&traced.client, &write, &[], &traced.server);
    let fetch = message(5, 11, 0, 0, &quads(&[0xc_0000, 16]));
    pass(&traced.server, &fetch, &[], &traced.client);
    let written = message(5, 10, REPLY, 0, &access(0, 0x1008, 4, &[]));
    pass(&traced.server, &written, &[], &traced.client);
    let data = [quads(&[0xc_0000, 16]), vec![0xab; 16]].concat();
    let fetched = message(5, 11, REPLY, 0, &data);
    pass(&traced.client, &fetched, &[], &traced.server);
    inode
}

#[test]
fn messages_are_shown_as_lines_with_a_summary() {
    let traced = Traced::start(&["--data", "4"]);
    let inode = session(&traced);
    let (output, folder) = traced.end();
    let expected = format!(
        r#"T >     1 VERSION 0.0 max_msg_fds 8 = 0.0 max_msg_fds 8 <T>
T >     2 DMA_MAP 0xc0000+1M READ|WRITE offset 0x0 fd memfd:ram inode {inode} 1M = EEXIST (File exists) <T>
T >     3 REGION_READ config+0x4 COMMAND 2 bytes = 0x0006 MEMORY|MASTER <T>
T >     4 REGION_WRITE BAR0+0x1000 4 bytes 0x00000001 (wants no reply)
T >     5 REGION_WRITE BAR0+0x1008 4 bytes 0x00000002 ...
T <     5 DMA_READ 0xc0000 16 bytes ...
T >     5 ... REGION_WRITE BAR0+0x1008 4 bytes 0x00000002 = ok <T>
T <     5 ... DMA_READ 0xc0000 16 bytes = abababab … <T>
T >       the client closes the connection
"#
    );
    let text = stdout(&output);
    let (lines, summary) = text.split_once("\n\n").unwrap();
    let lines = timeless(lines) + "\n";
    let lines = lines.replace("T <       the server closes the connection\n", "");
    assert_eq!(lines, expected, "{text}");
    let figures: Vec<Vec<&str>> = summary
        .lines()
        .map(|line| line.split_whitespace().take(4).collect())
        .collect();
    let expected = [
        ["command", "count", "errors", "unanswered"],
        ["REGION_WRITE", "2", "0", "0"],
        ["DMA_MAP", "1", "1", "0"],
        ["DMA_READ", "1", "0", "0"],
        ["REGION_READ", "1", "0", "0"],
        ["VERSION", "1", "0", "0"],
    ];
    assert_eq!(figures, expected, "{summary}");
    assert_eq!(output.status.code(), Some(0));
    assert!(!folder.path().join("dev.sock.trace").exists());
}

#[test]
fn json_has_one_object_for_each_message_and_the_summary() {
    let traced = Traced::start(&["--json", "--only", "dma_map,DMA_READ", "-o", "out.json"]);
    let inode = session(&traced);
    let (output, folder) = traced.end();
    let text = fs::read_to_string(folder.path().join("out.json")).unwrap();
    let objects: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let kinds: Vec<&str> = objects
        .iter()
        .filter_map(|object| object["type"].as_str())
        .filter(|kind| *kind != "notice")
        .collect();
    let expected = ["request", "reply", "request", "reply", "summary"];
    assert_eq!(kinds, expected, "{text}");
    let reply = &objects[1];
    assert_eq!(reply["command"], "DMA_MAP");
    assert_eq!(reply["arguments"]["address"], 0xc_0000);
    assert_eq!(reply["error"]["errno"], 17);
    assert!(reply["duration_ns"].as_u64().is_some_and(|nanos| nanos > 0));
    let file = json!([{ "file": "memfd:ram", "inode": inode, "size": 1 << 20 }]);
    assert_eq!(objects[0]["descriptors"], file);
    // Without --output it would be the last line.
    assert!(stdout(&output).contains("DMA_MAP"), "{output:?}");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn time_line_is_written_with_the_requests() {
    let traced = Traced::start(&["--perfetto", "trace.pftrace"]);
    session(&traced);
    let (output, folder) = traced.end();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let file = fs::read(folder.path().join("trace.pftrace")).unwrap();
    for name in ["requests of the client", "REGION_WRITE", "EEXIST"] {
        let found = file.windows(name.len()).any(|part| part == name.as_bytes());
        assert!(found, "{name}");
    }
}

#[test]
fn interrupt_ends_the_connection_with_a_summary() {
    let mut traced = Traced::start(&[]);
    pass(
        &traced.client,
        &message(1, 13, 0, 0, &[]),
        &[],
        &traced.server,
    );
    kill_process(Pid::from_child(&traced.trace), Signal::INT).unwrap();
    assert_eq!(traced.server.read(&mut [0]).unwrap(), 0);
    drop(traced.server);
    assert_eq!(traced.client.read(&mut [0]).unwrap(), 0);
    let output = traced.trace.wait_with_output().unwrap();
    let text = stdout(&output);
    assert!(text.contains("DEVICE_RESET ...\n"), "{text}");
    let mut rows = text.lines().map(|line| line.split_whitespace().take(4));
    assert!(
        rows.any(|row| row.eq(["DEVICE_RESET", "1", "0", "1"])),
        "{text}"
    );
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn second_client_is_disconnected_and_the_first_stays() {
    let traced = Traced::start(&[]);
    traced.exchange(
        &message(1, 13, 0, 0, &[]),
        &[],
        &message(1, 13, REPLY, 0, &[]),
    );
    let mut second = connect(&traced.folder);
    assert_eq!(second.read(&mut [0]).unwrap(), 0);
    traced.exchange(
        &message(2, 13, 0, 0, &[]),
        &[],
        &message(2, 13, REPLY, 0, &[]),
    );
    let (output, _) = traced.end();
    let text = stdout(&output);
    assert!(text.contains("a second client is disconnected"), "{text}");
    assert_eq!(text.matches("DEVICE_RESET = ok").count(), 2, "{text}");
}

#[test]
fn stream_that_is_no_sequence_of_messages_passes_with_one_line() {
    let mut traced = Traced::start(&[]);
    let garbage = [7; 5000];
    traced.client.write_all(&garbage[..16]).unwrap();
    // Its size is 0x07070707; a reply with a size of 7 cannot be.
    let short = [&[0; 4], &[7, 0, 0, 0], &[0; 4992][..]].concat();
    traced.server.write_all(&short).unwrap();
    let mut received = vec![0; short.len()];
    traced.client.read_exact(&mut received).unwrap();
    assert_eq!(received, short);
    let (output, _) = {
        let mut rest = [0; 16];
        traced.server.read_exact(&mut rest).unwrap();
        traced.end()
    };
    let text = stdout(&output);
    let line = "the server announces a message of 7 bytes, less than a header";
    assert_eq!(text.matches(line).count(), 1, "{text}");
    assert!(
        text.contains("the client's last message is cut short"),
        "{text}"
    );
}

/// Returns exit code and stderr of a trace that cannot begin.
fn refused(folder: &TempDir, words: &[&str]) -> (Option<i32>, String) {
    let output = command(folder, words).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), stderr)
}

#[test]
fn impossible_traces_are_wrong_usage() {
    let folder = tempfile::tempdir().unwrap();
    let (code, stderr) = refused(&folder, &[]);
    assert_eq!(code, Some(2), "{stderr}");
    let begins = "peerbar: no vfio-user server at dev.sock: start the server first, and name its socket: No such file";
    assert!(stderr.starts_with(begins), "{stderr}");
    let _server = UnixListener::bind(folder.path().join("dev.sock")).unwrap();
    for (listen, reason) in [
        ("dev.sock", "is in use by a live server"),
        (".", "exists and is not a socket"),
        ("no/folder/sock", "--listen chooses another one"),
        (&*"x".repeat(200), "choose one of at most 107"),
    ] {
        let (code, stderr) = refused(&folder, &["--listen", listen]);
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains(reason), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
    let (code, stderr) = refused(&folder, &["--only", "READ"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("invalid value 'READ'"), "{stderr}");
    let (code, stderr) = refused(&folder, &["-o", "no/such/file"]);
    assert_eq!(code, Some(69), "{stderr}");
}

#[test]
fn server_that_leaves_before_the_client_comes_is_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, mut stderr, server) = start(&folder, &[]);
    drop(server);
    let mut text = String::new();
    stderr.read_to_string(&mut text).unwrap();
    assert!(text.contains("before a client came"), "{text}");
    assert_eq!(trace.wait_with_output().unwrap().status.code(), Some(1));
}
