//! Identify (NVMe Base 2.0, 5.17; NVM Command Set 1.0, 4.1.5).

use peerbar_dma::Purpose;
use peerbar_nvme_spec::command::admin::Identify;
use peerbar_nvme_spec::command::{NSID_ALL, SubmissionEntry};
use peerbar_nvme_spec::completion::Status;
use peerbar_nvme_spec::identify::controller::NvmController;
use peerbar_nvme_spec::identify::namespace::{
    Dlfeat, IndependentNamespace, Namespace as NamespaceData, NvmNamespace,
};
use peerbar_nvme_spec::identify::{
    CommandSetVectors, CommandSets, ControllerList, DATA_SIZE, NamespaceList, cns, csi,
};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromZeros, Immutable, IntoBytes};

use super::identify_controller::{CONTROLLER_ID, capacity, zero_padded};
use super::reply::Reply;
use crate::engine::Engine;
use crate::namespace::Namespace;

impl Engine {
    pub(super) fn identify(&mut self, entry: &SubmissionEntry) -> Result<Reply, Status> {
        let data = self.identify_data(entry)?;
        self.data
            .send(Purpose::Control, entry, DATA_SIZE, |buffer| {
                buffer.copy_from_slice(&data);
                Ok(())
            })?;
        Ok(Reply::DONE)
    }

    fn identify_data(&self, entry: &SubmissionEntry) -> Result<[u8; DATA_SIZE], Status> {
        let command = Identify::from(entry);
        let nsid = entry.nsid.get();
        let namespace = || self.storage.find(nsid);
        let nvm_only = || match command.csi {
            csi::NVM => Ok(()),
            _ => Err(Status::INVALID_IO_COMMAND_SET.with_dnr(true)),
        };
        Ok(match command.cns {
            cns::NAMESPACE | cns::ALLOCATED_NAMESPACE => bytes(&namespace_data(namespace()?)),
            cns::CONTROLLER => {
                let doorbell_buffer = self.offers_doorbell_buffer();
                let identity = &self.admin.identity;
                bytes(&identity.controller(&self.storage.namespaces, doorbell_buffer))
            }
            cns::ACTIVE_NAMESPACES | cns::ALLOCATED_NAMESPACES => self.namespaces_above(nsid)?,
            cns::NAMESPACE_DESCRIPTORS => {
                namespace()?;
                self.admin.identity.descriptors(nsid)
            }
            cns::COMMAND_SET_NAMESPACE | cns::COMMAND_SET_ALLOCATED_NAMESPACE => {
                nvm_only()?;
                namespace()?;
                bytes(&NvmNamespace::new_zeroed())
            }
            cns::COMMAND_SET_CONTROLLER => {
                nvm_only()?;
                bytes(&NvmController::new_zeroed())
            }
            cns::COMMAND_SET_ACTIVE_NAMESPACES | cns::COMMAND_SET_ALLOCATED_NAMESPACES => {
                nvm_only()?;
                self.namespaces_above(nsid)?
            }
            cns::INDEPENDENT_NAMESPACE => {
                namespace()?;
                independent_namespace()
            }
            cns::NAMESPACE_CONTROLLERS => {
                namespace()?;
                controllers_from(command.cntid.get())
            }
            cns::CONTROLLERS => controllers_from(command.cntid.get()),
            cns::COMMAND_SETS => command_sets(command.cntid.get())?,
            _ => return Err(Status::INVALID_FIELD.with_dnr(true)),
        })
    }

    /// Returns all namespaces above an NSID, in order (NVMe Base 2.0, 5.17.2.2).
    fn namespaces_above(&self, nsid: u32) -> Result<[u8; DATA_SIZE], Status> {
        if nsid >= NSID_ALL - 1 {
            return Err(Status::INVALID_NAMESPACE.with_dnr(true));
        }
        let count = u32::try_from(self.storage.namespaces.len()).unwrap_or(u32::MAX);
        let mut list = NamespaceList::new_zeroed();
        for (entry, found) in list.nsids.iter_mut().zip(nsid.saturating_add(1)..=count) {
            *entry = U32::new(found);
        }
        Ok(bytes(&list))
    }
}

/// Identify Namespace (NVM Command Set 1.0, 4.1.5.1).
fn namespace_data(namespace: &Namespace) -> NamespaceData {
    let mut data = NamespaceData::new_zeroed();
    data.nsze = namespace.blocks().into();
    data.ncap = namespace.blocks().into();
    data.nuse = namespace.blocks().into();
    data.dlfeat = Dlfeat::new()
        .with_read_behavior(Dlfeat::READS_ZEROES)
        .with_write_zeroes(true);
    data.nvmcap = capacity(namespace).into();
    if let Some(format) = data.lbaf.first_mut() {
        format.lbads = u8::try_from(namespace.block_bytes().trailing_zeros()).unwrap_or(0);
    }
    data
}

/// Returns the data of a namespace that is independent of the command set (NVMe Base 2.0,
/// 5.17.2.8).
fn independent_namespace() -> [u8; DATA_SIZE] {
    let mut data = IndependentNamespace::new_zeroed();
    data.nstat.set_nrdy(true);
    zero_padded(data.as_bytes())
}

/// Returns the controllers from an ID on (NVMe Base 2.0, 5.17.2.10). There is one controller.
fn controllers_from(id: u16) -> [u8; DATA_SIZE] {
    let mut list = ControllerList::new_zeroed();
    if id <= CONTROLLER_ID {
        list.count = U16::new(1);
        if let Some(first) = list.cntlids.first_mut() {
            *first = U16::new(CONTROLLER_ID);
        }
    }
    bytes(&list)
}

/// Returns the combinations of command sets (NVMe Base 2.0, 5.17.2.21). FFFFh stands for the
/// controller that executes the command.
fn command_sets(controller: u16) -> Result<[u8; DATA_SIZE], Status> {
    if controller != CONTROLLER_ID && controller != u16::MAX {
        return Err(Status::INVALID_CONTROLLER_ID.with_dnr(true));
    }
    let mut vectors = CommandSetVectors::new_zeroed();
    if let Some(first) = vectors.combinations.first_mut() {
        *first = CommandSets::new().with_nvm(true);
    }
    Ok(bytes(&vectors))
}

fn bytes<T: IntoBytes + Immutable>(data: &T) -> [u8; DATA_SIZE] {
    zero_padded(data.as_bytes())
}
