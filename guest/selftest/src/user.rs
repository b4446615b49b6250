//! A separate process that uses a GPU, so that it can be killed, or be given a descriptor.

#![expect(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context, bail, ensure};
use peerbar_agent::mapped_buffer::MappedBuffer;
use peerbar_gds::{ExportPolicy, FileOptions, Gpu};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::held_back_reader::HeldBackReader;

/// The first argument that selects this role of the program.
pub(crate) const ROLE: &str = "gpu-user";

/// The byte that the process writes once it has begun.
const READY: u8 = b'!';

/// Policies of an export, as words of the command line.
const REVOCABLE: &str = "revocable";
const PINNED: &str = "pinned";
const STATIC: &str = "static";

/// Size of each buffer of a load, in bytes.
const LOAD_BYTES: u64 = 4 << 20;

/// A process that uses a GPU.
#[derive(Debug)]
pub(crate) struct GpuUser {
    child: Child,
    /// Its standard input and output.
    line: UnixStream,
}

impl GpuUser {
    /// Starts a process that continuously reads the disk `disk` into memory of GPU `node`, and lets
    /// the GPU copy.
    pub(crate) fn load(node: u32, disk: &str) -> anyhow::Result<Self> {
        let mut user = GpuUser::start(&["load", &node.to_string(), disk])?;
        user.wait_ready()?;
        Ok(user)
    }

    /// Starts a process that maps `length` bytes at `offset` of `gpu`, which it gets over a socket,
    /// and reports it.
    pub(crate) fn mapper(gpu: impl AsFd, offset: u64, length: usize) -> anyhow::Result<Self> {
        let arguments = ["map", &offset.to_string(), &length.to_string()];
        let mut user = GpuUser::start(&arguments)?;
        send(&user.line, gpu.as_fd()).context("cannot pass the GPU's descriptor on")?;
        user.wait_ready()?;
        Ok(user)
    }

    /// Starts a process that fills `length` bytes of GPU `node` with `mark`, and exports them. Also
    /// returns the dma-buf.
    pub(crate) fn exporter(
        node: u32,
        length: u64,
        mark: u64,
        policy: ExportPolicy,
    ) -> anyhow::Result<(Self, OwnedFd)> {
        let policy = match policy {
            ExportPolicy::Revocable => REVOCABLE,
            ExportPolicy::Pinned => PINNED,
            ExportPolicy::Static => STATIC,
        };
        let numbers = [node.to_string(), length.to_string(), mark.to_string()];
        let [node, length, mark] = &numbers;
        let user = GpuUser::start(&["export", node, length, mark, policy])?;
        let dma_buf = receive(&user.line)
            .context("a process that should export has ended; its error is on the console")?;
        Ok((user, dma_buf))
    }

    /// Starts a process that has queues of `disk`, a controller's node with blocks of `block`
    /// bytes, in addition to Linux' driver. It lets GPU `node` execute reads that the disk holds
    /// back, `depth` at a time. It reports once it has submitted the launch, and then waits.
    pub(crate) fn disk_queues(
        node: u32,
        disk: &Path,
        (depth, block): (u16, u64),
    ) -> anyhow::Result<Self> {
        let disk = disk.to_str().context("a node whose name is not UTF-8")?;
        let numbers = [node.to_string(), depth.to_string(), block.to_string()];
        let [node, depth, block] = &numbers;
        let mut user = GpuUser::start(&["disk-queues", node, disk, depth, block])?;
        user.wait_ready()?;
        Ok(user)
    }

    fn start(arguments: &[&str]) -> anyhow::Result<Self> {
        let (line, theirs) = UnixStream::pair().context("cannot make a socket")?;
        let output = OwnedFd::from(theirs.try_clone()?);
        let child = Command::new("/proc/self/exe")
            .arg(ROLE)
            .args(arguments)
            .stdin(OwnedFd::from(theirs))
            .stdout(output)
            .stderr(Stdio::inherit())
            .spawn()
            .context("cannot start a process that uses the GPU")?;
        Ok(GpuUser { child, line })
    }

    fn wait_ready(&mut self) -> anyhow::Result<()> {
        let mut said = [0];
        self.line
            .read_exact(&mut said)
            .context("a process that should use the GPU has ended; its error is on the console")?;
        ensure!(
            said == [READY],
            "a process that uses the GPU says {said:x?}"
        );
        Ok(())
    }

    /// Returns the byte that a mapper sees at `index`.
    pub(crate) fn byte_at(&mut self, index: u64) -> anyhow::Result<u8> {
        self.line.write_all(&index.to_le_bytes())?;
        let mut byte = [0];
        self.line
            .read_exact(&mut byte)
            .context("the mapper has ended")?;
        let [byte] = byte;
        Ok(byte)
    }

    /// Kills it and waits for its end.
    pub(crate) fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill().context("cannot kill it")?;
        self.child.wait().context("cannot wait for it")?;
        Ok(())
    }
}

/// Returns the `main` of such a process, with the arguments behind [`ROLE`] on its command line.
pub(crate) fn main(arguments: &[String]) -> anyhow::Result<()> {
    // SAFETY: descriptors 0 and 1 are the socket that the parent gave us, and nothing else here
    // uses them.
    let line = unsafe { UnixStream::from_raw_fd(0) };
    match arguments {
        [role, node, disk] if role == "load" => load(line, node.parse()?, disk.into()),
        [role, offset, length] if role == "map" => map(line, offset.parse()?, length.parse()?),
        [role, node, disk, depth, block] if role == "disk-queues" => {
            let reader = HeldBackReader::make(
                &Gpu::open(node.parse()?)?,
                Path::new(disk),
                (depth.parse()?, block.parse()?),
            )?;
            read_held_back(line, reader)
        }
        [role, node, length, mark, policy] if role == "export" => {
            let policy = match policy.as_str() {
                REVOCABLE => ExportPolicy::Revocable,
                PINNED => ExportPolicy::Pinned,
                STATIC => ExportPolicy::Static,
                other => bail!("no such policy: {other}"),
            };
            export(
                line,
                node.parse()?,
                (length.parse()?, mark.parse()?),
                policy,
            )
        }
        _ => bail!("no such work: {arguments:?}"),
    }
}

fn load(mut line: UnixStream, node: u32, disk: PathBuf) -> anyhow::Result<()> {
    let gpu = Gpu::open(node)?;
    let into = gpu.allocate(LOAD_BYTES)?;
    let file = FileOptions::new().open(&gpu, &disk)?;
    file.read_at(&into, .., 0)?;
    let reader = thread::spawn(move || -> peerbar_gds::Result<()> {
        loop {
            file.read_at(&into, .., 0)?;
        }
    });
    let (here, host) = (gpu.allocate(LOAD_BYTES)?, gpu.allocate_host(LOAD_BYTES)?);
    gpu.copy(here.span(..)?, host.span(..)?)?;
    line.write_all(&[READY])?;
    while !reader.is_finished() {
        gpu.copy(host.span(..)?, here.span(..)?)?;
        gpu.copy(here.span(..)?, host.span(..)?)?;
    }
    bail!("the reads have ended: {:?}", reader.join())
}

fn map(mut line: UnixStream, offset: u64, length: usize) -> anyhow::Result<()> {
    let gpu = receive(&line)?;
    let memory = MappedBuffer::shared(&gpu, offset, length)?;
    drop(gpu);
    line.write_all(&[READY])?;
    let mut index = [0; 8];
    while line.read_exact(&mut index).is_ok() {
        let bytes = memory.to_vec(length)?;
        let byte = bytes.get(usize::try_from(u64::from_le_bytes(index))?);
        line.write_all(&[*byte.context("an index beyond the mapping")?])?;
    }
    Ok(())
}

fn export(
    mut line: UnixStream,
    node: u32,
    (length, mark): (u64, u64),
    policy: ExportPolicy,
) -> anyhow::Result<()> {
    let gpu = Gpu::open(node)?;
    let buffer = gpu.allocate(length)?;
    gpu.fill(buffer.span(..)?, mark)?;
    let dma_buf = buffer.export_as(policy)?;
    send(&line, dma_buf.as_fd())?;
    // Until it is killed, or the parent has gone.
    let ended = line.read(&mut [0])?;
    bail!("the parent has said {ended} bytes")
}

fn read_held_back(mut line: UnixStream, mut reader: HeldBackReader) -> anyhow::Result<()> {
    reader.launch()?;
    line.write_all(&[READY])?;
    // Until it is killed, or the parent has gone.
    let ended = line.read(&mut [0])?;
    bail!("the parent has said {ended} bytes")
}

fn send(line: &UnixStream, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let descriptors = [descriptor];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    let byte = [IoSlice::new(&[READY])];
    sendmsg(line, &byte, &mut ancillary, SendFlags::empty())?;
    Ok(())
}

fn receive(line: &UnixStream) -> anyhow::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut bytes = [IoSliceMut::new(&mut byte)];
    recvmsg(line, &mut bytes, &mut ancillary, RecvFlags::empty()).map_err(io::Error::from)?;
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    descriptor.context("no descriptor came")
}
