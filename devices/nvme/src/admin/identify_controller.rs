//! The controller's identity: Identify Controller, names and UUIDs.

use peerbar_nvme_spec::identify::controller::{
    Controller, Ctratt, EntrySizes, Frmw, Lpa, Oacs, Oncs, Sanicap, Sgls, Vwc,
};
use peerbar_nvme_spec::identify::namespace::DescriptorHeader;
use peerbar_nvme_spec::identify::{DATA_SIZE, ascii, csi};
use peerbar_nvme_spec::registers::Vs;
use peerbar_pci::Identity;
use zerocopy::{FromZeros, IntoBytes};

use super::events;
use crate::config::Config;
use crate::health::ERROR_ENTRIES;
use crate::io_queue::poll::PollPolicy;
use crate::namespace::Namespace;

/// Controller ID: there is one controller in the subsystem.
pub(super) const CONTROLLER_ID: u16 = 1;
/// The locally administered prefix that QEMU and KVM use, least significant byte first.
const OUI: [u8; 3] = [0x00, 0x54, 0x52];
/// Maximum power, in units of 0.01 W.
const MAX_POWER: u16 = 2500;
/// Temperatures in kelvins at which a real drive would warn and fail.
const WARNING_TEMPERATURE: u16 = 343;
const CRITICAL_TEMPERATURE: u16 = 373;

/// ACL: Abort commands that may be outstanding. In practice each one completes at once.
const ABORT_LIMIT: u8 = 4;

/// SGLS of a controller with SGLs: all descriptors by address, at any byte. An SGL describes exactly
/// the data. The bit of the metadata segment is what offers PSDT 10b; since no namespace has
/// metadata, that segment is never read.
const OFFERED_SGLS: Sgls = Sgls::new()
    .with_support(Sgls::BYTE_ALIGNED)
    .with_bit_bucket(true)
    .with_metadata_segment(true);

/// The controller's identity.
#[derive(Debug)]
pub(super) struct ControllerIdentity {
    serial: String,
    identity: Identity,
    mdts: u8,
    sgls: Sgls,
    shadow_doorbells: bool,
}

impl ControllerIdentity {
    pub(super) fn new(config: &Config, identity: &Identity) -> Self {
        Self {
            serial: config.serial.clone(),
            identity: *identity,
            mdts: config.mdts,
            sgls: if config.sgl {
                OFFERED_SGLS
            } else {
                Sgls::new()
            },
            shadow_doorbells: config.poll == PollPolicy::Adaptive,
        }
    }

    /// Returns `true` if the guest may keep doorbells in its own memory. With `never` a worker does
    /// not poll, so each doorbell must reach the controller; with `always` the guest maps the
    /// doorbell page instead.
    pub(super) fn offers_shadow_doorbells(&self) -> bool {
        self.shadow_doorbells
    }

    /// Identify Controller (NVMe Base 2.0, 5.17.2.1).
    pub(super) fn controller(&self, namespaces: &[Namespace], doorbell_buffer: bool) -> Controller {
        let mut data = Controller::new_zeroed();
        data.vid = self.identity.vendor.into();
        data.ssvid = self.identity.subsystem_vendor.into();
        data.sn = ascii(&self.serial).unwrap_or([b' '; 20]);
        data.mn = ascii("peerbar NVMe controller").unwrap_or([b' '; 40]);
        data.fr = firmware();
        data.rab = 4;
        data.ieee = OUI;
        data.mdts = self.mdts;
        data.cntlid = CONTROLLER_ID.into();
        data.ver = Vs::V2_0.into_bits().into();
        data.ctratt = Ctratt::new().with_host_id_128(true);
        data.cntrltype = Controller::TYPE_IO;
        data.oacs = Oacs::new().with_doorbell_buffer(doorbell_buffer);
        data.acl = ABORT_LIMIT - 1;
        data.aerl = u8::try_from(events::LIMIT - 1).unwrap_or(0);
        data.frmw = Frmw::new().with_slots(1).with_slot_1_read_only(true);
        // Supported Log Pages stays clear: that bit also claims command scopes, which Linux warns
        // about, and log page 13h.
        data.lpa = Lpa::new()
            .with_command_effects(true)
            .with_extended_data(true);
        data.elpe = u8::try_from(ERROR_ENTRIES - 1).unwrap_or(0);
        data.avscc = 1;
        data.wctemp = WARNING_TEMPERATURE.into();
        data.cctemp = CRITICAL_TEMPERATURE.into();
        data.tnvmcap = namespaces.iter().map(capacity).sum::<u128>().into();
        // Media is not modified after a sanitize without deallocation.
        data.sanicap = Sanicap::new().with_block_erase(true).with_nodmmas(1);
        data.sqes = EntrySizes::SUBMISSION;
        data.cqes = EntrySizes::COMPLETION;
        data.nn = u32::try_from(namespaces.len()).unwrap_or(u32::MAX).into();
        data.oncs = Oncs::new()
            .with_compare(true)
            .with_dataset_management(true)
            .with_write_zeroes(true)
            .with_save_features(true)
            .with_timestamp(true)
            .with_verify(true);
        data.vwc = Vwc::new()
            .with_present(true)
            .with_flush_behavior(Vwc::FLUSH_ALL);
        data.sgls = self.sgls;
        data.subnqn = self.subsystem_name();
        if let Some(state) = data.psd.first_mut() {
            state.mp = MAX_POWER.into();
        }
        data
    }

    /// SUBNQN: returns the name of the NVM subsystem, by its UUID (NVMe Base 2.0, 4.5).
    fn subsystem_name(&self) -> [u8; 256] {
        let uuid = hyphenated(uuid(&self.serial, 0));
        let name = format!("nqn.2014-08.org.nvmexpress:uuid:{uuid}");
        zero_padded(name.as_bytes())
    }

    /// Namespace Identification Descriptors (NVMe Base 2.0, 5.17.2.3): a UUID and the command set.
    pub(super) fn descriptors(&self, nsid: u32) -> [u8; DATA_SIZE] {
        let id = uuid(&self.serial, nsid);
        zero_padded(
            &[
                DescriptorHeader::UUID.as_bytes(),
                &id,
                DescriptorHeader::CSI.as_bytes(),
                &[csi::NVM],
            ]
            .concat(),
        )
    }
}

/// Returns this crate's version as FR and as the firmware slot's revision.
pub(super) fn firmware() -> [u8; 8] {
    ascii(env!("CARGO_PKG_VERSION")).unwrap_or([b' '; 8])
}

/// Returns the size of a namespace in bytes.
pub(super) fn capacity(namespace: &Namespace) -> u128 {
    u128::from(namespace.blocks()) * u128::from(namespace.block_bytes())
}

/// Returns these bytes, followed by zeros.
pub(super) fn zero_padded<const LEN: usize>(start: &[u8]) -> [u8; LEN] {
    let mut padded = [0; LEN];
    for (to, from) in padded.iter_mut().zip(start) {
        *to = *from;
    }
    padded
}

/// Returns a UUID that depends only on the serial number and the NSID (RFC 9562, version 8, from an
/// FNV-1a hash).
fn uuid(serial: &str, nsid: u32) -> [u8; 16] {
    let fnv = |half: u8| {
        let input = serial.bytes().chain(nsid.to_le_bytes()).chain([half]);
        input.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    };
    let bits = u128::from(fnv(0)) << 64 | u128::from(fnv(1));
    let version_and_variant = 0xf << 76 | 0b11 << 62;
    (bits & !version_and_variant | 8 << 76 | 0b10 << 62).to_be_bytes()
}

fn hyphenated(uuid: [u8; 16]) -> String {
    let mut text = String::new();
    for (index, byte) in uuid.into_iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Source;

    fn identity(serial: &str) -> ControllerIdentity {
        let config = Config {
            serial: serial.to_owned(),
            namespaces: vec![Source::Ram(512)],
            ..Config::default()
        };
        let identity = Identity {
            vendor: 0x1b36,
            device: 0x10,
            subsystem_vendor: 0x1b36,
            subsystem: 0,
            revision: 0,
            class: 0,
        };
        ControllerIdentity::new(&config, &identity)
    }

    #[test]
    fn uuids_differ_by_serial_and_namespace_and_never_change() {
        let of = |serial, nsid| hyphenated(uuid(serial, nsid));
        assert_eq!(of("disk0", 1), of("disk0", 1));
        assert_ne!(of("disk0", 1), of("disk0", 2));
        assert_ne!(of("disk0", 1), of("disk1", 1));
        let text = of("disk0", 1);
        assert_eq!(text.len(), 36);
        assert_eq!(&text[14..15], "8", "version");
        assert!(matches!(&text[19..20], "8" | "9" | "a" | "b"), "variant");
    }

    #[test]
    fn identify_controller_has_the_fields_that_linux_reads() {
        let data = identity("disk0").controller(&[], false);
        let bytes = data.as_bytes();
        assert_eq!(&bytes[4..24], b"disk0               ", "nvme_id_ctrl.sn");
        assert_eq!(bytes[77], 8, "nvme_id_ctrl.mdts");
        assert_eq!(
            bytes[261], 0b110,
            "nvme_id_ctrl.lpa: no command scopes, no page 13h"
        );
        assert_eq!(bytes[512..514], [0x66, 0x44], "nvme_id_ctrl.sqes and cqes");
        assert!(
            bytes[768..].starts_with(b"nqn.2014-08.org.nvmexpress:uuid:"),
            "nvme_id_ctrl.subnqn"
        );
    }

    #[test]
    fn descriptors_are_a_uuid_and_the_command_set() {
        let bytes = identity("disk0").descriptors(1);
        assert_eq!(bytes[..4], [3, 16, 0, 0], "NVME_NIDT_UUID");
        assert_eq!(bytes[20..25], [4, 1, 0, 0, 0], "NVME_NIDT_CSI");
        assert_eq!(bytes[25..29], [0; 4], "the end of the list");
    }
}
