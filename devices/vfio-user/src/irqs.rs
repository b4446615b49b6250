//! DEVICE_GET_IRQ_INFO and DEVICE_SET_IRQS: the interrupts of a device, and their event
//! descriptors.

use rustix::io::Errno;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

use crate::Event;
use crate::device::{Device, IrqAction};
use crate::framing::Descriptors;
use crate::request::{Answer, ClientCommand, check_argsz, parse};
use crate::wire::irq_info::{AUTOMASKED, EVENTFD, MASKABLE, NORESIZE};
use crate::wire::set_irqs::{
    ACTION, DATA, DATA_BOOL, DATA_EVENTFD, DATA_NONE, MASK, TRIGGER, UNMASK,
};
use crate::wire::{IrqInfo, SetIrqs};

/// vfio-user, DEVICE_GET_IRQ_INFO.
pub(crate) fn info<'d>(device: &dyn Device, payload: &[u8]) -> Result<Answer<'d>, Errno> {
    let (asked, _) = parse::<IrqInfo>(payload)?;
    check_argsz::<IrqInfo>(asked.argsz)?;
    let irq = device.irq(asked.index.get()).ok_or(Errno::INVAL)?;
    let maskable = if irq.maskable { MASKABLE } else { 0 };
    let automasked = if irq.automasked { AUTOMASKED } else { 0 };
    let fixed = if irq.fixed_count { NORESIZE } else { 0 };
    let reply = IrqInfo {
        argsz: U32::new(IrqInfo::SIZE),
        flags: U32::new(EVENTFD | maskable | automasked | fixed),
        index: asked.index,
        count: U32::new(irq.count),
    };
    Ok(reply.as_bytes().to_vec().into())
}

/// A vector that the client unmasks by an eventfd: under KVM, at the guest's end of interrupt.
#[derive(Debug)]
pub(crate) struct Unmasking {
    index: u32,
    vector: u32,
    pub(crate) event: Event,
}

impl Unmasking {
    /// Number of times that the signals of an eventfd are taken at once. One time takes all of
    /// them, unless the client signals in between.
    const MOST: usize = 16;

    /// Unmasks the vector if the client has signalled. Returns `false` if its signals do not end:
    /// an eventfd with EFD_SEMAPHORE delivers them one by one, and may have 2^64.
    pub(crate) fn carry_out(&self, device: &mut dyn Device) -> bool {
        let taken = (0..Self::MOST).take_while(|_| self.event.take()).count();
        if taken > 0 {
            let unmasked = device.set_irqs(self.index, self.vector, 1, IrqAction::Unmask);
            if let Err(error) = unmasked {
                log::debug!("interrupt {} cannot be unmasked: {error}", self.index);
            }
        }
        taken < Self::MOST
    }
}

/// vfio-user, DEVICE_SET_IRQS. ENOTSUP for masking by eventfd, which Linux's vfio-pci does not
/// support either, and for a second vector that is unmasked by eventfd: only INTx is unmasked in
/// that way.
pub(crate) fn set<'d>(
    device: &mut dyn Device,
    unmasking: &mut Option<Unmasking>,
    request: ClientCommand<'_>,
) -> Result<Answer<'d>, Errno> {
    let (asked, data) = parse::<SetIrqs>(request.payload)?;
    check_argsz::<SetIrqs>(asked.argsz)?;
    let vectors = Vectors::checked(device, asked)?;
    let flags = asked.flags.get();
    if flags & !(DATA | ACTION) != 0 {
        return Err(Errno::INVAL);
    }
    let action = flags & ACTION;
    if action & (MASK | UNMASK) != 0 && !vectors.maskable {
        return Err(Errno::INVAL);
    }
    match (flags & DATA, action) {
        (DATA_NONE, TRIGGER) if vectors.count == 0 => {
            unmasking.take_if(|unmasking| unmasking.index == vectors.index);
            vectors.set(device, IrqAction::Disable)?;
        }
        (_, MASK | UNMASK | TRIGGER) if vectors.count == 0 => return Err(Errno::INVAL),
        (DATA_NONE, _) => vectors.set(device, by_message(action)?)?,
        (DATA_BOOL, _) => vectors.set_where(device, data, action)?,
        (DATA_EVENTFD, TRIGGER) => {
            let events = vectors.events(request.descriptors)?;
            vectors.set(device, IrqAction::Events(events))?;
        }
        (DATA_EVENTFD, UNMASK) => vectors.unmask_by(unmasking, request.descriptors)?,
        (DATA_EVENTFD, MASK) => return Err(Errno::NOTSUP),
        _ => return Err(Errno::INVAL),
    }
    Ok(Answer::default())
}

/// Returns the action of a message without descriptors.
fn by_message(action: u32) -> Result<IrqAction, Errno> {
    match action {
        MASK => Ok(IrqAction::Mask),
        UNMASK => Ok(IrqAction::Unmask),
        TRIGGER => Ok(IrqAction::Trigger),
        _ => Err(Errno::INVAL),
    }
}

/// Vectors of one interrupt index. All of them exist.
#[derive(Clone, Copy)]
struct Vectors {
    index: u32,
    start: u32,
    count: u32,
    maskable: bool,
}

impl Vectors {
    fn checked(device: &dyn Device, asked: &SetIrqs) -> Result<Self, Errno> {
        let (index, start, count) = (asked.index.get(), asked.start.get(), asked.count.get());
        let irq = device.irq(index).ok_or(Errno::INVAL)?;
        match start.checked_add(count) {
            Some(end) if end <= irq.count => Ok(Self {
                index,
                start,
                count,
                maskable: irq.maskable,
            }),
            _ => Err(Errno::INVAL),
        }
    }

    fn set(self, device: &mut dyn Device, action: IrqAction) -> Result<(), Errno> {
        device.set_irqs(self.index, self.start, self.count, action)
    }

    /// Applies an action to the vectors whose byte in `chosen` is not 0, with one call for each run
    /// of adjacent vectors.
    fn set_where(self, device: &mut dyn Device, chosen: &[u8], action: u32) -> Result<(), Errno> {
        if u32::try_from(chosen.len()) != Ok(self.count) {
            return Err(Errno::INVAL);
        }
        let mut start = self.start;
        for run in chosen.chunk_by(|one, next| (*one == 0) == (*next == 0)) {
            let count = u32::try_from(run.len()).map_err(|_| Errno::INVAL)?;
            if run.first().is_some_and(|byte| *byte != 0) {
                device.set_irqs(self.index, start, count, by_message(action)?)?;
            }
            start = start.checked_add(count).ok_or(Errno::INVAL)?;
        }
        Ok(())
    }

    /// Sets the eventfd that unmasks the vector. Without a descriptor, only messages unmask it.
    fn unmask_by(self, unmasking: &mut Option<Unmasking>, sent: Descriptors) -> Result<(), Errno> {
        let (index, vector) = (self.index, self.start);
        let other = |unmasking: &Unmasking| (unmasking.index, unmasking.vector) != (index, vector);
        if self.count != 1 || unmasking.as_ref().is_some_and(other) {
            return Err(Errno::NOTSUP);
        }
        let event = self.events(sent)?.pop().flatten();
        *unmasking = event.map(|event| Unmasking {
            index,
            vector,
            event,
        });
        Ok(())
    }

    /// Returns one event for each vector; without descriptors all events are removed. EINVAL for a
    /// descriptor that is not an eventfd.
    fn events(self, sent: Descriptors) -> Result<Vec<Option<Event>>, Errno> {
        if sent.lost {
            return Err(Errno::MFILE);
        }
        if sent.foreign > 0 || sent.sockets > 0 {
            return Err(Errno::INVAL);
        }
        let count = usize::try_from(self.count).map_err(|_| Errno::INVAL)?;
        match sent.kept.len() {
            0 => Ok((0..count).map(|_| None).collect()),
            len if len == count => {
                let events = sent.kept.into_iter();
                events.map(|fd| Event::try_from(fd).map(Some)).collect()
            }
            _ => Err(Errno::INVAL),
        }
    }
}
