//! The synchronisation of a channel with other devices: it writes words that they watch, and waits
//! for words that they write.

use crate::executor::{Executor, Progress};
use crate::faults::Fault;
use crate::word::{Wait, Word, check_time};

impl Executor {
    pub(crate) fn write_word(&self, word: Word, value: u64) -> Result<Option<u64>, Fault> {
        word.write(&self.memory, value)?;
        Ok(Some(0))
    }

    /// Reads the word once. Returns its value if it is the awaited one.
    pub(crate) fn wait(&self, wait: &Wait, progress: &mut Progress) -> Result<Option<u64>, Fault> {
        let word = wait.word.read(&self.memory)?;
        if word & wait.mask == wait.value {
            return Ok(Some(word));
        }
        progress.is_waiting = true;
        check_time(wait.limit, progress.worked)?;
        Ok(None)
    }
}
