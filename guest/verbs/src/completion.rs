//! Completions of work requests, and their queue.

#![expect(unsafe_code)]

use std::ptr::{self, NonNull};
use std::thread;
use std::time::{Duration, Instant};

use crate::layout::{Cq, WorkCompletion};
use crate::{Context, Error, Result, Status};

/// A completed work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's number.
    pub id: u64,
    /// The status of the request.
    pub status: Status,
    /// The adapter's own error number.
    pub vendor_error: u32,
    /// Bytes that a receive has taken.
    pub bytes: u32,
    /// Number of the queue pair.
    pub queue_pair: u32,
    /// The sender's immediate data, if it sent some.
    pub immediate: Option<u32>,
}

impl Completion {
    fn of(entry: &WorkCompletion) -> Self {
        const WITH_IMMEDIATE: u32 = 1 << 1;
        let immediate = u32::from_be(entry.imm_data);
        Self {
            id: entry.wr_id,
            status: Status(entry.status),
            vendor_error: entry.vendor_err,
            bytes: entry.byte_len,
            queue_pair: entry.qp_num,
            immediate: (entry.wc_flags & WITH_IMMEDIATE != 0).then_some(immediate),
        }
    }

    /// Returns the completion, if the request was executed.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn succeeded(self) -> Result<Self> {
        match self.status {
            Status::SUCCESS => Ok(self),
            status => Err(Error::Failed {
                id: self.id,
                status,
            }),
        }
    }
}

/// A completion queue.
pub(crate) struct CompletionQueue {
    cq: NonNull<Cq>,
    context: Context,
}

impl CompletionQueue {
    /// Makes a queue with room for `entries` completions.
    pub(crate) fn new(context: &Context, entries: u32) -> Result<Self> {
        let create = context.functions().create_cq;
        let count = i32::try_from(entries).unwrap_or(i32::MAX);
        // SAFETY: the context is open; there is no value and no channel of the program.
        let cq = unsafe { create(context.as_ptr(), count, ptr::null_mut(), ptr::null_mut(), 0) };
        let refused = || Error::last(format!("create a completion queue of {entries} entries"));
        let cq = NonNull::new(cq).ok_or_else(refused)?;
        let context = context.clone();
        Ok(Self { cq, context })
    }

    pub(crate) fn as_ptr(&self) -> *mut Cq {
        self.cq.as_ptr()
    }

    /// Calls `create` to make an object for which the kernel uses the completion queue of this
    /// handle instead.
    pub(crate) fn standing_in<T>(&self, handle: u32, create: impl FnOnce() -> T) -> T {
        // SAFETY: the queue exists, and the library has no other user of its handle during the
        // call.
        let own = unsafe { std::mem::replace(&mut (*self.cq.as_ptr()).handle, handle) };
        let created = create();
        // SAFETY: as above. The library destroys the queue by its own handle.
        unsafe { (*self.cq.as_ptr()).handle = own };
        created
    }

    /// Returns the next completion, if there is one.
    pub(crate) fn poll(&self) -> Result<Option<Completion>> {
        let mut entry = WorkCompletion::default();
        // SAFETY: the context is open, so its operations are there.
        let poll = unsafe { (*self.context.as_ptr()).poll_cq };
        // SAFETY: the queue exists, and `entry` has room for one completion.
        let count = unsafe { poll(self.cq.as_ptr(), 1, &raw mut entry) };
        match count {
            0 => Ok(None),
            1 => Ok(Some(Completion::of(&entry))),
            error => Err(Error::Refused {
                what: "poll a completion queue".to_owned(),
                source: std::io::Error::other(format!("the library returns {error}")),
            }),
        }
    }

    /// Returns the next completion, which must arrive within `limit`.
    pub(crate) fn wait(&self, limit: Duration) -> Result<Completion> {
        wait(limit, || self.poll())
    }
}

/// Returns the result of `poll`, which must arrive within `limit`.
pub(crate) fn wait<T>(limit: Duration, poll: impl Fn() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = poll()? {
            return Ok(found);
        }
        if Instant::now() >= deadline {
            return Err(Error::TimedOut { limit });
        }
        thread::yield_now();
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: the queue exists, and no queue pair uses it any more.
        unsafe { (self.context.functions().destroy_cq)(self.cq.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completion_has_immediate_data_only_where_it_was_sent() {
        let mut entry = WorkCompletion {
            wr_id: 7,
            byte_len: 64,
            imm_data: 0x0102_0304_u32.to_be(),
            ..WorkCompletion::default()
        };
        let without = Completion::of(&entry);
        assert_eq!((without.immediate, without.bytes), (None, 64));
        entry.wc_flags = 2;
        assert_eq!(Completion::of(&entry).immediate, Some(0x0102_0304));
    }

    #[test]
    fn failed_completion_names_its_request_and_status() {
        let entry = WorkCompletion {
            wr_id: 7,
            status: 10,
            ..WorkCompletion::default()
        };
        let error = Completion::of(&entry).succeeded().unwrap_err().to_string();
        assert_eq!(error, "work request 7 ended with a remote access error");
        assert_eq!(Status(99).to_string(), "status 99");
    }
}
