//! Checks that the pool gives out all that it has, and no more.

use super::{CheckOutcome, Run};
use peerbar_report::{Measure, PoolExhausted};
use std::io;

use anyhow::{Context, bail, ensure};

use super::PAGE;
use crate::guest_context::GuestContext;

impl Run for PoolExhausted {
    fn run(&self, guest: &GuestContext, _measure: &mut Measure) -> anyhow::Result<CheckOutcome> {
        let pool = guest.provider(&self.provider)?.pool;
        let before = pool.state()?;
        let too_much = before.available.saturating_add(PAGE);
        match pool.map(usize::try_from(too_much)?) {
            Ok(_) => bail!(
                "{too_much} bytes could be mapped where only {} were available",
                before.available
            ),
            Err(error) => {
                let code = error
                    .root_cause()
                    .downcast_ref::<io::Error>()
                    .and_then(io::Error::raw_os_error);
                ensure!(
                    code == Some(libc::ENOMEM),
                    "mapping more than the pool has should have failed with ENOMEM: {error:#}"
                );
            }
        }
        // Shows that the size was the reason for the refusal, and that the refusal has lost
        // nothing.
        let page = pool
            .map(usize::try_from(PAGE)?)
            .context("after the refusal")?;
        let during = pool.state()?;
        drop(page);
        let after = pool.state()?;
        ensure!(
            during.available.saturating_add(PAGE) == before.available && after == before,
            "the pool of {} had {} bytes available, with one page mapped {}, afterwards {}: memory is lost",
            self.provider,
            before.available,
            during.available,
            after.available
        );
        Ok(CheckOutcome::Passed)
    }
}
