//! The workers' threads, and the engine's requests to them.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread::JoinHandle;

use crate::doorbell_page::Owner;
use crate::io_queue::request::{Done, Requests, WorkerRequest};
use crate::io_queue::worker::Worker;
use crate::notifier::Notifier;

/// All workers. Worker `n` is [`Owner`] `n`, from 1 on.
pub(crate) struct WorkerPool {
    notifier: Arc<Notifier>,
    workers: Vec<Handle>,
}

struct Handle {
    requests: Sender<(WorkerRequest, Done)>,
    execution: Execution,
}

/// The way in which a worker runs.
enum Execution {
    Thread(JoinHandle<()>),
    /// On the engine's thread.
    #[cfg(feature = "stepped")]
    Here(Box<std::cell::RefCell<Worker>>),
}

impl Handle {
    /// Runs the worker, if it has no thread.
    fn work(&self) {
        match &self.execution {
            Execution::Thread(_) => {}
            #[cfg(feature = "stepped")]
            Execution::Here(worker) => worker.borrow_mut().work(),
        }
    }
}

impl WorkerPool {
    /// Spawns `count` workers, each made by `make`.
    pub(crate) fn spawn(
        notifier: Arc<Notifier>,
        count: u8,
        mut make: impl FnMut(Owner, Requests) -> Worker,
    ) -> io::Result<Self> {
        let workers = (1..=count).map(|number| {
            let (requests, inbox) = channel();
            let worker = make(Owner(number), inbox);
            let thread = std::thread::Builder::new().name(format!("worker{number}"));
            let thread = thread.spawn(move || worker.run())?;
            Ok(Handle {
                requests,
                execution: Execution::Thread(thread),
            })
        });
        let workers = workers.collect::<io::Result<_>>()?;
        Ok(Self { notifier, workers })
    }

    /// Makes `count` workers without threads, each made by `make`.
    #[cfg(feature = "stepped")]
    pub(crate) fn stepped(
        notifier: Arc<Notifier>,
        count: u8,
        mut make: impl FnMut(Owner, Requests) -> Worker,
    ) -> Self {
        let workers = (1..=count).map(|number| {
            let (requests, inbox) = channel();
            let worker = make(Owner(number), inbox);
            Handle {
                requests,
                execution: Execution::Here(Box::new(worker.into())),
            }
        });
        let workers = workers.collect();
        Self { notifier, workers }
    }

    /// Runs all workers without threads until they have nothing left to do.
    #[cfg(feature = "stepped")]
    pub(crate) fn work(&self) {
        self.workers.iter().for_each(Handle::work);
    }

    /// Sends a request to a worker and waits until it is confirmed.
    pub(crate) fn request(&self, owner: Owner, request: WorkerRequest) {
        if let Some(done) = self.send(owner, request) {
            // Receiving fails if the worker has panicked, which `shut_down` logs.
            let _ = done.recv();
        }
    }

    /// Sends a request to every worker and waits until all have confirmed it.
    pub(crate) fn request_all(&self, request: impl Fn() -> WorkerRequest) {
        let owners = (1..).map(Owner).take(self.workers.len());
        let all: Vec<_> = owners
            .filter_map(|owner| self.send(owner, request()))
            .collect();
        for done in all {
            let _ = done.recv();
        }
    }

    fn send(&self, owner: Owner, request: WorkerRequest) -> Option<Receiver<()>> {
        let index = usize::from(owner.0).checked_sub(1)?;
        let worker = self.workers.get(index)?;
        let (done, confirmed) = sync_channel(1);
        worker.requests.send((request, done)).ok()?;
        self.notifier.events(owner).notify();
        worker.work();
        Some(confirmed)
    }

    /// Ends every worker after its commands in progress.
    pub(crate) fn shut_down(&mut self) {
        self.request_all(|| WorkerRequest::Stop);
        for worker in self.workers.drain(..) {
            let has_panicked = match worker.execution {
                Execution::Thread(thread) => thread.join().is_err(),
                #[cfg(feature = "stepped")]
                Execution::Here(_) => false,
            };
            if has_panicked {
                log::error!("a worker of the controller has panicked");
            }
        }
    }
}
