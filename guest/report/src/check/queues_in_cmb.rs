//! `queues-in-cmb`: submission queues in a CMB.

use super::{Keys, TableError, check};

check! {
    /// Checks that the submission queues of the device lie in its CMB: it must fetch commands of
    /// the I/O queues from its own memory, and none from guest RAM.
    "queues-in-cmb": "{device} has its queues in the CMB"
    pub struct QueuesInCmb {
        /// Name of an `[[nvme]]` with `cmb-queues = true`.
        pub device: String = with_cmb_queues,
    }
}

fn with_cmb_queues(keys: &mut Keys<'_, '_>, key: &str) -> Result<String, TableError> {
    let name = keys.required(key)?;
    let at = name.span();
    let nvme = keys.inventory.disk(name)?;
    if nvme.cmb_queues {
        return Ok(nvme.name.clone());
    }
    let message = format!(
        "`{0}` does not support queues in its CMB: give [[nvme]] {0} `cmb-queues = true`",
        nvme.name
    );
    Err(TableError::new(at, message))
}
