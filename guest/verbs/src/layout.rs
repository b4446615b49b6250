//! Structures of libibverbs and libefa that programs access directly (rdma-core,
//! `libibverbs/verbs.h`, `providers/efa/efadv.h`).

use std::ffi::{c_char, c_int, c_uint, c_void};

/// `struct ibv_device`, used only by its address.
#[repr(C)]
pub(crate) struct Device {
    _opaque: [u8; 0],
}

/// `struct ibv_context`, up to its device file.
#[repr(C)]
pub(crate) struct Context {
    pub(crate) device: *mut Device,
    _before_poll_cq: [*mut c_void; 11],
    pub(crate) poll_cq: unsafe extern "C" fn(*mut Cq, c_int, *mut WorkCompletion) -> c_int,
    _before_post_recv: [*mut c_void; 14],
    pub(crate) post_recv:
        unsafe extern "C" fn(*mut Qp, *mut RecvRequest, *mut *mut RecvRequest) -> c_int,
    _before_cmd_fd: [*mut c_void; 5],
    pub(crate) cmd_fd: c_int,
}

/// `struct ibv_pd`, used only by its address.
#[repr(C)]
pub(crate) struct Pd {
    _opaque: [u8; 0],
}

/// `struct ibv_cq`, up to the kernel's handle of it.
#[repr(C)]
pub(crate) struct Cq {
    pub(crate) context: *mut Context,
    _channel: *mut c_void,
    _cq_context: *mut c_void,
    pub(crate) handle: u32,
}

/// `struct ibv_ah`, used only by its address.
#[repr(C)]
pub(crate) struct Ah {
    _opaque: [u8; 0],
}

/// `struct ibv_mr`.
#[repr(C)]
pub(crate) struct Mr {
    pub(crate) context: *mut Context,
    pub(crate) pd: *mut Pd,
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// `struct ibv_qp`.
#[repr(C)]
pub(crate) struct Qp {
    pub(crate) context: *mut Context,
    pub(crate) qp_context: *mut c_void,
    pub(crate) pd: *mut Pd,
    pub(crate) send_cq: *mut Cq,
    pub(crate) recv_cq: *mut Cq,
    pub(crate) srq: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
    pub(crate) state: c_uint,
    pub(crate) qp_type: c_uint,
    _mutex: libc::pthread_mutex_t,
    _cond: libc::pthread_cond_t,
    pub(crate) events_completed: u32,
}

/// `struct ibv_qp_ex`, which posts work requests.
#[repr(C)]
pub(crate) struct QpEx {
    pub(crate) qp_base: Qp,
    pub(crate) comp_mask: u64,
    pub(crate) wr_id: u64,
    pub(crate) wr_flags: c_uint,
    _before_rdma_read: [*mut c_void; 4],
    pub(crate) wr_rdma_read: unsafe extern "C" fn(*mut QpEx, u32, u64),
    pub(crate) wr_rdma_write: unsafe extern "C" fn(*mut QpEx, u32, u64),
    pub(crate) wr_rdma_write_imm: unsafe extern "C" fn(*mut QpEx, u32, u64, u32),
    pub(crate) wr_send: unsafe extern "C" fn(*mut QpEx),
    pub(crate) wr_send_imm: unsafe extern "C" fn(*mut QpEx, u32),
    _before_set_ud_addr: [*mut c_void; 2],
    pub(crate) wr_set_ud_addr: unsafe extern "C" fn(*mut QpEx, *mut Ah, u32, u32),
    _before_set_sge: [*mut c_void; 3],
    pub(crate) wr_set_sge: unsafe extern "C" fn(*mut QpEx, u32, u64, u32),
    _wr_set_sge_list: *mut c_void,
    pub(crate) wr_start: unsafe extern "C" fn(*mut QpEx),
    pub(crate) wr_complete: unsafe extern "C" fn(*mut QpEx) -> c_int,
}

/// `struct ibv_sge`.
#[repr(C)]
pub(crate) struct Sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

/// `struct ibv_recv_wr`.
#[repr(C)]
pub(crate) struct RecvRequest {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut RecvRequest,
    pub(crate) sg_list: *mut Sge,
    pub(crate) num_sge: c_int,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WorkCompletion {
    pub(crate) wr_id: u64,
    pub(crate) status: c_uint,
    pub(crate) opcode: c_uint,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: c_uint,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QpCap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

/// `struct ibv_rx_hash_conf`.
#[repr(C)]
pub(crate) struct RxHashConf {
    function: u8,
    key_length: u8,
    key: *mut u8,
    fields: u64,
}

/// `struct ibv_qp_init_attr_ex`.
#[repr(C)]
pub(crate) struct QpInitAttrEx {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut Cq,
    pub(crate) recv_cq: *mut Cq,
    pub(crate) srq: *mut c_void,
    pub(crate) cap: QpCap,
    pub(crate) qp_type: c_uint,
    pub(crate) sq_sig_all: c_int,
    pub(crate) comp_mask: u32,
    pub(crate) pd: *mut Pd,
    pub(crate) xrcd: *mut c_void,
    pub(crate) create_flags: u32,
    pub(crate) max_tso_header: u16,
    pub(crate) rwq_ind_tbl: *mut c_void,
    pub(crate) rx_hash_conf: RxHashConf,
    pub(crate) source_qpn: u32,
    pub(crate) send_ops_flags: u64,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub(crate) struct QpInitAttr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut Cq,
    pub(crate) recv_cq: *mut Cq,
    pub(crate) srq: *mut c_void,
    pub(crate) cap: QpCap,
    pub(crate) qp_type: c_uint,
    pub(crate) sq_sig_all: c_int,
}

/// `struct efadv_qp_init_attr`, as in rdma-core from 29 on; later fields are omitted.
#[repr(C)]
#[derive(Default)]
pub(crate) struct EfaQpInitAttr {
    pub(crate) comp_mask: u64,
    pub(crate) driver_qp_type: u32,
    pub(crate) flags: u16,
    pub(crate) sl: u8,
    pub(crate) reserved: u8,
}

/// `struct ibv_global_route`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct GlobalRoute {
    pub(crate) dgid: Gid,
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
}

/// `union ibv_gid`, whose other half is two 64-bit numbers.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub(crate) struct Gid(pub(crate) [u8; 16]);

/// `struct ibv_ah_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct AhAttr {
    pub(crate) grh: GlobalRoute,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct QpAttr {
    pub(crate) qp_state: c_uint,
    pub(crate) cur_qp_state: c_uint,
    pub(crate) path_mtu: c_uint,
    pub(crate) path_mig_state: c_uint,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: c_uint,
    pub(crate) cap: QpCap,
    pub(crate) ah_attr: AhAttr,
    pub(crate) alt_ah_attr: AhAttr,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) rate_limit: u32,
}

/// `struct _compat_ibv_port_attr`, which the exported `ibv_query_port` fills in.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct PortAttr {
    pub(crate) state: c_uint,
    pub(crate) max_mtu: c_uint,
    pub(crate) active_mtu: c_uint,
    pub(crate) gid_tbl_len: c_int,
    pub(crate) port_cap_flags: u32,
    pub(crate) max_msg_sz: u32,
    _further: [u32; 6],
}

pub(crate) type GetDeviceList = unsafe extern "C" fn(*mut c_int) -> *mut *mut Device;
pub(crate) type FreeDeviceList = unsafe extern "C" fn(*mut *mut Device);
pub(crate) type GetDeviceName = unsafe extern "C" fn(*mut Device) -> *const c_char;
pub(crate) type OpenDevice = unsafe extern "C" fn(*mut Device) -> *mut Context;
pub(crate) type CloseDevice = unsafe extern "C" fn(*mut Context) -> c_int;
pub(crate) type QueryPort = unsafe extern "C" fn(*mut Context, u8, *mut PortAttr) -> c_int;
pub(crate) type QueryGid = unsafe extern "C" fn(*mut Context, u8, c_int, *mut Gid) -> c_int;
pub(crate) type AllocPd = unsafe extern "C" fn(*mut Context) -> *mut Pd;
pub(crate) type DeallocPd = unsafe extern "C" fn(*mut Pd) -> c_int;
pub(crate) type RegMr = unsafe extern "C" fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
pub(crate) type RegDmabufMr =
    unsafe extern "C" fn(*mut Pd, u64, usize, u64, c_int, c_int) -> *mut Mr;
pub(crate) type DeregMr = unsafe extern "C" fn(*mut Mr) -> c_int;
pub(crate) type CreateCq =
    unsafe extern "C" fn(*mut Context, c_int, *mut c_void, *mut c_void, c_int) -> *mut Cq;
pub(crate) type DestroyCq = unsafe extern "C" fn(*mut Cq) -> c_int;
pub(crate) type QpToQpEx = unsafe extern "C" fn(*mut Qp) -> *mut QpEx;
pub(crate) type ModifyQp = unsafe extern "C" fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
pub(crate) type QueryQp =
    unsafe extern "C" fn(*mut Qp, *mut QpAttr, c_int, *mut QpInitAttr) -> c_int;
pub(crate) type DestroyQp = unsafe extern "C" fn(*mut Qp) -> c_int;
pub(crate) type CreateAh = unsafe extern "C" fn(*mut Pd, *mut AhAttr) -> *mut Ah;
pub(crate) type DestroyAh = unsafe extern "C" fn(*mut Ah) -> c_int;
pub(crate) type EfaCreateQpEx =
    unsafe extern "C" fn(*mut Context, *mut QpInitAttrEx, *mut EfaQpInitAttr, u32) -> *mut Qp;

/// Offsets and sizes that a C compiler gives for these structures of rdma-core on x86-64.
#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    #[test]
    fn operations_lie_where_the_library_has_them() {
        assert_eq!(offset_of!(Context, poll_cq), 8 + 11 * 8);
        assert_eq!(offset_of!(Context, post_recv), 8 + 26 * 8);
        assert_eq!(offset_of!(Context, cmd_fd), 8 + 32 * 8);
        assert_eq!(offset_of!(QpEx, comp_mask), 160);
        assert_eq!(offset_of!(QpEx, wr_rdma_read), 216);
        assert_eq!(offset_of!(QpEx, wr_send), 240);
        assert_eq!(offset_of!(QpEx, wr_set_ud_addr), 272);
        assert_eq!(offset_of!(QpEx, wr_set_sge), 304);
        assert_eq!(offset_of!(QpEx, wr_start), 320);
        assert_eq!(offset_of!(QpEx, wr_complete), 328);
    }

    #[test]
    fn attributes_lie_where_the_library_has_them() {
        assert_eq!((size_of::<Qp>(), offset_of!(Qp, qp_num)), (160, 52));
        assert_eq!(offset_of!(Mr, rkey), 40);
        assert_eq!(offset_of!(Cq, handle), 24);
        assert_eq!(size_of::<QpInitAttr>(), 64);
        assert_eq!(size_of::<WorkCompletion>(), 48);
        assert_eq!(size_of::<RecvRequest>(), 32);
        assert_eq!(offset_of!(QpInitAttrEx, comp_mask), 60);
        assert_eq!(offset_of!(QpInitAttrEx, pd), 64);
        assert_eq!(offset_of!(QpInitAttrEx, send_ops_flags), 128);
        assert_eq!(size_of::<EfaQpInitAttr>(), 16);
        assert_eq!(size_of::<AhAttr>(), 32);
        assert_eq!(
            (size_of::<QpAttr>(), offset_of!(QpAttr, ah_attr)),
            (144, 56)
        );
        assert_eq!(offset_of!(QpAttr, port_num), 129);
        assert_eq!(
            (size_of::<PortAttr>(), offset_of!(PortAttr, max_msg_sz)),
            (48, 20)
        );
    }
}
