//! Executes the command line.

use std::path::Path;
use std::process::ExitCode;

use peerbar_lab::exit::Failure;
use peerbar_lab::terminal::print;

use crate::cli::{GuestOptions, HostOptions, Suite};
use crate::compare::compare;
use crate::guests::{boot, fio_loads, p2p, rdma};
use crate::report::Report;
use crate::server::ServerCommand;
use crate::suite::{GuestContext, RESULTS};
use crate::{host, suite};

/// Measures, or compares.
pub(crate) fn run(what: &Suite) -> Result<ExitCode, Failure> {
    match what {
        Suite::Host(options) => on_host(options)?,
        Suite::Guest(options) => in_guest("guest", options, fio_loads::measure)?,
        Suite::P2p(options) => in_guest("p2p", options, p2p::measure)?,
        Suite::Rdma(options) => in_guest("rdma", options, rdma::measure)?,
        Suite::Boot(options) => suite::run("boot", &options.guest.extent, options, boot::measure)?,
        Suite::Compare { first, second } => {
            print(&compare(&load(first)?, &load(second)?))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn on_host(options: &HostOptions) -> Result<(), Failure> {
    let command = ServerCommand::new(&options.server)?;
    suite::run("host", &options.extent, &command, |context| {
        let settings = &mut context.report.settings;
        settings.insert("server".to_owned(), options.server.clone());
        host::measure(context)
    })
}

/// A suite that boots guests.
type GuestSuite = fn(&mut GuestContext<'_>) -> Result<(), Failure>;

fn in_guest(name: &str, options: &GuestOptions, measure: GuestSuite) -> Result<(), Failure> {
    suite::run(name, &options.extent, &options.own, measure)
}

/// Reads results by the path of their file or its folder.
fn load(path: &Path) -> Result<Report, Failure> {
    let file = if path.is_dir() {
        path.join(RESULTS)
    } else {
        path.to_owned()
    };
    Report::load(&file).map_err(Failure::Usage)
}
