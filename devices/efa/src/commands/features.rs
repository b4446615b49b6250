//! Features: the driver reads some from the adapter and sets others.

use std::time::Instant;

use peerbar_dma::{Purpose, Tag};
use peerbar_efa_spec::admin::Status;
use peerbar_efa_spec::admin::feature::{AsyncEvents as EventGroups, FeatureCommand, id};
use peerbar_efa_spec::admin::host_info::HostInfo;
use peerbar_pci::Iova;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::{DONE, answer, possible};
use crate::admin_queue::{Answer, Command};
use crate::async_events::{AsyncEvents, supported_groups};
use crate::attributes;
use crate::engine::Engine;

impl Engine {
    pub(super) fn get_feature(&mut self, command: &Command) -> Result<Answer, Status> {
        let feature = command.view::<FeatureCommand>()?.select.id;
        Ok(match feature {
            id::DEVICE_ATTRIBUTES => {
                let link = self.requester.link();
                let bandwidth = link.and_then(|link| link.speed().bandwidth);
                answer(&attributes::device(self.gid, bandwidth))
            }
            id::ASYNC_EVENTS => answer(&EventGroups {
                supported: supported_groups().into(),
                enabled: self.events.as_ref().map_or(0, |it| it.enabled).into(),
            }),
            id::NETWORK_ATTRIBUTES => answer(&attributes::network(self.gid)),
            id::QUEUE_ATTRIBUTES_1 => answer(&attributes::queues_1()),
            id::QUEUE_ATTRIBUTES_2 => answer(&attributes::queues_2()),
            id::HARDWARE_HINTS => answer(&attributes::hints()),
            id::EVENT_QUEUE_ATTRIBUTES => answer(&attributes::event_queues()),
            _ => return Err(Status::UnsupportedOpcode),
        })
    }

    pub(super) fn set_feature(&mut self, command: &Command) -> Result<Answer, Status> {
        let feature = command.view::<FeatureCommand>()?;
        match feature.select.id {
            id::ASYNC_EVENTS => self.enable_events(&feature)?,
            id::HOST_INFO => self.take_host_info(command, &feature)?,
            _ => return Err(Status::UnsupportedOpcode),
        }
        Ok(DONE)
    }

    fn enable_events(&mut self, feature: &FeatureCommand) -> Result<(), Status> {
        let groups = EventGroups::read_from_prefix(&feature.value);
        let (groups, _) = groups.map_err(|_| Status::MalformedRequest)?;
        let enabled = groups.enabled.get();
        possible(enabled & !supported_groups() == 0)?;
        if let Some(events) = &mut self.events {
            events.enabled = enabled;
            return Ok(());
        }
        let setup = self.shared.with(|registers| registers.event_setup());
        self.events = AsyncEvents::new(setup, enabled, Instant::now());
        possible(self.events.is_some() || enabled == 0)
    }

    /// Reads the driver's information about its host, which appears only in the log.
    fn take_host_info(
        &mut self,
        command: &Command,
        feature: &FeatureCommand,
    ) -> Result<(), Status> {
        let buffer = &feature.control_buffer;
        let is_long = buffer.length.get() as usize >= size_of::<HostInfo>();
        possible(command.flags.control_data() && !command.flags.control_data_indirect())?;
        possible(is_long)?;
        let mut info = HostInfo::new_zeroed();
        let tag = Tag::new(Purpose::Control, command.origin());
        let read = self
            .requester
            .read(tag, Iova(buffer.address.get()), info.as_mut_bytes());
        read.map_err(|_| Status::UnknownError)?;
        log::debug!("driver's kernel is {}", text(&info.distribution));
        Ok(())
    }
}

/// Returns text up to the first zero, without control characters.
fn text(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_the_driver_is_cut_at_its_end_and_made_harmless() {
        assert_eq!(text(b"7.3.4\0secret"), "7.3.4");
        assert_eq!(text(b"\x1b[2J"), "\\u{1b}[2J");
        assert_eq!(text(&[]), "");
    }
}
