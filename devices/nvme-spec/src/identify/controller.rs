//! Identify Controller (NVMe Base 2.0, 5.17.2.1).

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Identify Controller (NVMe Base 2.0, 5.17.2.1).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Controller {
    /// VID: PCI Vendor ID.
    pub vid: U16,
    /// SSVID: PCI Subsystem Vendor ID.
    pub ssvid: U16,
    /// SN: Serial Number, ASCII.
    pub sn: [u8; 20],
    /// MN: Model Number, ASCII.
    pub mn: [u8; 40],
    /// FR: Firmware Revision, ASCII.
    pub fr: [u8; 8],
    /// RAB: Recommended Arbitration Burst, a power of two.
    pub rab: u8,
    /// IEEE: the vendor's OUI, least significant byte first.
    pub ieee: [u8; 3],
    /// CMIC: multi-path and sharing capabilities.
    pub cmic: Cmic,
    /// MDTS: the largest transfer is `CAP.MPSMIN << mdts`; 0 means no limit.
    pub mdts: u8,
    /// CNTLID: Controller ID.
    pub cntlid: U16,
    /// VER: the value of VS, [`crate::registers::Vs`].
    pub ver: U32,
    /// RTD3R: RTD3 Resume Latency in microseconds, 0 if not reported.
    pub rtd3r: U32,
    /// RTD3E: RTD3 Entry Latency in microseconds, 0 if not reported.
    pub rtd3e: U32,
    /// OAES: Optional Asynchronous Events Supported.
    pub oaes: Oaes,
    /// CTRATT: Controller Attributes.
    pub ctratt: Ctratt,
    /// RRLS: Read Recovery Levels Supported.
    pub rrls: U16,
    _reserved_102: [u8; 9],
    /// CNTRLTYPE: Controller Type, for example [`Controller::TYPE_IO`].
    pub cntrltype: u8,
    /// FGUID: FRU Globally Unique Identifier.
    pub fguid: [u8; 16],
    /// CRDT1 to CRDT3: Command Retry Delay Times in units of 100 ms.
    pub crdt: [U16; 3],
    _reserved_134: [u8; 119],
    /// NVMSR: NVM Subsystem Report (NVMe-MI).
    pub nvmsr: u8,
    /// VWCI: VPD Write Cycle Information (NVMe-MI).
    pub vwci: u8,
    /// MEC: Management Endpoint Capabilities (NVMe-MI).
    pub mec: u8,
    /// OACS: Optional Admin Command Support.
    pub oacs: Oacs,
    /// ACL: Abort Command Limit, 0's based.
    pub acl: u8,
    /// AERL: Asynchronous Event Request Limit, 0's based.
    pub aerl: u8,
    /// FRMW: Firmware Updates.
    pub frmw: Frmw,
    /// LPA: Log Page Attributes.
    pub lpa: Lpa,
    /// ELPE: Error Log Page Entries, 0's based.
    pub elpe: u8,
    /// NPSS: Number of Power States Support, 0's based.
    pub npss: u8,
    /// AVSCC: Admin Vendor Specific Command Configuration: bit 0, all such commands have the
    /// standard format.
    pub avscc: u8,
    /// APSTA: Autonomous Power State Transition Attributes: bit 0, they are supported.
    pub apsta: u8,
    /// WCTEMP: Warning Composite Temperature Threshold in kelvins, 0 if not reported.
    pub wctemp: U16,
    /// CCTEMP: Critical Composite Temperature Threshold in kelvins, 0 if not reported.
    pub cctemp: U16,
    /// MTFA: Maximum Time for Firmware Activation in units of 100 ms.
    pub mtfa: U16,
    /// HMPRE: Host Memory Buffer Preferred Size in units of 4 KiB.
    pub hmpre: U32,
    /// HMMIN: Host Memory Buffer Minimum Size in units of 4 KiB.
    pub hmmin: U32,
    /// TNVMCAP: Total NVM Capacity in bytes.
    pub tnvmcap: U128,
    /// UNVMCAP: Unallocated NVM Capacity in bytes.
    pub unvmcap: U128,
    /// RPMBS: Replay Protected Memory Block Support.
    pub rpmbs: U32,
    /// EDSTT: Extended Device Self-test Time in minutes.
    pub edstt: U16,
    /// DSTO: Device Self-test Options.
    pub dsto: u8,
    /// FWUG: Firmware Update Granularity in units of 4 KiB; 0 if not reported, FFh for no
    /// restriction.
    pub fwug: u8,
    /// KAS: Keep Alive Support: granularity of the timer in units of 100 ms, 0 if there is none.
    pub kas: U16,
    /// HCTMA: Host Controlled Thermal Management Attributes.
    pub hctma: U16,
    /// MNTMT: Minimum Thermal Management Temperature in kelvins.
    pub mntmt: U16,
    /// MXTMT: Maximum Thermal Management Temperature in kelvins.
    pub mxtmt: U16,
    /// SANICAP: Sanitize Capabilities.
    pub sanicap: Sanicap,
    /// HMMINDS: Host Memory Buffer Minimum Descriptor Entry Size in units of 4 KiB.
    pub hmminds: U32,
    /// HMMAXD: Host Memory Maximum Descriptors Entries.
    pub hmmaxd: U16,
    /// NSETIDMAX: NVM Set Identifier Maximum.
    pub nsetidmax: U16,
    /// ENDGIDMAX: Endurance Group Identifier Maximum.
    pub endgidmax: U16,
    /// ANATT: ANA Transition Time in seconds.
    pub anatt: u8,
    /// ANACAP: Asymmetric Namespace Access Capabilities.
    pub anacap: u8,
    /// ANAGRPMAX: ANA Group Identifier Maximum.
    pub anagrpmax: U32,
    /// NANAGRPID: Number of ANA Group Identifiers.
    pub nanagrpid: U32,
    /// PELS: Persistent Event Log Size in units of 64 KiB.
    pub pels: U32,
    /// Domain Identifier.
    pub domainid: U16,
    _reserved_358: [u8; 10],
    /// MEGCAP: Max Endurance Group Capacity in bytes.
    pub megcap: U128,
    _reserved_384: [u8; 128],
    /// SQES: Submission Queue Entry Size.
    pub sqes: EntrySizes,
    /// CQES: Completion Queue Entry Size.
    pub cqes: EntrySizes,
    /// MAXCMD: Maximum Outstanding Commands, 0 if not reported.
    pub maxcmd: U16,
    /// NN: Number of Namespaces, the largest valid NSID.
    pub nn: U32,
    /// ONCS: Optional NVM Command Support.
    pub oncs: Oncs,
    /// FUSES: Fused Operation Support: bit 0, Compare and Write.
    pub fuses: U16,
    /// FNA: Format NVM Attributes.
    pub fna: u8,
    /// VWC: Volatile Write Cache.
    pub vwc: Vwc,
    /// AWUN: Atomic Write Unit Normal in blocks, 0's based.
    pub awun: U16,
    /// AWUPF: Atomic Write Unit Power Fail in blocks, 0's based.
    pub awupf: U16,
    /// ICSVSCC: I/O Command Set Vendor Specific Command Configuration: bit 0, all such commands
    /// have the standard format.
    pub icsvscc: u8,
    /// NWPC: Namespace Write Protection Capabilities.
    pub nwpc: u8,
    /// ACWU: Atomic Compare & Write Unit in blocks, 0's based.
    pub acwu: U16,
    /// OCFS: Optional Copy Formats Supported: bit 0, format 0h.
    pub ocfs: U16,
    /// SGLS: SGL Support.
    pub sgls: Sgls,
    /// MNAN: Maximum Number of Allowed Namespaces, 0 if it is NN.
    pub mnan: U32,
    /// MAXDNA: Maximum Domain Namespace Attachments.
    pub maxdna: U128,
    /// MAXCNA: Maximum I/O Controller Namespace Attachments.
    pub maxcna: U32,
    _reserved_564: [u8; 204],
    /// SUBNQN: NVM Subsystem NVMe Qualified Name, UTF-8, ended by a zero byte.
    pub subnqn: [u8; 256],
    _reserved_1024: [u8; 768],
    /// Fields of NVMe over Fabrics; reserved on PCIe.
    pub fabrics: [u8; 256],
    /// PSD0 to PSD31: Power State Descriptors.
    pub psd: [PowerState; 32],
    /// Vendor specific.
    pub vendor: [u8; 1024],
}

impl Controller {
    /// CNTRLTYPE: an I/O controller.
    pub const TYPE_IO: u8 = 1;
}

/// CMIC: Controller Multi-Path I/O and Namespace Sharing Capabilities (NVMe Base 2.0, 5.17.2.1,
/// byte 76).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Cmic {
    /// The NVM subsystem may have several ports.
    pub multi_port: bool,
    /// The NVM subsystem may have several controllers.
    pub multi_controller: bool,
    /// The controller belongs to an SR-IOV virtual function.
    pub virtual_function: bool,
    /// Asymmetric Namespace Access is reported.
    pub ana: bool,
    #[bits(4)]
    __: u8,
}

/// OAES: Optional Asynchronous Events Supported (NVMe Base 2.0, 5.17.2.1, bytes 95:92).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Oaes {
    __: u8,
    /// Namespace Attribute Notices.
    pub namespace_attribute: bool,
    /// Firmware Activation Notices.
    pub firmware_activation: bool,
    #[bits(1)]
    __: u8,
    /// Asymmetric Namespace Access Change Notices.
    pub ana_change: bool,
    /// Predictable Latency Event Aggregate Log Change Notices.
    pub predictable_latency: bool,
    /// LBA Status Information Notices.
    pub lba_status: bool,
    /// Endurance Group Event Aggregate Log Page Change Notices.
    pub endurance_group: bool,
    /// Normal NVM Subsystem Shutdown.
    pub normal_shutdown: bool,
    #[bits(16)]
    __: u16,
}

/// CTRATT: Controller Attributes (NVMe Base 2.0, 5.17.2.1, bytes 99:96).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Ctratt {
    /// The Host Identifier may have 128 bits.
    pub host_id_128: bool,
    /// Non-Operational Power State Permissive Mode.
    pub non_operational_permissive: bool,
    /// NVM Sets.
    pub nvm_sets: bool,
    /// Read Recovery Levels.
    pub read_recovery_levels: bool,
    /// Endurance Groups.
    pub endurance_groups: bool,
    /// Predictable Latency Mode.
    pub predictable_latency: bool,
    /// TBKAS: traffic keeps the controller alive.
    pub traffic_based_keep_alive: bool,
    /// Namespace Granularity.
    pub namespace_granularity: bool,
    /// SQ Associations.
    pub sq_associations: bool,
    /// UUID List.
    pub uuid_list: bool,
    /// MDS: Multi-Domain Subsystem.
    pub multi_domain: bool,
    /// Fixed Capacity Management.
    pub fixed_capacity: bool,
    /// Variable Capacity Management.
    pub variable_capacity: bool,
    /// Delete Endurance Group.
    pub delete_endurance_group: bool,
    /// Delete NVM Set.
    pub delete_nvm_set: bool,
    /// ELBAS: Extended LBA Formats.
    pub extended_lba_formats: bool,
    #[bits(16)]
    __: u16,
}

/// OACS: Optional Admin Command Support (NVMe Base 2.0, 5.17.2.1, bytes 257:256).
#[bitfield(u16, repr = U16, from = U16::new, into = U16::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Oacs {
    /// Security Send and Security Receive.
    pub security: bool,
    /// Format NVM.
    pub format: bool,
    /// Firmware Commit and Firmware Image Download.
    pub firmware: bool,
    /// Namespace Management and Namespace Attachment.
    pub namespace_management: bool,
    /// Device Self-test.
    pub self_test: bool,
    /// Directives.
    pub directives: bool,
    /// NVMe-MI Send and NVMe-MI Receive.
    pub nvme_mi: bool,
    /// Virtualization Management.
    pub virtualization: bool,
    /// Doorbell Buffer Config.
    pub doorbell_buffer: bool,
    /// Get LBA Status.
    pub lba_status: bool,
    /// Command and Feature Lockdown.
    pub lockdown: bool,
    #[bits(5)]
    __: u8,
}

/// SANICAP: Sanitize Capabilities (NVMe Base 2.0, 5.17.2.1, bytes 331:328).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Sanicap {
    /// CES: Crypto Erase.
    pub crypto_erase: bool,
    /// BES: Block Erase.
    pub block_erase: bool,
    /// OWS: Overwrite.
    pub overwrite: bool,
    #[bits(26)]
    __: u32,
    /// NDI: a feature may make the controller refuse a sanitize without deallocation.
    pub no_deallocate_inhibited: bool,
    /// NODMMAS: modification of media after a sanitize without deallocation: 1 not modified, 2
    /// modified, 0 not reported.
    #[bits(2)]
    pub nodmmas: u8,
}

/// SGLS: SGL Support (NVMe Base 2.0, 5.17.2.1, bytes 539:536).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Sgls {
    /// SGLs of I/O commands: 0 not supported, [`Sgls::BYTE_ALIGNED`] or [`Sgls::DWORD_ALIGNED`].
    #[bits(2)]
    pub support: u8,
    /// Keyed SGL Data Block descriptors.
    pub keyed: bool,
    #[bits(5)]
    __: u8,
    /// SDT: SGL Descriptor Threshold, the most descriptors that are recommended for a command, 0 if
    /// not reported.
    pub threshold: u8,
    /// SGL Bit Bucket descriptors.
    pub bit_bucket: bool,
    /// Metadata in a contiguous buffer at any byte (MPTR).
    pub byte_aligned_metadata: bool,
    /// An SGL may be longer than the data.
    pub excess_length: bool,
    /// MPTR may be the address of a segment with one descriptor (PSDT 2).
    pub metadata_segment: bool,
    /// Addresses may be offsets.
    pub offsets: bool,
    /// Transport SGL Data Block descriptors.
    pub transport: bool,
    #[bits(10)]
    __: u16,
}

impl Sgls {
    /// Data blocks have any address and length.
    pub const BYTE_ALIGNED: u8 = 1;
    /// Addresses and lengths of data blocks are multiples of 4.
    pub const DWORD_ALIGNED: u8 = 2;
}

/// FRMW: Firmware Updates (NVMe Base 2.0, 5.17.2.1, byte 260).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Frmw {
    /// Slot 1 is read only.
    pub slot_1_read_only: bool,
    /// Number of slots: 1 to 7.
    #[bits(3)]
    pub slots: u8,
    /// Firmware is activated without a reset.
    pub without_reset: bool,
    /// Overlapping firmware and boot partition updates are detected.
    pub overlap_detection: bool,
    #[bits(2)]
    __: u8,
}

/// LPA: Log Page Attributes (NVMe Base 2.0, 5.17.2.1, byte 261).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Lpa {
    /// SMART / Health Information for each namespace.
    pub smart_per_namespace: bool,
    /// Commands Supported and Effects.
    pub command_effects: bool,
    /// Get Log Page accepts offsets and 32 bits of length.
    pub extended_data: bool,
    /// Telemetry.
    pub telemetry: bool,
    /// Persistent Event Log.
    pub persistent_event: bool,
    /// Supported Log Pages, Commands Supported and Effects with scope, Feature Identifiers
    /// Supported and Effects, NVMe-MI Commands Supported and Effects.
    pub supported_pages: bool,
    /// Telemetry Data Area 4.
    pub telemetry_area_4: bool,
    #[bits(1)]
    __: u8,
}

/// SQES and CQES: sizes of queue entries, each a power of two (NVMe Base 2.0, 5.17.2.1, bytes 512
/// and 513).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct EntrySizes {
    /// The required size.
    #[bits(4)]
    pub required: u8,
    /// The largest size.
    #[bits(4)]
    pub maximum: u8,
}

impl EntrySizes {
    /// The entry size that the NVM command set requires of submission queues: 64 bytes.
    pub const SUBMISSION: Self = Self::new().with_required(6).with_maximum(6);
    /// The entry size that the NVM command set requires of completion queues: 16 bytes.
    pub const COMPLETION: Self = Self::new().with_required(4).with_maximum(4);
}

/// ONCS: Optional NVM Command Support (NVMe Base 2.0, 5.17.2.1, bytes 521:520).
#[bitfield(u16, repr = U16, from = U16::new, into = U16::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Oncs {
    /// Compare.
    pub compare: bool,
    /// Write Uncorrectable.
    pub write_uncorrectable: bool,
    /// Dataset Management.
    pub dataset_management: bool,
    /// Write Zeroes.
    pub write_zeroes: bool,
    /// The Save field of Set Features and the Select field of Get Features.
    pub save_features: bool,
    /// Reservations.
    pub reservations: bool,
    /// Timestamp.
    pub timestamp: bool,
    /// Verify.
    pub verify: bool,
    /// Copy.
    pub copy: bool,
    #[bits(7)]
    __: u8,
}

/// VWC: Volatile Write Cache (NVMe Base 2.0, 5.17.2.1, byte 525).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Vwc {
    /// The controller has a volatile write cache.
    pub present: bool,
    /// Effect of Flush with NSID FFFFFFFFh: [`Vwc::FLUSH_ALL`], 2 if it is refused, 0 if not
    /// reported.
    #[bits(2)]
    pub flush_behavior: u8,
    #[bits(5)]
    __: u8,
}

impl Vwc {
    /// Flush with NSID FFFFFFFFh flushes every namespace.
    pub const FLUSH_ALL: u8 = 3;
}

/// Power State Descriptor (NVMe Base 2.0, 5.17.2.1).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PowerState {
    /// MP: Maximum Power, in units of 10 mW (100 µW if bit 0 of `flags` is 1).
    pub mp: U16,
    _reserved_2: u8,
    /// MXPS at bit 0, NOPS (no I/O in this state) at bit 1.
    pub flags: u8,
    /// ENLAT: Entry Latency in microseconds.
    pub enlat: U32,
    /// EXLAT: Exit Latency in microseconds.
    pub exlat: U32,
    /// RRT: Relative Read Throughput.
    pub rrt: u8,
    /// RRL: Relative Read Latency.
    pub rrl: u8,
    /// RWT: Relative Write Throughput.
    pub rwt: u8,
    /// RWL: Relative Write Latency.
    pub rwl: u8,
    /// IDLP: Idle Power.
    pub idlp: U16,
    /// IPS: Idle Power Scale, bits 7:6.
    pub ips: u8,
    _reserved_19: u8,
    /// ACTP: Active Power.
    pub actp: U16,
    /// APW and APS: Active Power Workload, bits 2:0, and Scale, bits 7:6.
    pub apws: u8,
    _reserved_23: [u8; 9],
}

/// Identify Controller of the NVM command set (NVM Command Set 1.0, 4.1.5). 0 means no limit.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct NvmController {
    /// VSL: Verify Size Limit, `CAP.MPSMIN << vsl`.
    pub vsl: u8,
    /// WZSL: Write Zeroes Size Limit, `CAP.MPSMIN << wzsl`.
    pub wzsl: u8,
    /// WUSL: Write Uncorrectable Size Limit, `CAP.MPSMIN << wusl`.
    pub wusl: u8,
    /// DMRL: Dataset Management Ranges Limit.
    pub dmrl: u8,
    /// DMRSL: Dataset Management Range Size Limit, in blocks.
    pub dmrsl: U32,
    /// DMSL: Dataset Management Size Limit, in blocks.
    pub dmsl: U64,
    _reserved_16: [u8; 4080],
}

#[cfg(test)]
mod tests {
    use core::mem::{align_of, offset_of};

    use super::*;

    #[test]
    fn controller_is_linux_nvme_id_ctrl() {
        assert_eq!(size_of::<Controller>(), 4096);
        assert_eq!(align_of::<Controller>(), 1);
        assert_eq!(offset_of!(Controller, ssvid), 2);
        assert_eq!(offset_of!(Controller, sn), 4);
        assert_eq!(offset_of!(Controller, mn), 24);
        assert_eq!(offset_of!(Controller, fr), 64);
        assert_eq!(offset_of!(Controller, rab), 72);
        assert_eq!(offset_of!(Controller, ieee), 73);
        assert_eq!(offset_of!(Controller, cmic), 76);
        assert_eq!(offset_of!(Controller, mdts), 77);
        assert_eq!(offset_of!(Controller, cntlid), 78);
        assert_eq!(offset_of!(Controller, ver), 80);
        assert_eq!(offset_of!(Controller, rtd3r), 84);
        assert_eq!(offset_of!(Controller, rtd3e), 88);
        assert_eq!(offset_of!(Controller, oaes), 92);
        assert_eq!(offset_of!(Controller, ctratt), 96);
        assert_eq!(offset_of!(Controller, rrls), 100); // libnvme
        assert_eq!(offset_of!(Controller, cntrltype), 111);
        assert_eq!(offset_of!(Controller, fguid), 112);
        assert_eq!(offset_of!(Controller, crdt), 128); // crdt1
        assert_eq!(offset_of!(Controller, nvmsr), 253); // libnvme
        assert_eq!(offset_of!(Controller, mec), 255); // libnvme
        assert_eq!(offset_of!(Controller, oacs), 256);
        assert_eq!(offset_of!(Controller, acl), 258);
        assert_eq!(offset_of!(Controller, aerl), 259);
        assert_eq!(offset_of!(Controller, frmw), 260);
        assert_eq!(offset_of!(Controller, lpa), 261);
        assert_eq!(offset_of!(Controller, elpe), 262);
        assert_eq!(offset_of!(Controller, npss), 263);
        assert_eq!(offset_of!(Controller, avscc), 264);
        assert_eq!(offset_of!(Controller, apsta), 265);
        assert_eq!(offset_of!(Controller, wctemp), 266);
        assert_eq!(offset_of!(Controller, cctemp), 268);
        assert_eq!(offset_of!(Controller, mtfa), 270);
        assert_eq!(offset_of!(Controller, hmpre), 272);
        assert_eq!(offset_of!(Controller, hmmin), 276);
        assert_eq!(offset_of!(Controller, tnvmcap), 280);
        assert_eq!(offset_of!(Controller, unvmcap), 296);
        assert_eq!(offset_of!(Controller, rpmbs), 312);
        assert_eq!(offset_of!(Controller, edstt), 316);
        assert_eq!(offset_of!(Controller, dsto), 318);
        assert_eq!(offset_of!(Controller, fwug), 319);
        assert_eq!(offset_of!(Controller, kas), 320);
        assert_eq!(offset_of!(Controller, hctma), 322);
        assert_eq!(offset_of!(Controller, mntmt), 324);
        assert_eq!(offset_of!(Controller, mxtmt), 326);
        assert_eq!(offset_of!(Controller, sanicap), 328);
        assert_eq!(offset_of!(Controller, hmminds), 332);
        assert_eq!(offset_of!(Controller, hmmaxd), 336);
        assert_eq!(offset_of!(Controller, nsetidmax), 338); // libnvme
        assert_eq!(offset_of!(Controller, endgidmax), 340); // libnvme
        assert_eq!(offset_of!(Controller, anatt), 342);
        assert_eq!(offset_of!(Controller, anacap), 343);
        assert_eq!(offset_of!(Controller, anagrpmax), 344);
        assert_eq!(offset_of!(Controller, nanagrpid), 348);
        assert_eq!(offset_of!(Controller, pels), 352); // libnvme
        assert_eq!(offset_of!(Controller, domainid), 356); // libnvme
        assert_eq!(offset_of!(Controller, megcap), 368); // libnvme
        assert_eq!(offset_of!(Controller, sqes), 512);
        assert_eq!(offset_of!(Controller, cqes), 513);
        assert_eq!(offset_of!(Controller, maxcmd), 514);
        assert_eq!(offset_of!(Controller, nn), 516);
        assert_eq!(offset_of!(Controller, oncs), 520);
        assert_eq!(offset_of!(Controller, fuses), 522);
        assert_eq!(offset_of!(Controller, fna), 524);
        assert_eq!(offset_of!(Controller, vwc), 525);
        assert_eq!(offset_of!(Controller, awun), 526);
        assert_eq!(offset_of!(Controller, awupf), 528);
        assert_eq!(offset_of!(Controller, icsvscc), 530); // nvscc
        assert_eq!(offset_of!(Controller, nwpc), 531);
        assert_eq!(offset_of!(Controller, acwu), 532);
        assert_eq!(offset_of!(Controller, ocfs), 534); // libnvme
        assert_eq!(offset_of!(Controller, sgls), 536);
        assert_eq!(offset_of!(Controller, mnan), 540);
        assert_eq!(offset_of!(Controller, maxdna), 544); // libnvme
        assert_eq!(offset_of!(Controller, maxcna), 560); // libnvme
        assert_eq!(offset_of!(Controller, subnqn), 768);
        assert_eq!(offset_of!(Controller, fabrics), 1792); // ioccsz
        assert_eq!(offset_of!(Controller, psd), 2048);
        assert_eq!(offset_of!(Controller, vendor), 3072); // vs
    }

    #[test]
    fn sharing_is_linux_nvme_ctrl_cmic() {
        let bits = |flags: Cmic| flags.into_bits();
        let none = Cmic::new();
        assert_eq!(bits(none.with_multi_port(true)), 1 << 0); // NVME_CTRL_CMIC_MULTI_PORT
        assert_eq!(bits(none.with_multi_controller(true)), 1 << 1); // NVME_CTRL_CMIC_MULTI_CTRL
        assert_eq!(bits(none.with_virtual_function(true)), 1 << 2); // libnvme NVME_CTRL_CMIC_MULTI_SRIOV
        assert_eq!(bits(none.with_ana(true)), 1 << 3); // NVME_CTRL_CMIC_ANA
    }

    #[test]
    fn events_are_linux_nvme_aen_cfg() {
        let bits = |flags: Oaes| flags.into_bits().get();
        let none = Oaes::new();
        assert_eq!(bits(none.with_namespace_attribute(true)), 1 << 8); // NVME_AEN_CFG_NS_ATTR
        assert_eq!(bits(none.with_firmware_activation(true)), 1 << 9); // NVME_AEN_CFG_FW_ACT
        assert_eq!(bits(none.with_ana_change(true)), 1 << 11); // NVME_AEN_CFG_ANA_CHANGE
        assert_eq!(bits(none.with_predictable_latency(true)), 1 << 12); // libnvme NVME_CTRL_OAES_PLEA
        assert_eq!(bits(none.with_lba_status(true)), 1 << 13); // libnvme NVME_CTRL_OAES_LBAS
        assert_eq!(bits(none.with_endurance_group(true)), 1 << 14); // libnvme NVME_CTRL_OAES_EGE
        assert_eq!(bits(none.with_normal_shutdown(true)), 1 << 15); // libnvme NVME_CTRL_OAES_NS
    }

    #[test]
    fn attributes_are_linux_nvme_ctrl_ctratt() {
        let bits = |flags: Ctratt| flags.into_bits().get();
        let none = Ctratt::new();
        assert_eq!(bits(none.with_host_id_128(true)), 1 << 0); // NVME_CTRL_CTRATT_128_ID
        assert_eq!(bits(none.with_non_operational_permissive(true)), 1 << 1); // NVME_CTRL_CTRATT_NON_OP_PSP
        assert_eq!(bits(none.with_nvm_sets(true)), 1 << 2); // NVME_CTRL_CTRATT_NVM_SETS
        assert_eq!(bits(none.with_read_recovery_levels(true)), 1 << 3); // NVME_CTRL_CTRATT_READ_RECV_LVLS
        assert_eq!(bits(none.with_endurance_groups(true)), 1 << 4); // NVME_CTRL_CTRATT_ENDURANCE_GROUPS
        assert_eq!(bits(none.with_predictable_latency(true)), 1 << 5); // NVME_CTRL_CTRATT_PREDICTABLE_LAT
        assert_eq!(bits(none.with_traffic_based_keep_alive(true)), 1 << 6); // NVME_CTRL_ATTR_TBKAS
        assert_eq!(bits(none.with_namespace_granularity(true)), 1 << 7); // NVME_CTRL_CTRATT_NAMESPACE_GRANULARITY
        assert_eq!(bits(none.with_uuid_list(true)), 1 << 9); // NVME_CTRL_CTRATT_UUID_LIST
        assert_eq!(bits(none.with_multi_domain(true)), 1 << 10); // libnvme NVME_CTRL_CTRATT_MDS
        assert_eq!(bits(none.with_delete_nvm_set(true)), 1 << 14); // libnvme NVME_CTRL_CTRATT_DEL_NVM_SETS
        assert_eq!(bits(none.with_extended_lba_formats(true)), 1 << 15); // NVME_CTRL_ATTR_ELBAS
    }

    #[test]
    fn admin_commands_are_linux_nvme_ctrl_oacs() {
        let bits = |flags: Oacs| flags.into_bits().get();
        let none = Oacs::new();
        assert_eq!(bits(none.with_security(true)), 1 << 0); // NVME_CTRL_OACS_SEC_SUPP
        let erase = Sanicap::new().with_block_erase(true).with_nodmmas(1);
        assert_eq!(erase.into_bits().get(), 1 << 1 | 1 << 30); // libnvme NVME_CTRL_SANICAP_BES, _NODMMAS
        assert_eq!(bits(none.with_format(true)), 1 << 1); // libnvme NVME_CTRL_OACS_FORMAT
        assert_eq!(bits(none.with_firmware(true)), 1 << 2); // libnvme NVME_CTRL_OACS_FW
        assert_eq!(bits(none.with_namespace_management(true)), 1 << 3); // NVME_CTRL_OACS_NS_MNGT_SUPP
        assert_eq!(bits(none.with_self_test(true)), 1 << 4); // libnvme NVME_CTRL_OACS_SELF_TEST
        assert_eq!(bits(none.with_directives(true)), 1 << 5); // NVME_CTRL_OACS_DIRECTIVES
        assert_eq!(bits(none.with_nvme_mi(true)), 1 << 6); // libnvme NVME_CTRL_OACS_NVME_MI
        assert_eq!(bits(none.with_virtualization(true)), 1 << 7); // libnvme NVME_CTRL_OACS_VIRT_MGMT
        assert_eq!(bits(none.with_doorbell_buffer(true)), 1 << 8); // NVME_CTRL_OACS_DBBUF_SUPP
        assert_eq!(bits(none.with_lba_status(true)), 1 << 9); // libnvme NVME_CTRL_OACS_LBA_STATUS
        assert_eq!(bits(none.with_lockdown(true)), 1 << 10); // libnvme NVME_CTRL_OACS_CMD_FEAT_LD
    }

    #[test]
    fn log_pages_are_linux_nvme_ctrl_lpa() {
        let bits = |flags: Lpa| flags.into_bits();
        let none = Lpa::new();
        assert_eq!(bits(none.with_smart_per_namespace(true)), 1 << 0); // libnvme NVME_CTRL_LPA_SMART_PER_NS
        assert_eq!(bits(none.with_command_effects(true)), 1 << 1); // NVME_CTRL_LPA_CMD_EFFECTS_LOG
        assert_eq!(bits(none.with_extended_data(true)), 1 << 2); // libnvme NVME_CTRL_LPA_EXTENDED
        assert_eq!(bits(none.with_telemetry(true)), 1 << 3); // libnvme NVME_CTRL_LPA_TELEMETRY
        assert_eq!(bits(none.with_persistent_event(true)), 1 << 4); // libnvme NVME_CTRL_LPA_PERSETENT_EVENT
        assert_eq!(bits(none.with_supported_pages(true)), 1 << 5); // libnvme NVME_CTRL_LPA_LI0_LI5_LI12_LI13
        assert_eq!(bits(none.with_telemetry_area_4(true)), 1 << 6); // libnvme NVME_CTRL_LPA_DA4_TELEMETRY
    }

    #[test]
    fn nvm_commands_are_linux_nvme_ctrl_oncs() {
        let bits = |flags: Oncs| flags.into_bits().get();
        let none = Oncs::new();
        assert_eq!(bits(none.with_compare(true)), 1 << 0); // NVME_CTRL_ONCS_COMPARE
        assert_eq!(bits(none.with_write_uncorrectable(true)), 1 << 1); // NVME_CTRL_ONCS_WRITE_UNCORRECTABLE
        assert_eq!(bits(none.with_dataset_management(true)), 1 << 2); // NVME_CTRL_ONCS_DSM
        assert_eq!(bits(none.with_write_zeroes(true)), 1 << 3); // NVME_CTRL_ONCS_WRITE_ZEROES
        assert_eq!(bits(none.with_save_features(true)), 1 << 4); // libnvme NVME_CTRL_ONCS_SAVE_FEATURES
        assert_eq!(bits(none.with_reservations(true)), 1 << 5); // NVME_CTRL_ONCS_RESERVATIONS
        assert_eq!(bits(none.with_timestamp(true)), 1 << 6); // NVME_CTRL_ONCS_TIMESTAMP
        assert_eq!(bits(none.with_verify(true)), 1 << 7); // libnvme NVME_CTRL_ONCS_VERIFY
        assert_eq!(bits(none.with_copy(true)), 1 << 8); // libnvme NVME_CTRL_ONCS_COPY
    }

    #[test]
    fn sgl_support_is_linux_nvme_ctrl_sgls() {
        let bits = |flags: Sgls| flags.into_bits().get();
        let none = Sgls::new();
        assert_eq!(bits(none.with_support(Sgls::BYTE_ALIGNED)), 1); // NVME_CTRL_SGLS_BYTE_ALIGNED
        assert_eq!(bits(none.with_support(Sgls::DWORD_ALIGNED)), 2); // NVME_CTRL_SGLS_DWORD_ALIGNED
        assert_eq!(bits(none.with_keyed(true)), 1 << 2); // NVME_CTRL_SGLS_KSDBDS
        assert_eq!(bits(none.with_threshold(1)), 1 << 8);
        assert_eq!(bits(none.with_bit_bucket(true)), 1 << 16); // libnvme NVME_CTRL_SGLS_BIT_BUCKET
        assert_eq!(bits(none.with_byte_aligned_metadata(true)), 1 << 17); // libnvme NVME_CTRL_SGLS_MPTR_BYTE_ALIGNED
        assert_eq!(bits(none.with_excess_length(true)), 1 << 18); // libnvme NVME_CTRL_SGLS_OVERSIZE
        assert_eq!(bits(none.with_metadata_segment(true)), 1 << 19); // NVME_CTRL_SGLS_MSDS
        assert_eq!(bits(none.with_offsets(true)), 1 << 20); // NVME_CTRL_SGLS_SAOS
        assert_eq!(bits(none.with_transport(true)), 1 << 21); // libnvme NVME_CTRL_SGLS_TPORT
    }

    #[test]
    fn small_fields() {
        // libnvme NVME_CTRL_FRMW_1ST_RO, NVME_CTRL_FRMW_NR_SLOTS (bits 3:1),
        // NVME_CTRL_FRMW_FW_ACT_NO_RESET
        assert_eq!(Frmw::new().with_slot_1_read_only(true).into_bits(), 1 << 0);
        assert_eq!(Frmw::new().with_slots(7).into_bits(), 7 << 1);
        assert_eq!(Frmw::new().with_without_reset(true).into_bits(), 1 << 4);
        // NVME_CTRL_VWC_PRESENT, libnvme NVME_CTRL_VWC_FLUSH
        assert_eq!(Vwc::new().with_present(true).into_bits(), 1 << 0);
        let flush_all = Vwc::new().with_flush_behavior(Vwc::FLUSH_ALL);
        assert_eq!(flush_all.into_bits(), 3 << 1);
        assert_eq!(EntrySizes::SUBMISSION.into_bits(), 0x66); // NVME_NVM_IOSQES
        assert_eq!(EntrySizes::COMPLETION.into_bits(), 0x44); // NVME_NVM_IOCQES
    }

    #[test]
    fn power_state_is_linux_nvme_id_power_state() {
        assert_eq!(size_of::<PowerState>(), 32);
        assert_eq!(offset_of!(PowerState, flags), 3);
        assert_eq!(offset_of!(PowerState, enlat), 4); // entry_lat
        assert_eq!(offset_of!(PowerState, exlat), 8); // exit_lat
        assert_eq!(offset_of!(PowerState, rrt), 12); // read_tput
        assert_eq!(offset_of!(PowerState, idlp), 16); // idle_power
        assert_eq!(offset_of!(PowerState, actp), 20); // active_power
        assert_eq!(offset_of!(PowerState, apws), 22); // active_work_scale
    }

    #[test]
    fn nvm_controller_is_linux_nvme_id_ctrl_nvm() {
        assert_eq!(size_of::<NvmController>(), 4096);
        assert_eq!(offset_of!(NvmController, wzsl), 1);
        assert_eq!(offset_of!(NvmController, dmrl), 3);
        assert_eq!(offset_of!(NvmController, dmrsl), 4);
        assert_eq!(offset_of!(NvmController, dmsl), 8);
    }
}
