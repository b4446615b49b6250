//! How many instructions a transfer takes in the server, counted by callgrind: unlike time, that hardly differs from run to
//! run, whatever else the machine does.
//!
//! A server is run twice, for some reads and for more of them. What the second run took beyond the first is the reads',
//! without any part of start and end. The server's workers do not poll, unless it is told to: how often a worker looks in
//! vain is a matter of time, and would be counted, too.

mod profile;

use std::ffi::OsString;
use std::path::Path;

use tempfile::TempDir;

use self::profile::Profile;
use crate::figure::Figure;
use crate::setup::{Session, Setup};
use crate::{Error, Options, Progress, Report};

/// What the disk holds; filling it takes time under callgrind.
const DISK_BYTES: u64 = 2 << 20;
/// Functions that are shown.
const TOP: usize = 12;

/// A kind of reads.
struct Case {
    name: &'static str,
    bytes: usize,
    depth: u16,
    pieces: Option<usize>,
}

const CASES: [Case; 4] = [
    Case {
        name: "read-4k/depth-1",
        bytes: 4 << 10,
        depth: 1,
        pieces: None,
    },
    Case {
        name: "read-4k/depth-32",
        bytes: 4 << 10,
        depth: 32,
        pieces: None,
    },
    Case {
        name: "read-4k/depth-32/4096-mappings",
        bytes: 4 << 10,
        depth: 32,
        pieces: Some(4096),
    },
    Case {
        name: "read-128k/depth-8",
        bytes: 128 << 10,
        depth: 8,
        pieces: None,
    },
];

/// Counts, and adds to `report` what each read takes, and to its settings where; `progress` gets each step, and may end it.
///
/// # Errors
/// If valgrind is not there, or the server does not do what it should.
pub(crate) fn measure(
    options: &Options,
    report: &mut Report,
    progress: &mut Progress<'_>,
) -> Result<(), Error> {
    let reads = if options.quick { 500 } else { 4000 };
    for case in CASES {
        let name = format!("instructions/{}", case.name);
        if !name.contains(&options.only) {
            continue;
        }
        progress(&name)?;
        let some = profile(&case, options, reads)?;
        let more = profile(&case, options, 2 * reads)?;
        let each = more.beyond(&some, reads);
        let copying = each.of(is_copy);
        let beside = "instructions that copy memory";
        let pair = [(each.total(), copying)];
        report.settings.insert(name.clone(), each.top(TOP));
        report
            .figures
            .push(Figure::of_rounds(name, "Ir", false, beside, &pair));
    }
    Ok(())
}

/// The names that libraries give to copying.
fn is_copy(function: &str) -> bool {
    ["memcpy", "memmove", "copy_nonoverlapping"]
        .iter()
        .any(|name| function.contains(name))
}

fn profile(case: &Case, options: &Options, reads: u64) -> Result<Profile, Error> {
    let folder = TempDir::new().map_err(Error::system("create a folder for a profile"))?;
    let file = folder.path().join("profile");
    let words = words(options);
    let under = [&options.under[..], &callgrind(&file)].concat();
    let mut session = Session::start(&Setup {
        under: &under,
        program: &options.server,
        options: &words,
        backend: "ram",
        devices: 1,
        namespaces: 1,
        namespace_bytes: DISK_BYTES,
        queues: 1,
        depth: case.depth,
        bytes: case.bytes,
        pieces: case.pieces,
    })?;
    session.read(reads)?;
    session.end()?;
    Profile::load(&file)
}

/// The words for the server.
fn words(options: &Options) -> Vec<String> {
    let mut words = options.words.clone();
    if !words.iter().any(|word| word.starts_with("--poll")) {
        words.extend(["--poll", "never"].map(str::to_owned));
    }
    words
}

fn callgrind(file: &Path) -> [OsString; 4] {
    let mut out = OsString::from("--callgrind-out-file=");
    out.push(file);
    [
        "valgrind".into(),
        "--quiet".into(),
        "--tool=callgrind".into(),
        out,
    ]
}
