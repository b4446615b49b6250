//! The options of `peerbar vfio-user`.

use std::path::PathBuf;
use std::sync::LazyLock;

use clap::builder::PossibleValue;
use clap::{Args, Subcommand, ValueEnum};
use peerbar_vfio_user::decode::{COMMANDS, command_name};

/// Look into the vfio-user protocol.
#[derive(Args)]
pub(crate) struct VfioUserCommand {
    /// The command.
    #[command(subcommand)]
    pub action: VfioUserAction,
}

/// The command about the protocol.
#[derive(Subcommand)]
pub(crate) enum VfioUserAction {
    /// Show the messages between a client and a server, decoded, with times and descriptors, as
    /// strace(1) shows system calls. Ends with the connection, or by Ctrl-C, with a summary.
    #[command(
        before_help = "Examples:\n  peerbar vfio-user trace nvme.sock\n  peerbar vfio-user trace nvme.sock --only DMA_MAP,DMA_UNMAP --json -o maps.json\n  peerbar vfio-user trace nvme.sock --perfetto nvme.pftrace"
    )]
    Trace(VfioUserTrace),
}

/// The connection to trace, and the form of the trace.
#[derive(Args)]
pub(crate) struct VfioUserTrace {
    /// Socket of the server, to which the trace connects.
    pub socket: PathBuf,
    /// Socket to make, to which the client connects [default: SOCKET.trace].
    #[arg(long, value_name = "PATH")]
    pub listen: Option<PathBuf>,
    /// Commands to show, separated by commas [default: all]. The others pass unseen.
    #[arg(
        long,
        visible_alias = "filter",
        value_name = "COMMAND",
        value_enum,
        value_delimiter = ',',
        ignore_case = true,
        hide_possible_values = true
    )]
    pub only: Vec<Command>,
    /// Show up to N bytes of each message's data. The values of registers, of up to 8 bytes, are
    /// always shown.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=MOST_DATA))]
    pub data: u32,
    /// Print a line of JSON for each message.
    #[arg(long)]
    pub json: bool,
    /// File for the lines [default: standard output].
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Also write a time line, a file for Perfetto.
    #[arg(long, value_name = "FILE")]
    pub perfetto: Option<PathBuf>,
}

/// The most bytes of data that can be shown.
const MOST_DATA: i64 = 1 << 20;

/// A command of the protocol, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Command(pub(crate) u16);

/// All commands.
static ALL: LazyLock<Vec<Command>> = LazyLock::new(|| {
    let commands = COMMANDS.iter();
    commands.map(|(number, _)| Command(*number)).collect()
});

impl ValueEnum for Command {
    fn value_variants<'a>() -> &'a [Self] {
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        command_name(self.0).map(PossibleValue::new)
    }
}
