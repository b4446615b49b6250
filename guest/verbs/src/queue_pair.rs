//! Queue pairs of Scalable Reliable Datagrams.

#![expect(unsafe_code)]

use std::mem::{self, size_of};
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::time::Duration;

use crate::completion::CompletionQueue;
use crate::context::PORT;
use crate::layout::{
    self, EfaQpInitAttr, QpAttr, QpCap, QpInitAttr, QpInitAttrEx, RecvRequest, Sge,
};
use crate::{AddressHandle, Completion, CompletionBuffer, Error, ProtectionDomain, Result};

/// `IBV_QPT_DRIVER`: a driver-specific type, which for EFA is SRD.
const DRIVER_TYPE: u32 = 0xff;
/// `IBV_QP_INIT_ATTR_PD` and `IBV_QP_INIT_ATTR_SEND_OPS_FLAGS`.
const INIT_FIELDS: u32 = 1 | 1 << 6;
/// `IBV_QP_EX_WITH_…`: write, write with immediate data, send, send with immediate data, read.
const OPERATIONS: u64 = 0b1_1111;
/// `IBV_SEND_SIGNALED`.
const SIGNALLED: u32 = 1 << 1;
/// The Q_Key of all queue pairs here: a queue pair refuses a message with another one.
const QKEY: u32 = 0x1111_1111;

/// States of a queue pair (`enum ibv_qp_state`).
const INIT: u32 = 1;
const READY_TO_RECEIVE: u32 = 2;
const READY_TO_SEND: u32 = 3;
const ERROR: u32 = 6;

/// Attributes that a change of state sets as well (`enum ibv_qp_attr_mask`).
const STATE: i32 = 1;
const PKEY_INDEX: i32 = 1 << 4;
const PORT_NUMBER: i32 = 1 << 5;
const QKEY_ATTRIBUTE: i32 = 1 << 6;
const RNR_RETRY: i32 = 1 << 11;
const SEND_SEQUENCE: i32 = 1 << 16;

/// Memory of a region, for its own adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// The region's local key.
    pub key: u32,
    /// Address of the first byte.
    pub address: u64,
    /// Number of bytes.
    pub length: u32,
}

/// Memory of a region, for other adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The region's remote key.
    pub key: u32,
    /// Address of the first byte.
    pub address: u64,
}

/// The operation of a work request on the local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Sends it to a receive of the other side.
    Send,
    /// The same with immediate data.
    SendImmediate(u32),
    /// Writes it to memory of the other side.
    Write(Remote),
    /// The same, and a receive of the other side completes with immediate data.
    WriteImmediate(Remote, u32),
    /// Reads it from memory of the other side.
    Read(Remote),
}

/// The other side of a work request: an adapter, and one of its queue pairs.
#[derive(Clone)]
pub struct Peer {
    /// The adapter.
    pub handle: AddressHandle,
    /// Number of the queue pair.
    pub queue_pair: u32,
}

impl Peer {
    /// Makes the queue pair `other` of the adapter behind `handle` the other side.
    #[must_use]
    pub fn of(handle: AddressHandle, other: &QueuePair) -> Self {
        Self {
            handle,
            queue_pair: other.number(),
        }
    }
}

/// A queue pair with its own completion queue.
pub struct QueuePair {
    qp: NonNull<layout::Qp>,
    completions: CompletionQueue,
    /// The buffer of its completions, if they are there instead. It is destroyed after the queue
    /// pair.
    _buffer: Option<Rc<CompletionBuffer>>,
    domain: ProtectionDomain,
}

impl QueuePair {
    /// Makes a queue pair with room for `depth` requests in each direction, which neither sends nor
    /// receives yet.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn new(domain: &ProtectionDomain, depth: u32) -> Result<Self> {
        Self::create(domain, depth, None)
    }

    /// Makes a queue pair whose completions are in this buffer, and nowhere else:
    /// [`QueuePair::poll`] finds none. Debian's library does not learn of them, so `depth` is the
    /// total number of requests of each direction that it takes.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn with_buffer(
        domain: &ProtectionDomain,
        depth: u32,
        buffer: &Rc<CompletionBuffer>,
    ) -> Result<Self> {
        Self::create(domain, depth, Some(buffer.clone()))
    }

    fn create(
        domain: &ProtectionDomain,
        depth: u32,
        buffer: Option<Rc<CompletionBuffer>>,
    ) -> Result<Self> {
        let context = domain.context();
        let completions = CompletionQueue::new(context, depth.saturating_mul(2))?;
        // SAFETY: zero is a valid value of each field: numbers, and pointers that are not used.
        let mut attributes: QpInitAttrEx = unsafe { mem::zeroed() };
        attributes.send_cq = completions.as_ptr();
        attributes.recv_cq = completions.as_ptr();
        attributes.cap = QpCap {
            max_send_wr: depth,
            max_recv_wr: depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        attributes.qp_type = DRIVER_TYPE;
        attributes.sq_sig_all = 1;
        attributes.comp_mask = INIT_FIELDS;
        attributes.pd = domain.as_ptr();
        attributes.send_ops_flags = OPERATIONS;
        let mut of_efa = EfaQpInitAttr::default();
        let length = u32::try_from(size_of::<EfaQpInitAttr>()).unwrap_or(0);
        let create = context.functions().efa_create_qp_ex;
        let mut create = || {
            // SAFETY: everything that the attributes name exists, and they are used only during the
            // call.
            unsafe {
                create(
                    context.as_ptr(),
                    &raw mut attributes,
                    &raw mut of_efa,
                    length,
                )
            }
        };
        let qp = match &buffer {
            Some(buffer) => completions.standing_in(buffer.handle(), create),
            None => create(),
        };
        let refused = || Error::last(format!("create an SRD queue pair of {depth} requests"));
        let qp = NonNull::new(qp).ok_or_else(refused)?;
        Ok(Self {
            qp,
            completions,
            _buffer: buffer,
            domain: domain.clone(),
        })
    }

    /// Makes a queue pair that is ready to send and to receive, and sends a message again up to
    /// `retries` times if there is no receive for it.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn ready(domain: &ProtectionDomain, depth: u32, retries: u8) -> Result<Self> {
        let pair = Self::new(domain, depth)?;
        pair.start(retries)?;
        Ok(pair)
    }

    /// Makes a new queue pair send and receive, as [`QueuePair::ready`] does.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn start(&self, retries: u8) -> Result<()> {
        self.initialize()?;
        self.receive_from_now_on()?;
        self.send_from_now_on(retries)
    }

    /// Sets its key and port.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn initialize(&self) -> Result<()> {
        let attributes = QpAttr {
            qp_state: INIT,
            qkey: QKEY,
            port_num: PORT,
            ..QpAttr::default()
        };
        let fields = STATE | PKEY_INDEX | PORT_NUMBER | QKEY_ATTRIBUTE;
        self.modify(attributes, fields)
    }

    /// Makes it ready to receive.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn receive_from_now_on(&self) -> Result<()> {
        let attributes = QpAttr {
            qp_state: READY_TO_RECEIVE,
            ..QpAttr::default()
        };
        self.modify(attributes, STATE)
    }

    /// Makes it ready to send. A message for which there is no receive is sent again up to
    /// `retries` times, or without limit if that is 7.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn send_from_now_on(&self, retries: u8) -> Result<()> {
        let attributes = QpAttr {
            qp_state: READY_TO_SEND,
            rnr_retry: retries,
            ..QpAttr::default()
        };
        self.modify(attributes, STATE | SEND_SEQUENCE | RNR_RETRY)
    }

    /// Stops it. Outstanding requests are flushed.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn stop(&self) -> Result<()> {
        let attributes = QpAttr {
            qp_state: ERROR,
            ..QpAttr::default()
        };
        self.modify(attributes, STATE)
    }

    /// Returns `true` if the adapter says that it is in error.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn has_failed(&self) -> Result<bool> {
        let mut attributes = QpAttr::default();
        // SAFETY: zero is a valid value of each field: numbers, and pointers that are not used.
        let mut created: QpInitAttr = unsafe { mem::zeroed() };
        let query = self.domain.context().functions().query_qp;
        // SAFETY: the queue pair exists, and both structures have room for the library's output.
        let status = unsafe {
            query(
                self.qp.as_ptr(),
                &raw mut attributes,
                STATE,
                &raw mut created,
            )
        };
        Error::check(status, "ask for the queue pair's state")?;
        Ok(attributes.qp_state == ERROR)
    }

    fn modify(&self, mut attributes: QpAttr, fields: i32) -> Result<()> {
        let state = attributes.qp_state;
        let modify = self.domain.context().functions().modify_qp;
        // SAFETY: the queue pair exists, and `attributes` is used only during the call.
        let status = unsafe { modify(self.qp.as_ptr(), &raw mut attributes, fields) };
        Error::check(status, format!("set the queue pair's state to {state}"))
    }

    /// Returns its number.
    #[must_use]
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair exists, and its number does not change.
        unsafe { (*self.qp.as_ptr()).qp_num }
    }

    /// Returns the kernel's handle of it.
    pub(crate) fn handle(&self) -> u32 {
        // SAFETY: as for its number.
        unsafe { (*self.qp.as_ptr()).handle }
    }

    /// Posts a receive into `to`, with the number `id`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn post_receive(&self, id: u64, to: Local) -> Result<()> {
        let mut element = Sge {
            addr: to.address,
            length: to.length,
            lkey: to.key,
        };
        let mut request = RecvRequest {
            wr_id: id,
            next: ptr::null_mut(),
            sg_list: &raw mut element,
            num_sge: 1,
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the context is open, so its operations are there.
        let post = unsafe { (*self.domain.context().as_ptr()).post_recv };
        // SAFETY: the queue pair exists, and the request and its element are used only during the
        // call.
        let status = unsafe { post(self.qp.as_ptr(), &raw mut request, &raw mut bad) };
        Error::check(status, "post a receive")
    }

    /// Posts a request with the number `id`, between `local` and `peer`.
    ///
    /// # Errors
    /// [`Error::Refused`], such as EINVAL while it may not send.
    pub fn post(&self, id: u64, operation: Operation, local: Local, peer: &Peer) -> Result<()> {
        let functions = self.domain.context().functions();
        // SAFETY: the queue pair was created with operations for the send queue, so it has the extended form.
        let qp = unsafe { (functions.qp_to_qp_ex)(self.qp.as_ptr()) };
        // SAFETY: the extended queue pair lives as long as the queue pair. The calls between start
        // and complete are those of one request, in the order that the library requires, with
        // numbers and an address handle that exists.
        let status = unsafe {
            ((*qp).wr_start)(qp);
            (*qp).wr_id = id;
            (*qp).wr_flags = SIGNALLED;
            match operation {
                Operation::Send => ((*qp).wr_send)(qp),
                Operation::SendImmediate(data) => ((*qp).wr_send_imm)(qp, data.to_be()),
                Operation::Write(to) => ((*qp).wr_rdma_write)(qp, to.key, to.address),
                Operation::WriteImmediate(to, data) => {
                    ((*qp).wr_rdma_write_imm)(qp, to.key, to.address, data.to_be());
                }
                Operation::Read(from) => ((*qp).wr_rdma_read)(qp, from.key, from.address),
            }
            ((*qp).wr_set_sge)(qp, local.key, local.address, local.length);
            ((*qp).wr_set_ud_addr)(qp, peer.handle.as_ptr(), peer.queue_pair, QKEY);
            ((*qp).wr_complete)(qp)
        };
        Error::check(status, format!("post {operation:?}"))
    }

    /// Returns its next completion, if there is one.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn poll(&self) -> Result<Option<Completion>> {
        self.completions.poll()
    }

    /// Returns its next completion, which must arrive within `limit`.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::Refused`].
    pub fn wait(&self, limit: Duration) -> Result<Completion> {
        self.completions.wait(limit)
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: the queue pair exists, and its last user is gone. Its completion queue is destroyed after it.
        unsafe { (self.domain.context().functions().destroy_qp)(self.qp.as_ptr()) };
    }
}
