//! Completion counters: words in which an adapter counts completed work requests (Linux 7.3;
//! ibv_create_comp_cntr(3) of rdma-core 63).

use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;

use peerbar_gds::Mapping;

use crate::uverbs::{self, BufferDescription, Value};
use crate::{Context, Error, QueuePair, Result};

/// `UVERBS_OBJECT_QP` and `UVERBS_OBJECT_COMP_CNTR`.
const QUEUE_PAIR: u16 = 4;
const COUNTER: u16 = 19;
/// Methods: `UVERBS_METHOD_COMP_CNTR_…` and `UVERBS_METHOD_QP_ATTACH_COMP_CNTR`.
const CREATE: u16 = 0;
const DESTROY: u16 = 1;
const MODIFY: u16 = 2;
const ATTACH: u16 = 2;
/// `EFA_IB_ATTR_CREATE_COMP_CNTR_COMP_BUFFER` and `…_ERR_BUFFER`.
const COMPLETIONS: u16 = 1 << 12;
const ERRORS: u16 = COMPLETIONS + 1;
/// `IB_UVERBS_BUFFER_TYPE_DMABUF` and `…_VA`.
const DMA_BUF: u32 = 0;
const ADDRESS: u32 = 1;
const WORD_BYTES: u64 = size_of::<u64>() as u64;

/// The two words of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Work requests that succeeded, and reads and writes by others.
    Completions = 0,
    /// Work requests that failed.
    Errors = 1,
}

/// A change of a word (`enum ib_uverbs_comp_cntr_modify_op`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Sets this value.
    Set(u64),
    /// Adds this value.
    Add(u64),
}

/// The counted operations (`enum ib_uverbs_qp_attach_comp_cntr_op`), combined by OR.
pub mod counted {
    /// Sends.
    pub const SEND: u32 = 1;
    /// Receives.
    pub const RECEIVE: u32 = 1 << 1;
    /// RDMA reads.
    pub const READ: u32 = 1 << 2;
    /// RDMA reads of others.
    pub const REMOTE_READ: u32 = 1 << 3;
    /// RDMA writes.
    pub const WRITE: u32 = 1 << 4;
    /// RDMA writes of others.
    pub const REMOTE_WRITE: u32 = 1 << 5;
}

/// A counter, until it is dropped. Queue pairs that it is attached to must be dropped first.
pub struct CompletionCounter {
    context: Context,
    handle: u32,
    is_destroyed: bool,
    /// Keeps the words mapped.
    _memory: Option<Rc<Mapping>>,
}

impl CompletionCounter {
    /// Makes a counter whose words are the two of 8 bytes at `offset` of memory of this process.
    ///
    /// # Errors
    /// [`Error::Refused`]: with EOPNOTSUPP if kernel or adapter have no such counters.
    pub fn in_memory(context: &Context, memory: Rc<Mapping>, offset: u64) -> Result<Self> {
        let pointer = memory.pointer(offset..offset.saturating_add(2 * WORD_BYTES));
        let (start, _) = pointer.map_err(|source| Error::Refused {
            what: "find the words of a completion counter".to_owned(),
            source,
        })?;
        let address = start.as_ptr().expose_provenance() as u64;
        let word = |index: u64| BufferDescription {
            kind: ADDRESS,
            descriptor: -1,
            flags: 0,
            optional_flags: 0,
            address: address + index * WORD_BYTES,
            length: WORD_BYTES,
        };
        Self::new(context, [word(0), word(1)], Some(memory))
    }

    /// Makes a counter whose words are the two of 8 bytes at `offset` of a dma-buf, whose memory
    /// stays where it is as long as the counter lives.
    ///
    /// # Errors
    /// [`Error::Refused`]: with EOPNOTSUPP as above, or if the exporter does not allow its memory
    /// to be pinned.
    pub fn in_dma_buf(context: &Context, dma_buf: impl AsFd, offset: u64) -> Result<Self> {
        let descriptor = dma_buf.as_fd().as_raw_fd();
        let word = |index: u64| BufferDescription {
            kind: DMA_BUF,
            descriptor,
            flags: 0,
            optional_flags: 0,
            address: offset.saturating_add(index * WORD_BYTES),
            length: WORD_BYTES,
        };
        Self::new(context, [word(0), word(1)], None)
    }

    fn new(
        context: &Context,
        [completions, errors]: [BufferDescription; 2],
        memory: Option<Rc<Mapping>>,
    ) -> Result<Self> {
        let attributes = [
            (0, Value::Object(0)),
            (COMPLETIONS, Value::Buffer(&completions)),
            (ERRORS, Value::Buffer(&errors)),
        ];
        let created = uverbs::call(context.device_file(), (COUNTER, CREATE), &attributes);
        let handle = created.map_err(Error::refused("create a completion counter"))?;
        Ok(Self {
            context: context.clone(),
            handle,
            is_destroyed: false,
            _memory: memory,
        })
    }

    /// Attaches it to `operations`, of [`counted`], of a queue pair that neither sends nor receives
    /// yet. No other counter of the queue pair may count any of them.
    ///
    /// # Errors
    /// [`Error::Refused`]: with EBUSY if another one does, with EINVAL if the queue pair is in use.
    pub fn attach(&self, pair: &QueuePair, operations: u32) -> Result<()> {
        let attributes = [
            (0, Value::Object(pair.handle())),
            (1, Value::Object(self.handle)),
            (2, Value::Number(operations.into())),
        ];
        let call = uverbs::call(
            self.context.device_file(),
            (QUEUE_PAIR, ATTACH),
            &attributes,
        );
        call.map(|_| ()).map_err(Error::refused(
            "attach a completion counter to a queue pair",
        ))
    }

    /// Changes one of its words.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn modify(&self, word: Word, change: Change) -> Result<()> {
        let (operation, value) = match change {
            Change::Set(value) => (0, value),
            Change::Add(value) => (1, value),
        };
        let attributes = [
            (0, Value::Object(self.handle)),
            (1, Value::Number(word as u64)),
            (2, Value::Number(operation)),
            (3, Value::Number(value)),
        ];
        let call = uverbs::call(self.context.device_file(), (COUNTER, MODIFY), &attributes);
        call.map(|_| ())
            .map_err(Error::refused("change a completion counter"))
    }

    /// Destroys it.
    ///
    /// # Errors
    /// [`Error::Refused`]: with EBUSY while a queue pair has it. In that case it ends with the
    /// adapter's context.
    pub fn destroy(mut self) -> Result<()> {
        self.destroy_handle()
            .map_err(Error::refused("destroy a completion counter"))
    }

    fn destroy_handle(&mut self) -> std::io::Result<()> {
        if std::mem::replace(&mut self.is_destroyed, true) {
            return Ok(());
        }
        let attributes = [(0, Value::Object(self.handle))];
        let call = uverbs::call(self.context.device_file(), (COUNTER, DESTROY), &attributes);
        call.map(|_| ())
    }
}

impl Drop for CompletionCounter {
    fn drop(&mut self) {
        // A counter that is in use ends with the context.
        let _ = self.destroy_handle();
    }
}
