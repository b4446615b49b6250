//! The command line.

mod kernel;
mod report;

use std::ffi::OsString;
use std::num::NonZero;
use std::path::{Path, PathBuf};

pub(crate) use self::kernel::{
    Bisect, BisectStep, KernelAction, KernelBuildOptions, KernelCommand, KernelConfiguration,
};
pub(crate) use self::report::{Report, ReportFormat};
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

/// Tests PCIe peer-to-peer DMA without hardware.
#[derive(Parser)]
#[command(name = "peerbar", version, before_help = EXAMPLES, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    /// What to do.
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

/// What to do.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Boots a guest with the devices of a scenario and runs its checks.
    #[command(before_help = "Example: peerbar run my.toml --timeout 5m")]
    Run(Run),
    /// Opens a root shell in a guest. The current folder is /host there.
    #[command(
        before_help = "Examples:\n  peerbar shell\n  peerbar shell my.toml\n  peerbar shell --attach runs/latest"
    )]
    Shell(InGuest),
    /// Runs a program in a guest, with the input, output and signals of this command, which ends with the program's exit status. It
    /// starts in /host, which is the current folder.
    #[command(
        before_help = "Examples:\n  peerbar exec -- ./my-test {disk0:disk}\n  peerbar exec my.toml -- nvme list"
    )]
    Exec(Exec),
    /// Copies a file or a folder into a running guest, or out of it. A path of the guest begins with `guest:`.
    #[command(
        before_help = "Examples:\n  peerbar cp ./data guest:/root\n  peerbar cp guest:/root/result ."
    )]
    Cp(Cp),
    /// Prints how ssh, scp, rsync and editors reach a running guest, as a stanza of ssh's configuration.
    #[command(
        before_help = "Example: peerbar ssh-config > ssh.config",
        after_help = "Then:\n  ssh -F ssh.config peerbar\n  scp -F ssh.config my-test peerbar:/root\n  rsync -a -e 'ssh -F ssh.config' data peerbar:/root"
    )]
    SshConfig(SshConfig),
    /// Connects ssh with a guest; used by peerbar itself.
    #[command(hide = true)]
    SshProxy {
        /// Folder of the guest's sockets.
        folder: PathBuf,
    },
    /// Says which route peer-to-peer DMA takes in a run or a scenario, and why.
    #[command(
        before_help = "Examples:\n  peerbar explain\n  peerbar explain disk0 disk1 --run runs/latest"
    )]
    Explain(Explain),
    /// Tries which route data takes between two devices: every topology, IOMMU, CPU and flow, beside what the kernel's rule
    /// says.
    #[command(before_help = "Example: peerbar matrix --quick", after_help = MATRIX_EXIT_CODES)]
    Matrix(Matrix),
    /// Shows a run's DMA mappings, why its DMA failed, and what is wrong with it.
    #[command(
        before_help = "Examples:\n  peerbar iommu\n  peerbar iommu --sanitize --device disk0"
    )]
    Iommu(Debugger),
    /// Injects faults into a device of a running guest, or impairs its fabric; without a rule, shows those in force.
    #[command(
        before_help = "Examples:\n  peerbar inject disk0 drop completion write limit=1\n  peerbar inject disk0 --clear\n  peerbar inject fabric 'nic0<->nic1 partition'\n  peerbar inject disk0 --port-error surprise-down"
    )]
    Inject(Inject),
    /// Writes the results of runs as JUnit, JSON or a page to read, or joins those of shards.
    #[command(
        before_help = "Examples:\n  peerbar report --as junit\n  peerbar report --merge shards --output all"
    )]
    Report(Report),
    /// Writes what devices, guest and checks of a run did as one time line, a file for Perfetto.
    #[command(
        before_help = "Examples:\n  peerbar trace\n  peerbar trace runs/latest --output my.pftrace"
    )]
    Trace(Trace),
    /// Builds a kernel for peerbar.
    #[command(before_help = "Example: peerbar kernel build --tree linux")]
    Kernel(KernelCommand),
    /// Finds the commit of a kernel tree with which a scenario began to fail.
    #[command(before_help = "Example: peerbar bisect v7.2 v7.3 --tree linux -- my.toml")]
    Bisect(Bisect),
    /// Judges one commit for git bisect; used by peerbar itself.
    #[command(hide = true)]
    BisectStep(BisectStep),
    /// Reads scenarios and reports every mistake in them, without a guest. Ends with exit code 1 if there is one.
    #[command(before_help = "Examples:\n  peerbar check my.toml\n  peerbar check scenarios/*.toml")]
    Check {
        /// Scenario files, or names of shipped scenarios.
        #[arg(required = true, value_name = "FILE", add = completion::scenarios())]
        files: Vec<PathBuf>,
    },
    /// Lists the scenarios and the kinds of checks, or explains one of them.
    #[command(before_help = "Examples:\n  peerbar list\n  peerbar list copy\n  peerbar list demo")]
    List(List),
    /// Serves the devices of a scenario to a QEMU or a libvirt domain of your own, one after another.
    Devices(Devices),
    /// Runs peerbar's own QEMU, for a machine whose QEMU is older than 10.1.1. It is fetched if the cache lacks it. Ends with QEMU's exit status.
    #[command(
        before_help = "Examples:\n  peerbar qemu -- -version\n  xargs -a lab/qemu.args peerbar qemu -- -nographic"
    )]
    Qemu {
        /// QEMU's arguments.
        #[arg(last = true, value_name = "ARG")]
        arguments: Vec<OsString>,
    },
    /// Checks whether this machine runs a scenario, and says what to do where it does not.
    Doctor(Doctor),
    /// Gets all that scenarios need from the network, before their runs need it.
    Fetch(Fetch),
    /// Lists and prunes the cache of QEMU, kernels and images.
    #[command(subcommand, before_help = "Example: peerbar cache list")]
    Cache(CacheCommand),
    /// Writes a scenario to begin with, which has every key and a comment on it.
    #[command(before_help = "Example: peerbar init my.toml")]
    Init {
        /// File that is written.
        #[arg(default_value = "scenario.toml")]
        file: PathBuf,
        /// Write over a file that is there.
        #[arg(long)]
        force: bool,
    },
    /// Prints the completion script for a shell.
    #[command(
        before_help = "Example: peerbar completions bash > ~/.local/share/bash-completion/completions/peerbar"
    )]
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Writes the man pages, one for each command.
    #[command(before_help = "Example: peerbar man ~/.local/share/man/man1")]
    Man {
        /// Folder that gets them. It is made if it is not there.
        folder: PathBuf,
    },
    /// Becomes a program that dies with its parent; used by peerbar itself.
    #[command(name = parent_death::NAME, hide = true)]
    DieWithParent {
        /// It gains no privileges and inherits its standard streams only.
        #[arg(long)]
        confined: bool,
        /// The parent's process.
        parent: i32,
        /// The program and its arguments.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
}

/// Boots a guest with the devices of a scenario and runs its checks.
#[derive(Args)]
pub(crate) struct Run {
    /// Scenario files, which run one after the other unless --jobs says otherwise [default: the built-in demo].
    #[arg(value_name = "SCENARIO", add = completion::scenarios())]
    pub scenarios: Vec<PathBuf>,
    /// Runs at once. What each prints is in its folder, as `run.log`.
    #[arg(short, long, value_name = "N", default_value = "1", value_parser = count::<NonZero<usize>>, conflicts_with_all = ["keep", "gdb", "dry_run", "name"])]
    pub jobs: NonZero<usize>,
    /// Print the command lines of the servers and of QEMU, to read or to change, and start nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Keep the guest running after a failed check, and say how to enter it.
    #[arg(long, conflicts_with_all = ["dry_run"])]
    pub keep: bool,
    /// Show the guest's console and report, and what commands print, as they come. (RUST_LOG sets what the servers log.)
    #[arg(short, long)]
    pub verbose: bool,
    /// A check to run, by its name in the results; repeat it for more [default: all].
    #[arg(long = "check", value_name = "NAME", add = completion::checks())]
    pub checks: Vec<String>,
    /// Record every command and DMA, and trace the guest's kernel, for `peerbar trace`. That takes time.
    #[arg(long)]
    pub trace: bool,
    /// Time limit for the guest, as `90s` or `2m` [default: the scenario's].
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<Timeout>,
    /// Threads that share the I/O queues of each disk, 1 to 64 [default: the scenario's].
    #[arg(long, value_name = "NUMBER", value_parser = workers())]
    pub workers: Option<u8>,
    /// How those threads wait for commands: `never` polls not at all, `adaptive` for a time, `always` indefinitely [default: the
    /// scenario's].
    #[arg(long, value_name = "MODE")]
    pub poll: Option<PollPolicy>,
    /// Run all of it N times.
    #[arg(long, value_name = "N", value_parser = count::<NonZero<u32>>, conflicts_with = "name")]
    pub repeat: Option<NonZero<u32>>,
    /// Repeat until a run fails, without end unless --repeat limits it.
    #[arg(long, conflicts_with = "name")]
    pub until_fail: bool,
    /// Run only part M of N of the scenarios, as `2/5`; `peerbar report --merge` joins the parts.
    #[arg(long, value_name = "M/N")]
    pub shard: Option<Shard>,
    /// Halt the guest for a debugger on this port, without time limits, and print the line to type.
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true, default_missing_value = debugger::PORT)]
    pub gdb: Option<u16>,
    /// Where the folder of the run is.
    #[command(flatten)]
    pub runs: Runs,
    /// The user's own pieces.
    #[command(flatten)]
    pub own: Own,
}

/// Serves the devices of a scenario to a QEMU of your own: prints what that must be given, stays until Ctrl-C, and prints who
/// connects, which DMA fails and why, and how many bytes went which way.
#[derive(Args)]
#[command(
    before_help = "Examples:\n  peerbar devices two-disks.toml\n  peerbar devices --libvirt --sockets /run/peerbar"
)]
pub(crate) struct Devices {
    /// Scenario file [default: the built-in demo].
    #[arg(add = completion::scenarios())]
    pub scenario: Option<PathBuf>,
    /// Which guest of that scenario.
    #[command(flatten)]
    pub guest: GuestName,
    /// Print a domain for libvirt, not QEMU's arguments.
    #[arg(long, conflicts_with = "json")]
    pub libvirt: bool,
    /// Folder for the sockets, which keep their paths from start to start [default: a new one].
    #[arg(long, value_name = "DIR")]
    pub sockets: Option<PathBuf>,
    /// Threads that share the I/O queues of each disk, 1 to 64 [default: the scenario's].
    #[arg(long, value_name = "NUMBER", value_parser = workers())]
    pub workers: Option<u8>,
    /// How those threads wait for commands: `never`, `adaptive` or `always` poll [default: the scenario's].
    #[arg(long, value_name = "MODE")]
    pub poll: Option<PollPolicy>,
    /// Print a line of JSON that describes sockets and arguments, then one for each event.
    #[arg(long)]
    pub json: bool,
    /// Where the folder of the run is.
    #[command(flatten)]
    pub runs: Runs,
}

/// Checks whether this machine runs a scenario: programs, QEMU, KVM, kernel, processor, memory, disk, limits. Ends with exit code 1
/// if a probe fails; its line ends with a way to mend that.
#[derive(Args)]
#[command(before_help = "Examples:\n  peerbar doctor\n  peerbar doctor scenarios/gpu.toml --json")]
pub(crate) struct Doctor {
    /// Scenario file [default: the built-in demo].
    #[arg(add = completion::scenarios())]
    pub scenario: Option<PathBuf>,
    /// Which guest of that scenario.
    #[command(flatten)]
    pub guest: GuestName,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// The user's own pieces.
    #[command(flatten)]
    pub own: Own,
}

/// What to do with the cache.
#[derive(Subcommand)]
pub(crate) enum CacheCommand {
    /// Lists what the cache holds: kind, size on disk, last use.
    #[command(before_help = "Example: peerbar cache list")]
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Removes what the present programs have not used and rebuild in seconds, and roots, packages and built kernels that were not
    /// used for 30 days. What a run uses now always stays.
    Prune(Prune),
}

/// Removes entries of the cache.
#[derive(Args)]
#[command(
    before_help = "Examples:\n  peerbar cache prune --dry-run\n  peerbar cache prune --older-than 7days"
)]
pub(crate) struct Prune {
    /// Remove what was not used for this time instead, as `12h` or `7days`.
    #[arg(long, value_name = "TIME")]
    pub older_than: Option<humantime::Duration>,
    /// Remove everything; the next run fetches it again.
    #[arg(long, conflicts_with = "older_than")]
    pub all: bool,
    /// Only say what would be removed.
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Writes what devices, guest and checks of a run did as one time line, a file for Perfetto.
#[derive(Args)]
pub(crate) struct Trace {
    /// Which run.
    #[command(flatten)]
    pub run: RunFolder,
    /// Which guest of it.
    #[command(flatten)]
    pub guest: GuestName,
    /// File that is written [default: trace.pftrace in the run's folder].
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Print what it has as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Lists the scenarios and the kinds of checks, or explains one of them.
#[derive(Args)]
pub(crate) struct List {
    /// A kind of check, which is explained with its keys, or a scenario [default: all, without keys].
    #[arg(add = completion::listed())]
    pub name: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Takes as many workers as a controller does.
fn workers() -> RangedI64ValueParser<u8> {
    let (least, most) = (*WORKERS.start(), *WORKERS.end());
    RangedI64ValueParser::new().range(i64::from(least)..=i64::from(most))
}

/// Says which route peer-to-peer DMA takes, and why. Ends with exit code 1 if the guest's kernel did not do what its rule says.
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
    /// Which guest of it; without it all of several are explained.
    #[command(flatten)]
    pub guest: GuestName,
    /// Explain what would happen in a scenario, and run nothing.
    #[arg(long, value_name = "FILE", conflicts_with = "run", add = completion::scenarios())]
    pub scenario: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

const MATRIX_EXIT_CODES: &str = "Exit codes: 0 every cell agrees with the rule, 1 one does not, or has success with wrong \
    data; with --device qemu-nvme 0 if every cell was tried, whatever it shows. Others as of `peerbar run`";

/// Fills the matrix. Without filters that is all of it.
#[derive(Args)]
pub(crate) struct Matrix {
    /// IOMMUs, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub iommu: Vec<Iommu>,
    /// CPU models as for QEMU's -cpu, separated by commas [default: EPYC,Haswell].
    #[arg(long, value_name = "MODEL", value_delimiter = ',')]
    pub cpu: Vec<String>,
    /// Topologies, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub topology: Vec<Placement>,
    /// Flows, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub flow: Vec<Flow>,
    /// EPYC without an IOMMU and with Intel's, Haswell without, and no others.
    #[arg(long, conflicts_with_all = ["iommu", "cpu"])]
    pub quick: bool,
    /// Devices that are tried.
    #[arg(long, value_enum, default_value_t = TestedDevices::Peerbar)]
    pub device: TestedDevices,
    /// Print the matrix as JSON.
    #[arg(long)]
    pub json: bool,
    /// Boot only part M of N of the matrix, as `2/5`; `peerbar report --merge` joins the parts.
    #[arg(long, value_name = "M/N")]
    pub shard: Option<Shard>,
    /// Boots at once [default: one for each processor of the host].
    #[arg(short, long, value_name = "N", value_parser = count::<NonZero<usize>>)]
    pub jobs: Option<NonZero<usize>>,
    /// Where the folder of the run is.
    #[command(flatten)]
    pub runs: Runs,
    /// The user's own pieces.
    #[command(flatten)]
    pub own: Own,
}

/// Injects faults into a device of a running guest, or impairs its fabric.
#[derive(Args)]
pub(crate) struct Inject {
    /// Name of the device, or `fabric`.
    #[arg(add = completion::devices())]
    pub device: String,
    /// The rule, as in `fail dma write nth=3`: ACTION SUBJECT, then words and KEY=VALUE. One of the fabric is as `nic0->nic1 loss=1%`. Without one the rules in force are shown.
    #[arg(value_name = "RULE")]
    pub words: Vec<String>,
    /// Have the port above the device report a PCIe error to the guest, as `surprise-down` or `bad-tlp`.
    #[arg(long, value_name = "ERROR", conflicts_with_all = ["words", "clear"])]
    pub port_error: Option<String>,
    /// Remove all rules of the device, or of the fabric.
    #[arg(long, conflicts_with = "words")]
    pub clear: bool,
    /// Folder of the run, whose guest must still be running.
    #[arg(long, value_name = "RUN", default_value = "runs/latest")]
    pub run: PathBuf,
    /// Which guest of it.
    #[command(flatten)]
    pub guest: GuestName,
}

/// The folder of a run, which other commands take as `--run`.
#[derive(Args)]
pub(crate) struct RunFolder {
    /// Folder of a run, over or not [default: runs/latest].
    #[arg(value_name = "RUN", conflicts_with = "named")]
    run: Option<PathBuf>,
    /// The same as RUN.
    #[arg(id = "named", long = "run", value_name = "RUN")]
    named: Option<PathBuf>,
}

impl RunFolder {
    /// The folder that is meant.
    pub(crate) fn path(&self) -> &Path {
        let given = self.run.as_deref().or(self.named.as_deref());
        given.unwrap_or(Path::new("runs/latest"))
    }
}

/// Shows a run's DMA mappings, why its DMA failed, and what is wrong with it.
#[derive(Args)]
pub(crate) struct Debugger {
    /// Which run.
    #[command(flatten)]
    pub run: RunFolder,
    /// Which guest of it.
    #[command(flatten)]
    pub guest: GuestName,
    /// Only this device.
    #[arg(long, value_name = "NAME", add = completion::devices())]
    pub device: Option<String>,
    /// Every mapping and fault, not the first few.
    #[arg(long)]
    pub all: bool,
    /// Every record in a line, in the order of time.
    #[arg(long, conflicts_with_all = ["json", "follow", "sanitize"])]
    pub history: bool,
    /// Every record from now on, until the devices end.
    #[arg(long, conflicts_with_all = ["json", "sanitize"])]
    pub follow: bool,
    /// DMA and mappings that no device or driver should have made; exit code 1 if there are any, or if not all could be judged.
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
