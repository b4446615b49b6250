//! A call: requests to the client that one thread has made, cut into messages of which many are on their way at a time.

use std::sync::mpsc::{Receiver, Sender, channel};

use crate::client::{RequestError, Session};
use crate::pending::{Arrival, Reply};
use crate::pieces::{Piece, Pieces};
use crate::reply::{MALFORMED, check_written, read_data};
use crate::wire::command;

/// How many messages of one call may be on their way: enough to keep the client busy, and all that anybody else's request
/// may find before it.
const WINDOW: usize = 16;

/// The data of a request.
#[derive(Debug)]
pub enum Data<'a> {
    /// Where what is read goes; undefined unless all of it came.
    Read(&'a mut [u8]),
    /// What is written.
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

/// Something to be read or written by the client.
#[derive(Debug)]
pub struct Request<'a> {
    address: u64,
    data: Data<'a>,
    /// What came of it; none while it has not been sent.
    pub outcome: Option<Result<(), RequestError>>,
}

impl<'a> Request<'a> {
    /// To be carried out at `address` of the guest's memory, an IOVA or a bus address.
    pub fn new(address: u64, data: Data<'a>) -> Self {
        Self {
            address,
            data,
            outcome: None,
        }
    }
}

/// The requests, and which pieces of them are on their way.
pub(crate) struct Call<'c, 'a> {
    session: &'c Session,
    requests: &'c mut [Request<'a>],
    sender: Sender<Arrival>,
    arrivals: Receiver<Arrival>,
    /// Pieces of requests, by the number that their replies come back with.
    under_way: [Option<(usize, Piece)>; WINDOW],
    failed: bool,
}

impl<'c, 'a> Call<'c, 'a> {
    pub(crate) fn new(session: &'c Session, requests: &'c mut [Request<'a>]) -> Self {
        let (sender, arrivals) = channel();
        Self {
            session,
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

    /// Sends a request, as far as nothing fails, and takes replies where there is no room for more messages.
    fn begin(&mut self, index: usize, may_go_on: &dyn Fn() -> bool) {
        let Some(request) = self.requests.get_mut(index) else {
            return;
        };
        request.outcome = Some(Ok(()));
        let size = self.session.piece_size;
        let pieces = Pieces::new(request.address, request.data.len(), size);
        let sent = pieces.and_then(|mut pieces| {
            pieces.try_for_each(|piece| {
                let place = self.place();
                if self.failed || !may_go_on() {
                    return Err(RequestError::Stopped);
                }
                self.send(place, index, piece)
            })
        });
        if let Err(error) = sent {
            self.fail(index, error);
        }
    }

    /// A place for one more message.
    fn place(&mut self) -> usize {
        loop {
            if let Some(place) = self.under_way.iter().position(Option::is_none) {
                return place;
            }
            self.take_reply();
        }
    }

    fn send(&mut self, place: usize, index: usize, piece: Piece) -> Result<(), RequestError> {
        let (command, data) = match self.requests.get(index).map(|request| &request.data) {
            Some(Data::Write(data)) => (command::DMA_WRITE, data.get(piece.range.clone())),
            _ => (command::DMA_READ, None),
        };
        let id = self.session.pending.register(place, &self.sender)?;
        let sent = self
            .session
            .send(id, command, &piece, data.unwrap_or_default());
        if let Some(under_way) = self.under_way.get_mut(place) {
            *under_way = Some((index, piece));
        }
        sent
    }

    /// Waits for the next reply. If none comes in time, all that are missing are given up.
    fn take_reply(&mut self) {
        let Ok((place, reply)) = self.arrivals.recv_timeout(self.session.time_out) else {
            for (index, _) in std::mem::take(&mut self.under_way).into_iter().flatten() {
                self.fail(index, RequestError::TimedOut);
            }
            return;
        };
        let answered = self.under_way.get_mut(place).and_then(Option::take);
        let Some((index, piece)) = answered else {
            return;
        };
        let accepted = reply.and_then(|reply| self.accept(index, &piece, &reply));
        if let Err(error) = accepted {
            self.fail(index, error);
        }
    }

    fn accept(&mut self, index: usize, piece: &Piece, reply: &Reply) -> Result<(), RequestError> {
        match self
            .requests
            .get_mut(index)
            .map(|request| &mut request.data)
        {
            Some(Data::Read(data)) => {
                let came = read_data(piece, reply)?;
                let place = data.get_mut(piece.range.clone());
                place.ok_or(MALFORMED)?.copy_from_slice(came);
                Ok(())
            }
            _ => check_written(piece, reply),
        }
    }

    /// A request keeps the first of its failures.
    fn fail(&mut self, index: usize, error: RequestError) {
        self.failed = true;
        if let Some(request) = self.requests.get_mut(index)
            && request.outcome == Some(Ok(()))
        {
            request.outcome = Some(Err(error));
        }
    }
}
