//! The options of `peerbar vfio-user`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::LazyLock;

use clap::builder::PossibleValue;
use clap::{Args, Subcommand, ValueEnum};
use peerbar_report::Timeout;
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
    /// Check any server against the specification of vfio-user and the requirements of QEMU's
    /// client. Prints KTAP. Exit code 0 if no test failed, 1 if one did.
    ///
    /// It is safe for a device that nobody uses: it reads config space, sizes BARs as firmware does,
    /// maps its own memory and sets its own eventfds, and undoes all of this. It never writes to
    /// BARs. It reads from them only with --bars, and resets the device only with --reset.
    #[command(
        before_help = "Examples:\n  peerbar vfio-user check nvme.sock\n  peerbar vfio-user check dev.sock --reset -- ./my-device dev.sock\n  peerbar vfio-user check dev.sock hostile dma.unmap\n  peerbar vfio-user check --list"
    )]
    Check(VfioUserCheck),
    /// Show the messages between a client and a server, decoded, with times and descriptors, as
    /// strace(1) shows system calls. Ends with the connection, or by Ctrl-C, with a summary.
    #[command(
        before_help = "Examples:\n  peerbar vfio-user trace nvme.sock\n  peerbar vfio-user trace nvme.sock --only DMA_MAP,DMA_UNMAP --json -o maps.json\n  peerbar vfio-user trace nvme.sock --perfetto nvme.pftrace"
    )]
    Trace(VfioUserTrace),
}

/// The server to check, and the tests.
#[derive(Args)]
pub(crate) struct VfioUserCheck {
    /// Socket of the server.
    #[arg(required_unless_present = "list")]
    pub socket: Option<PathBuf>,
    /// Tests, such as dma.unmap, or groups of them, such as dma [default: all].
    #[arg(value_name = "TEST")]
    pub tests: Vec<String>,
    /// Leave out what QEMU requires but not the specification.
    #[arg(long)]
    pub specification_only: bool,
    /// Also read from BARs, which may have side effects.
    #[arg(long)]
    pub bars: bool,
    /// Also reset the device, which loses its state.
    #[arg(long)]
    pub reset: bool,
    /// Longest wait for the server, such as 5s.
    #[arg(
        long,
        visible_alias = "time-out",
        value_name = "TIME",
        default_value = "5s"
    )]
    pub timeout: Timeout,
    /// Print all tests and their sources, and run none.
    #[arg(long, conflicts_with_all = ["socket", "tests"])]
    pub list: bool,
    /// Command that makes the socket, after --. It is started again when it has ended, so that it
    /// may end with its client. Its output goes to standard error.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
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
