//! The libraries of rdma-core, loaded when they are first needed.

#![expect(unsafe_code)]

use std::sync::OnceLock;

use libloading::Library;

use crate::layout::{
    AllocPd, CloseDevice, CreateAh, CreateCq, DeallocPd, DeregMr, DestroyAh, DestroyCq, DestroyQp,
    EfaCreateQpEx, FreeDeviceList, GetDeviceList, GetDeviceName, ModifyQp, OpenDevice, QpToQpEx,
    QueryGid, QueryPort, QueryQp, RegDmabufMr, RegMr,
};
use crate::{Error, Result};

const VERBS: &str = "libibverbs.so.1";
const EFA: &str = "libefa.so.1";

macro_rules! functions {
    ($($library:ident $name:literal $field:ident: $type:ty,)*) => {
        /// Functions of libibverbs and libefa, and the libraries themselves, which stay loaded.
        pub(crate) struct Functions {
            $(pub(crate) $field: $type,)*
            _verbs: Library,
            _efa: Library,
        }

        impl Functions {
            fn load() -> Result<Self> {
                let (verbs, efa) = (open(VERBS)?, open(EFA)?);
                Ok(Self {
                    $($field: {
                        let (library, name) = functions!(@library $library, verbs, efa);
                        // SAFETY: the function has this type in the library's header.
                        let found = unsafe { library.get::<$type>($name) };
                        *found.map_err(|source| Error::Library { name, source })?
                    },)*
                    _verbs: verbs,
                    _efa: efa,
                })
            }
        }
    };
    (@library verbs, $verbs:ident, $efa:ident) => { (&$verbs, VERBS) };
    (@library efa, $verbs:ident, $efa:ident) => { (&$efa, EFA) };
}

functions! {
    verbs b"ibv_get_device_list\0" get_device_list: GetDeviceList,
    verbs b"ibv_free_device_list\0" free_device_list: FreeDeviceList,
    verbs b"ibv_get_device_name\0" get_device_name: GetDeviceName,
    verbs b"ibv_open_device\0" open_device: OpenDevice,
    verbs b"ibv_close_device\0" close_device: CloseDevice,
    verbs b"ibv_query_port\0" query_port: QueryPort,
    verbs b"ibv_query_gid\0" query_gid: QueryGid,
    verbs b"ibv_alloc_pd\0" alloc_pd: AllocPd,
    verbs b"ibv_dealloc_pd\0" dealloc_pd: DeallocPd,
    verbs b"ibv_reg_mr\0" reg_mr: RegMr,
    verbs b"ibv_reg_dmabuf_mr\0" reg_dmabuf_mr: RegDmabufMr,
    verbs b"ibv_dereg_mr\0" dereg_mr: DeregMr,
    verbs b"ibv_create_cq\0" create_cq: CreateCq,
    verbs b"ibv_destroy_cq\0" destroy_cq: DestroyCq,
    verbs b"ibv_qp_to_qp_ex\0" qp_to_qp_ex: QpToQpEx,
    verbs b"ibv_modify_qp\0" modify_qp: ModifyQp,
    verbs b"ibv_query_qp\0" query_qp: QueryQp,
    verbs b"ibv_destroy_qp\0" destroy_qp: DestroyQp,
    verbs b"ibv_create_ah\0" create_ah: CreateAh,
    verbs b"ibv_destroy_ah\0" destroy_ah: DestroyAh,
    efa b"efadv_create_qp_ex\0" efa_create_qp_ex: EfaCreateQpEx,
}

fn open(name: &'static str) -> Result<Library> {
    // SAFETY: initialization of rdma-core's libraries has no preconditions.
    unsafe { Library::new(name) }.map_err(|source| Error::Library { name, source })
}

/// Returns the functions, which are loaded at the first call.
pub(crate) fn functions() -> Result<&'static Functions> {
    static LOADED: OnceLock<Functions> = OnceLock::new();
    if let Some(loaded) = LOADED.get() {
        return Ok(loaded);
    }
    let loaded = Functions::load()?;
    Ok(LOADED.get_or_init(|| loaded))
}
