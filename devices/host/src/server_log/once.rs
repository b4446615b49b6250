//! A logger that passes each warning on to another one once.

use std::collections::HashSet;

use log::{Level, Log, Metadata, Record};
use parking_lot::Mutex;

/// Most warnings that are remembered. Later ones are passed on each time.
const MOST: usize = 1000;

/// Passes on warnings with a new text, and all other messages.
pub(crate) struct Once<L> {
    logger: L,
    said: Mutex<HashSet<String>>,
}

impl<L> Once<L> {
    pub(crate) fn new(logger: L) -> Self {
        Self {
            logger,
            said: Mutex::default(),
        }
    }

    /// Returns `true` if this text was not passed on before, as far as is remembered.
    fn is_new(&self, text: String) -> bool {
        let mut said = self.said.lock();
        match said.len() < MOST {
            true => said.insert(text),
            false => !said.contains(&text),
        }
    }
}

impl<L: Log> Log for Once<L> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.logger.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        let is_enabled = self.enabled(record.metadata());
        if is_enabled && (record.level() != Level::Warn || self.is_new(record.args().to_string())) {
            self.logger.log(record);
        }
    }

    fn flush(&self) {
        self.logger.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server_log::kept::Kept;

    fn log(once: &Once<Kept>, level: Level, text: &str) {
        let mut record = Record::builder();
        once.log(&record.level(level).args(format_args!("{text}")).build());
    }

    #[test]
    fn warning_is_said_once_and_other_messages_each_time() {
        let once = Once::new(Kept::default());
        for _ in 0..2 {
            log(&once, Level::Warn, "a");
            log(&once, Level::Error, "b");
            log(&once, Level::Info, "c");
        }
        assert_eq!(once.logger.taken(), ["a", "b", "c", "b", "c"]);
    }

    #[test]
    fn memory_of_warnings_has_an_end() {
        let once = Once::new(Kept::default());
        (0..=MOST).for_each(|number| log(&once, Level::Warn, &number.to_string()));
        log(&once, Level::Warn, "0");
        log(&once, Level::Warn, &MOST.to_string());
        assert_eq!(once.said.lock().len(), MOST);
        assert_eq!(once.logger.taken().len(), MOST + 2);
    }
}
