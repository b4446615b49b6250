//! A bell that does what the kernel's does (`src/bell.rs`).

use std::io;
use std::time::Instant;

use loom::sync::{Condvar, Mutex};

pub(crate) struct Bell {
    rung: Mutex<bool>,
    heard: Condvar,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            rung: Mutex::new(false),
            heard: Condvar::new(),
        })
    }

    pub(crate) fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.heard.notify_one();
    }

    /// Time never passes here.
    pub(crate) fn wait(&self, _until: Option<Instant>) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.heard.wait(rung).unwrap();
        }
        *rung = false;
    }
}
