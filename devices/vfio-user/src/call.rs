//! A call: one thread's requests to the client, cut into messages. Many of these are in flight at a
//! time.

use std::sync::mpsc::{self, Receiver, Sender};

use peerbar_pci::Iova;

use crate::channel::Channel;
use crate::chunks::{Chunk, Chunks};
use crate::pending::{Arrival, Reply};
use crate::reply::{check_written, read_data};
use crate::request_error::RequestError;
use crate::wire::command;

/// Messages of one call that may be in flight: enough to keep the client busy, and the most that
/// may delay a request of another call.
const MAX_UNDER_WAY: usize = 16;

/// The data of a request.
#[derive(Debug)]
pub enum Data<'a> {
    /// Buffer for the data that is read. Its contents are undefined unless all of the data arrived.
    Read(&'a mut [u8]),
    /// The data to write.
    Write(&'a [u8]),
}

impl Data<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Read(data) => data.len(),
            Self::Write(data) => data.len(),
        }
    }
}

/// A read or write for the client to perform.
#[derive(Debug)]
pub struct DmaRequest<'a> {
    address: Iova,
    data: Data<'a>,
    /// The outcome, or `None` while the request has not been sent.
    pub outcome: Option<Result<(), RequestError>>,
}

impl<'a> DmaRequest<'a> {
    /// Makes a request at `address`, which the client's IOMMU translates.
    pub fn new(address: Iova, data: Data<'a>) -> Self {
        Self {
            address,
            data,
            outcome: None,
        }
    }
}

/// The requests, and the chunks of them that are in flight.
pub(crate) struct Call<'c, 'a> {
    channel: &'c Channel,
    requests: &'c mut [DmaRequest<'a>],
    sender: Sender<Arrival>,
    arrivals: Receiver<Arrival>,
    /// Each chunk that is not answered yet, with the index of its request, by the number that its
    /// reply will have.
    under_way: [Option<(usize, Chunk)>; MAX_UNDER_WAY],
    failed: bool,
}

impl<'c, 'a> Call<'c, 'a> {
    pub(crate) fn new(channel: &'c Channel, requests: &'c mut [DmaRequest<'a>]) -> Self {
        let (sender, arrivals) = mpsc::channel();
        Self {
            channel,
            requests,
            sender,
            arrivals,
            under_way: Default::default(),
            failed: false,
        }
    }

    pub(crate) fn carry_out(mut self, may_go_on: &dyn Fn() -> bool) {
        for index in 0..self.requests.len() {
            self.begin(index, may_go_on);
            if self.failed {
                break;
            }
        }
        while self.under_way.iter().any(Option::is_some) {
            self.take_reply();
        }
    }

    /// Sends a request unless another has failed, and takes replies while [`MAX_UNDER_WAY`]
    /// messages are not answered.
    fn begin(&mut self, index: usize, may_go_on: &dyn Fn() -> bool) {
        let Some(request) = self.requests.get_mut(index) else {
            return;
        };
        request.outcome = Some(Ok(()));
        let size = self.channel.chunk_size;
        let chunks = Chunks::new(request.address, request.data.len(), size);
        let sent = chunks.and_then(|mut chunks| {
            chunks.try_for_each(|chunk| {
                let slot = self.free_slot();
                if self.failed || !may_go_on() {
                    return Err(RequestError::Stopped);
                }
                self.send(slot, index, chunk)
            })
        });
        if let Err(error) = sent {
            self.fail(index, error);
        }
    }

    fn free_slot(&mut self) -> usize {
        loop {
            if let Some(slot) = self.under_way.iter().position(Option::is_none) {
                return slot;
            }
            self.take_reply();
        }
    }

    fn send(&mut self, slot: usize, index: usize, chunk: Chunk) -> Result<(), RequestError> {
        let (command, data) = match self.requests.get(index).map(|request| &request.data) {
            Some(Data::Write(data)) => (command::DMA_WRITE, data.get(chunk.range.clone())),
            _ => (command::DMA_READ, None),
        };
        let id = self.channel.register(slot, &self.sender)?;
        let sent = self
            .channel
            .send(id, command, &chunk, data.unwrap_or_default());
        if let Some(under_way) = self.under_way.get_mut(slot) {
            *under_way = Some((index, chunk));
        }
        sent
    }

    /// Waits for the next reply. If it does not come in time, all requests without a reply fail.
    fn take_reply(&mut self) {
        let Ok((slot, reply)) = self.arrivals.recv_timeout(self.channel.time_out) else {
            for (index, _) in std::mem::take(&mut self.under_way).into_iter().flatten() {
                self.fail(index, RequestError::TimedOut);
            }
            return;
        };
        let answered = self.under_way.get_mut(slot).and_then(Option::take);
        let Some((index, chunk)) = answered else {
            return;
        };
        let accepted = reply.and_then(|reply| self.accept(index, &chunk, &reply));
        if let Err(error) = accepted {
            self.fail(index, error);
        }
    }

    fn accept(&mut self, index: usize, chunk: &Chunk, reply: &Reply) -> Result<(), RequestError> {
        match self
            .requests
            .get_mut(index)
            .map(|request| &mut request.data)
        {
            Some(Data::Read(data)) => {
                let came = read_data(chunk, reply)?;
                let data = data.get_mut(chunk.range.clone());
                data.ok_or(RequestError::MALFORMED)?.copy_from_slice(came);
                Ok(())
            }
            _ => check_written(chunk, reply),
        }
    }

    /// Records a failure. A request keeps its first one.
    fn fail(&mut self, index: usize, error: RequestError) {
        self.failed = true;
        let request = self.requests.get_mut(index);
        if let Some(request) = request.filter(|request| request.outcome == Some(Ok(()))) {
            request.outcome = Some(Err(error));
        }
    }
}
