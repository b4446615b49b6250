//! The command line.

mod kernel;
mod report;
mod vfio_user;

use std::ffi::OsString;
use std::num::NonZero;
use std::path::{Path, PathBuf};

pub(crate) use self::kernel::{
    Bisect, BisectStep, KernelAction, KernelBuildOptions, KernelCommand, KernelConfiguration,
};
pub(crate) use self::report::{Report, ReportFormat};
pub(crate) use self::vfio_user::{VfioUserAction, VfioUserCheck, VfioUserCommand, VfioUserTrace};
use clap::builder::RangedI64ValueParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use peerbar_lab::artifacts::Own;
use peerbar_nvme::{PollPolicy, WORKERS};
use peerbar_report::Timeout;
use peerbar_results::Shard;

use crate::completion;
use crate::cp::Cp;
use crate::exec::Exec;
use crate::fetch::Fetch;
use crate::guest_folder::GuestName;
use crate::guest_session::InGuest;
use crate::matrix::{Flow, Placement, TestedDevices};
use crate::ssh::SshConfig;
use peerbar_lab::count::count;
use peerbar_lab::debugger;
use peerbar_lab::iommu::Iommu;
use peerbar_lab::parent_death;
use peerbar_lab::runs::Runs;

/// Test PCIe peer-to-peer DMA without hardware.
#[derive(Parser)]
#[command(name = "peerbar", version, before_help = EXAMPLES, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Parses the words of this process. A mistake ends it.
    pub(crate) fn of_process() -> Self {
        let words: Vec<OsString> = std::env::args_os().collect();
        Self::try_parse_from(&words).unwrap_or_else(|error| with_tip(error, &words).exit())
    }
}

/// Returns a mistake in `words`, with a tip if it may be that the words after `exec` or `qemu` do
/// not follow `--`.
fn with_tip(mut error: clap::Error, words: &[OsString]) -> clap::Error {
    let command = words.get(1).and_then(|word| word.to_str());
    let tip = match command {
        Some("exec") => "a program and its arguments follow `--`, as in: peerbar exec -- ls -l",
        Some("qemu") => "QEMU's arguments follow `--`, as in: peerbar qemu -- -version",
        _ => return error,
    };
    let kinds = [
        ErrorKind::MissingRequiredArgument,
        ErrorKind::UnknownArgument,
    ];
    if !words.iter().any(|word| word == "--") && kinds.contains(&error.kind()) {
        let tips = ContextValue::StyledStrs(vec![tip.into()]);
        error.insert(ContextKind::Suggested, tips);
    }
    error
}

const EXAMPLES: &str = "Examples:\n  peerbar run\n  peerbar init my.toml\n  peerbar list";

const EXIT_CODES: &str = "Exit codes: 0 every check passed, 1 a check failed or was skipped, 2 wrong usage, 69 the machine lacks \
    something, 124 time limit, 255 the guest died, 128 + N ended by signal N";

/// The command.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Boot a guest with the devices of a scenario and run its checks.
    #[command(before_help = "Example: peerbar run my.toml --timeout 5m")]
    Run(Run),
    /// Open a root shell in a guest. The current folder is /host there.
    #[command(
        before_help = "Examples:\n  peerbar shell\n  peerbar shell my.toml\n  peerbar shell --attach runs/latest"
    )]
    Shell(InGuest),
    /// Run a program in a guest, in /host, which is the current folder. It has the input, output
    /// and signals of this command, which ends with the program's exit status.
    #[command(
        before_help = "Examples:\n  peerbar exec -- ./my-test {disk0:disk}\n  peerbar exec my.toml -- nvme list"
    )]
    Exec(Exec),
    /// Copy a file or a folder into a running guest, or out of it. A path in the guest begins with
    /// `guest:`.
    #[command(
        before_help = "Examples:\n  peerbar cp ./data guest:/root\n  peerbar cp guest:/root/result ."
    )]
    Cp(Cp),
    /// Print an ssh configuration with which ssh, scp, rsync and editors reach a running guest.
    #[command(
        before_help = "Example: peerbar ssh-config > ssh.config",
        after_help = "Then:\n  ssh -F ssh.config peerbar\n  scp -F ssh.config my-test peerbar:/root\n  rsync -a -e 'ssh -F ssh.config' data peerbar:/root"
    )]
    SshConfig(SshConfig),
    /// Connect ssh to a guest; used by peerbar itself.
    #[command(hide = true)]
    SshProxy {
        /// Folder of the guest's sockets.
        folder: PathBuf,
    },
    /// Explain the route of peer-to-peer DMA in a run or a scenario.
    #[command(
        before_help = "Examples:\n  peerbar explain\n  peerbar explain disk0 disk1 --run runs/latest"
    )]
    Explain(Explain),
    /// Show which PCI devices of this machine, or of one whose `lspci -vvv` somebody pasted, can
    /// reach each other by peer-to-peer DMA, why not, and what to change. Boots no guest.
    #[command(
        before_help = "Examples:\n  sudo peerbar p2p\n  peerbar p2p nvme0 gpu1\n  peerbar p2p --from lspci.txt"
    )]
    P2p(peerbar_p2p::cli::Options),
    /// Try the routes of data between two devices in every topology, IOMMU, CPU and flow, and
    /// compare them with the kernel's rule.
    #[command(before_help = "Example: peerbar matrix --quick", after_help = MATRIX_EXIT_CODES)]
    Matrix(Matrix),
    /// Show a run's DMA mappings, the reasons for failed DMA, and the sanitizer's findings.
    #[command(
        before_help = "Examples:\n  peerbar iommu\n  peerbar iommu --sanitize --device disk0"
    )]
    Iommu(Debugger),
    /// Inject faults into a device of a running guest, or impair its fabric. Without a rule, show
    /// those in force.
    #[command(
        before_help = "Examples:\n  peerbar inject disk0 drop completion write limit=1\n  peerbar inject disk0 --clear\n  peerbar inject fabric 'nic0<->nic1 partition'\n  peerbar inject disk0 --port-error surprise-down"
    )]
    Inject(Inject),
    /// Write the results of runs as JUnit, JSON or an HTML page, or join those of shards.
    #[command(
        before_help = "Examples:\n  peerbar report --as junit\n  peerbar report --merge shards --output all"
    )]
    Report(Report),
    /// Write the events of a run's devices, guest and checks as one time line, a file for Perfetto.
    #[command(
        before_help = "Examples:\n  peerbar trace\n  peerbar trace runs/latest --output my.pftrace"
    )]
    Trace(Trace),
    /// Look into the vfio-user protocol between any client and any server.
    #[command(before_help = "Example: peerbar vfio-user trace nvme.sock")]
    VfioUser(VfioUserCommand),
    /// Build a kernel for peerbar.
    #[command(before_help = "Example: peerbar kernel build --tree linux")]
    Kernel(KernelCommand),
    /// Find the commit of a kernel tree with which a scenario began to fail.
    #[command(before_help = "Example: peerbar bisect v7.2 v7.3 --tree linux -- my.toml")]
    Bisect(Bisect),
    /// Judge one commit for git bisect; used by peerbar itself.
    #[command(hide = true)]
    BisectStep(BisectStep),
    /// Read scenarios and report every mistake in them, without a guest. Ends with exit code 1 if
    /// there is one.
    #[command(before_help = "Examples:\n  peerbar check my.toml\n  peerbar check scenarios/*.toml")]
    Check {
        /// Scenario files, or names of shipped scenarios.
        #[arg(required = true, value_name = "FILE", add = completion::scenarios())]
        files: Vec<PathBuf>,
    },
    /// List the scenarios and the kinds of checks, or explain one of them.
    #[command(before_help = "Examples:\n  peerbar list\n  peerbar list copy\n  peerbar list demo")]
    List(List),
    /// Serve the devices of a scenario to your own QEMU or libvirt domains, one after another.
    Devices(Devices),
    /// Run peerbar's own QEMU, for a machine whose QEMU is older than 10.1.1. Ends with QEMU's exit
    /// status.
    #[command(
        before_help = "Examples:\n  peerbar qemu -- -version\n  xargs -a lab/qemu.args peerbar qemu -- -nographic"
    )]
    Qemu {
        /// QEMU's arguments.
        #[arg(last = true, value_name = "ARG")]
        arguments: Vec<OsString>,
    },
    /// Check if this machine can run a scenario, with a remedy for each problem.
    Doctor(Doctor),
    /// Download everything that scenarios need from the network, before they run.
    Fetch(Fetch),
    /// List and prune the cache of QEMU, kernels and images.
    #[command(subcommand, before_help = "Example: peerbar cache list")]
    Cache(CacheCommand),
    /// Write a scenario to start with, which has every key with a comment, or the twin of a real
    /// machine.
    #[command(before_help = "Example: peerbar init my.toml")]
    Init(Init),
    /// Print the completion script for a shell.
    #[command(
        before_help = "Example: peerbar completions bash > ~/.local/share/bash-completion/completions/peerbar"
    )]
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write the man pages, one for each command.
    #[command(before_help = "Example: peerbar man ~/.local/share/man/man1")]
    Man {
        /// Folder for the pages, which is created if necessary.
        folder: PathBuf,
    },
    /// Become a program that dies with its parent; used by peerbar itself.
    #[command(name = parent_death::NAME, hide = true)]
    DieWithParent {
        /// Give it no new privileges, and only its standard streams.
        #[arg(long)]
        confined: bool,
        /// Let it write only these files and folders, and devices.
        #[arg(long, value_name = "PATH")]
        writable: Vec<PathBuf>,
        /// Process id of the parent.
        parent: i32,
        /// The program and its arguments.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
}

/// Boot a guest with the devices of a scenario and run its checks.
#[derive(Args)]
pub(crate) struct Run {
    /// Scenario files, run one after the other unless --jobs is given [default: the built-in demo].
    #[arg(value_name = "SCENARIO", add = completion::scenarios())]
    pub scenarios: Vec<PathBuf>,
    /// Number of simultaneous runs. The output of each is in its folder, as `run.log`.
    #[arg(short, long, value_name = "N", default_value = "1", value_parser = count::<NonZero<usize>>, conflicts_with_all = ["keep", "gdb", "dry_run", "name"])]
    pub jobs: NonZero<usize>,
    /// Print the command lines of the servers and of QEMU, and start nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Keep the guest running after a failed check, and print how to enter it.
    #[arg(long, conflicts_with_all = ["dry_run"])]
    pub keep: bool,
    /// Show the guest's console, its report and the output of commands as they come. (RUST_LOG sets
    /// the servers' log level.)
    #[arg(short, long)]
    pub verbose: bool,
    /// Name of a check to run, as in the results; repeat it for more [default: all].
    #[arg(long = "check", value_name = "NAME", add = completion::checks())]
    pub checks: Vec<String>,
    /// Record every command and DMA, and trace the guest's kernel, for `peerbar trace`. This takes
    /// time.
    #[arg(long)]
    pub trace: bool,
    /// Time limit for the guest, as `90s` or `2m` [default: the scenario's].
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<Timeout>,
    /// Threads that share the I/O queues of each disk, 1 to 64 [default: the scenario's].
    #[arg(long, value_name = "NUMBER", value_parser = workers())]
    pub workers: Option<u8>,
    /// Polling by those threads: `never`, `adaptive` (for a time) or `always` [default: the
    /// scenario's].
    #[arg(long, value_name = "MODE")]
    pub poll: Option<PollPolicy>,
    /// Run everything N times.
    #[arg(long, value_name = "N", value_parser = count::<NonZero<u32>>, conflicts_with = "name")]
    pub repeat: Option<NonZero<u32>>,
    /// Repeat until a run fails, without a limit unless --repeat is given.
    #[arg(long, conflicts_with = "name")]
    pub until_fail: bool,
    /// Run only part M of N of the scenarios, as `2/5`; `peerbar report --merge` joins the parts.
    #[arg(long, value_name = "M/N")]
    pub shard: Option<Shard>,
    /// Halt the guest for a debugger on this port, without time limits, and print the debugger's
    /// command line.
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true, default_missing_value = debugger::PORT)]
    pub gdb: Option<u16>,
    /// The folder of the run.
    #[command(flatten)]
    pub runs: Runs,
    /// The user's own QEMU, kernel and the like.
    #[command(flatten)]
    pub own: Own,
}

/// Serve the devices of a scenario to your own QEMU. Prints QEMU's arguments, and until Ctrl-C the
/// clients, failed DMA with its reason, and the bytes of each route.
#[derive(Args)]
#[command(
    before_help = "Examples:\n  peerbar devices two-disks.toml\n  peerbar devices --libvirt --sockets /run/peerbar"
)]
pub(crate) struct Devices {
    /// Scenario file [default: the built-in demo].
    #[arg(add = completion::scenarios())]
    pub scenario: Option<PathBuf>,
    /// The guest of that scenario.
    #[command(flatten)]
    pub guest: GuestName,
    /// Print a domain for libvirt instead of QEMU's arguments.
    #[arg(long, conflicts_with = "json")]
    pub libvirt: bool,
    /// Folder for the sockets, whose paths then do not change between starts [default: a new one].
    #[arg(long, value_name = "DIR")]
    pub sockets: Option<PathBuf>,
    /// Threads that share the I/O queues of each disk, 1 to 64 [default: the scenario's].
    #[arg(long, value_name = "NUMBER", value_parser = workers())]
    pub workers: Option<u8>,
    /// Polling by those threads: `never`, `adaptive` or `always` [default: the scenario's].
    #[arg(long, value_name = "MODE")]
    pub poll: Option<PollPolicy>,
    /// Print a line of JSON with sockets and arguments, and then one for each event.
    #[arg(long)]
    pub json: bool,
    /// The folder of the run.
    #[command(flatten)]
    pub runs: Runs,
}

/// Check if this machine can run a scenario: programs, QEMU, KVM, kernel, processor, memory, disk,
/// limits. Each failed probe prints a remedy. Ends with exit code 1 if one fails.
#[derive(Args)]
#[command(
    before_help = "Examples:\n  peerbar doctor\n  peerbar doctor scenarios/gpu.toml --json\n  peerbar doctor --device /run/my-server/socket"
)]
pub(crate) struct Doctor {
    /// Scenario file [default: the built-in demo].
    #[arg(add = completion::scenarios())]
    pub scenario: Option<PathBuf>,
    /// Check instead if the vfio-user server that listens at this socket can be a device of a scenario.
    ///
    /// It connects as a client, reads the device's configuration space, and disconnects, which many
    /// servers take for a reset of the device.
    #[arg(long, value_name = "SOCKET", conflicts_with_all = ["scenario", "guest"])]
    pub device: Option<PathBuf>,
    /// The guest of that scenario.
    #[command(flatten)]
    pub guest: GuestName,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// The user's own QEMU, kernel and the like.
    #[command(flatten)]
    pub own: Own,
}

/// The command of the cache.
#[derive(Subcommand)]
pub(crate) enum CacheCommand {
    /// List the entries: kind, size on disk, last use.
    #[command(before_help = "Example: peerbar cache list")]
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Remove entries that the present programs do not use and can rebuild in seconds, and roots,
    /// packages and built kernels that were not used for 30 days. Entries in use always stay.
    Prune(Prune),
}

/// Remove entries of the cache.
#[derive(Args)]
#[command(
    before_help = "Examples:\n  peerbar cache prune --dry-run\n  peerbar cache prune --older-than 7days"
)]
pub(crate) struct Prune {
    /// Remove entries that were not used for this time instead, as `12h` or `7days`.
    #[arg(long, value_name = "TIME")]
    pub older_than: Option<humantime::Duration>,
    /// Remove everything; the next run downloads it again.
    #[arg(long, conflicts_with = "older_than")]
    pub all: bool,
    /// Only print the entries that would be removed.
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Write the events of a run's devices, guest and checks as one time line, a file for Perfetto.
#[derive(Args)]
pub(crate) struct Trace {
    /// The run.
    #[command(flatten)]
    pub run: RunFolder,
    /// The guest of the run.
    #[command(flatten)]
    pub guest: GuestName,
    /// File to write [default: trace.pftrace in the run's folder].
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Print a summary of its contents as JSON.
    #[arg(long)]
    pub json: bool,
}

/// List the scenarios and the kinds of checks, or explain one of them.
#[derive(Args)]
pub(crate) struct List {
    /// A kind of check, to explain it with its keys, or a scenario [default: all, without keys].
    #[arg(add = completion::listed())]
    pub name: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Parses a number of workers that a controller may have.
fn workers() -> RangedI64ValueParser<u8> {
    let (least, most) = (*WORKERS.start(), *WORKERS.end());
    RangedI64ValueParser::new().range(i64::from(least)..=i64::from(most))
}

/// The scenario to write.
#[derive(Args)]
pub(crate) struct Init {
    /// File to write [default: scenario.toml, or twin.toml with --like].
    pub(crate) file: Option<PathBuf>,
    /// Overwrite an existing file.
    #[arg(long)]
    pub(crate) force: bool,
    /// Imitate a real machine: the one of a file that `peerbar p2p --from` takes, or `here` for this
    /// one. A check for each pair of devices makes the guest's kernel decide as on the machine.
    #[arg(long, value_name = "FILE|here")]
    pub(crate) like: Option<PathBuf>,
    /// Imitate only these devices, by the names or addresses of `peerbar p2p`, with commas between
    /// them.
    #[arg(long, value_name = "DEVICE", value_delimiter = ',', requires = "like")]
    pub(crate) only: Vec<String>,
}

/// Explain the route of peer-to-peer DMA. Ends with exit code 1 if the guest's kernel did not
/// follow its rule.
#[derive(Args)]
pub(crate) struct Explain {
    /// Provider, the device that owns the memory [default: those of the last failed check between devices, or all].
    #[arg(add = completion::devices())]
    pub provider: Option<String>,
    /// Client, the device that issues the DMA [default: all].
    #[arg(add = completion::devices())]
    pub client: Option<String>,
    /// Folder of the run to explain.
    #[arg(long, value_name = "FOLDER", default_value = "runs/latest")]
    pub run: PathBuf,
    /// The guest of the run. Without it, all guests are explained.
    #[command(flatten)]
    pub guest: GuestName,
    /// Explain a scenario instead, without a run.
    #[arg(long, value_name = "FILE", conflicts_with = "run", add = completion::scenarios())]
    pub scenario: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

const MATRIX_EXIT_CODES: &str = "Exit codes: 0 every cell agrees with the rule, 1 one does not, or has success with wrong \
    data; with --device qemu-nvme 0 if every cell was tried, regardless of the results. Others as for `peerbar run`";

/// Run the matrix, all of it unless there are filters.
#[derive(Args)]
pub(crate) struct Matrix {
    /// IOMMUs, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub iommu: Vec<Iommu>,
    /// CPU models as in QEMU's -cpu, separated by commas [default: EPYC,Haswell].
    #[arg(long, value_name = "MODEL", value_delimiter = ',')]
    pub cpu: Vec<String>,
    /// Topologies, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub topology: Vec<Placement>,
    /// Flows, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub flow: Vec<Flow>,
    /// Try only EPYC without an IOMMU and with Intel's, and Haswell without.
    #[arg(long, conflicts_with_all = ["iommu", "cpu"])]
    pub quick: bool,
    /// Devices to try.
    #[arg(long, value_enum, default_value_t = TestedDevices::Peerbar)]
    pub device: TestedDevices,
    /// Print the matrix as JSON.
    #[arg(long)]
    pub json: bool,
    /// Boot only part M of N of the matrix, as `2/5`; `peerbar report --merge` joins the parts.
    #[arg(long, value_name = "M/N")]
    pub shard: Option<Shard>,
    /// Number of simultaneous boots [default: one for each processor of the host].
    #[arg(short, long, value_name = "N", value_parser = count::<NonZero<usize>>)]
    pub jobs: Option<NonZero<usize>>,
    /// The folder of the run.
    #[command(flatten)]
    pub runs: Runs,
    /// The user's own QEMU, kernel and the like.
    #[command(flatten)]
    pub own: Own,
}

/// Inject faults into a device of a running guest, or impair its fabric.
#[derive(Args)]
pub(crate) struct Inject {
    /// Name of the device, or `fabric`.
    #[arg(add = completion::devices())]
    pub device: String,
    /// The rule, such as `fail dma write nth=3`: ACTION SUBJECT, then words and KEY=VALUE. For a
    /// fabric, such as `nic0->nic1 loss=1%`. Without a rule, those in force are shown.
    #[arg(value_name = "RULE")]
    pub words: Vec<String>,
    /// Make the port above the device report a PCIe error to the guest, such as `surprise-down` or
    /// `bad-tlp`.
    #[arg(long, value_name = "ERROR", conflicts_with_all = ["words", "clear"])]
    pub port_error: Option<String>,
    /// Remove all rules of the device, or of the fabric.
    #[arg(long, conflicts_with = "words")]
    pub clear: bool,
    /// Folder of the run, whose guest must still be running.
    #[arg(long, value_name = "RUN", default_value = "runs/latest")]
    pub run: PathBuf,
    /// The guest of the run.
    #[command(flatten)]
    pub guest: GuestName,
}

/// The folder of a run, which other commands take as `--run`.
#[derive(Args)]
pub(crate) struct RunFolder {
    /// Folder of a run, finished or not [default: runs/latest].
    #[arg(value_name = "RUN", conflicts_with = "named")]
    run: Option<PathBuf>,
    /// The same as RUN.
    #[arg(id = "named", long = "run", value_name = "RUN")]
    named: Option<PathBuf>,
}

impl RunFolder {
    /// Returns the selected folder.
    pub(crate) fn path(&self) -> &Path {
        let given = self.run.as_deref().or(self.named.as_deref());
        given.unwrap_or(Path::new("runs/latest"))
    }
}

/// Show a run's DMA mappings, the reasons for failed DMA, and the sanitizer's findings.
#[derive(Args)]
pub(crate) struct Debugger {
    /// The run.
    #[command(flatten)]
    pub run: RunFolder,
    /// The guest of the run.
    #[command(flatten)]
    pub guest: GuestName,
    /// Show only this device.
    #[arg(long, value_name = "NAME", add = completion::devices())]
    pub device: Option<String>,
    /// Show every mapping and fault, not only the first few.
    #[arg(long)]
    pub all: bool,
    /// Show every record in one line, in the order of time.
    #[arg(long, conflicts_with_all = ["json", "follow", "sanitize"])]
    pub history: bool,
    /// Show every further record until the devices end.
    #[arg(long, conflicts_with_all = ["json", "sanitize"])]
    pub follow: bool,
    /// Show DMA and mappings that no device or driver should have made. Ends with exit code 1 if
    /// there are any, or if some could not be checked.
    #[arg(long)]
    pub sanitize: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_folder_is_named_with_its_option_or_without() {
        let folder = |words: &[&str]| match Cli::try_parse_from(words).map(|cli| cli.command) {
            Ok(Command::Iommu(options)) => Ok(options.run.path().to_owned()),
            Ok(_) => panic!("another command"),
            Err(error) => Err(error.kind()),
        };
        assert_eq!(folder(&["peerbar", "iommu"]), Ok("runs/latest".into()));
        assert_eq!(folder(&["peerbar", "iommu", "a"]), Ok("a".into()));
        assert_eq!(folder(&["peerbar", "iommu", "--run", "a"]), Ok("a".into()));
        let both = folder(&["peerbar", "iommu", "a", "--run", "b"]);
        assert_eq!(both, Err(ErrorKind::ArgumentConflict));
    }

    #[test]
    fn words_that_do_not_follow_two_dashes_get_a_tip() {
        let message = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(Into::into).collect();
            let error = Cli::try_parse_from(&words).err().unwrap();
            with_tip(error, &words).to_string()
        };
        let tip = "tip: a program and its arguments follow `--`";
        for words in [&["ls"][..], &["ls", "-l"], &["my.toml", "fio", "x"], &[]] {
            let message = message(&[&["peerbar", "exec"], words].concat());
            assert!(message.contains(tip), "{message}");
        }
        let qemu = message(&["peerbar", "qemu", "-version"]);
        let tip_of_qemu = "QEMU's arguments follow `--`";
        assert!(qemu.contains(tip_of_qemu), "{qemu}");
        let other = message(&["peerbar", "exec", "--share-it", "--", "ls"]);
        assert!(!other.contains(tip), "{other}");
    }
}
