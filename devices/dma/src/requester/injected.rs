//! Injected faults: their rules, and their effect on DMA segments and mappings.

use std::num::NonZeroU64;
use std::time::Duration;

use parking_lot::RwLockReadGuard;
use peerbar_dma_log::counter_file::DeviceEvent;
use peerbar_dma_log::{Origin, Route};
use peerbar_fault::{Action, AddError, Faults, Fired, Kind, Rule, Segment};
use peerbar_flight::{Event, Injection};
use peerbar_pci::{Iova, Range};

use crate::buffer::Buffer;
use crate::clock::nanos;
use crate::error::DmaFault;
use crate::map::MapError;
use crate::route::{RouteTable, Target};
use crate::tag::Tag;

use super::Requester;
use super::transfer::{LINK_WAIT, Transfer};

impl Requester {
    /// Returns the fault rules of the function.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Activates a rule.
    pub fn add_fault(&self, rule: Rule) -> Result<(), AddError> {
        let text = rule.to_string();
        let fired = self.faults.add(rule)?;
        if let Some(recorder) = self.ledger.recorder() {
            recorder.rule(&text);
        }
        if let Some(fired) = fired {
            self.note_injected(Origin::Device, &fired);
        }
        Ok(())
    }

    /// Notes an injected fault. Removes the device, or takes its link down, if the fault says so.
    pub fn note_injected(&self, origin: Origin, fired: &Fired) {
        log::debug!("{origin}: rule {}, match {}", fired.rule, fired.matches);
        self.ledger.counters().happened(DeviceEvent::InjectedFault);
        self.ledger.note(|| {
            Event::Injected(Injection {
                rule: fired.rule,
                matches: fired.matches,
                origin,
            })
        });
        let upstream = self.client.upstream();
        match fired.action {
            Action::Remove => {
                if let Some(upstream) = upstream {
                    upstream.disconnect();
                }
            }
            Action::LinkDown(down) | Action::LosePower { down, .. } => {
                self.set_link_down(down);
                if let Some(upstream) = upstream {
                    upstream.wake();
                }
            }
            Action::LinkUp => self.set_link_up(),
            _ => {}
        }
    }

    /// Returns `true` if a rule may inject a fault into a DMA, or the link is down. All DMA must
    /// then go through the requester, segment by segment.
    #[inline]
    pub(crate) fn injects(&self) -> bool {
        self.faults().is_armed(Kind::Dma) || !self.link_is_up()
    }

    /// Returns the fault that a rule injects into the first segment of a request. A delay is spent
    /// in here.
    #[inline]
    pub(super) fn injected(&self, tag: Tag, address: Iova, buffer: &Buffer<'_>) -> Option<Action> {
        self.injects()
            .then(|| self.find_injected(tag, address, buffer))?
    }

    fn find_injected(&self, tag: Tag, address: Iova, buffer: &Buffer<'_>) -> Option<Action> {
        let direction = buffer.direction();
        let segment = self.route_table().route(address, buffer.len(), direction);
        let (route, _) = segment.target.route_and_completer();
        if route == Route::Refused {
            return None;
        }
        if !self.link_is_up() {
            return Some(Action::Fail);
        }
        let fired = self.faults().dma(&Segment {
            purpose: tag.purpose,
            direction,
            route,
            address,
            len: segment.len as u64,
        })?;
        self.note_injected(tag.origin, &fired);
        match fired.action {
            Action::Delay(by) => {
                self.hold_back(by);
                None
            }
            Action::LinkDown(_) => Some(Action::Fail),
            action => Some(action),
        }
    }

    /// Injects a rule's fault into a mapping. A delay is spent in here. Returns an error if the
    /// mapping must fail.
    pub(super) fn injects_into_mapping(&self, range: Range<Iova>) -> Result<(), MapError> {
        if !self.faults().is_armed(Kind::Mapping) {
            return Ok(());
        }
        let Some(fired) = self.faults().mapping(range) else {
            return Ok(());
        };
        self.note_injected(Origin::Device, &fired);
        match fired.action {
            Action::Fail => return Err(MapError::Injected),
            Action::Delay(by) => self.clock.sleep(nanos(by)),
            _ => {}
        }
        Ok(())
    }

    /// Waits, for as long as the function may issue requests.
    pub fn hold_back(&self, by: Duration) {
        let end = self.clock.now().saturating_add(nanos(by));
        while self.may_request() {
            let left = end.saturating_sub(self.clock.now());
            if left == 0 {
                break;
            }
            self.clock.sleep(left.min(LINK_WAIT));
        }
    }
}

impl Transfer<'_, '_> {
    /// Reads or writes at a target, with a fault.
    pub(super) fn reach_with(
        &mut self,
        fault: Action,
        routes: RwLockReadGuard<'_, RouteTable>,
        target: &Target,
        address: Iova,
        part: &mut Buffer<'_>,
    ) -> Result<(), DmaFault> {
        match (fault, part) {
            (Action::Fail, _) | (Action::Drop, Buffer::Read(_)) => Err(DmaFault::Injected),
            (Action::Drop, Buffer::Write(_)) => Ok(()),
            (Action::Corrupt(bytes), Buffer::Write(data)) => {
                let mut wrong = data.to_vec();
                invert(&mut wrong, bytes);
                self.reach(routes, target, address, &mut Buffer::Write(&wrong))
            }
            (Action::Corrupt(bytes), part) => {
                self.reach(routes, target, address, part)?;
                if let Buffer::Read(data) = part {
                    invert(data, bytes);
                }
                Ok(())
            }
            (_, part) => self.reach(routes, target, address, part),
        }
    }
}

fn invert(data: &mut [u8], bytes: NonZeroU64) {
    let bytes = usize::try_from(bytes.get()).unwrap_or(usize::MAX);
    data.iter_mut().take(bytes).for_each(|byte| *byte = !*byte);
}
