//! The command line of `peerbar-p2p`, which is also that of `peerbar p2p`.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;

use crate::address::Address;
use crate::decode;
use crate::html;
use crate::machine::{Function, Machine};
use crate::pair::Pair;
use crate::size::human;
use crate::text;

/// The largest source in bytes: pastes with a kernel's log have a few megabytes.
const LARGEST: u64 = 64 << 20;

/// Which devices to judge, and how to show the verdicts.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The device that issues the DMA, and the device that owns the memory: an address, a name such
    /// as `nvme0` or `mlx5_0`, or `gpu0` for the first GPU.
    #[arg(num_args = 2, value_names = ["CLIENT", "PROVIDER"])]
    pub pair: Vec<String>,
    /// Read another machine: from a file with pasted output of `lspci -vvv`, a topology file of
    /// NCCL, RCCL or hwloc (`lstopo FILE.xml`), a dump of `rdma_topo`, the output of
    /// `nvidia-smi topo -m`, or one of --save; from a folder with a copy of its `sys` and `proc`;
    /// `-` reads the input.
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Save what is needed to repeat the verdict elsewhere, without serial numbers, MAC addresses
    /// and the host's name.
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Write a page with the machine as a picture, the matrix, and the reasons for each verdict.
    #[arg(long, value_name = "FILE", conflicts_with = "pair")]
    pub html: Option<PathBuf>,
    /// Include every function in the matrix, not only disks, GPUs, accelerators, network adapters,
    /// and functions with a large BAR; and DMA to the doorbells of network adapters.
    #[arg(long)]
    pub all: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The user has asked for something impossible.
    #[error("{0:#}")]
    Usage(anyhow::Error),
    /// A file cannot be read or written, or shows no machine.
    #[error("{0:#}")]
    Failed(#[from] anyhow::Error),
}

impl CliError {
    /// Returns the exit code.
    pub fn code(&self) -> u8 {
        match self {
            Self::Failed(_) => 1,
            Self::Usage(_) => 2,
        }
    }
}

/// Returns `text` without characters that steer a terminal: a source may have them.
pub fn printable(text: &str) -> String {
    decode::clean(text)
}

/// Returns the answer to the question of `options`, as text or JSON. `columns` is the width of the
/// terminal, or `None` without one.
///
/// # Errors
///
/// The source cannot be read, or has no such device.
pub fn answer(options: &Options, columns: Option<u16>) -> Result<String, CliError> {
    let width = columns.map_or(text::WIDTH, |columns| usize::from(columns).min(text::WIDTH));
    let machine = machine(options.from.as_deref())?;
    if let Some(file) = &options.save {
        if options.from.as_ref() == Some(file) {
            let error = anyhow!(
                "--save would replace {}, which --from reads: name another file",
                file.display()
            );
            return Err(CliError::Usage(error));
        }
        write(file, &json(&machine)?)?;
    }
    let answer = match options.pair.as_slice() {
        [client, provider] => {
            let pair = find(&machine, client, provider).map_err(CliError::Usage)?;
            if options.json {
                json(&both_directions(&machine, pair))?
            } else {
                in_words(&machine, &both_directions(&machine, pair), width)
            }
        }
        _ => {
            if let Some(file) = &options.html {
                let page = html::page(&machine, &machine.detailed(options.all));
                write(file, &decode::clean(&page))?;
            }
            if options.json {
                json(&machine.matrix(options.all))?
            } else {
                let (matrix, left_out) = machine.overview(options.all);
                text::matrix(&machine, &matrix, &left_out, width)
            }
        }
    };
    // A file of --save can have any characters, too.
    Ok(decode::clean(&answer))
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// Reads the machine from the file `from`, from the input if that is `-`, or this machine.
///
/// # Errors
///
/// The source cannot be read, or shows no machine.
pub fn machine(from: Option<&Path>) -> Result<Machine> {
    let Some(file) = from else {
        return Ok(Machine::here()?);
    };
    if file.is_dir() {
        return Ok(Machine::of_root(file)?);
    }
    let read = if file == Path::new("-") {
        limited(io::stdin().lock())
    } else {
        fs::File::open(file).and_then(limited)
    };
    let bytes = read.with_context(|| format!("cannot read {}", file.display()))?;
    Machine::read(&decode::text(&bytes))
        .with_context(|| format!("cannot read a machine from {}", file.display()))
}

/// Reads a source to its end.
fn limited(source: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(LARGEST).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == LARGEST {
        let text = format!("it has {} or more", human(LARGEST));
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    Ok(bytes)
}

fn find(machine: &Machine, client: &str, provider: &str) -> Result<(Address, Address)> {
    let pair = (machine.find(client)?, machine.find(provider)?);
    if pair.0 == pair.1 {
        bail!("`{client}` and `{provider}` are the same device: name two");
    }
    let [of_client, of_provider] = [pair.0, pair.1].map(|end| machine.function(end));
    let is_target = |function: Option<&Function>| function.is_some_and(Function::is_target);
    // A source that shows no BAR does not tell.
    if of_provider.is_some_and(|function| !function.bars.is_empty()) && !is_target(of_provider) {
        let swap = if is_target(of_client) {
            format!("; did you mean `{provider} {client}`?")
        } else {
            String::new()
        };
        bail!(
            "`{provider}` has no memory for peers: no p2pmem, and no prefetchable 64-bit BAR of 16 MiB or more{swap}"
        );
    }
    Ok(pair)
}

/// Returns the verdicts on DMA of the first device to memory of the second, and on the reverse if
/// the first has memory or doorbells for peers.
fn both_directions(machine: &Machine, (client, provider): (Address, Address)) -> Vec<Pair> {
    let mut pairs = vec![machine.pair(client, provider)];
    if machine.function(client).is_some_and(Function::is_target) {
        pairs.push(machine.pair(provider, client));
    }
    pairs
}

fn in_words(machine: &Machine, pairs: &[Pair], width: usize) -> String {
    let texts: Vec<String> = pairs
        .iter()
        .map(|pair| text::pair(machine, pair, width))
        .collect();
    texts.join("\n") + &text::notes(machine, width)
}

fn json(value: &impl serde::Serialize) -> Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}
