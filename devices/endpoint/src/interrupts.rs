//! Interrupts: the event descriptors that the client has set up, and the level of the INTx pin.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use peerbar_dma::{Origin, Requester};
use peerbar_fault::{Action, Kind};
use peerbar_host::eventfd::{Event, Signaller};
use peerbar_pci::{InterruptMode, Interrupts};
use peerbar_vfio_user::IrqAction;
use rustix::io::Errno;

use crate::delayed::Delayed;

/// The interrupts of one function, shared between the thread that serves the client and those that
/// raise them.
///
/// The client masks MSI-X vectors on its own side without a message, so a vector is signalled
/// whether masked or not. The INTx pin is level-triggered: one signal masks it, and the client
/// unmasks it at the guest's end of interrupt (vfio-user, DEVICE_SET_IRQS;
/// VFIO_IRQ_INFO_AUTOMASKED).
///
/// MSI-X messages are requests, so a function that is not a bus master sends none (PCIe Base 6.0,
/// 7.5.1.1.3). They are sent once it is a bus master again. Then earlier messages are sent again,
/// too, because the client drops those that it receives after it has turned bus mastering off. At
/// worst, a driver finds no work.
pub struct Vectors {
    messages: Arc<Messages>,
    delayed: Delayed,
    pin: Mutex<Pin>,
    /// Set if there is any event descriptor of each kind. These flags decide the mode without a
    /// lock: it is read for each interrupt.
    has_msi_x: AtomicBool,
    has_pin: AtomicBool,
}

/// The event descriptors of the MSI-X vectors, and the signaller for them and for the pin's.
struct Messages {
    signaller: Signaller,
    events: RwLock<Vec<Option<Event>>>,
    /// The vectors that have been raised since messages were set up, and since the last reset.
    raised: Vec<AtomicBool>,
    /// The requester, with the fault rules and the flight record.
    requester: OnceLock<Arc<Requester>>,
}

impl Messages {
    /// Signals a vector, now or once the function is a bus master.
    fn signal(&self, vector: u16) {
        let events = self.events.read();
        let raised = self.raised.get(usize::from(vector));
        let (Some(Some(event)), Some(raised)) = (events.get(usize::from(vector)), raised) else {
            return;
        };
        raised.store(true, Ordering::Relaxed);
        let requester = self.requester.get();
        if requester.is_none_or(|requester| requester.bus_mastering().is_on()) {
            self.signal_event(vector, event);
        }
    }

    /// Signals all vectors that have been raised: the function has become a bus master.
    fn signal_raised(&self) {
        // A thread that has found bus mastering off has released the lock, so its vector is seen
        // here.
        let events = self.events.write();
        for ((vector, event), raised) in (0..).zip(&*events).zip(&self.raised) {
            if let Some(event) = event.as_ref().filter(|_| raised.load(Ordering::Relaxed)) {
                self.signal_event(vector, event);
            }
        }
    }

    /// Forgets the vectors that have been raised.
    fn clear_raised(&self) {
        let raised = self.raised.iter();
        raised.for_each(|raised| raised.store(false, Ordering::Relaxed));
    }

    fn signal_pin(&self, event: &Event) -> bool {
        self.signal_event(0, event)
    }

    /// Records an interrupt and signals its event descriptor, unless the link is down. Returns
    /// `true` if it has.
    fn signal_event(&self, vector: u16, event: &Event) -> bool {
        let requester = self.requester.get();
        if requester.is_some_and(|requester| !requester.link_is_up()) {
            return false;
        }
        if let Some(requester) = requester {
            requester.ledger().interrupt(vector);
        }
        self.signaller.signal(event);
        true
    }
}

#[derive(Debug, Default)]
struct Pin {
    event: Option<Event>,
    asserted: bool,
    /// Masked, by the client or by the last signal.
    masked: bool,
    /// The last signal has masked the pin.
    signalled: bool,
}

impl Vectors {
    /// Makes the interrupts of a function with this many MSI-X vectors. Fails if the kernel has no
    /// asynchronous I/O (io_setup(2)).
    pub fn new(vectors: u16) -> io::Result<Self> {
        let events = (0..vectors).map(|_| None).collect();
        let messages = Messages {
            signaller: Signaller::new()?,
            events: RwLock::new(events),
            raised: (0..vectors).map(|_| AtomicBool::new(false)).collect(),
            requester: OnceLock::new(),
        };
        Ok(Self {
            messages: Arc::new(messages),
            delayed: Delayed::default(),
            pin: Mutex::default(),
            has_msi_x: AtomicBool::new(false),
            has_pin: AtomicBool::new(false),
        })
    }

    /// Uses this function's requester from now on: its rules inject faults into interrupts, and its
    /// flight record records them.
    pub(crate) fn attach(&self, requester: Arc<Requester>) {
        let _ = self.messages.requester.set(requester);
    }

    /// Returns how often a vector that is raised is signalled now: once, unless a rule injects a
    /// fault. While the link is down no rule is consulted.
    fn times(&self, vector: u16) -> usize {
        let requester = self.messages.requester.get();
        let armed = requester.filter(|requester| {
            requester.faults().is_armed(Kind::Interrupt) && requester.link_is_up()
        });
        let fired =
            armed.and_then(|requester| Some((requester, requester.faults().interrupt(vector)?)));
        let Some((requester, fired)) = fired else {
            return 1;
        };
        requester.note_injected(Origin::Device, &fired);
        match fired.action {
            Action::Drop | Action::LinkDown(_) => 0,
            Action::Duplicate => 2,
            Action::Delay(by) => usize::from(!self.delay(vector, by)),
            _ => 1,
        }
    }

    /// Signals a vector after the time `by`. Returns `true` if it will be signalled.
    pub(crate) fn delay(&self, vector: u16, by: Duration) -> bool {
        let messages = self.messages.clone();
        let signal = move |vector| messages.signal(vector);
        self.delayed.add(vector, by, signal)
    }

    /// Returns the number of delayed vectors.
    #[cfg(test)]
    pub(crate) fn delayed(&self) -> usize {
        self.delayed.waiting()
    }

    /// Returns the number of MSI-X vectors.
    pub fn count(&self) -> u32 {
        u32::try_from(self.messages.events.read().len()).unwrap_or(u32::MAX)
    }

    /// Closes every event descriptor. The function keeps the level of the pin.
    pub(crate) fn clear(&self) {
        self.forget();
        self.change_msi_x(|vectors| vectors.fill_with(|| None));
        self.change_pin(|pin| pin.clear());
    }

    /// Forgets the interrupts that faults or bus mastering hold back.
    pub(crate) fn forget(&self) {
        self.delayed.clear();
        self.messages.clear_raised();
    }

    /// Signals pending vectors: the function has become a bus master.
    pub(crate) fn bus_master_enabled(&self) {
        self.messages.signal_raised();
    }

    /// vfio-user, DEVICE_SET_IRQS for MSI-X.
    pub(crate) fn set_msi_x(&self, start: u32, count: u32, action: IrqAction) -> Result<(), Errno> {
        let start = usize::try_from(start).map_err(|_| Errno::INVAL)?;
        let end = usize::try_from(count)
            .ok()
            .and_then(|count| start.checked_add(count))
            .ok_or(Errno::INVAL)?;
        match action {
            IrqAction::Disable => {
                self.messages.clear_raised();
                self.change_msi_x(|vectors| vectors.fill_with(|| None));
            }
            IrqAction::Events(events) => {
                self.change_msi_x(|vectors| {
                    let vectors = vectors.get_mut(start..end);
                    let vectors = vectors.filter(|vectors| vectors.len() == events.len());
                    for (vector, event) in vectors.ok_or(Errno::INVAL)?.iter_mut().zip(events) {
                        *vector = event;
                    }
                    Ok(())
                })?;
            }
            IrqAction::Trigger => {
                let events = self.messages.events.read();
                let events = events.get(start..end).ok_or(Errno::INVAL)?;
                let events = events.iter().flatten();
                events.for_each(|event| self.messages.signaller.signal(event));
            }
            IrqAction::Mask | IrqAction::Unmask => return Err(Errno::INVAL),
        }
        Ok(())
    }

    /// vfio-user, DEVICE_SET_IRQS for INTx.
    pub(crate) fn set_pin_events(&self, action: IrqAction) -> Result<(), Errno> {
        self.change_pin(|pin| {
            match action {
                IrqAction::Disable => pin.clear(),
                IrqAction::Events(events) => {
                    pin.event = events.into_iter().next().flatten();
                    pin.unmask(|event| self.messages.signal_pin(event));
                }
                IrqAction::Trigger => {
                    let event = pin.event.iter();
                    event.for_each(|event| self.messages.signaller.signal(event));
                }
                IrqAction::Mask => {
                    pin.masked = true;
                    pin.signalled = false;
                }
                IrqAction::Unmask => pin.unmask(|event| self.messages.signal_pin(event)),
            }
            Ok(())
        })
    }

    fn change_msi_x<R>(&self, change: impl FnOnce(&mut [Option<Event>]) -> R) -> R {
        let mut vectors = self.messages.events.write();
        let result = change(&mut vectors);
        let any = vectors.iter().any(Option::is_some);
        self.has_msi_x.store(any, Ordering::Release);
        result
    }

    fn change_pin<R>(&self, change: impl FnOnce(&mut Pin) -> R) -> R {
        let mut pin = self.pin.lock();
        let result = change(&mut pin);
        self.has_pin.store(pin.event.is_some(), Ordering::Release);
        result
    }
}

impl Interrupts for Vectors {
    fn mode(&self) -> InterruptMode {
        if self.has_msi_x.load(Ordering::Acquire) {
            InterruptMode::MsiX
        } else if self.has_pin.load(Ordering::Acquire) {
            InterruptMode::Pin
        } else {
            InterruptMode::Off
        }
    }

    fn raise(&self, vector: u16) {
        for _ in 0..self.times(vector) {
            self.messages.signal(vector);
        }
    }

    fn set_pin(&self, asserted: bool) {
        let mut pin = self.pin.lock();
        pin.asserted = asserted;
        if asserted {
            pin.deliver(|event| self.messages.signal_pin(event));
        } else {
            pin.withdraw();
        }
    }
}

impl Pin {
    /// Closes the event descriptor. The function keeps the level.
    fn clear(&mut self) {
        *self = Self {
            asserted: self.asserted,
            ..Self::default()
        };
    }

    fn unmask(&mut self, signal: impl FnOnce(&Event) -> bool) {
        self.masked = false;
        self.signalled = false;
        self.deliver(signal);
    }

    /// Signals a level that is asserted and not masked, and masks it. `signal` returns `true` if it
    /// signals.
    fn deliver(&mut self, signal: impl FnOnce(&Event) -> bool) {
        if self.asserted && !self.masked && self.event.as_ref().is_some_and(signal) {
            self.masked = true;
            self.signalled = true;
        }
    }

    /// Takes back a signal that the client has not taken yet. QEMU would assert the guest's line
    /// for it, and keep it asserted until the guest's next access to the device. A guest that finds
    /// no work never makes that access.
    fn withdraw(&mut self) {
        if self.signalled && self.event.as_ref().is_some_and(Event::take) {
            self.masked = false;
            self.signalled = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use peerbar_dma::CounterFile;
    use peerbar_dma_log::counter_file::Reader;
    use peerbar_flight::{self as flight, FlightFile, Level, Recorder};
    use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
    use rustix::fs::OFlags;

    use super::*;

    /// Makes an eventfd. Returns the device's descriptor and the client's.
    fn event() -> (Event, Event) {
        let event = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let same = event.try_clone().unwrap();
        (event.try_into().unwrap(), same.try_into().unwrap())
    }

    fn bus_master() -> Arc<Requester> {
        let requester = Arc::new(Requester::new());
        requester.set_bus_master(true);
        requester
    }

    /// The number of signals since the last call.
    fn signals(event: &Event) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(event, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    }

    #[test]
    fn raised_vector_signals_its_own_event() {
        let vectors = Vectors::new(4).unwrap();
        let (given, seen) = event();
        vectors
            .set_msi_x(2, 1, IrqAction::Events(vec![Some(given)]))
            .unwrap();
        assert_eq!(vectors.mode(), InterruptMode::MsiX);
        for vector in [0, 2, 3, 4, u16::MAX] {
            vectors.raise(vector);
        }
        assert_eq!(signals(&seen), 1);
        vectors.set_msi_x(2, 1, IrqAction::Trigger).unwrap();
        assert_eq!(signals(&seen), 1);
        vectors.set_msi_x(0, 0, IrqAction::Disable).unwrap();
        vectors.raise(2);
        assert_eq!(signals(&seen), 0);
        assert_eq!(vectors.mode(), InterruptMode::Off);
    }

    #[test]
    fn injected_faults_drop_and_double_signals() {
        let vectors = Vectors::new(2).unwrap();
        let (given, seen) = event();
        vectors
            .set_msi_x(1, 1, IrqAction::Events(vec![Some(given)]))
            .unwrap();
        let requester = bus_master();
        vectors.attach(requester.clone());
        for rule in ["drop interrupt vector=1 nth=1", "duplicate interrupt nth=2"] {
            requester.add_fault(rule.parse().unwrap()).unwrap();
        }
        let raised = [1, 2, 3].map(|_| {
            vectors.raise(1);
            signals(&seen)
        });
        assert_eq!(raised, [0, 2, 1]);
    }

    #[test]
    fn injected_delay_signals_late_unless_the_client_leaves() {
        let vectors = Vectors::new(1).unwrap();
        let requester = bus_master();
        vectors.attach(requester.clone());
        let rule = "delay interrupt by=50ms limit=1";
        requester.add_fault(rule.parse().unwrap()).unwrap();
        let connect = || {
            let (given, seen) = event();
            let events = IrqAction::Events(vec![Some(given)]);
            vectors.set_msi_x(0, 1, events).unwrap();
            seen
        };
        let former = connect();
        // Due long after this test.
        assert!(vectors.delay(0, Duration::from_secs(3600)));
        vectors.clear();
        assert_eq!(vectors.delayed(), 0);
        let seen = connect();
        let start = Instant::now();
        vectors.raise(0);
        let mut polled = [PollFd::new(&seen, PollFlags::IN)];
        poll(&mut polled, None).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(50));
        assert_eq!((signals(&seen), signals(&former)), (1, 0));
        vectors.raise(0);
        assert_eq!(signals(&seen), 1, "no rule fires");
    }

    #[test]
    fn nothing_is_signalled_while_the_link_is_down() {
        let vectors = Vectors::new(1).unwrap();
        let requester = bus_master();
        vectors.attach(requester.clone());
        let [(message, message_seen), (pin, pin_seen)] = [event(), event()];
        vectors
            .set_msi_x(0, 1, IrqAction::Events(vec![Some(message)]))
            .unwrap();
        let act = |action| vectors.set_pin_events(action).unwrap();
        act(IrqAction::Events(vec![Some(pin)]));
        let raise = || {
            vectors.raise(0);
            // As the thread of delayed interrupts does.
            vectors.messages.signal(0);
            act(IrqAction::Unmask);
            vectors.set_pin(true);
            let seen = (signals(&message_seen), signals(&pin_seen));
            vectors.set_pin(false);
            seen
        };
        let add = |rule: &str| requester.add_fault(rule.parse().unwrap()).unwrap();
        add("drop interrupt nth=2");
        add("link-down device");
        assert_eq!(raise(), (0, 0));
        add("link-up device");
        assert_eq!(raise(), (2, 1), "the first match is no second one");
        assert_eq!(raise(), (1, 1));
    }

    #[test]
    fn vector_raised_without_bus_mastering_is_signalled_once_it_is_on() {
        let vectors = Vectors::new(3).unwrap();
        let requester = bus_master();
        vectors.attach(requester.clone());
        let (given, seen): (Vec<_>, Vec<_>) = (0..3).map(|_| event()).unzip();
        let given = given.into_iter().map(Some).collect();
        vectors.set_msi_x(0, 3, IrqAction::Events(given)).unwrap();
        let signals = || seen.iter().map(signals).collect::<Vec<_>>();
        vectors.raise(0);
        assert_eq!(signals(), [1, 0, 0]);
        requester.set_bus_master(false);
        vectors.raise(1);
        vectors.raise(1);
        assert_eq!(signals(), [0, 0, 0]);
        requester.set_bus_master(true);
        vectors.bus_master_enabled();
        assert_eq!(
            signals(),
            [1, 1, 0],
            "the client may have dropped the first"
        );
        vectors.forget();
        vectors.bus_master_enabled();
        assert_eq!(signals(), [0, 0, 0], "they were of the time before a reset");
    }

    #[test]
    fn signals_are_recorded_and_counted_but_not_dropped_ones() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk0.flight");
        let requester = bus_master();
        requester
            .ledger()
            .record_in(Recorder::create(&path, "disk0", Level::All).unwrap());
        let counters = folder.path().join("disk0.counters");
        requester.count_in(CounterFile::create(&counters).unwrap());
        let vectors = Vectors::new(2).unwrap();
        vectors.attach(requester.clone());
        let [(message, _message_seen), (pin, pin_seen)] = [event(), event()];
        vectors
            .set_msi_x(1, 1, IrqAction::Events(vec![Some(message)]))
            .unwrap();
        vectors
            .set_pin_events(IrqAction::Events(vec![Some(pin)]))
            .unwrap();
        let rule = "drop interrupt vector=1 nth=2";
        requester.add_fault(rule.parse().unwrap()).unwrap();
        for vector in [1, 1, 0, 1] {
            vectors.raise(vector);
        }
        vectors.set_pin(true);
        vectors.set_pin(true);
        assert_eq!(signals(&pin_seen), 1);
        let flight = FlightFile::open(&path).unwrap().read().unwrap();
        let recorded = flight
            .records
            .iter()
            .filter_map(|record| match record.event {
                flight::Event::Interrupt { vector } => Some(vector),
                _ => None,
            });
        assert_eq!(recorded.collect::<Vec<_>>(), [1, 1, 0]);
        let counted = Reader::open(&counters).unwrap().read().unwrap().events;
        assert_eq!((counted.interrupts, counted.injected_faults), (3, 1));
    }

    #[test]
    fn missing_vector_is_refused() {
        let vectors = Vectors::new(4).unwrap();
        assert!(
            vectors
                .set_msi_x(4, 1, IrqAction::Events(vec![None]))
                .is_err()
        );
        assert!(vectors.set_msi_x(3, 2, IrqAction::Trigger).is_err());
        assert!(
            vectors
                .set_msi_x(u32::MAX, u32::MAX, IrqAction::Trigger)
                .is_err()
        );
        assert!(
            vectors
                .set_msi_x(0, 2, IrqAction::Events(vec![None]))
                .is_err()
        );
    }

    #[test]
    fn asserted_pin_signals_once_for_each_end_of_interrupt() {
        let vectors = Vectors::new(1).unwrap();
        let (given, seen) = event();
        let act = |action| vectors.set_pin_events(action).unwrap();
        vectors.set_pin(true);
        act(IrqAction::Events(vec![Some(given)]));
        assert_eq!(vectors.mode(), InterruptMode::Pin);
        vectors.set_pin(true);
        assert_eq!(signals(&seen), 1, "a level that stays is one signal");
        act(IrqAction::Unmask);
        assert_eq!(signals(&seen), 1, "still asserted at the end of interrupt");
        vectors.set_pin(false);
        act(IrqAction::Unmask);
        assert_eq!(signals(&seen), 0);
        act(IrqAction::Mask);
        vectors.set_pin(true);
        assert_eq!(signals(&seen), 0);
    }

    #[test]
    fn signal_not_taken_is_withdrawn_with_the_level() {
        let vectors = Vectors::new(1).unwrap();
        let (given, seen) = event();
        vectors
            .set_pin_events(IrqAction::Events(vec![Some(given)]))
            .unwrap();
        vectors.set_pin(true);
        vectors.set_pin(false);
        assert_eq!(signals(&seen), 0, "withdrawn");
        vectors.set_pin(true);
        assert_eq!(signals(&seen), 1, "and not masked by what was withdrawn");
        vectors.set_pin(false);
        vectors.set_pin(true);
        assert_eq!(
            signals(&seen),
            0,
            "what was taken masks until it is unmasked"
        );
    }

    #[test]
    fn full_eventfd_does_not_block() {
        let vectors = Vectors::new(1).unwrap();
        let ((pin, pin_seen), (message, message_seen)) = (event(), event());
        for event in [&pin_seen, &message_seen] {
            rustix::io::write(event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        }
        vectors
            .set_pin_events(IrqAction::Events(vec![Some(pin)]))
            .unwrap();
        vectors
            .set_msi_x(0, 1, IrqAction::Events(vec![Some(message)]))
            .unwrap();
        // The client shares the open file description, and thus its flags.
        for event in [&pin_seen, &message_seen] {
            rustix::fs::fcntl_setfl(event, OFlags::empty()).unwrap();
        }
        vectors.raise(0);
        vectors.set_pin(true);
        vectors.set_pin(false);
        assert!(!pin_seen.take(), "the pin's signal is withdrawn");
        vectors.set_pin(true);
        vectors.set_pin(false);
        assert!(message_seen.take());
    }
}
