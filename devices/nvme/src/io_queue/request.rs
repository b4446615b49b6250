//! What the engine requests of a worker, and where the worker confirms it.

use std::sync::mpsc::{Receiver, SyncSender};

use super::completion::CompletionQueue;
use super::doorbell::ShadowBuffer;
use super::submission::SubmissionQueue;

/// Where a worker confirms a request.
pub(crate) type Done = SyncSender<()>;

/// The worker's end of its channel. The engine waits until a request is confirmed before it sends the next one.
pub(crate) type Requests = Receiver<(WorkerRequest, Done)>;

/// What the engine requests of a worker.
pub(crate) enum WorkerRequest {
    /// Own a completion queue.
    AddCompletion(CompletionQueue),
    /// Own a submission queue that is bound to the completion queue of this number.
    AddSubmission(u16, SubmissionQueue),
    /// Forget a submission queue. Commands that have not been fetched are dropped; the others are completed before.
    RemoveSubmission(u16),
    /// Forget a completion queue, to which no submission queue is bound.
    RemoveCompletion(u16),
    /// Find the doorbells of all queues in the shadow buffer.
    Shadow(ShadowBuffer),
    /// Forget all queues, commands, and the shadow buffer.
    Forget,
    /// Carry out every command, unless the registers request something else meanwhile.
    Finish,
    /// End the thread.
    Stop,
}
