//! A logger for tests.

use log::{Log, Metadata, Record};
use parking_lot::Mutex;

/// Keeps all logged messages.
#[derive(Default)]
pub(crate) struct Kept(Mutex<Vec<String>>);

impl Kept {
    /// Returns the messages since the last call.
    pub(crate) fn taken(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }
}

impl Log for Kept {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() != "disabled"
    }

    fn log(&self, record: &Record<'_>) {
        self.0.lock().push(record.args().to_string());
    }

    fn flush(&self) {}
}
