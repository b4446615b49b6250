//! The workers' threads, and the engine's way to tell them what to do.

use std::io;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use crate::doorbells::Owner;
use crate::mailbox::Mailbox;
use crate::worker::{Order, Worker};

/// Where to say that an order has been carried out.
pub(crate) type Done = SyncSender<()>;

/// An order, and where to say that it has been carried out.
pub(crate) type Mission = (Order, Done);

/// All workers. Worker `n` is [`Owner`] `n`, from 1 on.
pub(crate) struct Crew {
    workers: Vec<(Sender<Mission>, JoinHandle<()>)>,
}

impl Crew {
    /// Starts so many workers, each made by `make`.
    pub(crate) fn hire(
        count: u8,
        mut make: impl FnMut(Owner, Receiver<Mission>) -> Worker,
    ) -> io::Result<Self> {
        let workers = (1..=count).map(|number| {
            let (orders, inbox) = channel();
            let worker = make(Owner(number), inbox);
            let thread = std::thread::Builder::new().name(format!("worker{number}"));
            Ok((orders, thread.spawn(move || worker.run())?))
        });
        workers
            .collect::<io::Result<_>>()
            .map(|workers| Self { workers })
    }

    /// Has a worker carry out an order, and waits until it has.
    pub(crate) fn tell(&self, mailbox: &Mailbox, owner: Owner, order: Order) {
        if let Some(done) = self.send(mailbox, owner, order) {
            // It fails if the worker has panicked, which is told at the end.
            let _ = done.recv();
        }
    }

    /// Has every worker carry out an order, and waits until all have.
    pub(crate) fn tell_all(&self, mailbox: &Mailbox, order: impl Fn() -> Order) {
        let owners = (1..).map(Owner).take(self.workers.len());
        let all: Vec<_> = owners
            .filter_map(|owner| self.send(mailbox, owner, order()))
            .collect();
        for done in all {
            let _ = done.recv();
        }
    }

    fn send(&self, mailbox: &Mailbox, owner: Owner, order: Order) -> Option<Receiver<()>> {
        let index = usize::from(owner.0).checked_sub(1)?;
        let (orders, _) = self.workers.get(index)?;
        let (done, wait) = sync_channel(1);
        orders.send((order, done)).ok()?;
        mailbox.knock(owner);
        Some(wait)
    }

    /// Ends every worker after its commands in progress.
    pub(crate) fn dismiss(&mut self, mailbox: &Mailbox) {
        self.tell_all(mailbox, || Order::Leave);
        for (_, thread) in self.workers.drain(..) {
            if thread.join().is_err() {
                log::error!("a worker of the controller has panicked");
            }
        }
    }
}
