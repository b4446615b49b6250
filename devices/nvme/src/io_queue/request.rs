//! The engine's requests to a worker, and their confirmation.

use std::sync::mpsc::{Receiver, SyncSender};

use super::completion::CompletionQueue;
use super::doorbell::ShadowBuffer;
use super::submission::SubmissionQueue;

/// Channel on which a worker confirms a request.
pub(crate) type Done = SyncSender<()>;

/// The worker's end of its channel. The engine waits until a request is confirmed before it sends
/// the next one.
pub(crate) type Requests = Receiver<(WorkerRequest, Done)>;

/// A request of the engine to a worker.
pub(crate) enum WorkerRequest {
    /// Own a completion queue.
    AddCompletion(CompletionQueue),
    /// Own a submission queue that is bound to the completion queue with this number.
    AddSubmission(u16, SubmissionQueue),
    /// Forget a submission queue. Commands that have not been fetched are dropped; the others are
    /// completed first.
    RemoveSubmission(u16),
    /// Forget a completion queue to which no submission queue is bound.
    RemoveCompletion(u16),
    /// Use the shadow buffer for the doorbells of all queues.
    Shadow(ShadowBuffer),
    /// Forget all queues, commands, and the shadow buffer.
    Forget,
    /// Execute every command, unless the registers make another request first.
    Finish,
    /// End the thread.
    Stop,
}
